"""The order of kernel tests: those of one table follow each other, by translation units, compiled or interpreted.

Whoever runs one of them schedules the whole unit, and evaluates the definitions of its cases. In random order each
worker would do so for every unit, and again where its kernels are interpreted.
"""

from __future__ import annotations

from functools import cache

import pytest

from tests.kernels.compiled import Case
from tests.kernels.tables import TABLES, Unit, units

MAIN = "x86-64-v4"  # the class of tests that name none
Place = tuple[str, str, str]  # of a test: a table, a machine class, the first case of a translation unit or itself


@cache
def units_of() -> dict[tuple[Case, str], Unit]:
    """The unit of each case for a machine class."""
    return {(case, unit.target): unit for unit in units() for case in unit.cases}


@cache
def table_of() -> dict[Case, str]:
    """The table of each case."""
    return {case: name for name, table in TABLES.items() for case in table.cases}


def place_of(item: pytest.Item) -> Place | None:
    """Where a test belongs that is about a case or a unit; None for others."""
    given = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    unit, case, target = (given.get(name) for name in ("unit", "case", "target"))
    target = MAIN if target is None else target
    if unit is None and isinstance(case, Case) and case in table_of() and isinstance(target, str):  # not of a GPU
        unit = units_of().get((case, target))
        if unit is None:
            return table_of()[case], target, case.name
    return (unit.table, unit.target, unit.cases[0].name) if isinstance(unit, Unit) else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with a place trade places with each other."""
    found = [(at, item, place) for at, item in enumerate(items) if (place := place_of(item)) is not None]
    ordered = sorted(found, key=lambda each: each[2])
    for (at, _, _), (_, item, _) in zip(found, ordered, strict=True):
        items[at] = item
