"""A convolution, the window after it and the next convolution are one phase, by strips of any number of lines."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pytest

from onnxfuse.ir.interpret import interpret
from onnxfuse.ir.kernel import Kernel, statements
from onnxfuse.ir.tile import Tile
from onnxfuse.ir.verify import verify
from onnxfuse.schedule.cpu.candidates import CostRanking
from onnxfuse.target import CPUS
from tests.kernels.cases.chain import CASES
from tests.kernels.compiled import BUILDS, Case, check, expected, fed, forget, kernel_of, packed, scheduled

STRIPS = {case.name: case for case in CASES if case.name.startswith("strips_")}
TARGET, AVX2 = "x86-64-v4", "x86-64-v3"
WAYS = range(4)  # candidates, which differ in the lines of a strip


def by_strips(case: Case, way: int, target: str = TARGET) -> Kernel:
    """The kernel with a candidate of this number, by strips even if that is predicted to take longer."""

    def of_strips(_: CostRanking, kernels: list[Kernel]) -> Kernel:
        return next(k for k in kernels if any(p.few for p in k.phases))

    with patch.object(CostRanking, "best_kernel", of_strips):
        forget()
        kernel = kernel_of(replace(case, way=way), BUILDS[target])
        forget()
    assert isinstance(kernel, Kernel)
    return kernel


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", sorted(STRIPS))
def test_strips_of_any_number_of_lines_compute_the_same(name: str, way: int) -> None:
    case = STRIPS[name]
    kernel = by_strips(case, way)
    assert verify(kernel) == ()
    for number in range(len(case.sizes)):
        found = interpret(kernel, fed(kernel, case, number), BUILDS[TARGET].lanes)
        for p, got in zip(kernel.outputs, found, strict=True):
            check(got, p.dtype, *(packed(p.layout, a) for a in expected(case, number)[p.value]))


@pytest.mark.parametrize("name", ["strips_added", "strips_apart", "strips_steps"])
def test_tiles_of_a_line_differ_by_a_row_where_those_that_divide_it_are_low(name: str) -> None:
    """28 pixels are 5 tiles of 5 or 6 rows on AVX2, not 7 of 4 rows."""
    case = STRIPS[name]
    kernel = by_strips(case, 0, AVX2)
    tiles = [s for p in kernel.phases if p.few for s in statements(p.body) if isinstance(s, Tile)]
    assert {s.core.most for s in tiles} == {6}
    assert verify(kernel) == ()
    found = interpret(kernel, fed(kernel, case, 0), BUILDS[AVX2].lanes)
    for p, got in zip(kernel.outputs, found, strict=True):
        check(got, p.dtype, *(packed(p.layout, a) for a in expected(case, 0)[p.value]))


def test_rows_of_tiles_of_a_line() -> None:
    widths = (7, 9, 14, 20, 28, 112)
    assert [CPUS[AVX2].rows_of_line(w) for w in widths] == [None, 5, None, 5, 6, 6]
    assert [CPUS[TARGET].rows_of_line(w) for w in widths] == [7, 9, 14, 10, 14, 14]


def test_strips_win_ties_where_l2_is_small() -> None:
    kernel = by_strips(STRIPS["strips_added"], 0, AVX2)
    for l2, taken in ((1 << 19, 1), (1 << 20, 0)):
        target = replace(CPUS[AVX2], l2_bytes=l2)
        ranking = CostRanking(kernel, (), target, frozenset(), 0.0, by_strips=(1,))
        both = [kernel, replace(kernel)]
        assert ranking.best_kernel(both) is both[taken]


def test_candidates_differ_in_lines() -> None:
    phases = [by_strips(STRIPS["strips_added"], way).phases for way in WAYS]
    assert len(set(phases)) == len(WAYS)


@pytest.mark.parametrize("name", ["strips_images", "strips_pool", "strips_two"])
def test_images_between_stay_in_buffers_of_tasks(name: str) -> None:
    kernel = by_strips(STRIPS[name], 0)
    assert [p.few for p in kernel.phases] == [True]
    assert "image" in {b.name for b in kernel.phases[0].locals}
    assert kernel.scratch == ()


@pytest.mark.parametrize(("name", "some"), [("strips_added", [True, True]), ("strips_apart", [True, False])])
def test_tiles_of_half_empty_panels_are_half_as_wide(name: str, some: list[bool]) -> None:
    (phase,) = by_strips(STRIPS[name], 0).phases
    assert [s.some for s in statements(phase.body) if isinstance(s, Tile)] == some


def test_a_value_that_is_an_output_is_not_kept_in_a_task() -> None:
    kernel = by_strips(STRIPS["strips_kept"], 0)
    assert "between" not in {b.name for p in kernel.phases for b in p.locals}


def test_few_large_images_are_computed_by_strips() -> None:
    kernel = scheduled(STRIPS["strips_added"], TARGET)
    assert isinstance(kernel, Kernel)
    assert [p.few for p in kernel.phases] == [True]
