"""Vector loops split into subranges where guards start and stop holding, so that no lane is tested (loop peeling).

Padding is separated from the interior, and concatenated tensors are read one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from onnxfuse.ir.affine import simplify
from onnxfuse.ir.compose import substitute_axes, walk
from onnxfuse.ir.index import ZERO, Axis, Index, axes_of
from onnxfuse.ir.indexing import coefficient, substitute
from onnxfuse.ir.scalar import FromIndex, Load, Reduce, Scalar
from onnxfuse.schedule.nests.nest import Goal

MOST = 64  # subranges of one loop: enough for the Concat of a dense block, in a kernel of a few KB
SHORTEST = 8  # elements of a subrange of a sum


def signs_of(values: Iterable[Scalar]) -> list[Index]:
    """Every index whose sign the values depend on, in their guards and comparisons."""
    nodes = [n for value in values for n in walk(value)]
    compared = [n.index for n in nodes if isinstance(n, FromIndex)]
    return [
        *compared,
        *(e for n in nodes if isinstance(n, Load) for g in n.guards for e in (g.index, g.index - g.extent)),
    ]


def split_points(axis: Axis, signs: Sequence[Index]) -> tuple[int, ...] | None:
    """Points at which to split a loop over `axis`, ends included; None if a sign does not change at fixed points."""
    extent = axis.extent.constant
    if extent is None:
        return None
    found = {0, extent}
    for e in signs:
        if axis in axes_of(e):
            rest, stride = substitute(e, {axis: ZERO}).constant, coefficient(e, axis)
            if rest is None or stride is None or stride.constant is None or stride.constant < 1:
                return None
            first = -(rest // stride.constant)  # where e becomes nonnegative
            found |= {first} if 0 < first < extent else set()
    return tuple(sorted(found)) if len(found) <= MOST + 1 else None


def split_goals(goals: Sequence[Goal], axis: Axis, points: Sequence[int | Index]) -> list[tuple[Axis, list[Goal]]]:
    """The goals over each subrange of an axis, without the guards that are known to hold there."""
    made = []
    for number, (begin, end) in enumerate(pairwise(points)):
        piece = Axis(f"{axis.name}.{number}", Index.of(end) - begin)
        moved = [g.substituted({axis: Index.of(piece) + begin}) for g in goals]
        made.append((piece, [Goal(g.buffer, g.offset, simplify(g.value), g.also) for g in moved]))
    return made


def split_reduction(x: Reduce) -> list[tuple[Reduce, dict[Axis, Index]]]:
    """A reduction split into reductions over subranges in which guards are decided, each with its value of the axis."""
    points = split_points(x.ranges[-1], signs_of(x.body))
    if len(x.ranges) > 1 or points is None or len(points) < 3:
        return [(x, {})]
    if min(end - begin for begin, end in pairwise(points)) < SHORTEST:
        return [(x, {})]
    made = []
    for number, (begin, end) in enumerate(pairwise(points)):
        piece = Axis(f"{x.ranges[0].name}.{number}", Index.of(end - begin))
        at = {x.ranges[0]: Index.of(piece) + begin}
        body = tuple(simplify(substitute_axes(b, at)) for b in x.body)
        made.append((replace(x, ranges=(piece,), body=body), at))
    return made
