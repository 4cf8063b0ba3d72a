"""Every case of the kernel tests, and the machine classes whose kernels each table is about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.kernels import (
    border_cases,
    chain_cases,
    code_cases,
    contraction_cases,
    elementwise_cases,
    form_cases,
    function_cases,
    half_cases,
    movement_cases,
    operator_cases,
    row_cases,
    scan_cases,
    window_cases,
    winograd_cases,
)
from tests.kernels.compiled import CPUS, SHARING, Case

PLAIN = tuple(CPUS)
UNITS = (*PLAIN, "amx-model", SHARING)
TABLES: dict[str, tuple[Sequence[Case], tuple[str, ...]]] = {
    "border": (border_cases.CASES, PLAIN),
    "chain": (chain_cases.CASES, PLAIN),
    "codes": (code_cases.CASES, UNITS),
    "windows of codes": (code_cases.WINDOWS, (*PLAIN, SHARING)),
    "codes made": (code_cases.MADE, (*PLAIN, SHARING)),
    "attentions of codes": (code_cases.ATTENTIONS, (*PLAIN, SHARING)),
    "contraction": (contraction_cases.CASES, (*PLAIN, SHARING)),
    "by blocks": (contraction_cases.BLOCKWISE, ("little-cache",)),
    "elementwise": (elementwise_cases.CASES, PLAIN),
    "form": (form_cases.CASES, PLAIN),
    "function": (function_cases.CASES, PLAIN),
    "half": (half_cases.CASES, (*UNITS, "bf16")),
    "movement": (movement_cases.CASES, PLAIN),
    "operator": (operator_cases.CASES, PLAIN),
    "row": (row_cases.CASES, PLAIN),
    "scan": (scan_cases.CASES, PLAIN),
    "window": (window_cases.CASES, PLAIN),
    "winograd": (winograd_cases.CASES, PLAIN),
}


def kernels() -> Iterator[tuple[Sequence[Case], Case, str]]:
    """Every case in its table, for each machine class."""
    for cases, targets in TABLES.values():
        yield from ((cases, case, target) for case in cases for target in targets)
