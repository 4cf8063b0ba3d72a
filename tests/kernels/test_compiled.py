"""Kernels of all tables, compiled and run by one to three threads, give the results of their definitions.

A run compiles those that `tables` calls usual; all others run under the `slow` marker.
"""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np
import pytest

from onnxfuse.ir.interpret import interpret
from onnxfuse.ir.kernel import Kernel
from onnxfuse.render.cpp import render
from onnxfuse.target import runs_here
from tests.kernels.compiled import (
    BRIEF,
    BUILDS,
    FULL,
    LIKE,
    Case,
    check,
    expected,
    fed,
    library_of,
    packed,
    scheduled,
    verified,
)
from tests.kernels.pool_host import Pool, compiler
from tests.kernels.tables import NARROW, TABLES, Unit, kind, units

UNITS = tuple(units())
EVERY = [
    pytest.param(unit, case, id=f"{case.name}-{unit.target}", marks=[] if unit.usual else [pytest.mark.slow])
    for unit in UNITS
    for case in unit.cases
]
USUAL = [
    pytest.param(unit, case, id=f"{case.name}-{unit.target}")
    for unit in UNITS
    for case in unit.cases
    if unit.usual and unit.target in FULL
]
FEW = 41
COMPARED = [
    pytest.param(unit, case, id=f"{case.name}-{unit.target}")
    for target in ("x86-64-v4", "x86-64-v3")
    for unit, case in [(u, c) for u in UNITS if u.usual and u.target == target for c in u.cases][::FEW]
]
_CALL = re.compile(r"\b([a-z]\w*)(<[^<>;()]*>)?\(")


def together(target: str) -> str:
    """The classes of which one compiles a kind."""
    return " or ".join(NARROW) if target in NARROW else target


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize(("unit", "case"), EVERY)
def test_a_kernel_computes_what_its_rows_mean(unit: Unit, case: Case) -> None:
    verified(unit.cases, case, unit.target, fully=not unit.usual and unit.target in FULL)


@pytest.mark.slow
@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize(("unit", "case"), USUAL)
def test_a_kernel_that_is_compiled_quickly_is_right_with_all_optimizations(unit: Unit, case: Case) -> None:
    verified(unit.cases, case, unit.target, fully=True)


def test_every_kind_of_case_is_compiled_every_time() -> None:
    """For each machine class, or in turn; nothing is left out under `slow`."""
    for name, table in TABLES.items():
        assert len({case.name for case in table.cases}) == len(table.cases), "two kernels of a unit have one name"
        of_table = [unit for unit in UNITS if unit.table == name]
        usual, every = defaultdict(set), defaultdict(set)
        for unit in of_table:
            every[unit.target].update(case.name for case in unit.cases)
            if unit.usual:
                usual["all" if table.in_turn else together(unit.target)].update(map(kind, unit.cases))
        assert all(kinds == set(map(kind, table.cases)) for kinds in usual.values())
        assert all(names == {case.name for case in table.cases} for names in every.values())
        for target in LIKE.keys() & set(table.classes):
            assert table.usual(target) == table.usual(LIKE[target]), "equal kernels are compiled for one class alone"


@pytest.mark.slow
def test_every_function_of_the_headers_is_compiled_every_time() -> None:
    """No kernel calls one, with element types of its own, that none of the usual ones calls: else it is to be MORE.

    For some machine class, that is: `headers` tests functions for each.
    """
    usual, others = set(), {}
    for unit in UNITS:
        for case in unit.cases:
            called = functions(case, unit.target)
            if unit.usual:
                usual |= called
            else:
                others |= dict.fromkeys(called, case.name)
    assert {function: case for function, case in others.items() if function not in usual} == {}


def functions(case: Case, target: str) -> set[str]:
    """The functions that a kernel's text calls, whatever the numbers in their names."""
    kernel = scheduled(case, target)
    assert isinstance(kernel, Kernel), kernel
    return {re.sub(r"\d+", "#", "".join(found)) for found in _CALL.findall(render(kernel, "K", "K").text)}


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize(("unit", "case"), COMPARED)
def test_a_compiled_kernel_computes_what_the_interpreter_does(unit: Unit, case: Case) -> None:
    """Within twice the bound of either, to the bit where nothing is rounded."""
    if not runs_here(BUILDS[unit.target]):
        pytest.skip(f"this machine does not run {unit.target}")
    kernel = scheduled(case, unit.target)
    assert isinstance(kernel, Kernel), kernel
    inputs = fed(kernel, case, 0)
    with Pool(2, BRIEF) as pool:
        compiled = pool.load(library_of(unit.cases, unit.target), f"onnxfuse_{case.name}").run(*inputs)
    interpreted = interpret(kernel, inputs, BUILDS[unit.target].lanes)
    for p, one, other in zip(kernel.outputs, interpreted, compiled, strict=True):
        want, error = (packed(p.layout, a) for a in expected(case, 0)[p.value])
        check(other, p.dtype, want, error)
        if p.dtype.floating:
            check(other, p.dtype, one.astype(np.float64), 2 * error)
        else:
            assert (one == other).mean() >= (1 if not error.any() else 0.99)
