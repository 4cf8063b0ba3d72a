"""Kernels of single operators: for each row and element type, the largest case of the tests of rows."""

from __future__ import annotations

import re

import numpy as np

from onnxfuse.ir.graph import Decision, Graph
from onnxfuse.ops.rows import ROWS
from onnxfuse.ops.spec import define
from tests.kernels.compiled import Array, Case, Feeds, Sizes
from tests.ops.case import Case as Meant
from tests.ops.case import view
from tests.ops.test_rows import CASES as MEANT

MOST = 4096  # elements of an input: what is larger is tested elsewhere
UNUSED = re.compile(r"[^A-Za-z0-9]+")


def graph_of(case: Meant) -> Graph:
    """The case as a graph of one node, typed by its row."""
    seen = view(case)
    found = define(ROWS, seen)
    assert not isinstance(found, Decision), found
    made = {d.name: d.type for d in found if d.name in case.results}
    inputs = tuple(n for n in seen.types if n not in seen.constants)
    return Graph((seen.node,), inputs, case.results, {**seen.types, **made}, seen.constants, seen.known, case.opset)


def feeds_of(case: Meant) -> Feeds:
    """The case's own inputs."""

    def feeds(graph: Graph, rng: np.random.Generator, sizes: Sizes) -> dict[str, Array]:
        return {name: case.arrays[name] for name in graph.inputs}

    return feeds


def chosen() -> dict[str, Meant]:
    """The largest case of each operator, opset range and element type, by a name for it."""
    best: dict[str, tuple[int, Meant]] = {}
    for case in MEANT:
        sizes = [x.size for x in case.inputs if x is not None]
        kind = next((str(x.dtype) for x in case.inputs if x is not None), "none")
        rows = ROWS.rows[case.op]
        at = next(i for i, r in enumerate(rows) if r.since <= case.opset <= r.until)
        name = UNUSED.sub("_", f"op_{case.op}_{at}_{kind}")
        if max(sizes, default=0) <= MOST and sum(sizes) > best.get(name, (-1, case))[0]:
            best[name] = (sum(sizes), case)
    return {name: case for name, (_, case) in sorted(best.items())}


CASES: tuple[Case, ...] = tuple(Case(name, graph_of(case), feeds=feeds_of(case)) for name, case in chosen().items())
