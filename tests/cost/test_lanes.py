"""What elements cost that lanes of a vector load or store by themselves."""

import pytest

from onnxfuse.cost import COMPUTE, Cost, cost_of
from onnxfuse.ir.dtype import F32
from onnxfuse.ir.index import ZERO, Axis, Index, Symbol, floor_div, modulo
from onnxfuse.ir.indexing import product as product_of
from onnxfuse.ir.kernel import Kernel, Loop, Param, Phase, Store
from onnxfuse.ir.layout import Layout
from onnxfuse.ir.scalar import Guard, Load, const
from onnxfuse.schedule.passes.legalize import legalize
from onnxfuse.target import CPUS

V4 = CPUS["x86-64-v4"]


def copied(stride: int | Index, apart: int, symbols: dict[str, int] | None = None) -> Cost:
    """64 x 1024 elements, stored at distances of `stride` along a vector and of `apart` from one vector to the next."""
    i, j = Axis("i", Index.of(64)), Axis("j", Index.of(1024))
    shape = (Index.of(64 * 1024),)
    value = Load("in0", (Index.of(i) * 1024 + j,), F32)
    store = Store("out0", product_of((Index.of(j), Index.of(stride))) + Index.of(i) * apart, value)
    rows = Loop(i, ZERO, i.extent, "serial", (Loop(j, ZERO, j.extent, "vector", (store,)),))
    phase = Phase((), Index.of(1), (), (rows,))
    kernel = Kernel(
        (Param("in0", "x", F32, shape, Layout()),), (Param("out0", "y", F32, shape, Layout()),), (), (), (phase,)
    )
    found = cost_of(legalize(kernel), V4, symbols=symbols)
    assert found is not None
    return found


def joined(parts: int) -> float:
    """Seconds of computing of 1024 elements of the last of so many joined parts, all of open lengths."""
    j, sizes = Axis("j", Index.of(1024)), [Index.of(Symbol(f"s{k}")) for k in range(parts)]
    at = Index.of(j) - sum(sizes, ZERO)
    value = Load("in0", (at * 3,), F32, (Guard(at, Index.of(64)),), const(0.0, F32))
    rows = Loop(j, ZERO, j.extent, "vector", (Store("out0", Index.of(j), value),))
    shape = (Index.of(3 * 1024),)
    kernel = Kernel(
        (Param("in0", "x", F32, shape, Layout()),),
        (Param("out0", "y", F32, shape, Layout()),),
        (), (), (Phase((), Index.of(1), (), (rows,)),),
    )  # fmt: skip
    found = cost_of(legalize(kernel), V4, symbols={f"s{k}": 9 for k in range(parts)})
    assert found is not None
    return found.parts[COMPUTE]


def divided(by: Index) -> float:
    """Seconds of computing of 1024 elements that are read by columns of a matrix of rows of `by`, here 32."""
    j = Axis("j", Index.of(1024))
    shape, place = (Index.of(1024),), floor_div(Index.of(j), by) + modulo(Index.of(j), by) * 32
    store = Store("out0", Index.of(j), Load("in0", (place,), F32))
    phase = Phase((), Index.of(1), (), (Loop(j, ZERO, j.extent, "vector", (store,)),))
    kernel = Kernel(
        (Param("in0", "x", F32, shape, Layout()),), (Param("out0", "y", F32, shape, Layout()),), (), (), (phase,)
    )
    found = cost_of(legalize(kernel), V4, symbols={"s": 32})
    assert found is not None
    return found.parts[COMPUTE]


def test_dividing_by_an_open_length_costs_each_lane_a_division():
    """A quotient and its remainder are one; compilers multiply in the place of dividing by a number."""
    assert divided(Index.of(Symbol("s"))) > 2 * divided(Index.of(32))


def test_places_behind_many_open_lengths_are_not_free():
    """Where each lane asks for itself whether it is in a part, it adds up the lengths of all parts before."""
    assert joined(3) == pytest.approx(joined(1), rel=0.01)
    assert joined(90) > 4 * joined(3)


def test_storing_by_columns_costs_more_than_by_rows():
    """By columns each element goes alone; where their lines are a multiple of 4 KB apart, into one set of the cache."""
    rows, columns, same_set = copied(1, 1024), copied(64, 1), copied(1024, 1)
    assert columns.seconds > 2 * rows.seconds
    assert same_set.parts[COMPUTE] > 5 * columns.parts[COMPUTE]
    assert rows.phases[0].tasks == 1 and rows.phases[0].waiting == 0


def test_lines_at_an_open_distance_may_be_in_one_set():
    """Where images have sides of 32, 64 and 96 they are; what is planned for all sizes counts with that."""
    far, open_, same_set = (copied(n, 1, {"s": 64}).parts[COMPUTE] for n in (64, Index.of(Symbol("s")), 1024))
    assert 2 * far < open_ < same_set
