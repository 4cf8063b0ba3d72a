"""Bytes fetched into a cache, for loops with a known answer."""

import pytest

from onnxfuse.cost import traffic
from onnxfuse.cost.traffic import Access, EnclosingLoop, Fetched, Visit, largest, merged
from onnxfuse.ir.index import ZERO, Axis, Index

I, J, K = (Axis(name, Index.of(1000)) for name in "ijk")  # noqa: E741  as in the loops
KB = 1 << 10


def fetched(accesses: list[Access], sizes: dict[str, float], capacity: float, share: float = 1.0) -> Fetched:
    """What one cache fetches, of accesses that are made in such a share of the iterations."""
    visits = [Visit((a,), a.loops, share) for a in accesses]
    (found,) = traffic.fetched([largest(visits, group) for group in merged(visits)], sizes, capacity)
    return found


def run(number: int, axis: Axis, trips: float, step: int = 1) -> EnclosingLoop:
    return EnclosingLoop(number, axis, trips, step)


def test_a_working_set_that_fits_is_fetched_once():
    """100 times over 8 KB: once where the cache holds it, each time where it does not."""
    vectors = Access("x", Index.of(J), 16.0, 4, (run(0, I, 100), run(1, J, 128, 16)))
    assert fetched([vectors], {"x": 8 * KB}, 32 * KB).loads == {"x": 8 * KB}
    assert fetched([vectors], {"x": 8 * KB}, 4 * KB).loads == {"x": 100 * 8 * KB}


def test_a_panel_stays_in_cache_over_all_rows():
    """Panels outside, rows inside: the panel and one row are in the cache, all rows are not."""
    loops = (run(0, I, 10), run(1, J, 100))
    panel = Access("w", Index.of(I) * 2048, 2048.0, 4, loops)
    row = Access("x", Index.of(J) * 512, 512.0, 4, loops)
    found = fetched([panel, row], {"w": 80 * KB, "x": 200 * KB}, 16 * KB)
    assert found.loads == {"w": 80 * KB, "x": 10 * 200 * KB}


def test_what_is_rarely_touched_is_rarely_fetched():
    """A branch that one run in four takes."""
    vectors = Access("x", Index.of(J), 16.0, 4, (run(0, I, 100), run(1, J, 128, 16)))
    assert fetched([vectors], {"x": 8 * KB}, 1 * KB, share=0.25).loads == {"x": 100 * 2 * KB}


def test_lines_of_a_window_overlap():
    """Three lines of 4 KB for each of 50 outputs: every line comes once where three of them fit."""
    loops = (run(0, I, 50), run(1, K, 3), run(2, J, 64, 16))
    taps = Access("x", (Index.of(I) + Index.of(K)) * 1024 + J, 16.0, 4, loops)
    found = fetched([taps], {"x": 52 * 4 * KB}, 32 * KB).loads["x"]
    assert found == pytest.approx(52 * 4 * KB, rel=0.01)
    assert fetched([taps], {"x": 52 * 4 * KB}, 8 * KB).loads["x"] > 2.5 * found


def test_a_strided_column_fetches_whole_cache_lines():
    """Every 256th float: a line each, unless the next column is taken before the lines are gone."""
    down = run(1, J, 64, 1)
    column = Access("x", Index.of(J) * 256, 1.0, 4, (down,))
    assert fetched([column], {"x": 64 * KB}, 32 * KB).loads == {"x": 64 * 64}
    columns = Access("x", Index.of(J) * 256 + I, 1.0, 4, (run(0, I, 16), down))
    assert fetched([columns], {"x": 64 * KB}, 32 * KB).loads["x"] <= 64 * 64
    assert fetched([columns], {"x": 64 * KB}, 2 * KB).loads["x"] == 16 * 64 * 64


def test_overlapping_taps_are_fetched_once():
    near = [Access("x", Index.of(J) + 16 * tap, 16.0, 4, (run(0, J, 100, 16),)) for tap in range(3)]
    assert fetched(near, {"x": 1 << 20}, 32 * KB).loads["x"] == pytest.approx(6400, rel=0.05)


def test_of_accesses_that_count_as_one_the_first_is_where_they_begin():
    """Taps that one visit makes, and one that a rarer visit makes, of more elements."""
    loops = (run(0, J, 100, 16),)
    taps = tuple(Access("x", Index.of(J) + 16 * tap, 16.0, 4, ()) for tap in (1, 2, 0))
    visits = [Visit(taps, loops), Visit((Access("x", Index.of(J) + 64, 24.0, 4, ()),), loops, 0.5)]
    (group,) = merged(visits)
    found = largest(visits, group)
    assert (found.offset, found.elements, found.places, found.spread) == (Index.of(J), 16.0, 4, 64)
    visits[1].share = 1.0  # as at other sizes: what counts as one is the same
    assert largest(visits, group).elements == 24.0


def test_stores_count_separately_and_traffic_is_bounded_by_buffer_size():
    loops = (run(0, I, 4),)
    found = fetched(
        [Access("x", ZERO, 4096.0, 4, loops), Access("y", Index.of(I), 1.0, 4, loops, stores=True)],
        {"x": 100, "y": 16},
        32 * KB,
    )
    assert found.loads == {"x": 100}
    assert found.stores == {"y": 16}


def test_what_several_loops_load_reaches_as_far_as_the_last_of_them():
    """Two loops over the same 10 panels, one over all of each, the other over its second half."""
    outer = run(0, I, 10)
    every = Access("w", Index.of(I) * 2048 + J, 16.0, 4, (outer, run(1, J, 128, 16)))
    half = Access("w", Index.of(I) * 2048 + J + 1024, 16.0, 4, (outer, run(2, J, 64, 16)))
    early = Access("w", Index.of(I) * 2048 + 2048, 2048.0, 4, (outer,), early=True)
    stored = Access("y", Index.of(J), 16.0, 4, (run(1, J, 128, 16),), stores=True)
    sizes = {"w": 1 << 20, "y": 8 * KB}
    assert traffic.spans_of([every, half, early, stored], sizes) == {"w": 80 * KB}
    assert traffic.spans_of([half], sizes) == {"w": 76 * KB}
    assert traffic.spans_of([every], {"w": 50 * KB}) == {"w": 50 * KB}
    back = Access("w", Index.of(I) * -2048 + 20480, 2048.0, 4, (outer,))
    assert traffic.spans_of([back, every], sizes) == {"w": 88 * KB}
