"""Clips that never bind are dropped, and Clips of clipped values become one Clip or Relu."""

from __future__ import annotations

from math import inf

import numpy as np

from onnxfuse.ir.graph import Node
from onnxfuse.rewrite.draft import Draft
from onnxfuse.rewrite.proofs.ranges import Ranges
from onnxfuse.rewrite.steps import Step
from onnxfuse.rewrite.work import Miss, Work


def clip_limits(work: Work, node: Node) -> tuple[float, float]:
    """The limits of a Clip: attributes of old ones, inputs of others."""
    given = [node.attrs.get(name) for name in ("min", "max")]
    ends = [single(work, v) if v else None for v in (*node.inputs[1:], "", "")]
    low, high = (end if end is not None else other for end, other in zip(ends, given, strict=False))
    return (float(low) if low is not None else -inf, float(high) if high is not None else inf)  # type: ignore[arg-type]  # numbers


def single(work: Work, value: str) -> float:
    """The one element of a constant."""
    found = work.constants.get(value) if value else None
    if found is None or found.size != 1:
        raise Miss(f"{value or 'an absent input'} is not one number that is known")
    return float(found.load().reshape(()))


def idle_clip(work: Work, at: int, trust: bool) -> Draft:
    """Clip gives way to what it reads, where that lies within the limits anyway; NaN stays NaN in both."""
    node = work.nodes[at]
    low, high = clip_limits(work, node)
    found = Ranges(work).of(node.inputs[0])
    if not (low <= found.low and found.high <= high):
        raise Miss(f"{node.inputs[0]} may be from {found.low:g} to {found.high:g}")
    return Draft(work, at).replace(node.outputs[0], node.inputs[0])


def limits_of_limits(work: Work, at: int, trust: bool) -> Draft:
    """A Clip or Relu of a Clip or Relu is one of them: the inner limits, seen through the outer ones."""
    outer = work.nodes[at]
    inner = work.made_by(outer.inputs[0], "Clip", *(["Relu"] if outer.op == "Clip" else []))
    ends, limits = _limits(work, outer), _limits(work, inner)
    if ends[0] > ends[1] or limits[0] > limits[1] or any(np.isnan((*ends, *limits))):
        raise Miss("a lower limit is above the upper one")
    low, high = (min(max(end, ends[0]), ends[1]) for end in limits)
    draft, x, dtype = Draft(work, at), inner.inputs[0], work.type(inner.inputs[0]).dtype
    if (low, high) == (0.0, inf):
        return draft.replace(outer.outputs[0], draft.node("Relu", (x,)))
    if work.opset < 11:
        attrs = {name: end for name, end in (("min", low), ("max", high)) if abs(end) != inf}
        return draft.replace(outer.outputs[0], draft.node("Clip", (x,), attrs))
    given = [draft.number(end, dtype) if abs(end) != inf else "" for end in (low, high)]
    return draft.replace(outer.outputs[0], draft.node("Clip", (x, *(given if given[1] else given[:1]))))


def _limits(work: Work, node: Node) -> tuple[float, float]:
    return (0.0, inf) if node.op == "Relu" else clip_limits(work, node)


STEPS: tuple[Step, ...] = (
    Step("idle-clip", "Clip(x) => x", "exact", idle_clip, frozenset({"Clip"}), ("x is proven to lie within",)),
    Step(
        "limits-of-limits",
        "Clip(Clip(x)) => Clip(x)",
        "exact",
        limits_of_limits,
        frozenset({"Clip", "Relu"}),
        ("the limits are numbers that are known; Relu is a Clip from 0 on",),
    ),
)
