"""Clips that have no effect are removed, and a Clip of a clipped value becomes one Clip or Relu."""

from __future__ import annotations

from math import inf

import numpy as np

from onnxfuse.ir.graph import Node
from onnxfuse.rewrite.draft import Draft
from onnxfuse.rewrite.mutable_graph import Miss, MutableGraph
from onnxfuse.rewrite.proofs.ranges import Ranges
from onnxfuse.rewrite.steps import StructuralRule


def clip_limits(work: MutableGraph, node: Node) -> tuple[float, float]:
    """The limits of a Clip, from attributes (opset < 11) or inputs; infinite where absent. Raises Miss."""
    given = [node.attrs.get(name) for name in ("min", "max")]
    ends = [single(work, v) if v else None for v in (*node.inputs[1:], "", "")]
    low, high = (end if end is not None else other for end, other in zip(ends, given, strict=False))
    return (float(low) if low is not None else -inf, float(high) if high is not None else inf)  # type: ignore[arg-type]  # numbers


def single(work: MutableGraph, value: str) -> float:
    """The value of a constant of one element. Raises Miss."""
    found = work.constants.get(value) if value else None
    if found is None or found.size != 1:
        raise Miss(f"{value or 'an absent input'} is not a constant scalar")
    return float(found.load().reshape(()))


def redundant_clip(work: MutableGraph, at: int, trust: bool) -> Draft:
    """A Clip whose input is proven to lie within its limits is replaced by the input; both propagate NaN."""
    node = work.nodes[at]
    low, high = clip_limits(work, node)
    found = Ranges(work).of(node.inputs[0])
    if not (low <= found.low and found.high <= high):
        raise Miss(f"{node.inputs[0]} is only known to lie in [{found.low:g}, {found.high:g}]")
    return Draft(work, at).replace(node.outputs[0], node.inputs[0])


def clip_of_clip(work: MutableGraph, at: int, trust: bool) -> Draft:
    """A Clip or Relu of a Clip or Relu is one of them, whose limits are the inner ones clipped by the outer ones."""
    outer = work.nodes[at]
    inner = work.made_by(outer.inputs[0], "Clip", *(["Relu"] if outer.op == "Clip" else []))
    ends, limits = _limits(work, outer), _limits(work, inner)
    if ends[0] > ends[1] or limits[0] > limits[1] or any(np.isnan((*ends, *limits))):
        raise Miss("min is above max, or a limit is NaN")
    low, high = (min(max(end, ends[0]), ends[1]) for end in limits)
    draft, x, dtype = Draft(work, at), inner.inputs[0], work.type(inner.inputs[0]).dtype
    if (low, high) == (0.0, inf):
        return draft.replace(outer.outputs[0], draft.node("Relu", (x,)))
    if work.opset < 11:
        attrs = {name: end for name, end in (("min", low), ("max", high)) if abs(end) != inf}
        return draft.replace(outer.outputs[0], draft.node("Clip", (x,), attrs))
    given = [draft.number(end, dtype) if abs(end) != inf else "" for end in (low, high)]
    return draft.replace(outer.outputs[0], draft.node("Clip", (x, *(given if given[1] else given[:1]))))


def _limits(work: MutableGraph, node: Node) -> tuple[float, float]:
    return (0.0, inf) if node.op == "Relu" else clip_limits(work, node)


STEPS: tuple[StructuralRule, ...] = (
    StructuralRule(
        "redundant-clip", "Clip(x) => x", "exact", redundant_clip, frozenset({"Clip"}), ("x is within the limits",)
    ),
    StructuralRule(
        "clip-of-clip",
        "Clip(Clip(x)) => Clip(x)",
        "exact",
        clip_of_clip,
        frozenset({"Clip", "Relu"}),
        ("the limits are constant scalars; Relu counts as a Clip with min = 0",),
    ),
)
