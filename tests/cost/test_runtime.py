"""Predicted times of the runtime's nodes: plausible for every kind, aware of its fusions, near measured ones."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.runtime_cases import Case
from benchmarks.runtime_nodes import profiled
from onnxfuse.cost import nodes
from onnxfuse.cost.fusions import calls_of, group_seconds
from onnxfuse.cost.nodes import Call, Tensor, whole, work_of
from onnxfuse.cost.runtime import IN_PAIRS, KINDS, WAKING, node_seconds
from onnxfuse.ir.dtype import F32, I8, I32, I64, U8, DType
from onnxfuse.ir.graph import Node
from onnxfuse.ops.rows import ROWS
from onnxfuse.ops.traits import is_view_by_name
from onnxfuse.target import CPUS, targets_of

V4 = CPUS["x86-64-v4"]


def floats(*shape: int, constant: bool = False) -> Tensor:
    return Tensor(F32, shape, constant)


def same(op: str, n: int, **attrs: object) -> Call:
    return Call(op, (floats(n, 512), floats(n, 512)), (floats(n, 512),), attrs)  # type: ignore[arg-type]


def convolution(n: int, channels: int, window: int, group: int = 1, rank: int = 2) -> Call:
    image, weights = floats(1, channels, *[n] * rank), floats(64, channels // group, *[window] * rank, constant=True)
    return Call("Conv", (image, weights), (floats(1, 64, *[n] * rank),), {"group": group})


def layer(op: str, gates: int, steps: int, batch: int) -> Call:
    """A layer of 64 units over 32 features."""
    weights = (floats(1, gates * 64, 32), floats(1, gates * 64, 64))
    return Call(op, (floats(steps, batch, 32), *weights), (floats(steps, 1, batch, 64),), {})


# For each kind a node that gets longer with n.
OPS_ON_CODES = ("QLinearConv", "ConvInteger")


def of_codes(op: str, filters: int, deep: int, window: int, groups: int, side: int, dtype: DType) -> Call:
    """A convolution of an unsigned image that keeps its size, by filters of a type."""
    image, weights = Tensor(U8, (1, deep * groups, side, side)), Tensor(dtype, (filters, deep, window, window), True)
    between = (None, None) if op == "QLinearConv" else ()
    out = Tensor(U8 if between else I32, (1, filters, side, side))
    return Call(op, (image, *between, weights), (out,), {"group": groups})


NODES = {
    "view": lambda n: same("Reshape", n),
    "cheap": lambda n: same("Add", n),
    "moderate": lambda n: same("Div", n),
    "exponential": lambda n: same("Tanh", n),
    "error function": lambda n: same("Erf", n),
    "function": lambda n: same("Log", n),
    "power": lambda n: same("Pow", n),
    "comparison": lambda n: same("Less", n),
    "selection": lambda n: same("Where", n),
    "integer": lambda n: Call("Add", (Tensor(I64, (n, 512)),) * 2, (Tensor(I64, (n, 512)),), {}),
    "cast": lambda n: same("Cast", n),
    "code": lambda n: same("QuantizeLinear", n),
    "reduction": lambda n: Call("ReduceSum", (floats(n, 512),), (floats(n, 1),), {}),
    "reduction outer": lambda n: Call("ReduceSum", (floats(n, 512),), (floats(1, 512),), {}),
    "extreme outer": lambda n: Call("ReduceMax", (floats(n, 512),), (floats(1, 512),), {}),
    "scan": lambda n: same("ArgMax", n),
    "cumulation": lambda n: same("CumSum", n),
    "softmax": lambda n: same("Softmax", n, axis=1),
    "softmax inner": lambda n: same("Softmax", n, axis=0),
    "normalization": lambda n: same("LayerNormalization", n),
    "skipping normalization": lambda n: same("SkipLayerNormalization", n),
    "LSTM": lambda n: layer("LSTM", 4, n, 4),
    "LSTM of a row": lambda n: layer("LSTM", 4, n, 1),
    "GRU": lambda n: layer("GRU", 3, n, 4),
    "GRU of a row": lambda n: layer("GRU", 3, n, 1),
    "RNN": lambda n: layer("RNN", 1, n, 4),
    "RNN of a row": lambda n: layer("RNN", 1, n, 1),
    "product": lambda n: Call("MatMul", (floats(16 * n, 512), floats(512, 64)), (floats(16 * n, 64),), {}),
    "product of few rows": lambda n: Call("MatMul", (floats(4, 8 * n), floats(8 * n, 64)), (floats(4, 64),), {}),
    "product of a row": lambda n: Call("MatMul", (floats(1, 8 * n), floats(8 * n, 64)), (floats(1, 64),), {}),
    "product batched": lambda n: Call(
        "MatMul", (floats(4, 16 * n, 32), floats(4, 32, 64)), (floats(4, 16 * n, 64),), {}
    ),
    "product of codes": lambda n: Call(
        "MatMulInteger", (Tensor(U8, (n, 64)), Tensor(I8, (64, 64))), (floats(n, 64),), {}
    ),
    "convolution 1x1": lambda n: convolution(n, 64, 1),
    "convolution 3x3": lambda n: convolution(n, 64, 3),
    "convolution large": lambda n: convolution(n, 64, 7),
    "convolution few": lambda n: convolution(n, 3, 3),
    "convolution depthwise": lambda n: convolution(n, 64, 3, 64),
    "convolution depthwise 1-D": lambda n: convolution(n, 64, 9, 64, rank=1),
    "convolution grouped": lambda n: convolution(n, 64, 3, 8),
    "convolution 1-D": lambda n: convolution(n, 64, 3, rank=1),
    "convolution 1-D shallow": lambda n: convolution(n, 3, 3, rank=1),
    "convolution transposed": lambda n: replace(convolution(n, 64, 3), op="ConvTranspose"),
    "convolution of codes": lambda n: of_codes("QLinearConv", 64, 64, 3, 1, n, I8),
    "pooling": lambda n: Call("MaxPool", (floats(1, 64, n, n),), (floats(1, 64, n, n),), {"kernel_shape": (3, 3)}),
    "resize nearest": lambda n: same("Resize", n),
    "resize linear": lambda n: same("Resize", n, mode=b"linear"),
    "resize cubic": lambda n: same("Resize", n, mode="cubic"),
    "sample nearest": lambda n: same("GridSample", n, mode="nearest"),
    "sample linear": lambda n: same("GridSample", n, padding_mode="border"),
    "sample linear zeros": lambda n: same("GridSample", n, mode=b"bilinear"),
    "sample cubic": lambda n: same("GridSample", n, mode="bicubic"),
    "sample regions": lambda n: same("RoiAlign", n, sampling_ratio=2),
    "transpose": lambda n: same("Transpose", n),
    "shuffle": lambda n: same("DepthToSpace", n),
    "copy": lambda n: same("Slice", n),
    "pad": lambda n: same("Pad", n),
    "gather": lambda n: same("Gather", n, axis=0),
    "gather inner": lambda n: same("Gather", n, axis=1),
    "scatter": lambda n: same("OneHot", n),
}


def test_every_kind_has_a_node_here():
    assert NODES.keys() == KINDS.keys() > IN_PAIRS.keys()


@pytest.mark.parametrize("kind", IN_PAIRS)
def test_codes_take_longer_without_dot_products(kind: str):
    fast, slow = CPUS["x86-64-v4"], replace(CPUS["x86-64-v4"], codes=CPUS["x86-64-v3"].codes)
    times = [[node_seconds(NODES[kind](n), machine) for n in (512, 4096)] for machine in (fast, slow)]
    assert all(1.2 < b / a < 2 for a, b in zip(*times, strict=True))


@pytest.mark.parametrize("kind", IN_PAIRS)
def test_signed_codes_take_longer(kind: str):
    unsigned = NODES[kind](512)
    left = unsigned.inputs[0]
    assert left is not None
    signed = replace(unsigned, inputs=(replace(left, dtype=I8), *unsigned.inputs[1:]))
    assert node_seconds(signed, CPUS["x86-64-v4"]) > 4 * node_seconds(unsigned, CPUS["x86-64-v4"])


# Microseconds of the runtime's convolutions of unsigned codes on one thread of a Sapphire Rapids: filters, channels of
# each, window, groups, side, type of filters.
OF_CODES = (
    ("QLinearConv", (64, 64, 1, 1, 56, I8), 116),
    ("QLinearConv", (64, 64, 1, 1, 56, U8), 309),
    ("QLinearConv", (256, 256, 3, 1, 14, I8), 407),
    ("QLinearConv", (256, 256, 3, 1, 14, U8), 1792),
    ("QLinearConv", (32, 3, 3, 1, 112, I8), 635),
    ("QLinearConv", (16, 16, 3, 1, 56, I8), 96),
    ("QLinearConv", (144, 24, 1, 1, 56, I8), 170),
    ("QLinearConv", (64, 8, 3, 8, 56, I8), 1437),
    ("QLinearConv", (208, 8, 3, 26, 28, I8), 1924),
    ("QLinearConv", (440, 8, 3, 55, 7, U8), 234),
    ("QLinearConv", (128, 4, 3, 32, 28, I8), 1777),
    ("QLinearConv", (96, 1, 3, 96, 56, I8), 244),
    ("QLinearConv", (240, 1, 5, 240, 28, I8), 284),
    ("ConvInteger", (64, 64, 3, 1, 56, U8), 2088),
    ("ConvInteger", (64, 8, 3, 8, 56, U8), 569),
    ("ConvInteger", (96, 1, 3, 96, 56, U8), 1179),
)


@pytest.mark.parametrize(("op", "sizes", "us"), OF_CODES)
def test_convolutions_of_codes_also_copy_and_round(op: str, sizes: tuple[int, int, int, int, int, DType], us: float):
    made = node_seconds(of_codes(op, *sizes), replace(CPUS["sapphirerapids"], cores=1))
    assert 0.5 < made * 1e6 / us < 1.8


def test_filters_are_on_the_left_of_integer_convolutions():
    by = {t: [node_seconds(of_codes(op, 256, 256, 3, 1, 14, t), V4) for op in OPS_ON_CODES] for t in (I8, U8)}
    assert by[I8][0] < by[U8][0] and by[I8][1] > 2 * by[U8][1]


@pytest.mark.parametrize("kind", NODES)
def test_larger_takes_longer_and_more_cores_do_not(kind: str):
    assert work_of(NODES[kind](64)).kind == kind
    times = [node_seconds(NODES[kind](n), V4) for n in (8, 64, 512, 4096)]
    assert times == sorted(times)
    assert times[-1] > times[0] or kind == "view"
    for n in (8, 64, 512, 4096):
        by_cores = [node_seconds(NODES[kind](n), replace(V4, cores=c)) for c in (1, 2, 4, 8, 16)]
        woken = WAKING if work_of(NODES[kind](n)).nodes > 1 else 0.0  # whatever the size
        assert by_cores[1:] == sorted(by_cores[1:], reverse=True) and by_cores[1] <= by_cores[0] + woken


def test_every_operator_with_a_row_has_a_kind():
    """What nobody gave a kind is priced as something cheap: that is for operators without a row."""
    ops = {name.rpartition("::")[2] for name in ROWS.rows}
    views = set(filter(is_view_by_name, ops))
    assert ops - nodes._KIND_OF.keys() - nodes._SPECIAL.keys() == views != set()
    assert {*nodes._KIND_OF.values()} <= KINDS.keys()


def test_nothing_is_divided_by_what_may_be_zero():
    """Sizes without elements or dimensions have a time as well."""
    for name in ROWS.rows:
        op = name.rpartition("::")[2]
        for shape in ((1, 64, 8, 8), (2, 0), ()):
            if any(product in op for product in ("MatMul", "Gemm", "Conv")):
                continue
            tensors = (floats(*shape),) * 3
            assert node_seconds(Call(op, tensors, tensors[:1], {}), V4) > 0, op


def test_a_power_by_a_whole_number_is_a_product():
    def power(exponent: float) -> float:
        constant = Tensor(F32, (), True, whole(np.float32(exponent)))
        return node_seconds(Call("Pow", (floats(64, 512), constant), (floats(64, 512),), {}), V4)

    assert power(2) == power(3) == node_seconds(same("Div", 64), V4) < power(2.5) / 10
    assert power(4) == power(2.5) == node_seconds(same("Pow", 64), V4)


def test_products_of_vectors():
    """Operands of one dimension: the result has one fewer, down to a scalar."""
    dot = Call("MatMul", (floats(512), floats(512)), (floats(),), {})
    row = Call("MatMul", (floats(512), floats(512, 64)), (floats(64),), {})
    column = Call("MatMul", (floats(64, 512), floats(512)), (floats(64),), {})
    assert all(work_of(call).kind.startswith("product") for call in (dot, row, column))
    assert node_seconds(dot, V4) <= node_seconds(row, V4)


def test_weights_read_again_in_the_next_run_come_from_memory():
    row = Call("MatMul", (floats(1, 512), floats(512, 512, constant=True)), (floats(1, 512),), {})
    assert node_seconds(row, V4, 1e9) > 1.5 * node_seconds(row, V4)


def test_only_gathered_rows_of_a_table_count_as_read():
    table = floats(30000, 768, constant=True)
    few = Call("Gather", (table, Tensor(I64, (8,))), (floats(8, 768),), {"axis": 0})
    assert node_seconds(few, V4, 1e9) < 20e-6


def test_sums_along_lines_are_cheaper_than_those_within_one():
    """Runs behind the axis are added at once; the axis is what the second input holds."""

    def seconds(axis: int) -> float:
        image, at = floats(1, 64, 40, 40), Tensor(I64, (), constant=True, ints=(axis,))
        return node_seconds(Call("CumSum", (image, at), (image,), {}), V4)

    assert 5 * seconds(2) < seconds(3) == seconds(-1)
    assert seconds(1) <= seconds(2) == seconds(-2)


def test_filters_are_computed_in_blocks():
    def seconds(filters: int) -> float:
        weights = floats(filters, 64, 3, 3, constant=True)
        call = Call("Conv", (floats(1, 64, 28, 28), weights), (floats(1, filters, 28, 28),), {"group": 1})
        return node_seconds(call, V4)

    assert seconds(1) == seconds(9) == seconds(16) < seconds(17) == seconds(32)


def chain(text: str, **shapes: tuple[int, ...]) -> tuple[list[Node], dict[str, Tensor]]:
    """Nodes of lines `y = Op a b`, and their values, which have one shape where none is given."""
    nodes, names = [], dict.fromkeys(shapes)
    for line in text.split(";"):
        out, _, call = line.strip().partition(" = ")
        op, *inputs = call.split()
        nodes.append(Node(op, tuple(inputs), (out,), {"group": 1} if op == "Conv" else {}, name=f"make_{out}"))
        names |= dict.fromkeys((*inputs, out))
    return nodes, {name: floats(*shapes.get(name, (64, 256)), constant=name == "w") for name in names}


def ops(nodes: list[Node], tensors: dict[str, Tensor]) -> list[str]:
    return [call.op for call in calls_of(nodes, tensors)]


def test_chains_that_the_runtime_has_an_operator_for_are_one_node():
    normalization = (
        "m = ReduceMean x; d = Sub x m; p = Pow d two; v = ReduceMean p; e = Add v eps; s = Sqrt e; n = Div d s;"
        "k = Mul n scale; y = Add k bias"
    )
    assert ops(*chain(normalization)) == ["LayerNormalization"]
    assert ops(*chain("a = Div x c; e = Erf a; b = Add e one; m = Mul x b; y = Mul m half")) == ["Gelu"]
    assert ops(*chain("a = Div x c; e = Erf a; b = Add e one; m = Mul x b")) == ["Div", "Erf", "Add", "Mul"]


def test_an_activation_costs_nothing_after_a_convolution():
    shapes = {"x": (1, 64, 28, 28), "w": (64, 64, 3, 3), "c": (1, 64, 28, 28), "y": (1, 64, 28, 28)}
    nodes, tensors = chain("c = Conv x w; y = Relu c", **shapes)
    assert ops(nodes, tensors) == ["Conv"]
    assert group_seconds(nodes, tensors, V4) == group_seconds(nodes[:1], tensors, V4)
    nodes, tensors = chain("c = Conv x w; y = Relu c; z = Tanh c", **shapes)  # two readers: it is stored
    assert ops(nodes, tensors) == ["Conv", "Relu", "Tanh"]


def test_the_runtime_computes_on_quantized_values_between_quantized_nodes():
    text = "a = DequantizeLinear q s; b = DequantizeLinear w s; c = Conv a b; y = QuantizeLinear c s"
    shapes = dict.fromkeys(("q", "a", "c", "y"), (1, 64, 28, 28)) | dict.fromkeys(("w", "b"), (64, 64, 3, 3))
    nodes, tensors = chain(text, **shapes)
    tensors |= {name: replace(tensors[name], dtype=U8) for name in ("q", "w", "y")}
    (call,) = calls_of(nodes, tensors)
    assert work_of(call).kind == "convolution of codes"


REAL = (
    Case("Tanh", ((128, 768),), {}),
    Case("MatMul", ((1, 128, 256), np.ones((256, 256), np.float32)), {}),
    Case("Conv", ((1, 64, 28, 28), np.ones((64, 64, 3, 3), np.float32)), {"pads": [1, 1, 1, 1]}),
    Case("Conv", ((1, 32, 56, 56), np.ones((4, 32, 3, 3), np.float32)), {"pads": [1, 1, 1, 1]}),
    Case("Conv", ((1, 64, 28, 28), np.ones((64, 1, 7, 7), np.float32)), {"pads": [3, 3, 3, 3], "group": 64}),
    Case("CumSum", ((64, 40, 40), np.array(1)), {}),
    Case("CumSum", ((64, 40, 40), np.array(2)), {}),
    Case("Softmax", ((1, 32, 56, 56),), {"axis": 1}),
    Case("Transpose", ((1, 64, 56, 56),), {"perm": [0, 2, 3, 1]}),
)


@pytest.mark.slow
@pytest.mark.parametrize("case", REAL, ids=lambda case: case.op)
def test_real_nodes_take_about_as_long_as_predicted(case: Case):
    """Within a factor that only a wrong kind, or a wrong unit, exceeds; the best of several runs."""
    model, feeds = case.model()
    (node,) = [each for each in profiled(model, feeds, 1, 0.5) if each.call.op == case.op]
    predicted = node_seconds(node.call, replace(targets_of(())[0], cores=1)) * 1e6
    assert node.us / 8 < predicted < node.us * 8
