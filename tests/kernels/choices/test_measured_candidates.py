"""Schedule candidates that only `tune` considers: each computes the same, and the measured best is used."""

from __future__ import annotations

import pytest

from onnxfuse.ir.group import Plan
from onnxfuse.ir.interpret import interpret
from onnxfuse.ir.kernel import Kernel
from onnxfuse.ir.verify import verify
from onnxfuse.lower import Lowered, lower
from onnxfuse.ops.rows import ROWS
from onnxfuse.plan.legality import CPU
from onnxfuse.schedule.cpu.scheduler import schedule
from tests.kernels.cases import codes, contraction, half
from tests.kernels.compiled import BUILDS, Case, check, expected, fed, group_of_all, kernel_of, packed

TARGET = "x86-64-v4"
CASES = {case.name: case for case in (*contraction.CASES, *half.CASES, *codes.CASES)}
NAMES = (
    "gemm_erf", "gemm_way_1", "gemm_any_way_0", "gemm_turned_14_33", "bfloat16_gemm_29_257_321", "half_conv1_stride",
    "codes_any_rows",
)  # fmt: skip


def by(case: Case, *measured: tuple[str, str]) -> Kernel:
    """The kernel of a case with these ways measured."""
    group = group_of_all(case.graph)
    lowered = lower(group, Plan(case.graph, (group,), case.layouts, widened=CPU.widened), ROWS)
    assert isinstance(lowered, Lowered)
    target = BUILDS[TARGET]
    found = schedule(lowered, case.layouts, case.graph.constants, target, case.half, measured=measured)
    assert isinstance(found, Kernel)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_each_candidate_computes_the_same(name: str) -> None:
    case = CASES[name]
    usual = by(case)
    (choice,) = usual.choices
    (first, _), *others = choice.candidates
    kinds = {part for way, _ in others for part in way.split(", ")}
    assert any("tiles of" in kind or "blocks of" in kind or "parts of" in kind for kind in kinds)
    for way, _ in others:
        kernel = by(case, (first, way))
        assert kernel.choices[0].candidates[0][0] == way
        assert verify(kernel) == ()
        for number in range(len(case.sizes)):
            found = interpret(kernel, fed(kernel, case, number), BUILDS[TARGET].lanes)
            for p, got in zip(kernel.outputs, found, strict=True):
                check(got, p.dtype, *(packed(p.layout, a) for a in expected(case, number)[p.value]))


@pytest.mark.parametrize("name", NAMES)
def test_where_nothing_was_measured_the_kernel_is_the_usual_one(name: str) -> None:
    case = CASES[name] if CASES[name].way is None else Case(name, CASES[name].graph, CASES[name].sizes)
    usual = kernel_of(case, BUILDS[TARGET])
    assert isinstance(usual, Kernel)
    assert usual.phases == by(case).phases == by(case, ("no such way", "another")).phases
    assert [w for w, _ in by(case).choices[0].candidates[1:]] != [w for w, _ in usual.choices[0].candidates[1:]]


def test_a_recorded_candidate_that_no_longer_exists_is_ignored() -> None:
    case = CASES["gemm_erf"]
    ((first, _), *_) = by(case).choices[0].candidates
    assert by(case, (first, "tasks of neither rows nor columns")).phases == by(case).phases
