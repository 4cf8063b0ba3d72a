"""Cases of scatters: every reduction at computed indices, along which axes, with producers and consumers fused."""

from __future__ import annotations

from onnxfuse.ir.dtype import F32, F64, I32, I64, DType
from onnxfuse.ir.graph import Graph
from tests.kernels.cases.movement import places
from tests.kernels.compiled import Case
from tests.rules.build import Build

ANY = ({"A": 5, "B": 37}, {"A": 4, "B": 1}, {"A": 40, "B": 0})
Extents = tuple[int | str, ...]


def elements(have: Extents, at: Extents, axis: int, how: str = "add", dtype: DType = F32, places: DType = I64) -> Graph:
    """ScatterElements into what was computed before, and something behind it."""
    b = Build(18)
    x, u = b.node("Neg", b.input("x", *have, dtype=dtype)), b.input("u", *at, dtype=dtype)
    i = b.input("i", *at, dtype=places)
    return b.graph(b.node("Abs", b.node("ScatterElements", x, i, u, axis=axis, reduction=how)))


def slices(have: Extents, at: Extents, updates: Extents, how: str = "add") -> Graph:
    """ScatterND of what is computed for it."""
    b = Build(18)
    u = b.node("Exp", b.input("u", *updates))
    return b.graph(b.node("ScatterND", b.input("x", *have), b.input("i", *at, dtype=I64), u, reduction=how))


def messages(*, heads: bool = False) -> Graph:
    """What goes along the edges of a graph, weighted, and added up at its nodes: one place for a row of elements."""
    b = Build(18)
    rest: Extents = (3, 20) if heads else (20,)
    x, edges, of = b.input("x", "A", *rest), b.input("i", 2, "B", dtype=I64), b.constant(0, int)
    sent = b.node("Gather", x, b.node("Gather", edges, of))
    sent = b.node("Mul", sent, b.node("Sigmoid", b.input("w", "B", *((3, 1) if heads else (1,)))))
    at = b.node("Gather", edges, b.constant(1, int))
    at = b.node("Unsqueeze", at, b.ints(*range(1, 1 + len(rest))))
    at = b.node("Expand", at, b.ints(1, *(e for e in rest if isinstance(e, int))))
    into = b.node("Mul", x, b.constant(0.5))
    return b.graph(b.node("Tanh", b.node("ScatterElements", into, at, sent, axis=0, reduction="add")))


def mean() -> Graph:
    """Two scatters of one group: sums of rows, and how many of them there are."""
    b = Build(18)
    x, i = b.input("x", "A", 20), b.node("Unsqueeze", b.input("i", "B", dtype=I64), b.ints(1))
    u = b.input("u", "B", 20)
    summed = b.node("ScatterElements", x, b.node("Expand", i, b.ints(1, 20)), u, axis=0, reduction="add")
    one = b.node("Slice", x, b.ints(0), b.ints(1), b.ints(1))
    count = b.node("ScatterElements", b.node("Mul", one, b.constant(0.0)), i, b.node("Exp", b.node("Mul", b.node(
        "Slice", u, b.ints(0), b.ints(1), b.ints(1)), b.constant(0.0))), axis=0, reduction="add")  # fmt: skip
    return b.graph(b.node("Div", summed, b.node("Add", count, b.constant(1.0))))


def _cases() -> tuple[Case, ...]:
    made = {
        "rows": elements(("A", 20), ("B", 20), 0),
        "rows_int32": elements(("A", 20), ("B", 20), 0, "mul", F64, I32),
        "middle": elements((3, "A", 20), (3, "B", 20), 1, "max"),
        "last": elements((5, "A"), (5, "B"), -1, "min"),
        "part": elements((5, 4, 20), (2, 7, 19), 1),
        "line": elements(("A",), ("B",), 0),
        "line_of_integers": elements(("A",), ("B",), 0, "add", I64),
        "latest": elements(("A", 20), ("B", 20), 0, "none"),
        "latest_part": elements((5, 4, 20), (2, 7, 19), 1, "none"),
        "slices": slices((5, 6, "A"), ("B", 2), ("B", "A")),
        "slices_latest": slices((5, 6, 20), ("B", 1), ("B", 6, 20), "none"),
        "one_slice": slices((5, 20), (1,), (20,), "mul"),
        "pairs": slices((5, 6), (2, 3, 2), (2, 3), "max"),
        "messages": messages(),
        "messages_of_heads": messages(heads=True),
        "mean": mean(),
    }
    return tuple(Case(f"scatter_{name}", graph, ANY, feeds=places) for name, graph in made.items())


CASES: tuple[Case, ...] = _cases()
