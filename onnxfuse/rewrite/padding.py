"""A Pad with zeros before a convolution becomes padding of the convolution."""

from __future__ import annotations

from collections.abc import Sequence

from onnxfuse.ir.graph import Node
from onnxfuse.rewrite.draft import Draft
from onnxfuse.rewrite.mutable_graph import Miss, MutableGraph
from onnxfuse.rewrite.steps import StructuralRule


def pad_into_conv(work: MutableGraph, at: int, trust: bool) -> Draft:
    """Conv(Pad(x)) with zeros along spatial axes becomes Conv(x) with larger pads."""
    conv = work.nodes[at]
    pad = work.made_by(conv.inputs[0], "Pad")
    auto = work.view(conv).attr("auto_pad", "NOTSET")
    if auto not in ("NOTSET", "VALID"):
        raise Miss("auto_pad of the Conv depends on the padded extents")
    rank = len(work.type(pad.inputs[0]).shape)
    low, high = _amounts(work, pad, rank)
    if any(low[:2]) or any(high[:2]) or min(low + high) < 0:
        raise Miss("the Pad extends batch or channels, or has negative amounts")
    none = (0,) * (2 * rank - 4)
    have = none if auto == "VALID" else work.view(conv).attr("pads", none)
    pads = tuple(h + p for h, p in zip(have, (*low[2:], *high[2:]), strict=True))
    draft = Draft(work, at)
    attrs = {k: v for k, v in conv.attrs.items() if k != "auto_pad"} | {"pads": pads}
    return draft.replace(conv.outputs[0], draft.node("Conv", (pad.inputs[0], *conv.inputs[1:]), attrs))


def _amounts(work: MutableGraph, pad: Node, rank: int) -> tuple[list[int], list[int]]:
    """The elements that a Pad with zeros adds before and after each axis. Raises Miss."""
    view = work.view(pad)
    if view.attr("mode", "constant") != "constant":
        raise Miss("the mode of the Pad is not constant")
    if work.opset < 11:
        fill: float | None = float(view.attr("value", 0.0))
        given = list(view.attr("pads", ()))
    else:
        fill = 0.0 if not view.has(2) else work.number(pad.inputs[2])
        given = [e.constant for e in work.known.get(pad.inputs[1], ())]
    where: Sequence[int] = range(rank)
    if view.has(3):
        where = [(e.constant or 0) % rank for e in work.known.get(pad.inputs[3], ())]
    if fill != 0 or len(given) != 2 * len(where) or any(g is None for g in given):
        raise Miss("the Pad does not fill with zeros, or its amounts are not constants")
    low, high = [0] * rank, [0] * rank
    for k, axis in enumerate(where):
        low[axis], high[axis] = int(given[k] or 0), int(given[k + len(where)] or 0)
    return low, high


STEPS: tuple[StructuralRule, ...] = (
    StructuralRule(
        "pad-into-conv",
        "Conv(Pad(x, p), pads=q) => Conv(x, pads=p+q)",
        "exact",
        pad_into_conv,
        frozenset({"Conv"}),
        ("the padding is constant 0", "batch and channels are not padded"),
    ),
)
