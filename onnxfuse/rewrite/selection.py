"""Slices and Gathers moved before the operators that make their input, which then compute only what is read.

A Slice or Gather along an axis moves to all operands that have the axis. So in the last layer of a classifier that
reads one token, only keys and values are computed for all tokens. An operator allows it if in its row every load is
indexed with the axis itself in one dimension, or does not depend on it.

Products with one-hot rows become Gathers. What is computed from the rows of a small table that is looked up often is
computed from the table. Elements that are scattered by slices become slices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onnxfuse.ir.compose import loads, walk
from onnxfuse.ir.dtype import I32, I64
from onnxfuse.ir.graph import Node
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, axes_of
from onnxfuse.ir.scalar import FromIndex, Load, Reduce
from onnxfuse.ops.spec import Definition
from onnxfuse.rewrite.affine import unshared
from onnxfuse.rewrite.draft import Draft
from onnxfuse.rewrite.folding import COMPUTED_BYTES
from onnxfuse.rewrite.measure import elements
from onnxfuse.rewrite.movement import reshaped, whole_axis
from onnxfuse.rewrite.mutable_graph import SMALL, Definitions, Miss, MutableGraph, NoMatch, static_shape
from onnxfuse.rewrite.steps import StructuralRule

LAST = 2**63 - 1  # `ends` of a Slice up to the last element


@dataclass(frozen=True, slots=True)
class Selection:
    """A Slice or Gather along one axis of its input; `place` is the index of a Gather with a scalar index."""

    node: Node
    axis: int
    place: int | None

    def of(self, draft: Draft, value: str, axis: int) -> str:
        """The same selection from another value along one of its axes, which is kept. Returns the new value's name."""
        if self.place is not None:
            if self.place not in (0, -1) and draft.type(value).shape[axis].constant is None:
                return draft.node("Gather", (value, draft.ints((self.place,))), {"axis": axis})
            end = self.place + 1 if self.place != -1 else LAST
            return draft.node("Slice", (value, *(draft.ints((n,)) for n in (self.place, end, axis))))
        if self.node.op == "Gather":
            return draft.node("Gather", (value, self.node.inputs[1]), {"axis": axis})
        starts, ends = self.node.inputs[1:3]
        axes, kind = draft.ints((axis,)), draft.type(starts).dtype
        if kind != I64:  # as the ends are
            axes = draft.array(np.asarray([axis]), kind, "axis", starts)
        return draft.node("Slice", (value, starts, ends, axes, *self.node.inputs[4:5]))


def selection_of(work: MutableGraph, node: Node) -> Selection:
    """A node as a selection along one axis. Raises Miss."""
    view, rank = work.view(node), len(work.type(node.inputs[0]).shape)
    if work.opset < 10:
        raise Miss("before opset 10, starts and ends of a Slice are attributes")
    if node.op == "Gather":
        indices = work.type(node.inputs[1]).shape
        axis = view.attr("axis", 0) % rank
        if len(indices) == 1:
            return Selection(node, axis, None)
        number = work.number(node.inputs[1])
        if indices or number is None:
            raise Miss("the indices are neither a vector nor a constant scalar")
        return Selection(node, axis, int(number))
    ends = work.constants.get(node.inputs[2])
    if len(node.inputs) < 4 or not node.inputs[3]:
        raise Miss("the Slice has no axes input")
    axes = work.array(node.inputs[3]).reshape(-1)
    if len(axes) != 1 or ends is None:
        raise Miss("the Slice is along several axes, or its ends are not constants")
    return Selection(node, int(axes[0]) % rank, None)


def selection_first(work: MutableGraph, at: int, trust: bool) -> Draft:
    """f(x)[i] becomes f(x[i]), where f is independent along the axis."""
    node = work.nodes[at]
    chosen = selection_of(work, node)
    draft = Draft(work, at)
    y = _selected(draft, node.inputs[0], chosen, chosen.axis)
    if chosen.place is not None:
        y = reshaped(draft, y, work.type(node.outputs[0]).shape)
    return draft.replace(node.outputs[0], y)


def _selected(draft: Draft, value: str, chosen: Selection, axis: int) -> str:
    """The selection from a value, computed from the selections from its producer's operands. Raises Miss."""
    work = draft.work
    above = work.node(value)
    if above is None or not work.single_use(value):
        raise Miss(f"{value} is a graph input, or has other readers")
    if any(above.outputs[1:]) or above.op in ("Slice", "Gather") or not above.standard:
        raise Miss(f"{above.key} is a Slice or Gather itself, has several outputs, or is not in the default domain")
    return (_view if work.is_view(work.maker[value]) else _operator)(draft, above, chosen, axis)


def _operator(draft: Draft, above: Node, chosen: Selection, axis: int) -> str:
    """The operator applied to the selections from its operands. Raises Miss."""
    meaning = draft.work.definitions(draft.work.maker[above.outputs[0]])
    found = next(d for d in meaning if d.name == above.outputs[0])
    dims: dict[str, int | None] = {}
    _trace(meaning, found, found.axes[axis], dims)
    inputs = [i if (dim := dims.get(i)) is None else _operand(draft, i, chosen, dim) for i in above.inputs]
    y = draft.node(above.op, inputs, above.attrs)
    have, whole = draft.type(y).shape, found.shape
    if len(have) != len(whole) or any(a != b for k, (a, b) in enumerate(zip(have, whole, strict=True)) if k != axis):
        raise Miss(f"the result of {above.op} would have another shape")
    return y


def _operand(draft: Draft, value: str, chosen: Selection, dim: int) -> str:
    """The selection from an operand; a large constant must stay one, and have no other reader. Raises Miss."""
    made = chosen.of(draft, value, dim)
    constant = draft.work.constants.get(value)
    if constant is not None:
        unshared(draft.work, value)
        if constant.size > SMALL and draft.constant_of(made) is None:
            raise Miss(f"the large constant {value} would be sliced at run time")
    return made


def _trace(meaning: Definitions, d: Definition, axis: Axis | None, dims: dict[str, int | None]) -> None:
    """Fill `dims` with the axis of each operand that an axis of a definition indexes, or None. Raises Miss.

    With `axis` None, all operands are read as a whole.
    """
    for x in walk(d.value):
        if isinstance(x, FromIndex) and axis in axes_of(x.index):
            raise Miss("values depend on their position along the axis")
        if not isinstance(x, Load):
            continue
        where = [k for k, e in enumerate(x.index) if axis in axes_of(e)]
        if any(axis in axes_of(g.index) for g in x.guards) or any(x.index[k] != Index.of(axis) for k in where if axis):
            raise Miss("an element depends on other positions along the axis")
        if len(where) > 1:
            raise Miss("the axis indexes several dimensions of an operand")
        dim = where[0] if where else None
        if dims.setdefault(x.source, dim) != dim:
            raise Miss("an operand is read both along the axis and as a whole")
        inner = next((i for i in meaning if i.name == x.source), None)
        if inner is not None:
            _trace(meaning, inner, inner.axes[dim] if dim is not None else None, dims)


def _view(draft: Draft, above: Node, chosen: Selection, axis: int) -> str:
    """A reshape that does not split or merge the axis, applied to the selection from its input. Raises Miss."""
    have, want = (draft.work.type(v).shape for v in (above.inputs[0], above.outputs[0]))
    if want[axis] == ONE:
        raise Miss("the axis has extent 1")
    dim = whole_axis(have, want, axis)
    y = _selected(draft, above.inputs[0], chosen, dim)
    extent = draft.type(y).shape[dim]
    return reshaped(draft, y, tuple(extent if k == axis else e for k, e in enumerate(want)))


def one_hot_product(work: MutableGraph, at: int, trust: bool) -> Draft:
    """Rows that are 1 where an index equals the position, times a matrix: rows of the matrix; 0 for other indices."""
    product = work.nodes[at]
    equal = work.made_by(work.made_by(product.inputs[0], "Cast").inputs[0], "Equal")
    index = _compared(work, equal)
    if work.opset < 12:
        raise Miss("before opset 12, Min and Max have no integers")
    matrix = product.inputs[1]
    if len(work.type(matrix).shape) != 2:
        raise Miss(f"{matrix} is not one matrix")
    if not np.isfinite(work.array(matrix)).all():
        raise Miss(f"{matrix} has elements whose product with 0 is NaN")
    draft, kind = Draft(work, at), work.type(index).dtype
    depth, width = static_shape(work.type(matrix))  # as MatMul demands, of so many rows
    none = draft.array(np.zeros((1, width)), work.type(matrix).dtype, "zeros", matrix)
    table = draft.node("Concat", (matrix, none), {"axis": 0})
    flat = reshaped(draft, index, work.type(index).shape[:-1])
    least, most = (draft.array(np.asarray(n), kind, "limit", index) for n in (-1, depth))  # both are the row of zeros
    inside = draft.node("Max", (draft.node("Min", (flat, most)), least))
    return draft.replace(product.outputs[0], draft.node("Gather", (table, inside), {"axis": 0}))


def _compared(work: MutableGraph, equal: Node) -> str:
    """The indices, of one element in the last axis, that are compared with 0, 1, ... Raises Miss."""
    for index, positions in (equal.inputs, equal.inputs[::-1]):
        if positions not in work.constants or index in work.constants:
            continue
        have, numbers = work.type(index), work.array(positions)
        apart = have.dtype in (I32, I64) and have.shape[-1:] == (ONE,) and 0 < numbers.ndim <= len(have.shape)
        row = numbers.shape[:-1] == (1,) * (numbers.ndim - 1)
        if apart and row and (numbers.reshape(-1) == np.arange(numbers.size)).all():
            return index
    raise NoMatch(f"{equal.outputs[0]} does not compare indices with 0, 1, ...")


def lookup_last(work: MutableGraph, at: int, trust: bool) -> Draft:
    """f(a[i], b[i], c) becomes f(a, b, c)[i]: constant tables with fewer rows than are looked up."""
    node = work.nodes[at]
    found = {i: g for i in node.inputs if (g := work.node(i)) is not None and g.op == "Gather" and g.standard}
    if not found or len(work.definitions(at)) != 1:
        raise NoMatch(f"{node.op} reads no looked-up rows, or has several stages")
    (d,) = work.definitions(at)
    first = next(iter(found.values()))
    if any(g.inputs[1] != first.inputs[1] or g.attrs.get("axis", 0) != 0 for g in found.values()):
        raise Miss("rows of different indices, or along another axis, are looked up")
    if len({work.type(g.inputs[0]).shape[:1] for g in found.values()}) != 1:
        raise Miss("tables have different numbers of rows")
    rank = len(work.type(first.inputs[1]).shape)
    _elementwise(d, rank, found)
    if any(i and i not in found and i not in work.constants for i in node.inputs):
        raise Miss("another operand is not a constant")
    draft = Draft(work, at)
    table = draft.node(node.op, [_table(draft, i, found, len(d.axes) - rank) for i in node.inputs], node.attrs)
    made = draft.constant_of(table)
    if made is None or made.bytes > COMPUTED_BYTES or made.size > elements(d.shape):
        raise Miss("the table is large, or has more elements than are looked up")
    return draft.replace(d.name, draft.node("Gather", (table, first.inputs[1]), {"axis": 0}))


def _elementwise(d: Definition, rank: int, found: dict[str, Node]) -> None:
    """Raise Miss unless all of a definition is elementwise, and alike for the `rank` axes of indices."""
    if any(isinstance(x, (Reduce, FromIndex)) for x in walk(d.value)):
        raise NoMatch(f"{d.name} is not computed element by element")
    here = tuple(map(Index.of, d.axes))
    for load in loads(d.value):
        behind = here[max(0, len(here) - len(load.index)) :]
        spread = len(behind) == len(load.index) and all(map(_along, load.index, behind))
        outer = load.index[: max(0, len(load.index) - len(here) + rank)]
        alike = load.index == here if load.source in found else spread and all(e == ZERO for e in outer)
        if load.guards or not alike:
            raise Miss("an operand differs between the places of the indices")


def _along(e: Index, axis: Index) -> bool:
    """Whether an index is an axis of the result, or broadcast along it."""
    return e in (ZERO, axis)


def _table(draft: Draft, value: str, found: dict[str, Node], rank: int) -> str:
    """The operand of the operator that makes the table: a table, or a constant of at most `rank` axes."""
    if value in found:
        return found[value].inputs[0]
    shape = draft.work.type(value).shape if value else ()
    return reshaped(draft, value, shape[len(shape) - rank :]) if len(shape) > rank else value


def scatter_of_slices(work: MutableGraph, at: int, trust: bool) -> Draft:
    """Elements whose places along the first axis are the same within a slice are written as slices."""
    node = work.nodes[at]
    data, _, updates = node.inputs
    places = work.made_by(node.inputs[1], "Expand").inputs[0]
    have, whole, written = (work.type(v).shape for v in (places, data, updates))
    if node.attrs.get("axis", 0) not in (0, -len(whole)) or work.type(places).dtype != I64:
        raise Miss("the places are along another axis, or 32-bit integers")
    if len(have) != len(whole) or any(e != ONE for e in have[1:]) or have[0] != written[0]:
        raise Miss("the places differ within a slice, or are repeated")
    if written[1:] != whole[1:]:
        raise Miss("only parts of slices are written")
    draft = Draft(work, at)
    places = reshaped(draft, places, (have[0], ONE))
    how = {name: value for name, value in node.attrs.items() if name == "reduction"}
    return draft.replace(node.outputs[0], draft.node("ScatterND", (data, places, updates), how))


STEPS: tuple[StructuralRule, ...] = (
    StructuralRule(
        "selection-first",
        "f(x)[i] => f(x[i])",
        "exact",
        selection_first,
        frozenset({"Slice", "Gather"}),
        ("f is independent along the axis", "only the selection reads f(x)"),
    ),
    StructuralRule(
        "one-hot-product",
        "MatMul(Cast(Equal(i, 0..n)), W) => Gather(W, i)",
        "exact",
        one_hot_product,
        frozenset({"MatMul"}),
        ("W is a finite constant", "indices outside of 0..n look up zeros"),
    ),
    StructuralRule(
        "lookup-last",
        "f(a[i], b[i], c) => f(a, b, c)[i]",
        "exact",
        lookup_last,
        frozenset(),
        ("f is elementwise", "a, b and c are constants", "the table has fewer elements than are looked up"),
    ),
    StructuralRule(
        "scatter-of-slices",
        "ScatterElements(x, Expand(i), u) => ScatterND(x, i, u)",
        "exact",
        scatter_of_slices,
        frozenset({"ScatterElements"}),
        ("i has one place for each slice along the first axis", "u fills slices of x"),
    ),
)
