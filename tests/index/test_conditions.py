"""Conditions on extents that kernels check at launch."""

from __future__ import annotations

from onnxfuse.ir.dtype import F32
from onnxfuse.ir.graph import Decision
from onnxfuse.ir.index import Atom, Axis, Index, Symbol, floor_div, modulo
from onnxfuse.ir.indexing import evaluate
from onnxfuse.ir.scalar import Guard, Load, const
from onnxfuse.ops.spec import Definition
from onnxfuse.schedule.analysis.bounds import checked


def test_a_divisor_that_may_be_zero():
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


def test_the_last_element_of_an_axis_that_may_be_empty():
    """A loop over other axes reads it: without elements nothing may run. A loop over the axis is never entered."""
    words, columns = Symbol("s0"), Axis("v0_0", Index.of(Symbol("s1")))
    shape = (Index.of(words), columns.extent)

    def conditions(axes: tuple[Axis, ...], row: Index) -> tuple[Index, ...]:
        made = checked([Definition("out0", axes, Load("in0", (row, Index.of(columns)), F32))], {"in0": shape})
        assert not isinstance(made, Decision)
        return made[1]

    (found,) = conditions((columns,), Index.of(words) - 1)
    sizes: list[dict[Atom, int]] = [{words: n, Symbol("s1"): m} for n, m in ((0, 3), (0, 0), (1, 3))]
    assert [evaluate(found, each.__getitem__) < 0 for each in sizes] == [True, False, False]
    rows = Axis("v0_1", Index.of(words))
    assert conditions((rows, columns), Index.of(words) - 1 - Index.of(rows)) == ()


def test_an_unbounded_index_is_guarded():
    """Where a relative shift reads is known to lie inside, but no polynomial says so: memory stays safe by a guard."""
    words, places = Symbol("s0"), Symbol("s1")
    rows, columns = Axis("v0_0", Index.of(words)), Axis("v0_1", Index.of(words))
    at = floor_div(Index.of(rows) * words + columns + words, Index.of(places))
    value = Load("in0", (at, Index.of(columns)), F32)
    made = checked([Definition("out0", (rows, columns), value)], {"in0": (Index.of(words), Index.of(words))})
    assert not isinstance(made, Decision)
    ((found,), _) = made
    assert isinstance(found.value, Load) and found.value.guards == (Guard(at, Index.of(words)),)


def test_an_index_that_is_always_out_of_bounds_is_refused():
    words = Symbol("s0")
    row = Axis("v0_0", Index.of(words))
    value = Load("in0", (Index.of(row) + 1,), F32)
    made = checked([Definition("out0", (row,), value)], {"in0": (Index.of(words),)})
    assert isinstance(made, Decision) and made.code == "E-INVALID" and "reaches beyond" in made.reason


def test_an_index_that_may_be_out_of_bounds_is_refused_as_unknown():
    """The bound of a remainder need not be reached: nobody can say that the node is invalid."""
    words = Symbol("s0")
    row = Axis("v0_0", Index.of(words))
    value = Load("in0", (modulo(Index.of(row) * 3, Index.of(words)) + 1,), F32)
    made = checked([Definition("out0", (row,), value)], {"in0": (Index.of(words),)})
    assert isinstance(made, Decision) and made.code == "E-SHAPE-UNKNOWN" and made.unlock


def test_a_bound_that_guarded_places_do_not_reach_is_no_condition():
    """The last k places of a result read a tensor backwards from its middle: the first would be behind its end."""
    length, k, m = Symbol("s0"), Symbol("s1", 0), Symbol("s2", 0)
    place = Axis("v0_0", Index.of(length) + k)
    behind, at = Index.of(place) - length, Index.of(length) + k + m - 1 - place
    value = Load("in0", (at,), F32, (Guard(behind, Index.of(k)),), const(0.0, F32))
    made = checked([Definition("out0", (place,), value)], {"in0": (Index.of(length),)})
    assert not isinstance(made, Decision)
    (found,), conditions = made
    assert conditions == ()
    assert isinstance(found.value, Load) and found.value.guards == (*value.guards, Guard(at, Index.of(length)))
