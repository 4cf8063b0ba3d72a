"""Gathers of all elements become movement, masks that are always true are removed."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.ir.dtype import BOOL, I64
from onnxfuse.ir.index import Axis, Index
from onnxfuse.ir.indexing import evaluate
from onnxfuse.rewrite.mutable_graph import MutableGraph
from onnxfuse.rewrite.proofs.positions import always_true, element
from tests.rules.build import Array, Build, only, ops, rewritten, same


def iota(*shape: int) -> Array:
    return np.arange(int(np.prod(shape))).reshape(shape)


# Positions ------------------------------------------------------------------------------------------------------------

CONSTANTS = {
    "iota": iota(3, 4),
    "columns": np.broadcast_to(np.arange(4) * 2 - 3, (3, 4)).copy(),
    "one": np.full((3, 4), 7),
    "pairs": np.stack(np.broadcast_arrays(np.arange(3)[:, None], np.arange(4)[None]), axis=-1),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_that_are_functions_of_their_place(name: str) -> None:
    b = Build()
    array = CONSTANTS[name]
    b.node("Neg", b.constant(array, name="c"))
    work = MutableGraph(b.graph("v0"))
    axes = tuple(Axis(f"a{i}", Index.of(n)) for i, n in enumerate(array.shape))
    last = (2, 1)[array.shape[-1] == 2] if name == "pairs" else None
    at = tuple(map(Index.of, axes)) if last is None else (*map(Index.of, axes[:-1]), Index.of(last))
    found = element(work, "c", at)
    assert found is not None
    for place in np.ndindex(array.shape):
        if last is None or place[-1] == last:
            assert evaluate(found, lambda a, p=place: p[axes.index(a)]) == array[place]  # type: ignore[misc]


def test_constants_that_are_not() -> None:
    b = Build()
    b.node("Neg", b.constant(np.array([0, 1, 3]), name="c"))
    b.node("Neg", b.constant(np.array([[0, 1], [1, 3]]), name="d"))
    work = MutableGraph(b.graph("v0", "v1"))
    i = Index.of(Axis("i", Index.of(2)))
    assert element(work, "c", (i,)) is None and element(work, "d", (i, i)) is None
    assert element(work, "nothing", (i,)) is None


def rows_and_columns(b: Build) -> tuple[str, str, str]:
    """What exporters write for (batch, 1, 1, sequence): a pair of indices for each element of a mask."""
    mask = b.input("mask", "n", "s", dtype=BOOL)
    n, s = (b.types[mask] or pytest.fail()).shape
    zero, one = b.constant(np.array(0)), b.constant(np.array(1))
    sizes = [b.input(k, dtype=I64) for k in ("rows", "columns")]
    b.known["rows"], b.known["columns"] = (n,), (s,)
    rows, columns = (b.node("Range", zero, i, one) for i in sizes)
    rows = b.node("Unsqueeze", rows, b.ints(1, 2, 3))
    columns = b.node("Unsqueeze", columns, b.ints(0, 1))
    shape = b.node("Shape", b.node("Max", rows, b.node("Unsqueeze", columns, b.ints(2))))
    pairs = [
        b.node("Unsqueeze", b.node("Expand", i, shape), b.ints(-1))
        for i in (rows, b.node("Unsqueeze", columns, b.ints(2)))
    ]
    return (
        mask,
        b.node("Concat", *pairs, axis=-1),
        b.node("GreaterOrEqual", b.node("Unsqueeze", columns, b.ints(3)), zero),
    )


def test_a_gather_of_every_element_by_computed_indices_is_a_reshape() -> None:
    b = Build()
    mask, pairs, _ = rows_and_columns(b)
    before = b.graph(b.node("Not", b.node("GatherND", mask, pairs)))
    after, fired = rewritten(before)
    assert ops(after) == ["Unsqueeze", "Not"] and fired["movement-chain"]
    for n, s in ((2, 3), (1, 1)):
        same(before, after, {"n": n, "s": s})


def test_a_gather_of_every_element_by_constant_indices_is_a_reshape() -> None:
    b = Build()
    pairs = CONSTANTS["pairs"].reshape(3, 1, 1, 4, 2)
    before = b.graph(b.node("Neg", b.node("GatherND", b.input("x", 3, 4), b.constant(pairs))))
    after, _ = rewritten(before)
    assert ops(after) == ["Reshape", "Neg"]
    same(before, after)
    b = Build()
    before = b.graph(b.node("Neg", b.node("Gather", b.input("x", 3, 4), b.constant(np.arange(4)), axis=1)))
    after, _ = rewritten(before)
    assert ops(after) == ["Neg"]


@pytest.mark.parametrize("index", [[0, 2, 1], [0, 1], [-3, -2, -1], [0, 1, 1]])
def test_other_gathers_stay(index: list[int]) -> None:
    b = Build()
    x = b.node("Transpose", b.input("x", 4, 3))
    before = b.graph(b.node("Neg", b.node("Gather", x, b.constant(np.array(index)))))
    after, _ = rewritten(before)
    assert sorted(ops(after)) == ["Gather", "Neg", "Transpose"]
    same(before, after)


# Masks ----------------------------------------------------------------------------------------------------------------


def test_comparisons_that_always_hold() -> None:
    b = Build()
    _, _, test = rows_and_columns(b)
    columns = b.nodes[-2].outputs[0]
    holds = {test: True}
    for op, number, expected in (("Greater", -1, True), ("Greater", 0, False), ("GreaterOrEqual", 1, False)):
        holds[b.node(op, columns, b.constant(np.array(number)))] = expected
    for op, number, expected in (("LessOrEqual", 0, True), ("Less", 0, False), ("Less", -1, True)):
        holds[b.node(op, b.constant(np.array(number)), columns)] = expected
    holds[b.node("Less", columns, b.constant(np.array(5)))] = False
    holds[b.node("Equal", columns, columns)] = False  # nobody asks
    holds[b.constant(np.array([True, True]))] = True
    holds[b.constant(np.array([True, False]))] = False
    work = MutableGraph(b.graph(*(v for v in holds if v not in b.constants)))
    assert {v: always_true(work, v) for v in holds} == holds


def scores(b: Build, mask: str, layers: int = 2) -> list[str]:
    """Scores of some layers with one mask added to each."""
    added = b.node("Where", mask, b.constant(0.0), b.constant(-1e4))
    return [b.node("Add", b.input(f"x{i}", "n", 2, "s", "s"), added) for i in range(layers)]


def test_a_mask_that_holds_for_every_query_stays_a_row() -> None:
    b = Build()
    mask, pairs, test = rows_and_columns(b)
    both = b.node("And", test, b.node("GatherND", mask, pairs))
    before = b.graph(*scores(b, both))
    after, fired = rewritten(before)
    assert ops(after) == ["Unsqueeze", "Where", "Add", "Add"] and fired["and-true"] == 1
    where = next(n for n in after.nodes if n.op == "Where")
    assert [e.constant for e in (after.types[where.outputs[0]] or pytest.fail()).shape][1:3] == [1, 1]
    for n, s in ((2, 3), (1, 1), (3, 1)):
        same(before, after, {"n": n, "s": s})


def test_a_mask_whose_shape_is_wanted_stays() -> None:
    for reader in ("output", "Softmax"):
        b = Build()
        mask = b.input("mask", 2, 1, 1, 3, dtype=BOOL)
        both = b.node("And", b.constant(np.ones((1, 1, 3, 1), bool)), mask)
        added = b.node("Where", both, b.constant(0.0), b.constant(-1e4))
        before = b.graph(added if reader == "output" else b.node("Softmax", added))
        assert rewritten(before, only("and-true"))[1] == {}


def test_a_mask_that_may_not_hold_stays() -> None:
    b = Build()
    mask = b.input("mask", 2, 1, 1, 3, dtype=BOOL)
    causal = b.constant(np.tril(np.ones((1, 1, 3, 3), bool)))
    before = b.graph(*scores_of(b, b.node("And", causal, mask)))
    assert rewritten(before, only("and-true"))[1] == {}


def scores_of(b: Build, mask: str) -> list[str]:
    added = b.node("Where", mask, b.constant(0.0), b.constant(-1e4))
    return [b.node("Add", b.input("x", 2, 2, 3, 3), added)]


def test_an_expand_before_broadcasting_readers_is_removed() -> None:
    b = Build()
    shape = b.node("Shape", b.input("x0", "n", 2, "s", "s"))
    seen = b.node("Expand", b.input("mask", 1, 1, "s", 1, dtype=BOOL), shape)
    added = b.node("Where", seen, b.constant(0.0), b.constant(-1e4))
    before = b.graph(b.node("Add", "x0", added))
    after, fired = rewritten(before, only("expand-before-broadcast"))
    assert fired == {"expand-before-broadcast": 1} and "Expand" not in ops(after)
    for n, s in ((2, 3), (1, 1)):
        same(before, after, {"n": n, "s": s})


def test_what_is_expanded_for_its_shape_stays() -> None:
    for reader in ("output", "Softmax", "Add"):
        b = Build()
        wide = b.node("Expand", b.input("x", 2, 1, 3), b.ints(2, 4, 3))
        y = wide if reader == "output" else b.node(reader, wide, *([b.input("y", 1, 3)] if reader == "Add" else []))
        assert rewritten(b.graph(y), only("expand-before-broadcast"))[1] == {}
