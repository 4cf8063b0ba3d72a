"""The order of kernel tests: those of one translation unit follow each other.

Whoever runs one of them schedules the whole unit. In random order each worker would do so for every unit.
"""

from __future__ import annotations

import pytest

from tests.kernels.tables import Unit


def unit_of(item: pytest.Item) -> Unit | None:
    """The unit that a test is about."""
    found = (
        item.callspec.params.get("unit") if isinstance(item, pytest.Function) and hasattr(item, "callspec") else None
    )
    return found if isinstance(found, Unit) else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of a unit trade places with others that are about units."""
    found = [(at, item, unit) for at, item in enumerate(items) if (unit := unit_of(item)) is not None]
    ordered = sorted(found, key=lambda each: (each[2].table, each[2].target, each[2].cases[0].name))
    for (at, _, _), (_, item, _) in zip(found, ordered, strict=True):
        items[at] = item
