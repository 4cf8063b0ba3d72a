"""Padding of convolutions: zeros of a Pad before one join it, and taps that reach nothing else are removed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxfuse.ir.graph import Node
from onnxfuse.rewrite.affine import unshared, weight_of
from onnxfuse.rewrite.draft import Draft
from onnxfuse.rewrite.mutable_graph import Array, Miss, MutableGraph
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
    have = none if auto == "VALID" else work.view(conv).attr("pads", ()) or none
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


def taps_in_the_image(work: MutableGraph, at: int, trust: bool) -> Draft:
    """A Conv whose dilated window is larger than the image becomes one with the taps that reach the image."""
    conv, view = work.nodes[at], work.view(work.nodes[at])
    work.definitions(at)  # raises Miss for attributes and extents that do not fit
    weight = weight_of(work, conv)
    extents, sizes = [e.constant for e in work.type(conv.inputs[0]).shape[2:]], weight.shape[2:]
    rank = len(sizes)
    if view.attr("auto_pad", "NOTSET") != "NOTSET" or any(n is None for n in extents):
        raise Miss("the padding or the image is not of known size")
    pads, ones = view.attr("pads", ()) or (0,) * (2 * rank), (1,) * rank
    around = zip(pads[:rank], pads[rank:], strict=True)
    ways = zip(view.attr("strides", ()) or ones, view.attr("dilations", ()) or ones, strict=True)
    kept = [_reaching(n or 0, taps, *pad, *way) for n, taps, pad, way in zip(extents, sizes, around, ways, strict=True)]
    if all(len(taps) == size for (taps, _, _), size in zip(kept, sizes, strict=True)):
        raise Miss("every tap reaches the image")
    unshared(work, conv.inputs[1])
    if not np.isfinite(weight.load()).all():
        raise Miss("the weight has infinite or NaN elements, which times 0 are NaN")
    draft = Draft(work, at)
    shape = tuple(len(taps) for taps, _, _ in kept)
    parts = tuple(slice(taps[0], taps[-1] + 1) for taps, _, _ in kept)

    def load() -> Array:
        return np.ascontiguousarray(weight.load()[(slice(None), slice(None), *parts)])

    w = draft.lazily(weight.dtype, (*weight.shape[:2], *shape), load, "taps", conv.inputs[1], str(parts))
    left = (*(low for _, low, _ in kept), *(high for _, _, high in kept))
    attrs = {**conv.attrs, "kernel_shape": shape, "pads": left}
    return draft.replace(conv.outputs[0], draft.node("Conv", (conv.inputs[0], w, *conv.inputs[2:]), attrs))


def _reaching(size: int, taps: int, low: int, high: int, stride: int, dilation: int) -> tuple[range, int, int]:
    """The taps of an axis that reach some element of the image, and the padding that is left for them. Raises Miss."""
    count = (size + low + high - dilation * (taps - 1) - 1) // stride + 1
    starts = [k * dilation - low for k in range(taps)]  # where a tap begins, and its first position in the image:
    first = [max(0, -(start // stride)) for start in starts]
    found = [k for k in range(taps) if first[k] < count and starts[k] + first[k] * stride < size]
    if not found or len(found) != found[-1] + 1 - found[0]:
        raise Miss("no taps, or some that are not adjacent, reach the image")
    before, after = low - dilation * found[0], high - dilation * (taps - 1 - found[-1])
    if before < 0 or after < 0:
        raise Miss("the window would begin or end inside of the image")
    return range(found[0], found[-1] + 1), before, after


STEPS: tuple[StructuralRule, ...] = (
    StructuralRule(
        "pad-into-conv",
        "Conv(Pad(x, p), pads=q) => Conv(x, pads=p+q)",
        "exact",
        pad_into_conv,
        frozenset({"Conv"}),
        ("the padding is constant 0", "batch and channels are not padded"),
    ),
    StructuralRule(
        "taps-in-the-image",
        "Conv(x, w) => Conv(x, taps of w that reach x)",
        "exact",
        taps_in_the_image,
        frozenset({"Conv"}),
        ("the image has a known size", "the weight is a finite constant", "other taps reach zeros of the padding only"),
    ),
)
