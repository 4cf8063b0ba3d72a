"""Products of quantized values by quantized constants become kernels with their Q and DQ nodes; others stay unfused."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.config import Options
from onnxfuse.ir.dtype import I8, I32, U8
from onnxfuse.ir.graph import Graph, TensorType
from onnxfuse.ir.group import Plan
from onnxfuse.ir.index import Index
from onnxfuse.load import load
from onnxfuse.ops.rows import ROWS
from onnxfuse.plan import plan
from tests.load.models import parse
from tests.rules.build import Build


def coded(b: Build, x: str, zero: int = 3) -> str:
    """x as codes."""
    return str(b.node("QuantizeLinear", x, b.constant(np.float32(0.1)), b.constant(np.array(zero, np.uint8))))


def decoded(b: Build, codes: str, zero: int = 3) -> str:
    """The numbers that codes stand for."""
    return str(b.node("DequantizeLinear", codes, b.constant(np.float32(0.1)), b.constant(np.array(zero, np.uint8))))


def weights(b: Build, *shape: int) -> str:
    """Constant codes as numbers."""
    held = b.constant(b.rng.integers(-99, 99, shape).astype(np.int8))
    return str(b.node("DequantizeLinear", held, b.constant(np.float32(0.01))))


def planned(graph: Graph) -> tuple[Plan, list[list[str]]]:
    """The plan of a graph, and the operators of its groups."""
    made = plan(graph, ROWS, Options())
    return made, [[n.op for n in g.nodes] for g in made.groups]


def test_a_quantized_product_is_grouped_with_its_q_and_dq_nodes() -> None:
    b = Build(21)
    x = decoded(b, b.input("x", 4, 64, dtype=U8))
    y = coded(b, b.node("Relu", b.node("MatMul", x, weights(b, 64, 32))))
    (group,) = planned(b.graph(y))[1]
    assert sorted(group) == ["DequantizeLinear", "DequantizeLinear", "MatMul", "QuantizeLinear", "Relu"]


def test_an_attention_of_codes_is_one_kernel() -> None:
    b = Build(21)
    q, k, v = (decoded(b, b.input(name, 2, 32, 16, dtype=U8)) for name in "qkv")
    scores = decoded(b, coded(b, b.node("MatMul", q, b.node("Transpose", k, perm=(0, 2, 1)))))
    weights = decoded(b, coded(b, b.node("Softmax", scores, axis=-1)))
    made, groups = planned(b.graph(coded(b, b.node("MatMul", weights, v))))
    assert len(groups) == 1 and len(groups[0]) == len(made.graph.nodes)


def test_an_add_is_fused_into_the_product_and_not_into_the_attention_after_it() -> None:
    b = Build(21)
    q, k, v = (b.input(name, 2, 32, 16) for name in ("q", "k", "v"))
    x = decoded(b, coded(b, b.input("x", 2, 32, 16)))
    q = b.node("Add", decoded(b, coded(b, b.node("MatMul", x, weights(b, 16, 16)))), b.weights(16))
    scores = b.node("Softmax", b.node("MatMul", q, b.node("Transpose", k, perm=(0, 2, 1))))
    groups = planned(b.graph(b.node("MatMul", scores, v)))[1]
    assert sorted(g.count("Add") for g in groups if "MatMul" in g) == [0, 1]
    assert ["Transpose", "MatMul", "Softmax", "MatMul"] in groups


def test_codes_that_are_decoded_at_once_do_not_leave_their_kernel() -> None:
    b = Build(21)
    x = decoded(b, b.input("x", 4, 64, dtype=U8))
    y = decoded(b, coded(b, b.node("MatMul", x, weights(b, 64, 32))))
    z = coded(b, b.node("Add", y, b.weights(32)))
    (group,) = planned(b.graph(z))[1]
    assert sorted(group) == ["Add", *["DequantizeLinear"] * 3, "MatMul", *["QuantizeLinear"] * 2]


def test_a_convolution_with_coded_weights_and_bias_is_one_kernel() -> None:
    b = Build(21)
    x = decoded(b, b.input("x", 1, 8, 9, 9, dtype=U8))
    bias = b.node("DequantizeLinear", b.constant(np.arange(16, dtype=np.int32)), b.constant(np.float32(0.001)))
    y = coded(b, b.node("Conv", x, weights(b, 16, 8, 3, 3), bias))
    (group,) = planned(b.graph(y))[1]
    assert sorted(group) == ["Conv", *["DequantizeLinear"] * 3, "QuantizeLinear"]
    assert I32 in {c.dtype for c in b.constants.values()} and I8 in {c.dtype for c in b.constants.values()}


def test_weights_that_are_only_decoded_are_packed_by_the_runtime() -> None:
    b = Build(21)
    x = b.input("x", 4, 64)
    y = b.node("Relu", b.node("Add", b.node("MatMul", x, weights(b, 64, 32)), b.weights(32)))
    assert planned(b.graph(y))[1] == [["Add", "Relu"]]


def test_weights_of_four_bits_in_blocks_are_packed_by_the_runtime_too() -> None:
    """It has a product for these, which an operator that dequantizes them in each run would be slower than."""
    model = parse(
        """g (float[N, 64] x) => (float[N, 32] y)
        { w = DequantizeLinear<axis = 0, block_size = 32>(c, s) p = MatMul(x, w) t = Add(p, b) y = Relu(t) }""",
        opset=21,
    )
    held = {"s": np.full((2, 32), 0.5, np.float32), "b": np.ones(32, np.float32)}
    model.graph.initializer.extend(numpy_helper.from_array(v, name) for name, v in held.items())
    model.graph.initializer.append(helper.make_tensor("c", TensorProto.INT4, (64, 32), np.arange(2048) % 16 - 8))
    assert planned(load(model.SerializeToString(), Options()))[1] == [["Add", "Relu"]]


def test_operators_between_dequantize_and_quantize_are_one_kernel() -> None:
    b = Build(21)
    x, y = (decoded(b, b.input(name, 4, 64, dtype=U8)) for name in "xy")
    made = b.node("Abs", decoded(b, coded(b, b.node("Add", x, y))))
    (group,) = planned(b.graph(coded(b, made)))[1]
    assert sorted(group) == sorted(["Abs", "Add", *["DequantizeLinear"] * 3, *["QuantizeLinear"] * 2])


def test_numbers_that_a_product_and_others_read_are_decoded_for_each() -> None:
    b = Build(21)
    x = decoded(b, b.input("x", 4, 64, dtype=U8))
    product = coded(b, b.node("MatMul", x, weights(b, 64, 64)))
    y = coded(b, b.node("Add", x, decoded(b, product)))
    made, groups = planned(b.graph(y))
    assert [sorted(g) for g in groups] == [["Add", *["DequantizeLinear"] * 4, "MatMul", *["QuantizeLinear"] * 2]]
    assert sum(n.inputs[0] == "x" for n in made.graph.nodes) == 2


def test_an_integer_product_keeps_what_quantizes_for_it_and_what_scales_it() -> None:
    b = Build(21)
    scale = b.input("s")
    x = b.node("QuantizeLinear", b.input("x", 4, 64), scale, b.constant(np.array(3, np.uint8)))
    product = b.opaque("MatMulInteger", x)
    b.types[product] = TensorType(I32, (Index.of(4), Index.of(64)))
    scales = b.node("Mul", b.node("Reciprocal", scale), b.constant(0.5))
    y = b.node("Add", b.node("Mul", b.node("Cast", product, to=1), scales), b.weights(64))
    assert planned(b.graph(b.node("Tanh", b.node("Relu", y))))[1] == [["Reciprocal", "Mul"], ["Relu", "Tanh"]]


def test_nodes_between_integer_convolutions_stay() -> None:
    b = Build(21)
    x, kernel = (decoded(b, b.input(name, *s, dtype=U8)) for name, s in (("x", (1, 8, 9, 9)), ("w", (8, 8, 3, 3))))
    y = decoded(b, coded(b, b.node("Conv", x, kernel, pads=(1, 1, 1, 1))))
    z = decoded(b, coded(b, b.node("Add", x, b.node("Sigmoid", y))))
    w = decoded(b, coded(b, b.node("Conv", z, kernel)))
    row = b.node("Tanh", b.node("Relu", b.node("Flatten", w)))
    made, groups = planned(b.graph(row))
    assert groups == [["Relu", "Tanh"]]
    assert any("between integer convolutions" in d.reason for d in made.decisions)


def test_what_one_place_has_lies_in_any_layout() -> None:
    """A convolution of the means of channels stays by itself where it has too many terms, not what reads the image."""
    b = Build(17)
    x = b.node("Sigmoid", decoded(b, b.input("x", 1, 144, 9, 9, dtype=U8)))
    mean = decoded(b, coded(b, b.node("ReduceMean", x, axes=(2, 3), keepdims=1)))
    gate = decoded(b, coded(b, b.node("Conv", mean, decoded(b, b.input("w", 6, 144, 1, 1, dtype=U8)))))
    wide = b.node("Conv", gate, weights(b, 144, 6, 1, 1))
    made, groups = planned(b.graph(b.node("Mul", x, b.node("Sigmoid", wide))))
    assert not any("between integer convolutions" in d.reason for d in made.decisions)
    assert groups[0] == ["DequantizeLinear", "Sigmoid"] and groups[-1] == ["Mul"]
