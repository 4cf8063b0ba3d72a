"""Quantized tensors that are dequantized only to be moved and quantized again: the quantized values are moved."""

from __future__ import annotations

import numpy as np

from onnxfuse.ir.graph import Node
from onnxfuse.ir.scalar import Load, Reduce
from onnxfuse.ops.own import MICROSOFT
from onnxfuse.ops.rows import ROWS
from onnxfuse.ops.spec import Definition
from onnxfuse.rewrite.draft import Draft
from onnxfuse.rewrite.folding import load_of
from onnxfuse.rewrite.limits import clip_limits, single
from onnxfuse.rewrite.steps import Step
from onnxfuse.rewrite.work import Miss, Work

# Scales between which (code * scale) / scale is the code again, within far less than half a step.
_LEAST, _MOST = 2.0**-100, 2.0**80
_MAXIMA = {"MaxPool": 12, "ReduceMax": 12}  # operators that take the largest, and the opset from which also of codes


def moved_codes(work: Work, at: int, trust: bool) -> Draft:
    """Q(move(DQ(codes, s, z)), s, z) is move(codes); the largest of some numbers has the largest of their codes."""
    coding = work.nodes[at]
    if not _is_codes(work, coding):
        raise Miss(f"{coding.op} makes no codes")
    value, moves = coding.inputs[0], list[Node]()
    while (maker := work.maker.get(value)) is not None and not _is_codes(work, work.nodes[maker]):
        definitions = work.definitions(maker)
        load = _moved(work, work.nodes[maker], definitions[0])
        if len(definitions) != 1 or load is None or load.source != work.nodes[maker].inputs[0]:
            raise Miss(f"{work.nodes[maker].op} does more than to move its input")
        moves.append(work.nodes[maker])
        value = moves[-1].inputs[0]
    if maker is None:
        raise Miss(f"{value} is not decoded")
    decoding = work.nodes[maker]
    _check(work, coding, decoding)
    draft, moved = Draft(work, at), decoding.inputs[0]
    for move in reversed(moves):
        moved = draft.node(move.op, (moved, *move.inputs[1:]), move.attrs)
    return draft.replace(coding.outputs[0], moved)


def _moved(work: Work, node: Node, d: Definition) -> Load | None:
    """The load that a definition is, or that it takes the largest of."""
    if isinstance(d.value, Reduce) and work.opset >= _MAXIMA.get(node.op, work.opset + 1):
        value = d.value.body[0]
        return value if isinstance(value, Load) else None
    return load_of(d)


def zeros_alone(work: Work, at: int, trust: bool) -> Draft:
    """DQ(codes, s, z) is DQ(codes, s) where every z is 0, as those of weights mostly are."""
    node = work.nodes[at]
    if not _is_codes(work, node) or len(node.inputs) < 3 or not node.inputs[2]:
        raise Miss(f"{node.op} has no zero point")
    zeros = work.constants.get(node.inputs[2])
    if zeros is None or zeros.size < 2 or zeros.load().any():
        raise Miss("the zero points are not several constants that are all 0")
    draft = Draft(work, at)
    return draft.replace(node.outputs[0], draft.node(node.op, node.inputs[:2], node.attrs, pieces=1))


def limits_of_codes(work: Work, at: int, trust: bool) -> Draft:
    """Q(Relu(x)) and Q(Clip(x)) are Q(x) where the smallest and the largest code lie within these limits."""
    coding = work.nodes[at]
    limit = work.made_by(coding.inputs[0], "Relu", "Clip")
    scale, zero = (single(work, coding.inputs[i]) if len(coding.inputs) > i else 0.0 for i in (1, 2))
    codes = np.iinfo(work.type(coding.outputs[0]).dtype.numpy)
    low, high = (0.0, np.inf) if limit.op == "Relu" else clip_limits(work, limit)
    ends = [np.round(np.float32(end) / np.float32(scale)) + zero for end in (low, high)] if scale > 0 else [np.inf] * 2
    if ends[0] > codes.min or ends[1] < codes.max:
        raise Miss(f"{limit.op} leaves out numbers that have codes of their own")
    draft = Draft(work, at)
    inputs = (limit.inputs[0], *coding.inputs[1:])
    return draft.replace(coding.outputs[0], draft.node(coding.op, inputs, coding.attrs))


def _is_codes(work: Work, node: Node) -> bool:
    row = ROWS.find(node, work.opset)
    return row is not None and row.codes


def _check(work: Work, coding: Node, decoding: Node) -> None:
    """Raise Miss unless two nodes mean the same by a code, and lose nothing on the way."""
    if (work.view(coding).attr("block_size", 0), coding.inputs[1:]) != (0, decoding.inputs[1:]):
        raise Miss("the scales or zero points differ")
    if work.type(coding.outputs[0]).dtype != work.type(decoding.inputs[0]).dtype:
        raise Miss("the codes are of different types")
    if work.type(coding.inputs[0]).dtype.bits < 32:
        raise Miss("numbers in between are rounded to half precision")
    scale = work.constants.get(coding.inputs[1])
    if scale is None or scale.size != 1 or not _LEAST <= float(scale.load().reshape(())) <= _MOST:
        raise Miss("the scale is not one ordinary number that is known")


STEPS: tuple[Step, ...] = (
    Step(
        "moved-codes",
        "Q(move(DQ(codes, s, z)), s, z) => move(codes)",
        "exact",
        moved_codes,
        frozenset({"QuantizeLinear", MICROSOFT + "QuantizeLinear"}),
        ("the scale is one constant", "the codes have one type"),
    ),
    Step(
        "limits-of-codes",
        "Q(Clip(x), s, z) => Q(x, s, z)",
        "exact",
        limits_of_codes,
        frozenset({"QuantizeLinear"}),
        ("the scale and the zero point are one constant each", "the limits hold the smallest and the largest code"),
    ),
    Step(
        "zero-points-of-zero",
        "DQ(codes, s, 0) => DQ(codes, s)",
        "exact",
        zeros_alone,
        frozenset({"DequantizeLinear"}),
        ("there are several zero points, all 0",),
    ),
)
