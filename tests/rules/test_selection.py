"""Slice and Gather move before operators that treat positions of their axis independently, and only before those."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from onnxfuse.ir.dtype import I64
from onnxfuse.ir.graph import Graph
from tests.rules.build import Build, only, ops, rewritten, same

RULE = "selection-first"
SIZES = ({"n": 2, "s": 5}, {"n": 1, "s": 3})


def check(before: Graph, expected: list[str], *more: str) -> Graph:
    after, fired = rewritten(before, only(RULE, *more))
    assert ops(after) == expected and fired.get(RULE)
    for symbols in SIZES:
        same(before, after, symbols, terms=64)
    return after


def stays(b: Build, *outputs: str) -> None:
    _, fired = rewritten(b.graph(*outputs), only(RULE))
    assert RULE not in fired


def first(b: Build, x: str, axis: int, *, step: int = 1, end: int = 1) -> str:
    """The first places of an axis."""
    return str(b.node("Slice", x, b.ints(0), b.ints(end), b.ints(axis), b.ints(step)))


def layer(b: Build, x: str, width: int) -> str:
    """A layer of a transformer with one head."""
    q, k, v = (b.dense(x, width) for _ in range(3))
    scores = b.node("MatMul", q, b.node("Transpose", k, perm=(0, 2, 1)))
    y = b.node("Add", x, b.dense(b.node("MatMul", b.node("Softmax", scores, axis=-1), v), width))
    y = b.node("LayerNormalization", y, b.weights(width), b.weights(width))
    inner = b.dense(b.node("Relu", b.dense(y, 4 * width)), width)
    return str(b.node("LayerNormalization", b.node("Add", y, inner), b.weights(width), b.weights(width)))


@pytest.mark.parametrize("extent", [7, "s"])
@pytest.mark.parametrize("place", [0, -1, -2])
def test_the_last_layer_of_a_classifier_is_computed_for_one_token(extent: int | str, place: int) -> None:
    b = Build()
    y = layer(b, b.input("x", "n", extent, 8), 8)
    token = b.node("Gather", y, b.constant(np.asarray(place, np.int64)), axis=1)
    before = b.graph(b.dense(token, 3))
    after, fired = rewritten(before, only(RULE, "common-subexpressions"))
    for symbols in SIZES:
        same(before, after, symbols, terms=64)
    assert fired[RULE] > 10
    whole = [n for n in after.nodes if n.op not in ("Slice", "Gather") and _rows(after, n.outputs[0]) == repr(extent)]
    assert [n.op for n in whole] == ["MatMul", "Add", "MatMul", "Add"], "keys and values alone"


def _rows(graph: Graph, value: str) -> str:
    have = graph.types[value]
    assert have is not None
    shape = [repr(e).strip("'") for e in have.shape]
    return repr(shape[1] if not shape[1].isdigit() else int(shape[1])) if len(shape) == 3 and shape[-1] == "8" else ""


ROWS, COLUMNS = 120, 128  # enough that two selections cost less than what they save
ALIKE: dict[str, Callable[[Build, str], str]] = {
    "Relu": lambda b, x: b.node("Relu", x),
    "a constant of columns": lambda b, x: b.node("Mul", x, b.weights(COLUMNS)),
    "a constant of rows": lambda b, x: b.node("Mul", x, b.weights(ROWS, 1)),
    "a matrix": lambda b, x: b.node("MatMul", x, b.weights(COLUMNS, COLUMNS)),
    "a norm": lambda b, x: b.node("LayerNormalization", x, b.weights(COLUMNS), b.weights(COLUMNS)),
    "Softmax": lambda b, x: b.node("Softmax", x, axis=-1),
    "a sum of columns": lambda b, x: b.node("ReduceSum", x, b.ints(2), keepdims=1),
    "a Reshape": lambda b, x: b.node("Relu", b.node("Reshape", b.node("Exp", x), b.ints(2, ROWS, 2, COLUMNS // 2))),
    "a Pad of columns": lambda b, x: b.node("Pad", x, b.ints(0, 0, 1, 0, 0, 1)),
    "a Concat of columns": lambda b, x: b.node("Concat", x, b.node("Exp", x), axis=2),
}


@pytest.mark.parametrize("selected", ["Slice", "every other", "Gather", "indices of a run", "one index"])
@pytest.mark.parametrize("name", ALIKE)
def test_operators_independent_along_rows_compute_only_selected_rows(name: str, selected: str) -> None:
    b = Build()
    x = b.input("x", 2, ROWS, COLUMNS)
    y = ALIKE[name](b, b.node("Neg", x))
    if selected == "Slice":
        out = first(b, y, 1, end=2)
    elif selected == "every other":
        out = first(b, y, -len(b.types[y].shape) + 1, step=2, end=ROWS)  # type: ignore[union-attr]  # rows type all of these
    elif selected == "Gather":
        out = b.node("Gather", y, b.ints(4, -1), axis=1)
    elif selected == "indices of a run":
        out = b.node("Gather", y, b.input("i", 2, dtype=I64), axis=1)
    else:
        out = b.node("Gather", y, b.constant(np.asarray(3, np.int64)), axis=1)
    before = b.graph(out)
    after, fired = rewritten(before, only(RULE, "common-subexpressions"))
    assert fired[RULE] >= 1 and ops(after)[0] in ("Slice", "Gather"), "in front of everything"
    same(before, after, terms=COLUMNS)


def test_a_row_axis_is_followed_through_transposes() -> None:
    b = Build()
    x = b.input("x", 2, 3, 6, 8)
    y = b.node("Reshape", b.node("Transpose", b.node("Exp", x), perm=(0, 2, 1, 3)), b.ints(2, 6, 24))
    after = check(b.graph(first(b, y, 1)), ["Slice", "Exp", "Transpose", "Reshape"])
    assert [int(n) for n in after.constants[after.nodes[0].inputs[3]].load()] == [2]


def test_a_token_of_logits_is_multiplied_alone() -> None:
    b = Build()
    logits = b.dense(b.input("x", "n", "s", 8), 50, bias=False)
    check(b.graph(b.node("Slice", logits, b.ints(-1), b.ints(2**31), b.ints(1))), ["Slice", "MatMul"])


def test_what_mixes_places_or_knows_them_stays() -> None:
    mixed: list[Callable[[Build, str], str]] = [
        lambda b, x: b.node("Softmax", x, axis=1),
        lambda b, x: b.node("CumSum", x, b.constant(np.asarray(1, np.int64))),
        lambda b, x: b.node("Trilu", x),
        lambda b, x: b.node("LayerNormalization", x, b.weights(8, 8), b.weights(8, 8), axis=1),
        lambda b, x: b.node("Pad", x, b.ints(0, 1, 0, 0, 1, 0)),
        lambda b, x: b.node("Concat", x, b.node("Exp", x), axis=1),
        lambda b, x: b.node("Reshape", x, b.ints(2, 4, 16)),
        lambda b, x: b.node("Einsum", x, equation="nii->ni"),
        lambda b, x: b.node("Expand", b.node("ReduceMax", x, b.ints(1), keepdims=1), b.ints(2, 8, 8)),
    ]
    for op in mixed:
        b = Build(18)
        y = op(b, b.node("Neg", b.input("x", 2, 8, 8)))
        stays(b, first(b, y, 1))


def test_what_others_read_stays() -> None:
    b = Build()
    y = b.node("Exp", b.input("x", 2, 6, 8))
    stays(b, first(b, y, 1), b.node("Neg", y))
    b = Build()
    y = b.node("Exp", b.input("x", 2, 6, 8), out="y")
    stays(b, first(b, y, 1), y)


def test_selections_of_selections_of_several_axes_or_of_computed_ends_stay() -> None:
    b = Build()
    y = b.node("Exp", b.input("x", 2, 6, 8))
    stays(b, b.node("Slice", y, b.ints(0, 0), b.ints(1, 1), b.ints(1, 2)))
    b = Build()
    y = b.node("Exp", b.input("x", 2, 6, 8))
    stays(b, b.node("Slice", y, b.ints(0), b.input("e", 1, dtype=I64), b.ints(1)))
    b = Build()
    y = b.node("Exp", b.input("x", 2, 6, 8))
    stays(b, b.node("Gather", y, b.constant(np.asarray([[0, 1]], np.int64)), axis=1))
    b = Build()
    stays(b, first(b, first(b, b.input("x", 2, 6, 8), 2, end=3), 1))


def test_nothing_is_gained_where_everything_is_read() -> None:
    b = Build()
    y = b.node("Exp", b.input("x", 2, 6, 8))
    stays(b, b.node("Gather", y, b.constant(np.arange(6).repeat(2)), axis=1))


def test_an_operator_of_another_domain_is_not_spelled_as_one_of_the_default() -> None:
    b = Build(20)
    y = b.node("Gelu", b.input("x", 2, 5, 8))
    b.nodes[-1] = replace(b.nodes[-1], domain="com.microsoft")
    stays(b, first(b, y, 1))


def test_ends_of_another_type_keep_it() -> None:
    b = Build()
    y = b.node("Exp", b.input("x", 2, 60, 80))
    places = [b.constant(np.asarray([n], np.int32)) for n in (0, 1, 1)]
    after = check(b.graph(b.node("Slice", y, *places)), ["Slice", "Exp"])
    types = [after.types[i] for i in after.nodes[0].inputs[1:]]
    assert {t.dtype.name for t in types if t is not None} == {"int32"}


def test_a_large_weight_stays_constant_and_is_stored_once() -> None:
    b = Build()
    y = b.node("MatMul", b.input("x", 4, 300), b.weights(300, 500))
    stays(b, b.node("Gather", y, b.input("i", 7, dtype=I64), axis=1))
    b = Build()
    w = b.weights(500, 300)
    y = b.node("Gemm", b.input("x", 4, 300), w, transB=1)
    stays(b, first(b, y, 1, end=100), b.node("Gather", w, b.input("i", 7, dtype=I64)))
    b = Build()
    y = b.node("MatMul", b.input("x", 4, 300), b.weights(300, 500))
    check(b.graph(first(b, y, 1, end=100)), ["MatMul"])
