"""QuantizeLinear(op(DequantizeLinear(a), DequantizeLinear(b))) becomes the QLinear operator of ONNX Runtime.

The runtime does the same when it loads a model: it accumulates in int32, adds the bias there and multiplies by one
scale. A kernel that rounded an intermediate float instead could differ from it by one quantization step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from onnxfuse.ir.dtype import I8, I32, U8, DType
from onnxfuse.ir.graph import Constant, Node
from onnxfuse.rewrite.draft import Draft
from onnxfuse.rewrite.mutable_graph import Array, Miss, MutableGraph
from onnxfuse.rewrite.steps import StructuralRule

_CODES = (U8, I8)
_RUNTIME = "com.microsoft"
_NEAR = 1e-5  # relative difference allowed between the scale of a bias and that of the products


@dataclass(frozen=True, slots=True)
class _Coded:
    """The names of a quantized tensor, its scale and its zero point; the latter two are constants."""

    codes: str
    scale: str
    zero: str

    @property
    def all(self) -> tuple[str, str, str]:
        """The three names in the order of the inputs of QLinear operators."""
        return self.codes, self.scale, self.zero


def qlinear_operators(work: MutableGraph, at: int, trust: bool) -> Draft:
    """Q(op(DQ(a), DQ(b)), s, z) as a QLinear operator."""
    coding = work.nodes[at]
    draft = Draft(work, at)
    y = _parameters(draft, coding, work.type(coding.outputs[0]).dtype)
    node = work.made_by(coding.inputs[0], *_OPERATORS)
    if not work.single_use(node.outputs[0]) or not _of_all(draft, y.scale):
        raise Miss(f"{node.op} has other readers, or its result is quantized per axis")
    a = _read(draft, node, 0)
    if work.type(a.codes).dtype not in _CODES or not _alike(draft, a, coding.outputs[0]):
        raise Miss("an operand is quantized per axis or to another type, or is int8 with several readers")
    return draft.replace(coding.outputs[0], _OPERATORS[node.op](draft, node, a, y))


def _convolution(draft: Draft, node: Node, a: _Coded, y: _Coded) -> str:
    w = _weights(draft, node, 0)
    return draft.node("QLinearConv", (*a.all, *w.all, y.scale, y.zero, *_bias(draft, node, a, w)), node.attrs)


def _product(draft: Draft, node: Node, a: _Coded, y: _Coded) -> str:
    w = _weights(draft, node, -1)
    return draft.node("QLinearMatMul", (*a.all, *w.all, y.scale, y.zero), node.attrs)


def _gemm(draft: Draft, node: Node, a: _Coded, y: _Coded) -> str:
    attrs = dict(node.attrs)
    w = _weights(draft, node, 0 if attrs.get("transB", 0) else -1)
    bias = _bias(draft, node, a, w) or ("",)
    if bias != ("",) and (attrs.pop("beta", 1.0), attrs.get("alpha", 1.0)) != (1.0, 1.0):
        raise Miss("alpha or beta of the Gemm is not 1")
    attrs.pop("beta", None)
    return draft.node("QGemm", (*a.all, *w.all, *bias, y.scale, y.zero), attrs, domain=_RUNTIME)


def _sum(draft: Draft, node: Node, a: _Coded, y: _Coded) -> str:
    b = _read(draft, node, 1)
    if not _alike(draft, b, a.codes):
        raise Miss("an operand is quantized per axis or to another type, or is int8 with several readers")
    return draft.node("QLinearAdd", (*a.all, *b.all, y.scale, y.zero), domain=_RUNTIME)


def _mean(draft: Draft, node: Node, a: _Coded, y: _Coded) -> str:
    attrs = {"channels_last": 0}
    return draft.node("QLinearGlobalAveragePool", (*a.all, y.scale, y.zero), attrs, domain=_RUNTIME)


_OPERATORS: dict[str, Callable[[Draft, Node, _Coded, _Coded], str]] = {
    "Conv": _convolution,
    "MatMul": _product,
    "Gemm": _gemm,
    "Add": _sum,
    "GlobalAveragePool": _mean,
}


def _read(draft: Draft, node: Node, i: int) -> _Coded:
    """The quantized tensor that operand i of a node is dequantized from. Raises Miss."""
    decoding = draft.work.made_by(node.inputs[i], "DequantizeLinear")
    return _parameters(draft, decoding, draft.type(decoding.inputs[0]).dtype)


def _parameters(draft: Draft, node: Node, dtype: DType) -> _Coded:
    """The inputs of a QuantizeLinear or DequantizeLinear, with a zero point of 0 where it has none. Raises Miss."""
    if node.attrs.get("block_size", 0) or node.attrs.get("precision", 0) or draft.type(node.inputs[1]).dtype.bits != 32:
        raise Miss("the quantization is blocked, or its scale is not float32")
    zero = node.inputs[2] if len(node.inputs) > 2 else ""
    scale = _constant(draft, node.inputs[1])
    if not zero:
        zero = draft.array(np.zeros(scale.shape, dtype.numpy), dtype, "zero", node.inputs[1])
    _constant(draft, zero)
    return _Coded(node.inputs[0], node.inputs[1], zero)


def _of_all(draft: Draft, scale: str) -> bool:
    return _constant(draft, scale).size == 1


def _alike(draft: Draft, a: _Coded, codes: str) -> bool:
    """Whether an operand has one scale and the same quantized type as `codes` (the result, or the first operand).

    The runtime converts int8 operands to uint8 first; it can do so only where they have one reader.
    """
    dtype = draft.type(a.codes).dtype
    free = dtype == U8 or all(_for_one(draft.work, v) for v in (a.codes, codes))
    return free and _of_all(draft, a.scale) and dtype == draft.type(codes).dtype


def _for_one(work: MutableGraph, codes: str) -> bool:
    """Whether a quantized tensor is the output of a node, and dequantized for one reader only."""
    if codes not in work.maker or not work.single_use(codes):
        return False
    (reader,) = (work.nodes[i] for i in work.users[codes])
    return reader.op != "DequantizeLinear" or work.single_use(reader.outputs[0])


def _constant(draft: Draft, value: str) -> Constant:
    found = draft.constant_of(value)
    if found is None:
        raise Miss(f"the scale, zero point or weight {value} is not a constant")
    return found


def _weights(draft: Draft, node: Node, axis: int) -> _Coded:
    """The constant that operand 1 is dequantized from, with one scale or one for each index of `axis`. Raises Miss."""
    w = _read(draft, node, 1)
    decoding = draft.work.made_by(node.inputs[1], "DequantizeLinear")
    codes, rank = _constant(draft, w.codes), len(draft.type(w.codes).shape)
    given = decoding.attrs.get("axis", 1)
    along = isinstance(given, int) and given % rank == axis % rank
    if (
        codes.dtype not in _CODES
        or not (_of_all(draft, w.scale) or along)
        or _constant(draft, w.zero).shape != _constant(draft, w.scale).shape
    ):
        raise Miss("the weights are not 8-bit integers quantized per tensor or per output channel")
    return w


def _bias(draft: Draft, node: Node, a: _Coded, w: _Coded) -> tuple[str, ...]:
    """The int32 bias, whose scale is that of the products; () where there is none. Raises Miss."""
    if len(node.inputs) < 3 or not node.inputs[2]:
        return ()
    decoding = draft.work.made_by(node.inputs[2], "DequantizeLinear")
    bias = _parameters(draft, decoding, I32)
    if draft.type(bias.codes).dtype != I32 or _constant(draft, bias.zero).load().any():
        raise Miss("the bias is not int32 with zero point 0")
    scales = [_numbers(draft, v) for v in (a.scale, w.scale, bias.scale)]
    products = scales[0] * scales[1]
    if scales[2].size not in (1, products.size) or not np.allclose(scales[2], products, rtol=_NEAR, atol=0):
        raise Miss("the scale of the bias is not the product of the scales of input and weights")
    return (bias.codes,)


def _numbers(draft: Draft, value: str) -> Array:
    return _constant(draft, value).load().reshape(-1)


STEPS: tuple[StructuralRule, ...] = (
    StructuralRule(
        "qlinear-operators",
        "Q(op(DQ(a), DQ(b))) => QLinearOp(a, b)",
        "reassociates",
        qlinear_operators,
        frozenset({"QuantizeLinear"}),
        ("scales and zero points are constants", "the scale of b is the product of the scales of x and w"),
    ),
)
