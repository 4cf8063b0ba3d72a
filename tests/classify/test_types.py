"""Mapping types: DNNFusion's tables, and enumeration of every element that a row's definitions read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from onnxfuse.ir.compose import children, inline
from onnxfuse.ir.graph import Decision, Graph
from onnxfuse.ir.index import ONE, Axis, Div, Entry, Index, Least, Loaded, Symbol, atoms
from onnxfuse.ir.indexing import evaluate
from onnxfuse.ir.scalar import Load, Reduce, Scalar
from onnxfuse.ops.classify import MapType, combine, edge_types, node_facts
from onnxfuse.ops.evaluate import meaning
from onnxfuse.ops.rows import ROWS
from onnxfuse.ops.spec import Definition, View, define
from tests.ops.case import Case, by_operator, data, definitions, hold, ints, view
from tests.ops.test_rows import CASES

O2O, RG, SH, O2M, M2M = MapType

TABLE_2 = {
    O2O: (
        "Add Asin BatchNormalization Cast Ceil Clip Concat Cos Erf Exp Greater LeakyRelu Log Not PRelu Reciprocal "
        "Relu Round Sigmoid Sin Slice Split Sqrt Tanh Where"
    ),
    O2M: "Expand Gather Resize Upsample",
    M2M: (
        "AveragePool Conv ConvTranspose CumSum Einsum Gemm InstanceNormalization MaxPool ReduceProd ReduceMean Softmax"
    ),
    RG: "Flatten Reshape Squeeze Unsqueeze",
    SH: "DepthToSpace SpaceToDepth Transpose",
}

IMAGE, CHANNELS = data(2, 4, 6, 6), tuple(np.abs(data(4, seed=k)) for k in range(4))
UNARY = ["Ceil", "Cos", "Erf", "Exp", "LeakyRelu", "Log", "Reciprocal", "Relu", "Round", "Sigmoid", "Sin", "Sqrt"]
SAMPLES: dict[str, Case] = {
    c.op: c
    for c in (
        *(Case(op, (data(2, 3), data(2, 3))) for op in ("Add", "Greater")),
        *(
            Case(op, (data(2, 3),), opset=22)
            for op in ["Ceil", "Cos", "Erf", "Exp", "LeakyRelu", "Log", "Reciprocal", "Relu", "Round"]
        ),
        *(Case(op, (data(2, 3),), opset=22) for op in ["Asin", "Sigmoid", "Sin", "Sqrt", "Tanh", "Softmax"]),
        Case("Flatten", (data(2, 3, 4),)),
        *(Case(op, (data(2, 3, 4),), {"axes": [1]}, 11) for op in ("ReduceProd", "ReduceMean")),
        Case("Not", (data(2, 3, dtype="bool"),)),
        Case("Cast", (data(2, 3),), {"to": 7}),
        Case("Clip", (data(2, 3), np.array(0.0, np.float32)), constants=(1,)),
        Case("BatchNormalization", (IMAGE, *CHANNELS), constants=(1, 2, 3, 4), opset=15),
        Case("PRelu", (IMAGE, data(4, 1, 1)), constants=(1,)),
        Case("Where", (data(2, 3, dtype="bool"), data(2, 3), data(2, 3))),
        Case("Concat", (data(2, 3), data(4, 3)), {"axis": 0}),
        Case("Slice", (data(7, 3), ints(1), ints(6), ints(0), ints(2))),
        Case("Split", (data(6, 3),), {"axis": 0}, 13, outputs=2),
        Case("Expand", (data(2, 1), ints(2, 3))),
        Case("Gather", (data(7, 3), ints(1, 0, 1))),
        Case("Conv", (IMAGE, data(5, 4, 3, 3)), constants=(1,)),
        Case("ConvTranspose", (IMAGE, data(4, 5, 3, 3)), {"strides": [2, 2]}, constants=(1,)),
        Case("CumSum", (data(3, 5), np.array(1)), known=(1,)),
        Case("Einsum", (data(2, 3), data(3, 4)), {"equation": "ij,jk->ik"}),
        Case("Resize", (IMAGE, None, None, ints(2, 4, 12, 12))),
        Case("Upsample", (IMAGE, np.array([1, 1, 2, 2], np.float32)), opset=9, constants=(1,)),
        Case("Gemm", (data(2, 3), data(3, 4), data(4)), constants=(1, 2)),
        Case("InstanceNormalization", (IMAGE, *CHANNELS[:2]), constants=(1, 2)),
        *(Case(op, (IMAGE,), {"kernel_shape": [2, 2]}) for op in ("AveragePool", "MaxPool")),
        Case("Reshape", (data(2, 6), ints(3, 4))),
        Case("Squeeze", (data(2, 1, 3), ints(1))),
        Case("Unsqueeze", (data(2, 3), ints(1))),
        *(Case(op, (IMAGE,), {"blocksize": 2}) for op in ("DepthToSpace", "SpaceToDepth")),
        Case("Transpose", (data(2, 3, 4),), {"perm": [0, 2, 1]}),
    )
}


def graph_of(seen: View) -> Graph:
    outputs = tuple(seen.node.outputs)
    return Graph((seen.node,), seen.node.inputs, outputs, seen.types, seen.constants, seen.known, seen.opset)


def type_of(case: Case) -> MapType:
    seen = view(case)
    return node_facts(graph_of(seen), seen.node, definitions(case)).type


@pytest.mark.parametrize("want", list(MapType), ids=lambda t: t.name)
def test_table_2_follows_from_the_definitions(want: MapType) -> None:
    for op in TABLE_2[want].split():
        assert type_of(SAMPLES[op]) is want, op


def test_broadcast_weights_are_no_reason_to_call_an_operator_one_to_many() -> None:
    x, bias = data(2, 3), data(3)
    assert type_of(Case("Add", (x, bias), constants=(1,))) is O2O
    assert type_of(Case("Add", (x, bias))) is O2M
    assert type_of(Case("Gather", (data(7, 3), ints(1, 0)), constants=(0,))) is O2M
    assert type_of(Case("MatMul", (x, data(3, 4)), constants=(1,))) is M2M
    assert type_of(Case("Transpose", (x,), constants=(0,))) is SH


def test_edges_have_types_of_their_own() -> None:
    def edges(case: Case) -> list[MapType | None]:
        seen = view(case)
        return list(node_facts(graph_of(seen), seen.node, definitions(case)).edges)

    assert edges(Case("Add", (data(2, 3), data(3)))) == [O2O, O2M]
    assert edges(Case("Softmax", (data(2, 3),))) == [M2M]
    assert edges(Case("Gemm", (data(2, 3), data(3, 4), data(2, 4)))) == [M2M, M2M, O2O]
    assert edges(Case("Gather", (data(7, 3), ints(1, 0)))) == [O2M, O2M]
    assert edges(Case("Gather", (data(7, 3), np.array(2)), {"axis": 0}, known=(1,))) == [O2O, None]
    assert edges(Case("Slice", (data(5), ints(-1), ints(-9), ints(0), ints(-1)))) == [SH, None, None, None, None]
    assert edges(Case("Clip", (data(2), None, np.array(1.0, np.float32)), constants=(2,))) == [O2O, None, None]
    assert edges(Case("Expand", (data(3, 4), ints(1, 4)))) == [O2O, None]
    assert edges(Case("Tile", (data(2, 3), ints(1, 1)))) == [O2O, None]
    assert edges(Case("Conv", (data(1, 3, 4, 4), data(2, 3, 1, 1)))) == [M2M, M2M]


# The combination table ------------------------------------------------------------------------------------------------

TABLE_3 = """
          O2O    O2M    M2M    Rg     Sh
    O2O   O2O/G  O2M/G  M2M/G  Rg/G   Sh/G
    O2M   O2M/G  O2M/Y  X      O2M/Y  O2M/Y
    M2M   M2M/G  M2M/Y  X      M2M/Y  M2M/Y
    Rg    Rg/G   O2M/Y  M2M/Y  Rg/G   Rg/G
    Sh    Sh/G   O2M/Y  M2M/Y  Rg/G   Sh/G
"""
SHORT = {"O2O": O2O, "O2M": O2M, "M2M": M2M, "Rg": RG, "Sh": SH}


def test_table_3() -> None:
    head, *rows = (line.split() for line in TABLE_3.strip().splitlines())
    verdicts = []
    for first, *cells in rows:
        for second, cell in zip(head, cells, strict=True):
            fused, verdict = combine(SHORT[first], SHORT[second])
            verdicts.append(verdict)
            assert verdict == cell.split("/")[-1], (first, second)
            assert verdict == "X" or fused is SHORT[cell.split("/")[0]], (first, second)
    assert (verdicts.count("G"), verdicts.count("Y"), verdicts.count("X")) == (13, 10, 2)


def test_names_are_the_published_ones() -> None:
    assert [t.label for t in MapType] == ["One-to-One", "Reorganize", "Shuffle", "One-to-Many", "Many-to-Many"]


# Enumeration ----------------------------------------------------------------------------------------------------------


def reads(x: Scalar, ranges: tuple[Axis, ...] = ()) -> Iterator[tuple[Load, tuple[Axis, ...]]]:
    """Every load in x with the ranges of the reductions around it."""
    inside = ranges + x.ranges if isinstance(x, Reduce) else ranges
    if isinstance(x, Load):
        yield x, inside
    for child in children(x):
        yield from reads(child, inside)


def value_at(e: Index, axes: tuple[Axis, ...], arrays: Mapping[str, Any], sizes: tuple[int, ...]) -> np.ndarray:
    points = np.meshgrid(*(np.arange(n) for n in sizes), indexing="ij")

    def value(atom: Any) -> Any:
        if isinstance(atom, Loaded):
            at = tuple(value_at(i, axes, arrays, sizes) for i in atom.at)
            got = np.asarray(arrays[atom.source][at] if at else arrays[atom.source])
            return np.where(got < 0, got + value_at(atom.extent, axes, arrays, sizes), got)
        if isinstance(atom, Entry):
            # guards may leave entries out that lie behind the end of the table
            return np.take(atom.table.values, value_at(atom.at, axes, arrays, sizes), mode="clip")
        return points[axes.index(atom)]

    return np.broadcast_to(np.asarray(evaluate(e, value)), sizes)


def enumerated(load: Load, axes: tuple[Axis, ...], ranges: tuple[Axis, ...], arrays: Mapping[str, Any]) -> MapType:
    """The type of one load by looking at every element that it reads."""
    frame = axes + ranges
    sizes = tuple(int(a.extent.constant or 0) for a in frame)
    holds = np.ones(sizes, bool)
    for g in load.guards:
        at = value_at(g.index, frame, arrays, sizes)
        holds &= (at >= 0) & (at < value_at(g.extent, frame, arrays, sizes))
    shape = arrays[load.source].shape
    at = [np.where(holds, value_at(i, frame, arrays, sizes), 0) for i in load.index]
    flat = np.ravel_multi_index(at, shape) if at else np.zeros(sizes, int)
    outputs = int(np.prod(sizes[: len(axes)]))
    if not outputs:
        return O2O
    flat, holds = flat.reshape(outputs, -1), holds.reshape(outputs, -1)
    some, last = holds.any(1), np.iinfo(flat.dtype).max
    order = np.where(holds, flat, last).min(1, initial=last)[some]  # the first element that an output reads
    if (order != np.where(holds, flat, -1).max(1, initial=-1)[some]).any():
        return M2M
    if len(np.unique(order)) < len(order):
        return O2M
    if not (np.diff(order) > 0).all():
        return SH
    return RG if len(order) == arrays[load.source].size == outputs else O2O


def values_of(made: tuple[Definition, ...]) -> list[Definition]:
    """The results with values between the definitions inlined."""
    known: dict[str, tuple[tuple[Axis, ...], Scalar]] = {}
    for d in made:
        known[d.name] = (d.axes, inline(d.value, known))
    return [Definition(d.name, *known[d.name]) for d in made if d.name.startswith("y") and "%" not in d.name]


OPERATORS = by_operator(c for c in CASES if all(x is None or x.size for x in c.inputs))


def _axes(one: tuple[Definition, ...], two: tuple[Definition, ...]) -> Iterator[tuple[Axis, Axis]]:
    for a, b in zip(one, two, strict=True):
        yield from zip(a.axes, b.axes, strict=True)


@pytest.mark.parametrize("op", OPERATORS)
def test_types_agree_with_enumeration(op: str) -> None:
    hold(assert_agrees_with_enumeration, OPERATORS[op])


def assert_agrees_with_enumeration(case: Case) -> None:
    made = definitions(case)
    shapes = {n: tuple(map(Index.of, x.shape)) for n, x in case.arrays.items()}
    found = edge_types(made, shapes)
    if any(d.recurrent for d in made):  # each state depends on all steps before it
        assert found.keys() <= case.arrays.keys() and set(found.values()) == {MapType.MANY_TO_MANY}
        return
    arrays = {**case.arrays, **meaning(made, case.arrays, {})}
    seen: dict[str, MapType] = {}
    loaded: dict[str, MapType] = {}
    guarded: set[str] = set()  # by what was looked up: whether an element is read is known when the model runs
    for d in values_of(made):
        for load, ranges in reads(d.value):
            kind = enumerated(load, d.axes, ranges, arrays)
            seen[load.source] = max(kind, seen.get(load.source, O2O))
            if any(isinstance(a, Loaded) for g in load.guards for a in atoms(g.index)):
                guarded.add(load.source)
            if any(isinstance(a, Loaded) for i in load.index for a in atoms(i)):
                loaded[load.source] = max(M2M if ranges else O2M, loaded.get(load.source, O2O))
    for source, kind in seen.items():
        told = found[source]
        if source in loaded:  # which elements are read is only known when the model runs
            assert told is loaded[source] and kind <= told
        elif told is O2O:  # all elements in the same order is called Reorganize only where the shape changes
            assert kind in (O2O, RG), (source, kind.name)
        elif kind is not told:
            apart = kind is O2O and case.op in ("Einsum", "Resize")  # diagonals; positions that happen to be in order
            unproven = (told is M2M and _touches_padding(made)) or (told is O2M and _rounds(made, source))
            unproven |= told is O2M and source in guarded
            assert kind < told and (apart or unproven), (source, told.name, kind.name)


def _rounds(made: tuple[Definition, ...], source: str) -> bool:
    """Whether positions are rounded or looked up in a table: no element need be read twice."""
    indices = (i for d in made for load, _ in reads(d.value) if load.source == source for i in load.index)
    return any(isinstance(a, (Entry, Div, Least)) for i in indices for a in atoms(i))


def _touches_padding(made: tuple[Definition, ...]) -> bool:
    """Whether a window lies in the padding but for one element: it reads one, yet not one by its map."""
    return any(load.guards and ranges for d in made for load, ranges in reads(d.value))


# Why so many cases are not compared with symbols: fewer are better.
NOT_COMPARED = {
    "where an extent may be 1, so may the type": 685,
    "a scan of known length takes fewer or more steps": 18,
    "an extent that happens to be 1 is no axis": 18,
}


def test_symbols_change_no_type() -> None:
    left = Counter[str]()
    hold(lambda case: left.update([compared_with_symbols(case)]), (c for of in OPERATORS.values() for c in of))
    assert left.pop("") > 0
    assert {reason: count for reason, count in left.items() if count > NOT_COMPARED.get(reason, 0)} == {}


def compared_with_symbols(case: Case) -> str:
    """Assert that a case has the same types with symbols for its sizes; or why they may differ."""
    sizes = {e for x in case.inputs if x is not None for e in x.shape if e > 1}
    seen = view(case, {e: Index.of(Symbol(f"n{e}")) for e in sizes})
    made = define(ROWS, seen)
    if isinstance(made, Decision) or any(d.demands for d in made):
        return "where an extent may be 1, so may the type"
    plain, static = view(case), definitions(case)
    if len(static) != len(made):
        return "a scan of known length takes fewer or more steps"
    if any(a.extent != b.extent and ONE in (a.extent, b.extent) for a, b in _axes(static, made)):
        return "an extent that happens to be 1 is no axis"
    want = edge_types(static, {n: t.shape for n, t in plain.types.items() if t is not None})
    assert edge_types(made, {n: t.shape for n, t in seen.types.items() if t is not None}) == want
    return ""
