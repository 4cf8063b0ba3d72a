"""GPU schedules of the kernel tests' cases, and their CUDA text as host libraries."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from onnxfuse.ir.graph import Decision
from onnxfuse.ir.kernel import Kernel
from onnxfuse.schedule.gpu.scheduler import schedule
from onnxfuse.target import GPUS
from tests.kernels.cases import elementwise, function, movement, operator, row, sample, scan, scatter, window_column
from tests.kernels.compiled import Case, check, expected, fed, lowered_of
from tests.kernels.isa import CACHE
from tests.kernels.pool_host import alone
from tests.threads import attention_cases, division_cases, product_cases, size_cases
from tests.threads.emulator import compiled, run

TARGET = GPUS["sm_90"]
SMALL = replace(TARGET, sms=2)  # which few threads fill
PER_UNIT = 48
TABLES: dict[str, Sequence[Case]] = {
    "rows": row.CASES,
    "elementwise": elementwise.CASES,
    "movement": movement.CASES,
    "functions": function.CASES,
    "samples": sample.CASES,
    "operators": operator.CASES,
    "divisions": division_cases.CASES,
    "attention": attention_cases.TYPED,
    "products": product_cases.CASES,
    "tiles": product_cases.TILED,
    "sizes": size_cases.CASES,
    "scans": tuple(replace(c, name=f"scan_{c.name}") for c in scan.CASES),
    "scatters": scatter.CASES,
    "windows": window_column.CASES,
}


@cache
def scheduled(case: Case) -> Kernel | Decision:
    """The kernel of a case, or why there is none."""
    lowered = lowered_of(case)
    if isinstance(lowered, Decision):
        return lowered
    return schedule(lowered, case.layouts, SMALL if case in window_column.CASES else TARGET)


def kernel_of(case: Case) -> Kernel:
    """The kernel of a case that has one."""
    made = scheduled(case)
    assert isinstance(made, Kernel), made
    return made


def right_in_any_order(case: Case) -> None:
    """The text of a kernel of one output gives what is expected, in two orders of threads."""
    kernel = kernel_of(case)
    (out,) = kernel.outputs
    for seed in (1, 2):
        (got,) = run(kernel, case.name, fed(kernel, case, 0), None, seed)
        check(got, out.dtype, *expected(case, 0)[out.value])


def name_of(case: Case) -> str:
    """The name of a case's kernel."""
    return f"gpu_{case.name}"


SOME = 16  # one of so many kernels is compiled every time, and all of rows
OTHERS = [case for table, cases in TABLES.items() if table != "rows" for case in cases]
WHOLE = (*division_cases.CASES, *window_column.CASES)
USUAL = (*TABLES["rows"], *(case for at, case in enumerate(OTHERS) if at % SOME == 0 or case in WHOLE))
SELDOM = tuple(case for case in OTHERS if case not in USUAL)


@cache
def library_of(case: Case) -> ctypes.CDLL:
    """The kernels of a case and those that are compiled with it, for the host."""
    table = USUAL if case in USUAL else SELDOM
    at = table.index(case) // PER_UNIT * PER_UNIT
    return unit_of(table[at : at + PER_UNIT])


@cache
def unit_of(cases: tuple[Case, ...]) -> ctypes.CDLL:
    """The kernels of some cases, compiled together for the host."""
    made = {name_of(case): kernel for case in cases if isinstance(kernel := scheduled(case), Kernel)}
    with alone(CACHE / f"threads-{cases[0].name}.lock"):
        return ctypes.CDLL(str(compiled(made)))
