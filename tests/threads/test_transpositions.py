"""Transpositions on GPUs go through tiles in shared memory."""

from __future__ import annotations

import pytest

from onnxfuse.build.nvrtc import compiled, libraries
from onnxfuse.ir.dtype import BF16, F16, F32, I64, DType
from onnxfuse.ir.graph import Graph
from onnxfuse.ir.interpret import interpret
from onnxfuse.ir.kernel import all_statements
from onnxfuse.ir.launch import Sync
from onnxfuse.ir.verify import verify
from onnxfuse.render.cuda import device_text
from onnxfuse.target import gpus_of
from tests.kernels.compiled import Case, check, expected, fed
from tests.kernels.pool_host import compiler
from tests.rules.build import Build
from tests.threads.scheduled import kernel_of, right_in_any_order
from tests.threads.test_attention import without


def turned(dtype: DType, *shape: int | str) -> Graph:
    """Relu(x)^T + r, as behind a product of a network of images."""
    b = Build(22)
    batch, rows, columns = shape
    y = b.node("Transpose", b.node("Abs", b.input("x", *shape, dtype=dtype)), perm=(0, 2, 1))
    return b.graph(b.node("Add", y, b.input("r", batch, columns, rows, dtype=dtype)))


CASES = (
    *(Case(f"turned_{t}", turned(t, 2, 64, 96)) for t in (F32, F16, BF16, I64)),
    Case("turned_uneven", turned(F32, 3, 49, 37)),
    Case("turned_any", turned(F16, "N", "M", 40), sizes=({"N": 1, "M": 33}, {"N": 2, "M": 64})),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_transpositions_go_through_shared_memory_and_are_right(case: Case) -> None:
    kernel = kernel_of(case)
    assert verify(kernel) == ()
    (phase,) = kernel.phases
    assert [b.space for b in phase.locals] == ["shared"]
    (out,) = kernel.outputs
    for number in range(len(case.sizes)):
        made = interpret(kernel, fed(kernel, case, number), 1)[0]
        check(made, out.dtype, *expected(case, number)[out.value])


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("name", ["turned_float16", "turned_uneven"])
def test_its_text_computes_the_same_in_any_order_of_threads(name: str) -> None:
    right_in_any_order(next(c for c in CASES if c.name == name))


@pytest.mark.skipif(not libraries(), reason="the package nvidia-cuda-nvrtc is not installed")
@pytest.mark.parametrize("target", gpus_of(("sm_75", "sm_80", "sm_90", "sm_100", "sm_120")), ids=lambda t: t.name)
def test_nothing_is_spilled(target: object) -> None:
    row = next(t for t in gpus_of(("sm_75", "sm_80", "sm_90", "sm_100", "sm_120")) if t == target)
    for case in CASES[:2]:
        made = compiled(device_text(kernel_of(case), "turned"), row.flags)
        assert all((used.spills, used.stack) == (0, 0) for used in made.functions)


def test_the_barrier_between_both_ways_is_needed() -> None:
    kernel = kernel_of(CASES[0])
    assert sum(s == Sync("block") for s in all_statements(kernel)) == 2
    assert verify(without(kernel, 0)) != ()


@pytest.mark.parametrize(("rows", "columns"), [(8, 96), (64, 16)])
def test_narrow_values_are_transposed_without_conversion(rows: int, columns: int) -> None:
    (phase,) = kernel_of(Case(f"narrow_{rows}", turned(F32, 2, rows, columns))).phases
    assert not phase.locals
