"""Assignments to slices, x[:, 1:, 1:] = u, become what is beside the slice and u: exporters write them as scatters.

Their indices are a grid: index k of an element counts along axis k of the updates, from where the slice begins.
"""

from __future__ import annotations

import numpy as np

from onnxfuse.ir.graph import Node
from onnxfuse.ir.index import ONE, Index
from onnxfuse.ir.layout import Shape
from onnxfuse.rewrite.draft import Draft
from onnxfuse.rewrite.mutable_graph import Array, Miss, MutableGraph, NoMatch
from onnxfuse.rewrite.steps import StructuralRule

Span = tuple[int, int, int]  # of an axis: where a slice of it begins and ends


def slice_assignment(work: MutableGraph, at: int, trust: bool) -> Draft:
    """ScatterND whose indices are a grid, as Concats of slices and updates."""
    node = work.nodes[at]
    data, places, updates = node.inputs
    whole, indexed, written = (work.type(v).shape for v in (data, places, updates))
    grid = indexed[:-1]
    if node.attrs.get("reduction", "none") != "none" or indexed[-1:] != (Index.of(len(grid)),):
        raise NoMatch("updates are combined, or the indices are no grid")
    if written != (*grid, *whole[len(grid) :]):
        raise Miss("updates are parts of slices")
    spans: list[Span] = []
    for k, e in enumerate(grid):
        begin, count, extent = _begin(work, places, grid, k), e.constant, whole[k].constant
        if begin == 0 and e == whole[k]:
            continue
        if count is None or extent is None or not 0 <= begin <= extent - count:
            raise Miss("the slice begins or ends at an open place")
        spans.append((k, begin, begin + count))
    draft, made = Draft(work, at), updates
    for n, (k, begin, end) in reversed(list(enumerate(spans))):
        outer = data
        for span in spans[:n]:
            outer = _sliced(draft, outer, span)
        beside = ((k, 0, begin), (k, end, whole[k].constant or end))
        before, after = ([_sliced(draft, outer, s)] if s[1] < s[2] else [] for s in beside)
        made = draft.node("Concat", (*before, made, *after), {"axis": k})
    return draft.replace(node.outputs[0], made)


def _sliced(draft: Draft, x: str, span: Span) -> str:
    axis, begin, end = span
    return draft.node("Slice", (x, draft.ints((begin,)), draft.ints((end,)), draft.ints((axis,))))


def _begin(work: MutableGraph, places: str, grid: Shape, k: int) -> int:
    """Where index k of the elements of a grid begins. Raises Miss where it does not count along axis k alone."""
    if places in work.constants:
        return _counted(work.array(places)[..., k], k)
    joined = work.made_by(places, "Concat")
    if len(joined.inputs) != len(grid) or work.view(joined).attr("axis", 0) not in (-1, len(grid)):
        raise Miss("the indices are joined along another axis")
    part = joined.inputs[k]
    if work.type(part).shape != (*grid, ONE):
        raise Miss("an index is not one of each element")
    if part in work.constants:
        return _counted(work.array(part)[..., 0], k)
    spread = work.made_by(work.made_by(part, "Unsqueeze", "Reshape").inputs[0], "Expand")
    base, have = spread.inputs[0], work.type(spread.inputs[0]).shape
    own = tuple(e if axis == k else ONE for axis, e in enumerate(grid))
    if work.type(spread.outputs[0]).shape != grid or (ONE,) * (len(grid) - len(have)) + have != own:
        raise Miss("an index does not count along its own axis")
    if base in work.constants:
        return _counted(work.array(base).reshape([e.constant or -1 for e in own]), k)
    node = work.made_by(base, "Range", "Reshape", "Unsqueeze")
    return _of_range(work, node if node.op == "Range" else work.made_by(node.inputs[0], "Range"))


def _counted(values: Array, k: int) -> int:
    """The first of indices that count along axis k alone. Raises Miss where they do not."""
    if not values.size:
        raise Miss("nothing is written")
    first = int(values.flat[0])
    counted = np.arange(first, first + values.shape[k]).reshape(-1, *[1] * (values.ndim - 1 - k))
    if not np.array_equal(values, np.broadcast_to(counted, values.shape)):
        raise Miss("an index does not count along its own axis")
    return first


def _of_range(work: MutableGraph, node: Node) -> int:
    """Where a Range by steps of 1 begins. Raises Miss."""
    first, step = (work.known.get(node.inputs[i]) for i in (0, 2))
    if not first or first[0].constant is None or step != (ONE,):
        raise Miss("a Range begins at an open place, or has other steps than 1")
    return first[0].constant


STEPS: tuple[StructuralRule, ...] = (
    StructuralRule(
        "slice-assignment",
        "ScatterND(x, grid from b to e, u) => Concat(x[:b], u, x[e:])",
        "exact",
        slice_assignment,
        frozenset({"ScatterND"}),
        ("indices count along the axes of u", "begins and ends of the slice are known"),
    ),
)
