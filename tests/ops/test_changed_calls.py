"""Calls whose ranks, extents or attributes do not fit are refused; a row that raises anything else has a bug."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from onnxfuse.ir.graph import Decision, TensorType
from onnxfuse.ir.index import Index
from onnxfuse.ops.rows import ROWS
from onnxfuse.ops.spec import View, define
from tests.ops.case import view
from tests.ops.test_rows import CASES

FEW, MANY = 6, 60  # changes of each case
FAR = (-(1 << 63), -(1 << 31), -2, -1, 0, 1, 2, 3, 7, 64, 1 << 20, (1 << 63) - 1)

Shape = tuple[Index, ...]
Change = Callable[[View, Random], View]


def _with_shape(made: View, random: Random, change: Callable[[Shape, Random], Shape]) -> View:
    """One input has another shape, and its elements are not known any more."""
    name = random.choice([name for name, found in made.types.items() if found is not None])
    found = made.types[name]
    assert found is not None
    types = {**made.types, name: TensorType(found.dtype, change(found.shape, random))}
    constants, known = ({k: v for k, v in each.items() if k != name} for each in (made.constants, made.known))
    return replace(made, types=types, constants=constants, known=known)


def _rank(shape: Shape, random: Random) -> Shape:
    return random.choice((shape[1:], shape[:-1], (Index.of(random.choice((1, 2))), *shape), ()))


def _extent(shape: Shape, random: Random) -> Shape:
    at = random.randrange(max(1, len(shape)))
    return tuple(Index.of(random.choice((0, 1, 2, 3, 7, 64))) if i == at else e for i, e in enumerate(shape))


def _attribute(made: View, random: Random) -> View:
    """One attribute of integers has others: far ones, too few or too many."""
    attrs = dict(made.node.attrs)
    whole = [name for name, value in attrs.items() if all(isinstance(i, int) for i in _listed(value))]
    if whole:
        name = random.choice(whole)
        several = tuple(random.choice(FAR) for _ in range(random.randrange(5)))
        attrs[name] = random.choice(FAR) if isinstance(attrs[name], int) else several
    return replace(made, node=replace(made.node, attrs=attrs))


def _listed(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value,)


CHANGES: tuple[Change, ...] = (
    lambda made, random: _with_shape(made, random, _rank),
    lambda made, random: _with_shape(made, random, _extent),
    _attribute,
)


def bugs(times: int) -> dict[str, str]:
    """What rows raise for changed calls, and the case that shows it; where a shape fits by chance they define it."""
    found: dict[str, str] = {}
    for number, case in enumerate(CASES):
        random, given = Random(number), view(case)
        for _ in range(times):
            said = define(ROWS, random.choice(CHANGES)(given, random))
            if isinstance(said, Decision) and said.code == "E-INTERNAL":
                found.setdefault(said.reason, case.id)
    return found


def test_no_change_of_a_call_is_a_bug() -> None:
    assert bugs(FEW) == {}


@pytest.mark.slow
def test_many_changes_of_calls_are_no_bugs() -> None:
    assert bugs(MANY) == {}
