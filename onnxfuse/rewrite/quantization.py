"""Quantized tensors: movement before dequantization, clips that quantization implies, zero points of zero."""

from __future__ import annotations

import numpy as np

from onnxfuse.ir.graph import Node
from onnxfuse.ir.scalar import Load, Reduce
from onnxfuse.ops.contrib import MICROSOFT
from onnxfuse.ops.rows import ROWS
from onnxfuse.ops.spec import Definition
from onnxfuse.rewrite.clips import clip_limits, single
from onnxfuse.rewrite.draft import Draft
from onnxfuse.rewrite.folding import load_of
from onnxfuse.rewrite.mutable_graph import Miss, MutableGraph, NoMatch
from onnxfuse.rewrite.steps import StructuralRule

# Scales between which (q * scale) / scale is q again, within far less than half a quantization step.
_LEAST, _MOST = 2.0**-100, 2.0**80
_MAXIMA = {"MaxPool": 12, "ReduceMax": 12}  # maxima, with the opset since which they accept 8-bit integers


def quantized_movement(work: MutableGraph, at: int, trust: bool) -> Draft:
    """Q(move(DQ(q, s, z)), s, z) is move(q); so it is for maxima, since quantization is monotonic."""
    coding = work.nodes[at]
    if not _quantizes(work, coding):
        raise NoMatch(f"{coding.op} does not quantize")
    value, moves = coding.inputs[0], list[Node]()
    while (maker := work.maker.get(value)) is not None and not _quantizes(work, work.nodes[maker]):
        definitions = work.definitions(maker)
        load = _moved(work, work.nodes[maker], definitions[0])
        if len(definitions) != 1 or load is None or load.source != work.nodes[maker].inputs[0]:
            raise Miss(f"{work.nodes[maker].op} is neither a data movement nor a maximum of its first input")
        moves.append(work.nodes[maker])
        value = moves[-1].inputs[0]
    if maker is None:
        raise NoMatch(f"{value} is not the output of a DequantizeLinear")
    decoding = work.nodes[maker]
    _check(work, coding, decoding)
    draft, moved = Draft(work, at), decoding.inputs[0]
    for move in reversed(moves):
        moved = draft.node(move.op, (moved, *move.inputs[1:]), move.attrs)
    return draft.replace(coding.outputs[0], moved)


def _moved(work: MutableGraph, node: Node, d: Definition) -> Load | None:
    """The load that a definition consists of, or the maximum of; None for others."""
    if isinstance(d.value, Reduce) and work.opset >= _MAXIMA.get(node.op, work.opset + 1):
        value = d.value.body[0]
        return value if isinstance(value, Load) else None
    return load_of(d)


def zero_points_of_zero(work: MutableGraph, at: int, trust: bool) -> Draft:
    """DQ(q, s, z) is DQ(q, s) where all zero points are 0, as those of weights mostly are."""
    node = work.nodes[at]
    if not _quantizes(work, node) or len(node.inputs) < 3 or not node.inputs[2]:
        raise Miss(f"{node.op} has no zero point")
    zeros = work.constants.get(node.inputs[2])
    if zeros is None or zeros.size < 2 or zeros.load().any():
        raise Miss("the zero point is not a constant vector of zeros")
    draft = Draft(work, at)
    return draft.replace(node.outputs[0], draft.node(node.op, node.inputs[:2], node.attrs, pieces=1))


def clip_before_quantize(work: MutableGraph, at: int, trust: bool) -> Draft:
    """Q(Relu(x)) and Q(Clip(x)) are Q(x) where quantization saturates at the limits of the Clip, or inside of them."""
    coding = work.nodes[at]
    limit = work.made_by(coding.inputs[0], "Relu", "Clip")
    scale, zero = (single(work, coding.inputs[i]) if len(coding.inputs) > i else 0.0 for i in (1, 2))
    codes = np.iinfo(work.type(coding.outputs[0]).dtype.numpy)
    low, high = (0.0, np.inf) if limit.op == "Relu" else clip_limits(work, limit)
    ends = [np.round(np.float32(end) / np.float32(scale)) + zero for end in (low, high)] if scale > 0 else [np.inf] * 2
    if ends[0] > codes.min or ends[1] < codes.max:
        raise Miss(f"{limit.op} is tighter than the range of the quantized type")
    draft = Draft(work, at)
    inputs = (limit.inputs[0], *coding.inputs[1:])
    return draft.replace(coding.outputs[0], draft.node(coding.op, inputs, coding.attrs))


def dynamic_product(work: MutableGraph, at: int, trust: bool) -> Draft:
    """DynamicQuantizeMatMul quantizes its left side as DynamicQuantizeLinear does, which other products can share."""
    node, draft = work.nodes[at], Draft(work, at)
    x, codes, scale, *rest = (*node.inputs, "", "")[:5]
    left, of_left, zero = draft.pieces(draft.node("DynamicQuantizeLinear", (x,), pieces=3))
    inputs = (left, codes, of_left, scale, zero, *rest)
    made = draft.node("MatMulIntegerToFloat", inputs, domain=MICROSOFT.removesuffix("::"))
    return draft.replace(node.outputs[0], made, typed=False)


def _quantizes(work: MutableGraph, node: Node) -> bool:
    row = ROWS.find(node, work.opset)
    return row is not None and row.codes


def _check(work: MutableGraph, coding: Node, decoding: Node) -> None:
    """Raise Miss unless both nodes have the same quantization, and what is between them rounds nothing."""
    if (work.view(coding).attr("block_size", 0), coding.inputs[1:]) != (0, decoding.inputs[1:]):
        raise Miss("the two quantizations differ in scale, zero point or block size")
    if work.type(coding.outputs[0]).dtype != work.type(decoding.inputs[0]).dtype:
        raise Miss("the quantized types differ")
    if work.type(coding.inputs[0]).dtype.bits < 32:
        raise Miss("the dequantized values are float16 or bfloat16, and rounded")
    scale = work.constants.get(coding.inputs[1])
    if scale is None or scale.size != 1 or not _LEAST <= float(scale.load().reshape(())) <= _MOST:
        raise Miss("the scale is not a constant scalar, or it is extremely large or small")


STEPS: tuple[StructuralRule, ...] = (
    StructuralRule(
        "quantized-movement",
        "Q(move(DQ(q, s, z)), s, z) => move(q)",
        "exact",
        quantized_movement,
        frozenset({"QuantizeLinear", MICROSOFT + "QuantizeLinear"}),
        ("the scale is a constant scalar", "both quantized types are the same"),
    ),
    StructuralRule(
        "clip-before-quantize",
        "Q(Clip(x), s, z) => Q(x, s, z)",
        "exact",
        clip_before_quantize,
        frozenset({"QuantizeLinear"}),
        ("s and z are constant scalars", "the limits contain the range of the quantized type"),
    ),
    StructuralRule(
        "dynamic-product",
        "DynamicQuantizeMatMul(x, w) => MatMulIntegerToFloat(DynamicQuantizeLinear(x), w)",
        "exact",
        dynamic_product,
        frozenset({MICROSOFT + "DynamicQuantizeMatMul"}),
    ),
    StructuralRule(
        "zero-points-of-zero",
        "DQ(q, s, 0) => DQ(q, s)",
        "exact",
        zero_points_of_zero,
        frozenset({"DequantizeLinear"}),
        ("the zero point is a constant vector of zeros",),
    ),
)
