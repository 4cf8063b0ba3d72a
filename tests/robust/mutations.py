"""Small models of many operators, and mutations of files: dropped inputs, changed ranks and attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser

_TEXTS = (
    """g (float[2, 16] x) => (float[2, 8] y) {
        h = MatMul(x, w)\n b = Add(h, c)\n r = Relu(b)\n s = Softmax<axis = 1>(r)\n k = Constant<value_float = 2.0>()
        m = Mul(s, k)\n d = Div(m, k)\n i = Identity(d)\n e = Exp(i)\n q = Sub(e, c)\n y = Sigmoid(q) }""",
    """g (float[1, 4, 8, 8] x) => (float[1, 8] y) {
        a = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x, k)\n n = BatchNormalization(a, one, one, one, one)
        r = Relu(n)\n p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r)\n c = Clip(p, low, high)
        m = ReduceMean<axes = [2, 3], keepdims = 0>(c)\n g1 = Gemm<transB = 1>(m, gw, gb)\n y = Tanh(g1) }""",
    """g (float[2, 6, 8] x) => (float[?] y) {
        v = ReduceMean<axes = [2]>(x)\n d = Sub(x, v)\n q = Mul(d, d)\n w1 = ReduceMean<axes = [2]>(q)\n t = Sqrt(w1)
        n = Div(d, t)\n a = Transpose<perm = [0, 2, 1]>(n)\n b = MatMul(n, a)\n s = Softmax<axis = 2>(b)
        o = MatMul(s, n)
        u = Reshape(o, shape)\n g1 = Gather<axis = 1>(u, at)\n y = LayerNormalization<axis = 1>(g1, eight) }""",
    """g (float[N, 4, H] x) => (float[?] y) {
        s = Shape(x)\n f = Gather(s, at)\n z = Slice(x, zero, two, one_i)\n p = Pad(z, pads)
        c = Concat<axis = 1>(p, p)
        u = Unsqueeze(c, zero)\n q = Squeeze(u, zero)\n e = Where(mask, q, q)\n w1, w2 = Split<axis = 1>(e)
        m = Max(w1, w2)\n y = CumSum(m, one_s) }""",
    """g (float[2, 3, 4, 4] x) => (float[?] y) {
        a = QuantizeLinear(x, sc, zp)\n b = DequantizeLinear(a, sc, zp)\n r = Resize<mode = "nearest">(b, , scales)
        v = AveragePool<kernel_shape = [2, 2]>(r)\n t = ConvTranspose(v, kt)\n m = ArgMax<axis = 1>(t)
        y = Cast<to = 1>(m) }""",
)


def _weights() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)

    def some(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(np.float32)

    ints = {"shape": [2, 48], "at": [0, 1], "zero": [0], "two": [2], "one_i": [1], "pads": [0, 0, 0, 0, 0, 0]}
    held = {name: np.array(value, np.int64) for name, value in ints.items()} | {"one_s": np.array(1, np.int64)}
    held |= {
        "w": some(16, 8),
        "c": some(8),
        "k": some(4, 4, 3, 3),
        "one": np.abs(some(4)),
        "gw": some(8, 4),
        "gb": some(8),
    }
    held |= {"low": np.array(0, np.float32), "high": np.array(6, np.float32), "eight": some(2), "kt": some(3, 2, 2, 2)}
    held |= {"mask": np.array(True), "sc": np.array(0.1, np.float32), "zp": np.array(3, np.int8)}
    return held | {"scales": np.array([1, 1, 2, 2], np.float32)}


def models() -> Iterator[onnx.ModelProto]:
    """The models as they should be."""
    weights = _weights()
    for text in _TEXTS:
        graph = parser.parse_graph(text)
        made = {o for n in graph.node for o in n.output} | {v.name for v in graph.input}
        used = {i for n in graph.node for i in n.input} - made
        graph.initializer.extend(numpy_helper.from_array(weights[name], name) for name in sorted(used & weights.keys()))
        yield helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


_FAR = (-(1 << 63), -(1 << 31), -2, -1, 0, 1, 2, 3, 7, 64, 1 << 20, 1 << 31, (1 << 63) - 1)


def _node(model: onnx.ModelProto, random: Random) -> onnx.NodeProto:
    return random.choice(model.graph.node)


def _drop_input(model: onnx.ModelProto, random: Random) -> None:
    node = _node(model, random)
    if node.input:
        del node.input[random.randrange(len(node.input))]


def _blank_input(model: onnx.ModelProto, random: Random) -> None:
    node = _node(model, random)
    if node.input:
        node.input[random.randrange(len(node.input))] = ""


def _another_input(model: onnx.ModelProto, random: Random) -> None:
    node, graph = _node(model, random), model.graph
    names = (
        [v.name for v in graph.input] + [t.name for t in graph.initializer] + [o for n in graph.node for o in n.output]
    )
    if node.input:
        node.input[random.randrange(len(node.input))] = random.choice(names)


def _more_inputs(model: onnx.ModelProto, random: Random) -> None:
    node = _node(model, random)
    node.input.extend(list(node.input) or [model.graph.input[0].name])


def _another_operator(model: onnx.ModelProto, random: Random) -> None:
    _node(model, random).op_type = random.choice(
        [n.op_type for n in model.graph.node] + ["Concat", "Expand", "Pad", "Einsum"]
    )


def _far_attribute(model: onnx.ModelProto, random: Random) -> None:
    attributes = [a for n in model.graph.node for a in n.attribute]
    if not attributes:
        return
    a = random.choice(attributes)
    if a.type == onnx.AttributeProto.INTS:
        a.ints[:] = [random.choice(_FAR) for _ in range(random.randrange(5))]
    elif a.type == onnx.AttributeProto.INT:
        a.i = random.choice(_FAR)
    elif a.type == onnx.AttributeProto.STRING:
        a.s = b"\xff"


def _another_attribute(model: onnx.ModelProto, random: Random) -> None:
    node = _node(model, random)
    name = random.choice([a.name for n in model.graph.node for a in n.attribute] or ["axis"])
    kept = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend(kept)
    node.attribute.append(helper.make_attribute(name, random.choice([1, 2.5, "same", [1, 2], [0.5], ["a"]])))


def _no_attribute(model: onnx.ModelProto, random: Random) -> None:
    node = _node(model, random)
    if node.attribute:
        del node.attribute[random.randrange(len(node.attribute))]


def _arrays(model: onnx.ModelProto) -> list[tuple[TensorProto, np.ndarray]]:
    """The initializers that can still be read, with their arrays."""
    found = []
    for t in model.graph.initializer:
        with suppress(KeyError, TypeError, ValueError):  # of one with another element type
            found.append((t, numpy_helper.to_array(t)))
    return found


def _another_rank(model: onnx.ModelProto, random: Random) -> None:
    tensors = _arrays(model)
    if tensors and random.random() < 0.7:
        t, array = random.choice(tensors)
        ways = (array.reshape(-1), array.reshape(1, *array.shape), array.reshape(-1)[:1].reshape(()), array[..., None])
        t.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(random.choice(ways)), t.name))
        return
    shape = model.graph.input[0].type.tensor_type.shape
    if random.random() < 0.5 and shape.dim:
        del shape.dim[random.randrange(len(shape.dim))]
    else:
        shape.dim.add().dim_value = random.choice([1, 2, 1 << 40])


def _far_numbers(model: onnx.ModelProto, random: Random) -> None:
    ints = [(t, array) for t, array in _arrays(model) if array.dtype == np.int64]
    if ints:
        t, array = random.choice(ints)
        far = np.array([random.choice(_FAR) for _ in range(array.size)], np.int64)
        t.CopyFrom(numpy_helper.from_array(far.reshape(array.shape), t.name))


def _another_type(model: onnx.ModelProto, random: Random) -> None:
    kind = random.choice([TensorProto.INT64, TensorProto.FLOAT16, TensorProto.BOOL, TensorProto.STRING, 17, 99, 0])
    if random.random() < 0.5:
        model.graph.input[0].type.tensor_type.elem_type = kind
    elif model.graph.initializer:
        random.choice(model.graph.initializer).data_type = kind


def _no_outputs(model: onnx.ModelProto, random: Random) -> None:
    node = _node(model, random)
    if random.random() < 0.5:
        node.output.append("extra")
    else:
        node.output[0] = ""


MUTATIONS: tuple[Callable[[onnx.ModelProto, Random], None], ...] = (
    _drop_input,
    _blank_input,
    _another_input,
    _more_inputs,
    _another_operator,
    _far_attribute,
    _another_attribute,
    _no_attribute,
    _another_rank,
    _far_numbers,
    _another_type,
    _no_outputs,
)


def mutated(seed: int) -> onnx.ModelProto:
    """One of the models, changed in one to three places."""
    random = Random(seed)
    made = list(models())
    model = made[seed % len(made)]
    for _ in range(random.randint(1, 3)):
        random.choice(MUTATIONS)(model, random)
    return model
