"""Kernels of the kernel tests' cases as they are made for GPUs, and their CUDA text as libraries for the host."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache

from onnxfuse.ir.graph import Decision
from onnxfuse.ir.group import Plan
from onnxfuse.ir.kernel import Kernel
from onnxfuse.lower import lower
from onnxfuse.ops.rows import ROWS
from onnxfuse.schedule.gpu.scheduler import schedule
from onnxfuse.target import GPUS
from tests.kernels import elementwise_cases, function_cases, movement_cases, operator_cases, row_cases
from tests.kernels.compiled import Case, alone, group_of_all
from tests.kernels.isa import CACHE
from tests.threads.emulator import compiled

TARGET = GPUS["sm_90"]
PER_UNIT = 48
TABLES: dict[str, Sequence[Case]] = {
    "rows": row_cases.CASES,
    "elementwise": elementwise_cases.CASES,
    "movement": movement_cases.CASES,
    "functions": function_cases.CASES,
    "operators": operator_cases.CASES,
}


@cache
def scheduled(case: Case) -> Kernel | Decision:
    """The kernel of a case, or why there is none."""
    group = group_of_all(case.graph)
    lowered = lower(group, Plan(case.graph, (group,), case.layouts), ROWS)
    if isinstance(lowered, Decision):
        return lowered
    return schedule(lowered, case.layouts, case.graph.constants, TARGET)


def name_of(case: Case) -> str:
    """The name of a case's kernel."""
    return f"gpu_{case.name}"


@cache
def library_of(table: str, unit: int) -> ctypes.CDLL:
    """The kernels of some cases that stand together in a table, compiled for the host."""
    cases = TABLES[table][unit * PER_UNIT : (unit + 1) * PER_UNIT]
    made = {name_of(case): kernel for case in cases if isinstance(kernel := scheduled(case), Kernel)}
    with alone(CACHE / f"threads-{table}-{unit}.lock"):
        return ctypes.CDLL(str(compiled(made)))
