"""Equal index expressions are one object, whatever made them, and are forgotten with their last use."""

from __future__ import annotations

import copy
import gc
import pickle
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from onnxfuse.ir import index
from onnxfuse.ir.index import ONE, Axis, Index, IndexTable, Symbol, entry, floor_div, least, modulo

N = Index.of(Symbol("n"))
I = Index.of(Axis("i", N * 8))  # noqa: E741
MADE = {
    "symbol": lambda: Index.of(Symbol("n", least=1)),
    "axis": lambda: Index.of(Axis("i", extent=8 * N)),
    "sum": lambda: 2 * I + N - 1,
    "quotient": lambda: floor_div(I + 1, Index.of(3)),
    "remainder": lambda: modulo(I + 1, Index.of(3)),
    "minimum": lambda: least(I, N),
    "entry": lambda: entry(IndexTable((3, 1, 2)), modulo(I, Index.of(3))),
}


@pytest.mark.parametrize("make", MADE.values(), ids=list(MADE))
def test_equal_values_are_one_object(make):
    assert make() is make()
    assert hash(make()) == hash(make())


@pytest.mark.parametrize("make", MADE.values(), ids=list(MADE))
def test_copies_are_the_value_itself(make):
    value = make()
    assert copy.deepcopy(value) is value
    assert pickle.loads(pickle.dumps(value)) is value


def test_fields_tell_values_apart():
    assert Symbol("n") != Symbol("n", 0)
    assert Symbol("(n)//2", 0) != Symbol("(n)//2", 0, floor_div(N, Index.of(2)))
    assert Axis("i", N) != Axis("i", ONE)
    assert ONE == 1 and Index.of(True) == ONE and ONE != 2 and ONE != "1"
    assert repr(Index.of(True) + 0) == "1"


def test_values_are_forgotten_with_their_last_use():
    before = len(index._KNOWN)
    many = [Axis(f"forgotten_{number}", ONE) for number in range(100)]
    assert len(index._KNOWN) >= before + 100
    del many
    gc.collect()
    assert not any(f"forgotten_{number}" in key for key in index._KNOWN for number in range(100))


def test_threads_get_the_same_object():
    workers, rounds = 4, 200
    gate = Barrier(workers)

    def make(_: int) -> list[Axis]:
        found = []
        for number in range(rounds):
            gate.wait()
            found.append(Axis(f"shared_{number}", ONE))
        return found

    with ThreadPoolExecutor(workers) as pool:
        first, *others = pool.map(make, range(workers))
    assert all(a is b for other in others for a, b in zip(first, other, strict=True))
