"""Traits of operators (is it a view, does it keep element order?), derived by probing their rows with small calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import product

import numpy as np

from onnxfuse.ir.dtype import F32, I64, DType
from onnxfuse.ir.graph import Attribute, Constant, Decision, Node, TensorType
from onnxfuse.ir.index import Index
from onnxfuse.ir.scalar import Load
from onnxfuse.ops.classify import MapType, edge_types, order_kept
from onnxfuse.ops.rows import ROWS
from onnxfuse.ops.spec import Definition, Row, View, define, table

Shapes = dict[str, tuple[Index, ...]]
Definitions = tuple[Definition, ...]

_FIRST = "x0"
_OPSET = 21
_SHAPES = ((2, 1, 3), (1, 4, 2, 2))
_VECTORS = ((0,), (1,), (6,), (0, 2), (2, 3), (3, 2, 1), (2, 4, 3), (1, -1), (1, 2, 2))  # that are shapes or axes
_ATTRIBUTES: tuple[Mapping[str, Attribute], ...] = (
    {"axis": 0}, {"axis": 1}, {"axes": (1,)}, {"perm": (1, 0, 2)}, {"blocksize": 2}, {"border": (0, 1, 0, 1)},
    {"to": 1}, {"to": 7},
)  # fmt: skip
_OTHERS: tuple[tuple[DType, ...], ...] = ((), (F32,), (I64,), (F32, F32))  # inputs behind the first, if not shapes


@cache
def keeps_order(row: Row) -> bool:
    """Whether all pure data movements that an operator performs keep the row-major order of elements.

    >>> from onnxfuse.ops.rows import ROWS
    >>> [keeps_order(ROWS.rows[op][-1]) for op in ("Squeeze", "Transpose")]
    [True, False]
    """
    return _every(order_kept, (each for each in small_calls(row) if _moves(*each)))


@cache
def is_view(row: Row) -> bool:
    """Whether every call of an operator returns all elements of its first input in row-major order.

    >>> from onnxfuse.ops.rows import ROWS
    >>> [is_view(ROWS.rows[op][-1]) for op in ("Reshape", "Slice", "Cast", "Max")]
    [True, False, False, False]
    """
    return _every(lambda *call: _moves(*call) and order_kept(*call), small_calls(row))


@cache
def is_view_by_name(key: str) -> bool:
    """The same of an operator by its `Node.key`; False for one without a row.

    >>> [is_view_by_name(key) for key in ("Flatten", "Relu", "com.example::Flatten")]
    [True, False, False]
    """
    return key in ROWS.rows and is_view(ROWS.rows[key][-1])


@cache
def takes_a_part(row: Row) -> bool:
    """Whether every call of an operator returns a subset of its first input's elements in row-major order.

    >>> from onnxfuse.ops.rows import ROWS
    >>> [takes_a_part(ROWS.rows[op][-1]) for op in ("Reshape", "Slice", "Transpose", "Expand")]
    [True, True, False, False]
    """
    return _every(lambda *call: _moves(*call) and _in_order(*call), small_calls(row))


def _every(holds: Callable[[Definitions, Shapes], bool], calls: Iterator[tuple[Definitions, Shapes]]) -> bool:
    """Whether there are calls and the property holds for each of them."""
    first = next(calls, None)
    return first is not None and holds(*first) and all(holds(*each) for each in calls)


def _moves(made: Definitions, shapes: Shapes) -> bool:
    """Whether all results are unguarded copies of elements of the first input."""
    return all(isinstance(d.value, Load) and not d.value.guards and d.value.source == _FIRST for d in made)


def _in_order(made: Definitions, shapes: Shapes) -> bool:
    """Whether each result reads elements in increasing order, none of them twice."""
    return order_kept(made, shapes) or all(t == MapType.ONE_TO_ONE for t in edge_types(made, shapes).values())


def small_calls(row: Row) -> Iterator[tuple[Definitions, Shapes]]:
    """The definitions of small calls of an operator and the shapes of their inputs; refused calls are left out."""
    given = [*((vector, {}) for vector in _VECTORS), *((_VECTORS[0], attrs) for attrs in _ATTRIBUTES)]
    others = _OTHERS[:1] if row.shape_inputs else _OTHERS
    for shape, (vector, attrs), behind, outputs in product(_SHAPES, given, others, (1, 2)):
        view = _call(row, shape, vector, attrs, behind, outputs)
        made = define(table((row,)), view)
        if not isinstance(made, Decision):
            yield made, {name: t.shape for name, t in view.types.items() if t is not None}


def _call(
    row: Row,
    shape: Sequence[int],
    vector: Sequence[int],
    attrs: Mapping[str, Attribute],
    others: tuple[DType, ...],
    outputs: int,
) -> View:
    """A call of an operator: tensors of one shape, and one vector of integers for all inputs that are shapes."""
    domain, _, op = row.op.rpartition("::")
    count = max(1 + len(others), 1 + max(row.shape_inputs, default=0))
    names = tuple(f"x{i}" for i in range(count))
    integers = Constant.of(np.array(vector, np.int64), I64)
    extents, entries = tuple(map(Index.of, shape)), tuple(map(Index.of, vector))
    shaping = {names[i] for i in row.shape_inputs}
    kinds = dict(zip(names, (F32, *others, *(F32,) * count), strict=False))
    counted = TensorType(I64, (Index.of(len(vector)),))
    types = {n: counted if n in shaping else TensorType(kinds[n], extents) for n in names}
    node = Node(op, names, tuple(f"y{i}" for i in range(outputs)), attrs, "probe", domain)
    known = dict.fromkeys(shaping, entries)
    return View(node, types, dict.fromkeys(shaping, integers), known, min(_OPSET, row.until))
