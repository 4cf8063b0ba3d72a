"""What holds for every call of an operator, found by probing its row with small calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import product

import numpy as np

from onnxfuse.ir.dtype import F32, I64, DType
from onnxfuse.ir.graph import Attribute, Constant, Decision, Node, TensorType
from onnxfuse.ir.index import Index
from onnxfuse.ir.scalar import Load
from onnxfuse.ops.classify import order_kept
from onnxfuse.ops.spec import Definition, Row, View, define, table

Shapes = dict[str, tuple[Index, ...]]

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
    """Whether an operator keeps the row-major order of elements wherever all that it does is to move them.

    >>> from onnxfuse.ops.rows import ROWS
    >>> [keeps_order(ROWS.rows[op][-1]) for op in ("Squeeze", "Transpose")]
    [True, False]
    """
    calls = _moving(row)
    first = next(calls, None)
    return first is not None and order_kept(*first) and all(order_kept(*each) for each in calls)


def _moving(row: Row) -> Iterator[tuple[tuple[Definition, ...], Shapes]]:
    """What calls of an operator compute that only move elements, with the shapes of their inputs."""
    given = [*((vector, {}) for vector in _VECTORS), *((_VECTORS[0], attrs) for attrs in _ATTRIBUTES)]
    others = _OTHERS[:1] if row.shape_inputs else _OTHERS
    for shape, (vector, attrs), behind, outputs in product(_SHAPES, given, others, (1, 2)):
        view = _call(row, shape, vector, attrs, behind, outputs)
        made = define(table((row,)), view)
        if not isinstance(made, Decision) and all(isinstance(d.value, Load) for d in made):
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
