"""Schedules of rows: softmax in its cheaper form where its parts have no other reader, streaming stores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeGuard

import numpy as np
import pytest

from onnxfuse.ir.compose import walk
from onnxfuse.ir.graph import Graph
from onnxfuse.ir.index import Axis, Index, Loaded, atoms
from onnxfuse.ir.indexing import coefficient
from onnxfuse.ir.kernel import Bind, Kernel, Let, Loop, Pack, ReduceLoop, Store, statements
from onnxfuse.ir.scalar import Load, Scalar
from onnxfuse.schedule.cpu.causal_skip import END
from onnxfuse.schedule.nests.nest import fused_axes
from onnxfuse.target import CPUS
from tests.kernels.cases.function import CASES as FUNCTIONS
from tests.kernels.cases.row import (
    ends_of,
    mean_turned,
    norm_chain,
    one,
    softmax_chain,
    softmax_turned,
    statistics_between,
)
from tests.kernels.cases.sample import stacked
from tests.kernels.compiled import BUILDS, Array, Case, kernel_of, verified
from tests.kernels.pool_host import compiler
from tests.rules.build import Build, draw

TARGET = "x86-64-v4"


def softmax(rows: int, columns: int, see: str = "", over: str = "sum") -> Graph:
    """Softmax in primitive operators along the last axis; `see` names another value that is handed on as well."""
    b = Build(18)
    axes = b.constant(np.array([-1]))
    x = b.input("x", rows, columns)
    high = b.node("ReduceMax", x, axes)
    e = b.node("Exp", b.node("Sub", x, high))
    s = b.node("ReduceSum", e, axes)
    y = b.node("Div", e, s if over == "sum" else b.node("Sqrt", s))
    return b.graph(y, *{"high": (high,), "powers": (e,), "sum": (s,)}.get(see, ()))


def combines(graph: Graph) -> set[str]:
    """The monoids of all folds of the kernel of a graph."""
    kernel = kernel_of(Case("g", graph), CPUS[TARGET])
    assert isinstance(kernel, Kernel)
    return {s.combine for phase in kernel.phases for s in statements(phase.body) if isinstance(s, ReduceLoop)}


@pytest.mark.parametrize(
    ("graph", "combine"),
    [
        (softmax(20, 40), "maxnum"),
        (softmax_chain(20, 40), "maxnum"),
        (one("Softmax", 20, 40, axis=-1), "maxnum"),
        (one("Softmax", 20, 40, 3, axis=1), "maxnum"),
        (softmax(20, 40, see="sum"), "maxnum"),  # which is NaN where an element is
        (softmax(20, 40, see="high"), "max"),
        (softmax(20, 40, see="powers"), "max"),
        (softmax(20, 40, over="root"), "max"),
        (one("LogSoftmax", 20, 40, axis=-1), "max"),
    ],
)
def test_the_parts_of_a_softmax(graph: Graph, combine: str) -> None:
    assert combines(graph) & {"max", "maxnum"} == {combine}


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("attention_causal_long", True),
        ("attention_causal_shared_keys", True),
        ("attention_causal_shared_keys_any_length", True),
        ("attention_causal_fewer_keys", True),
        ("attention_causal_more_keys", True),
        ("attention_causal_any_length", True),
        ("attention_causal_masked", True),
        ("attention_of_fewer_keys", False),
        ("attention_masked", False),
    ],
)
def test_key_blocks_masked_for_a_whole_tile_are_skipped(name: str, ends: bool) -> None:
    kernel = kernel_of(next(c for c in FUNCTIONS if c.name == name), CPUS[TARGET])
    assert isinstance(kernel, Kernel)
    found = [s for phase in kernel.phases for s in statements(phase.body)]
    assert any(isinstance(s, Bind) and s.axis.name == END for s in found) == ends
    assert len(kernel.phases) <= 2


@pytest.mark.parametrize(
    ("graph", "narrow"),
    [
        (softmax_turned(1, 2, 20, 20), True),
        (softmax_turned("N", 4, "H", "W"), True),
        (one("Softmax", 300, 3, axis=-1), True),
        (softmax_turned(1, 2, 5, 5), False),
        (softmax_turned(1, 19, 20, 20), False),
    ],
)
def test_lanes_are_over_rows_where_rows_are_narrow(graph: Graph, narrow: bool) -> None:
    kernel = kernel_of(Case("g", graph), CPUS[TARGET])
    assert isinstance(kernel, Kernel)
    along_a_row = [
        s
        for phase in kernel.phases
        for s in statements(phase.body)
        if isinstance(s, Loop) and s.kind == "vector" and (s.axis.extent.constant or 1 << 20) < 32
    ]
    assert (not along_a_row) == narrow


def odd(graph: Graph, rng: np.random.Generator, sizes: Mapping[str, int]) -> dict[str, Array]:
    """Rows with NaN at each end, with infinities, of nothing but -inf, and with powers that are nearly nothing."""
    made = draw(graph, rng, sizes)
    x: Any = made["x"]
    x[0, 0] = x[1, -1] = x[2, x.shape[1] // 2] = np.nan
    x[3, 1] = x[4, -1] = np.inf
    x[5, 2] = -np.inf
    x[6] = -np.inf
    x[7] *= 60
    x[8] = -1e30
    return made


ODD = (
    Case("odd_softmax", softmax(20, 43), feeds=odd),
    Case("odd_softmax_short", softmax(35, 5), feeds=odd),
    Case("odd_softmax_long", softmax(9, 1300), feeds=odd),
    Case("odd_softmax_row", one("Softmax", 20, 43, axis=-1), feeds=odd),
    Case("odd_softmax_seen", softmax(20, 43, see="high"), feeds=odd),
)


@pytest.mark.parametrize(("sizes", "pieces"), [((20, 33, 9), 3), ((40, 3, 21), 1)])
def test_sums_of_concatenated_rows_are_taken_by_operand(sizes: tuple[int, ...], pieces: int) -> None:
    b = Build(12)
    x = b.node("Concat", *(b.input(f"x{i}", 5, n) for i, n in enumerate(sizes)), axis=1)
    kernel = kernel_of(Case("g", b.graph(b.node("ReduceSum", x, axes=(1,)))), CPUS[TARGET])
    assert isinstance(kernel, Kernel)
    (fold,) = (s for phase in kernel.phases for s in statements(phase.body) if isinstance(s, ReduceLoop))
    assert len(fold.body) == pieces


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("target", CPUS)
@pytest.mark.parametrize("case", ODD, ids=lambda c: c.name)
def test_nan_and_infinity_appear_where_defined(case: Case, target: str) -> None:
    verified(ODD, case, target)


STREAMED = (
    Case("streamed_softmax", softmax(20, 304)),
    Case("streamed_softmax_odd", softmax(21, 301)),
    Case("streamed_softmax_short", softmax(33, 32)),
    Case("streamed_norm", norm_chain(37, 48)),
    Case("streamed_gelu", one("Gelu", 70, 64, opset=20)),
    Case("streamed_gelu_odd", one("Gelu", 37, 97, opset=20)),
)


def stores(case: Case, target: str) -> list[bool]:
    """Whether each store in the output is streamed."""
    kernel = kernel_of(case, BUILDS[target])
    assert isinstance(kernel, Kernel)
    found = [s for phase in kernel.phases for s in statements(phase.body) if isinstance(s, Store)]
    return [s.stream for s in found if s.buffer == "out0"]


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("target", ["x86-64-v4", "x86-64-v3", "generic"])
@pytest.mark.parametrize("case", STREAMED, ids=lambda c: c.name)
def test_large_outputs_are_streamed(case: Case, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any(stores(case, target))
    monkeypatch.setitem(BUILDS, target, replace(BUILDS[target], l3_bytes=1))
    if case.name != "streamed_softmax_short":
        assert stores(case, target) == [True]
    else:  # its powers are made in the output's place, and read again
        assert stores(case, target) == [False, False]
    verified(STREAMED, case, target)


@pytest.mark.parametrize(("channels", "turned"), [(256, True), (80, True), (2, False)])
def test_long_strided_rows_are_transposed_in_blocks(channels: int, turned: bool) -> None:
    """Of two channels no block is turned: the copy would go lane by lane in a phase of its own."""
    made = kernel_of(Case("g", softmax_turned(1, channels, 7, 7)), CPUS[TARGET])
    assert isinstance(made, Kernel)
    packs = [s for phase in made.phases for s in statements(phase.body) if isinstance(s, Pack)]
    assert bool(packs) == turned
    assert len(made.phases) == 1 + turned


@pytest.mark.parametrize("axis", [2, 3])
def test_what_a_long_reduction_reads_is_read_by_lines(axis: int) -> None:
    """Though what it stores, once for all that it reads, is far apart."""
    made = kernel_of(Case("g", mean_turned(axis, "N", 24, 18, 45)), CPUS[TARGET])
    assert isinstance(made, Kernel)
    (phase,) = made.phases
    (sums,) = (s for s in statements(phase.body) if isinstance(s, ReduceLoop))
    (read,) = (n for s in statements(sums.body) if isinstance(s, Let) for n in walk(s.value) if isinstance(n, Load))
    assert read.lanes is not None and read.lanes.kind == "vector"
    rows = [s.axis for s in statements(phase.body) if isinstance(s, Loop) and s.kind == "serial"]
    assert axis == 2 or coefficient(read.index[0], rows[0]) == Index.of(45)


def test_sums_of_squares_keep_the_layout_of_the_result() -> None:
    """A sum of squares is no product: no value is turned to sum it, and turned back."""
    made = kernel_of(Case("g", statistics_between(2048, 4)), CPUS[TARGET])
    assert isinstance(made, Kernel)
    stores = [s for phase in made.phases for s in statements(phase.body) if isinstance(s, Store)]
    assert len(stores) > 2
    assert not any(s.scattered for s in stores)


def test_the_ends_of_a_whole_tensor_are_found_row_by_row_in_one_phase() -> None:
    kernel = kernel_of(Case("g", ends_of(64, 96, 257)), CPUS[TARGET])
    assert isinstance(kernel, Kernel)
    rows, *rest = kernel.phases
    found = [{s.combine for s in statements(p.body) if isinstance(s, ReduceLoop)} for p in kernel.phases]
    assert found[0] == {"min", "max"} and [s.extent.constant for s in rows.splits] == [64]
    assert {combine for part in found[1:] for combine in part} == {"min", "max"} and len(rest) == 3


def test_a_short_row_is_not_worth_parts() -> None:
    kernel = kernel_of(Case("g", one("ReduceMax", 700, 3, opset=12, axes=(0, 1))), CPUS[TARGET])
    assert isinstance(kernel, Kernel) and len(kernel.phases) == 1


@pytest.mark.parametrize("terms", [2, 5, 7])
def test_sums_of_a_few_terms_are_vectors_over_rows(terms: int) -> None:
    """Vectors over the terms would not be full, and what is computed of the sums would be scalar."""
    b = Build(18)
    graph = b.graph(b.node("Tanh", b.node("ReduceSum", b.input("x", "n", terms), b.ints(1), keepdims=0)))
    kernel = kernel_of(Case("g", graph, {"n": 37}), CPUS[TARGET])
    assert isinstance(kernel, Kernel)
    (stored,) = [s for p in kernel.phases for s in statements(p.body) if isinstance(s, Loop) and s.kind == "vector"]
    assert any(isinstance(s, Store) for s in stored.body)


@pytest.mark.parametrize("count", [2, "N"])
def test_points_of_a_pyramid_are_the_lanes(count: int | str) -> None:
    """Or channels, not heads, whose points lie apart: only what is looked up is gathered, by full vectors."""
    kernel = kernel_of(Case("g", stacked(count)), CPUS[TARGET])
    assert isinstance(kernel, Kernel)
    found = [s for phase in kernel.phases for s in statements(phase.body)]
    loops = [s for s in found if isinstance(s, Loop) and s.kind == "vector"]
    for loop in loops:
        values = [s.value for s in statements(loop.body) if isinstance(s, (Let, Store))]
        gathered = [n for v in values for n in walk(v) if is_gathered(n)]
        assert all(any(isinstance(a, Loaded) for e in n.index for a in atoms(e)) for n in gathered)
        assert not gathered or (loop.axis.extent.constant or 0) > 64


def test_axes_over_places_that_are_looked_up_side_by_side_are_one() -> None:
    query, point, channel = (Axis(name, Index.of(n)) for name, n in (("q", 21), ("p", 4), ("c", 16)))
    here = Index.of(query) * 4 + Index.of(point)
    for place, axes in ((here, 1), (here + Index.of(point), 2)):
        looked_up = Index.of(Loaded("v", (place,), Index.of(84))) * 64 + Index.of(channel)
        assert len(fused_axes((query, point), [here, looked_up])[0]) == axes


def is_gathered(x: Scalar) -> TypeGuard[Load]:
    """Whether each lane loads an element from a place of its own."""
    return isinstance(x, Load) and x.lanes is not None and x.lanes.kind == "gathered"


def test_products_of_few_terms_have_vectors_along_their_columns() -> None:
    """As the first layer of a small network has them: weights are stored with columns last, sums have lanes of them."""
    b = Build()
    y = b.node("Gemm", b.input("x", 100, 4), b.weights(64, 4), b.weights(64), transB=1)
    kernel = kernel_of(Case("g", b.graph(y)), CPUS[TARGET])
    assert isinstance(kernel, Kernel)
    assert [[e.constant for e in p.storage] for p in kernel.inputs] == [[100, 4], [4, 64], [64]]
    found = [s for phase in kernel.phases for s in statements(phase.body)]
    assert not any(isinstance(s, ReduceLoop) and s.scope == "lane" for s in found)
