"""What a kernel demands of extents before it reads anything."""

from __future__ import annotations

from onnxfuse.ir.dtype import F32
from onnxfuse.ir.graph import Decision
from onnxfuse.ir.index import Atom, Axis, Index, Symbol, floor_div, modulo
from onnxfuse.ir.indexing import evaluate
from onnxfuse.ir.scalar import Load
from onnxfuse.ops.spec import Definition
from onnxfuse.schedule.analysis.bounds import checked


def test_a_divisor_that_may_be_nothing():
    """A relative shift divides by what is left of an extent; where that is nothing, no place is inside."""
    words, places = Symbol("s0", 0), Symbol("s1", 0)
    rows, columns = Axis("v0_0", Index.of(words)), Axis("v0_1", Index.of(words))
    left = Index.of(places) - 1
    at = Index.of(rows) * left + Index.of(columns)
    value = Load("in0", (modulo(floor_div(at, Index.of(words)), left) + 1, modulo(at, Index.of(words))), F32)
    made = checked([Definition("out0", (rows, columns), value)], {"in0": (Index.of(places), Index.of(words))})
    assert not isinstance(made, Decision)
    (same,), found = made
    assert same.value == value

    def refused(n: int, m: int) -> bool:
        sizes: dict[Atom, int] = {words: n, places: m}
        return any(evaluate(e, sizes.__getitem__) < 0 for e in found)

    assert refused(1, 1) and refused(3, 1)
    assert not refused(1, 2) and not refused(3, 6) and not refused(0, 1)
