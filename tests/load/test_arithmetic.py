"""Symbolic shape arithmetic: compared with runs of random programs, and case by case."""

from __future__ import annotations

import random

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.ir.index import Index, Symbol
from onnxfuse.load.arithmetic import Prover, Undecided
from tests.load.models import disagreements, graph_of, parse


class Program:
    """Random arithmetic on the shape of x: vectors of one to four int64, each step reading some made before."""

    def __init__(self, seed: int, divide: bool) -> None:
        self.pick = random.Random(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.lengths: dict[str, int] = {}
        self.node("Shape", ["x"], 3)
        steps = [self.gather, self.cut, self.join, self.calculate, self.compare, self.choose, self.total, self.spread]
        for _ in range(30):
            self.pick.choice([*steps, self.divide] if divide else steps)()

    def const(self, values: object, dtype: object = np.int64) -> str:
        self.weights.append(numpy_helper.from_array(np.array(values, dtype), f"c{len(self.weights)}"))
        return self.weights[-1].name

    def node(self, op: str, inputs: list[str], length: int, **attrs: object) -> str:
        out = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [out], **attrs))
        if length:
            self.lengths[out] = length
        return out

    def any(self, length: int = 0) -> str:
        fitting = [v for v, n in self.lengths.items() if not length or n == length]
        return self.pick.choice(fitting) if fitting else self.const([self.pick.randrange(-3, 9)] * length)

    def gather(self) -> None:
        v = self.any()
        places = [self.pick.randrange(-self.lengths[v], self.lengths[v]) for _ in range(self.pick.randint(1, 3))]
        self.node("Gather", [v, self.const(places)], len(places), axis=0)

    def cut(self) -> None:
        v = self.any()
        n = self.lengths[v]
        start = self.pick.randrange(n)
        self.node("Slice", [v, self.const([start]), self.const([n + 5]), self.const([0])], n - start)

    def join(self) -> None:
        a, b = self.any(), self.any()
        if self.lengths[a] + self.lengths[b] <= 4:
            self.node("Concat", [a, b], self.lengths[a] + self.lengths[b], axis=0)

    def calculate(self) -> None:
        v = self.any()
        other = self.pick.choice([self.any(self.lengths[v]), self.const(self.pick.randrange(-3, 6))])
        self.node(self.pick.choice(["Add", "Sub", "Mul", "Min", "Max"]), [v, other], self.lengths[v])

    def divide(self) -> None:
        v = self.any()
        self.node(self.pick.choice(["Div", "Mod"]), [v, self.const(self.pick.randint(1, 4))], self.lengths[v])

    def compare(self) -> None:
        v = self.any()
        op = self.pick.choice(["Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"])
        found = self.node(op, [v, self.const(self.pick.randrange(-2, 5))], 0)
        if self.pick.random() < 0.5:
            found = self.node("Not", [found], 0)
        self.node("Cast", [found], self.lengths[v], to=TensorProto.INT64)

    def choose(self) -> None:
        v = self.any()
        condition = self.node("Equal", [v, self.const(self.pick.choice([-1, 0, 4]))], 0)
        self.node("Where", [condition, self.const(7), self.any(self.lengths[v])], self.lengths[v])

    def total(self) -> None:
        op = self.pick.choice(["ReduceProd", "ReduceSum", "ReduceMax"])
        self.node(op, [self.any(), self.const([0])], 1, keepdims=1)

    def spread(self) -> None:
        v = self.any()
        flat = self.node("Unsqueeze", [v, self.const([0])], 0)
        if self.lengths[v] <= 2:
            wide = self.node("Expand", [flat, self.const([2, self.lengths[v]])], 0)
            self.node("Reshape", [wide, self.const([-1])], 2 * self.lengths[v])
        else:
            self.node("Squeeze", [flat, self.const([0])], self.lengths[v])

    def model(self) -> onnx.ModelProto:
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4, "M"])
        outputs = [helper.make_tensor_value_info(v, TensorProto.INT64, [n]) for v, n in self.lengths.items()]
        graph = helper.make_graph(self.nodes, "g", [x], outputs, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=8)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("divide", [False, True])
def test_random_programs(seed: int, divide: bool):
    program = Program(seed, divide)
    model = program.model()
    graph = graph_of(model)
    assert not graph.source.warnings
    for n, m in [(1, 1), (2, 3), (7, 2)] + ([] if divide else [(0, 3), (0, 0)]):
        assert not disagreements(model, graph, {"x": np.zeros((n, 4, m), np.float32)})


def test_most_of_a_random_program_is_known():
    """The comparison above is not of nothing."""
    programs = [Program(seed, divide=True) for seed in range(10)]
    graphs = [graph_of(p.model()) for p in programs]
    found = sum(v in graph.known for p, graph in zip(programs, graphs, strict=True) for v in p.lengths)
    assert found > 0.4 * sum(len(p.lengths) for p in programs)


def known(body: str, *names: str, dims: str = "N, 4, M") -> list[str]:
    graph = graph_of(f"g (float[{dims}] x) => (int64[k] y) {body}")
    return ["unknown" if n not in graph.known else ", ".join(map(repr, graph.known[n])) for n in names]


def test_parts_of_a_shape():
    body = "{ a = Shape<start = -2>(x)\n b = Shape<start = 1, end = -1>(x)\n c = Size(x)\n y = Shape(x) }"
    assert known(body, "a", "b", "c", "y") == ["4, M", "4", "4*M*N", "N, 4, M"]


def test_the_target_of_an_expand():
    """As torch writes it: -1 stands for an extent that stays."""
    body = """<int64[3] w = {-1, 1, 5}, int64[3] one = {1, 1, 1}, int64 minus = {-1}>
    { s = Shape(x)\n m = Mul(one, minus)\n e = Equal(w, m)\n y = Where(e, s, w) }"""
    assert known(body, "e", "y") == ["1, 0, 0", "N, 1, 5"]


def test_an_extent_may_be_zero_where_conditions_hang_on_it():
    body = """<int64[1] zero = {0}, int64[1] minus = {-1}> { n = Shape<end = 1>(x)\n empty = Equal(n, zero)
    never = Equal(n, minus)\n some = Greater(n, zero)\n y = Max(n, zero) }"""
    assert known(body, "empty", "never", "some", "y") == ["unknown", "0", "unknown", "N"]


def test_division():
    body = """<int64[1] two = {2}, int64[1] minus = {-2}>
    { n = Shape<end = 1>(x)\n s = Size(x)\n a = Div(s, n)\n b = Div(n, two)
      c = Mod(n, two)\n d = Div(n, minus)\n y = Mod(s, two) }"""
    assert known(body, "a", "b", "c", "d", "y") == ["4*M", "(N)//2", "(N)%2", "unknown", "0"]


def test_a_square():
    """The patches of a square image, as torch.export writes them."""
    body = """<int64 two = {2}, int64 many = {9}, int64[1] patch = {14}>
    { n = Shape<start = 1, end = 2>(x)\n rows = Div(n, patch)\n y = Pow(rows, two)\n z = Pow(n, many) }"""
    assert known(body, "y", "z", dims="N, M") == ["(M)//14*(M)//14", "unknown"]
    assert known(body, "y", "z", dims="N, 28") == ["4", str(28**9)]


def test_floating_point_on_the_way():
    """As torch computes the size of an interpolated image, when that is static."""
    body = """<float[2] scale = {2.5, 0.5}, float one = {1}>
    { s = Shape<start = 1>(x)\n f = Cast<to = 1>(s)\n g = Mul(f, scale)\n h = Floor(g)
      y = Cast<to = 7>(h)\n e = Exp(g)\n z = Cast<to = 7>(e) }"""
    assert known(body, "f", "y", "z", dims="N, 3, 5") == ["3, 5", "7, 2", "unknown"]
    assert known(body, "y") == ["10, (M)//2"]


def test_a_range_to_a_floating_point_extent():
    """As torch counts the ranks of a sorted row: `torch.arange(1, x.size(1) + 1, dtype=x.dtype)`."""
    graph = graph_of("""g (float[N, 20] x) => (float[N, 20] y) <int64 at = {1}, int64 more = {1}, float one = {1}> {
    s = Shape(x)\n e = Gather<axis = 0>(s, at)\n a = Add(e, more)\n b = Cast<to = 1>(a)
    r = Range(one, b, one)\n y = Mul(x, r) }""")
    assert repr(graph.types["r"]) == "float32[20]"


def test_zero_with_a_sign_is_no_integer():
    body = """<float[2] minus = {-1, 1}, int64 first = {0}> { s = Shape<start = 1>(x)\n f = Cast<to = 1>(s)
    m = Mul(f, minus)\n half = Mul(f, f)\n y = Cast<to = 7>(half) }"""
    assert known(body, "m", dims="N, 0, 5") == ["unknown"]
    assert known(body, "m", dims="N, 2, 5") == ["-2, 5"]


def test_a_size_by_the_reciprocal_of_another():
    """As torchvision's detectors compute the size of the image that they resize to, when that is static."""
    body = """<float least = {800}, float most = {1333}>
    { s = Shape<start = 1>(x)\n a = ReduceMin<keepdims = 0>(s)\n b = ReduceMax<keepdims = 0>(s)
      c = Cast<to = 1>(a)\n d = Cast<to = 1>(b)\n e = Reciprocal(c)\n f = Reciprocal(d)
      g = Mul(e, least)\n h = Mul(f, most)\n scale = Min(g, h)\n k = Cast<to = 1>(s)\n m = Mul(k, scale)
      n = Floor(m)\n y = Cast<to = 7>(n) }"""
    assert known(body, "y", dims="3, 427, 640") == ["800, 1199"]
    assert known(body, "y") == ["unknown"]


def test_what_is_not_a_number_or_too_large_is_not_known():
    body = """<int64[2] huge = {4611686018427387904, 1}, float[1] none = {0}>
    { a = Add(huge, huge)\n b = Div(none, none)\n c = Cast<to = 7>(b)\n d = Cast<to = 6>(huge)\n y = Shape(x) }"""
    assert known(body, "a", "c", "d") == ["unknown"] * 3


def test_ranges_and_counted_places():
    body = """<int64 zero = {0}, int64 one = {1}, int64 five = {5}, bool[4] some = {1, 0, 0, 1}>
    { r = Range(zero, five, one)\n p = NonZero(some)\n q = Squeeze(p)\n n = Gather(r, q)\n y = Shape(x) }"""
    assert known(body, "r", "q", "n") == ["0, 1, 2, 3, 4", "0, 3", "0, 3"]


def test_large_tensors_are_not_followed():
    body = "<int64[1] n = {65}> { big = ConstantOfShape<value = int64[1] {1}>(n)\n y = Neg(big) }"
    assert known(body, "big", "y") == ["unknown", "unknown"]


def test_narrow_types_and_truth_values():
    body = """<int64[1] ten = {10}> { n = Shape<end = 1>(x)\n a = Cast<to = 6>(n)\n b = Cast<to = 9>(ten)
    c = Not(b)\n d = Cast<to = 7>(c)\n y = Cast<to = 7>(a) }"""
    assert known(body, "a", "b", "d", "y") == ["N", "1", "0", "N"]


def test_proofs_use_facts():
    n, past = Index.of(Symbol("n")), Index.of(Symbol("past"))
    assert Prover([32 - n - past]).nonnegative(32 - past - n)
    assert Prover([32 - n - past]).nonnegative(40 - past - n)
    assert not Prover().nonnegative(32 - n)
    assert Prover().less(n, n + past + 1)
    with pytest.raises(Undecided):
        Prover().less(n, past)
    with pytest.raises(Undecided):
        Prover().equal(n, Index.of(1))


def test_no_multiple_of_a_number_is_what_it_does_not_divide():
    """An image of 512 * T samples has never one of them, whatever T is."""
    t, u = Index.of(Symbol("t")), Index.of(Symbol("u"))
    assert Prover().equal(512 * t, Index.of(1)) is False
    assert Prover().equal(6 * t + 3, 4 * u) is False
    for one, other in ((512 * t, Index.of(512)), (6 * t + 3, 9 * u), (t, Index.of(1))):
        with pytest.raises(Undecided):
            Prover().equal(one, other)


def test_overridable_integers_are_not_known():
    model = parse("g (float[6] x, int64[2] t) => (float[a, b] y) <int64[2] t = {2, 3}> { y = Reshape(x, t) }")
    model.graph.input.add(name="t").type.CopyFrom(helper.make_tensor_type_proto(TensorProto.INT64, [2]))
    del model.graph.input[1]
    graph = graph_of(model)
    assert graph.inputs == ("x", "t") and "t" not in graph.known
