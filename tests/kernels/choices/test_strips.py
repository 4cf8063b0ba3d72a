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
from tests.kernels.cases.chain import CASES
from tests.kernels.compiled import BUILDS, Case, check, expected, fed, forget, kernel_of, packed, scheduled

STRIPS = {case.name: case for case in CASES if case.name.startswith("strips_")}
TARGET = "x86-64-v4"
WAYS = range(4)  # candidates, which differ in the lines of a strip


def by_strips(case: Case, way: int) -> Kernel:
    """The kernel with a candidate of this number, by strips even if that is predicted to take longer."""

    def of_strips(_: CostRanking, kernels: list[Kernel]) -> Kernel:
        return next(k for k in kernels if any(p.few for p in k.phases))

    with patch.object(CostRanking, "best_kernel", of_strips):
        forget()
        kernel = kernel_of(replace(case, way=way), BUILDS[TARGET])
        forget()
    assert isinstance(kernel, Kernel)
    return kernel


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", sorted(STRIPS))
def test_strips_of_any_number_of_lines_compute_the_same(name: str, way: int) -> None:
    case = STRIPS[name]
    kernel = by_strips(case, way)
    assert verify(kernel) == ()
    found = interpret(kernel, fed(kernel, case, 0), BUILDS[TARGET].lanes)
    for p, got in zip(kernel.outputs, found, strict=True):
        check(got, p.dtype, *(packed(p.layout, a) for a in expected(case, 0)[p.value]))


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
