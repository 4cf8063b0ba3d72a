"""What is walked thousands of times leaves nothing behind that only a search for cycles would free."""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import pytest

from onnxfuse.ir.compose import rebuild
from onnxfuse.ir.dtype import F32
from onnxfuse.ir.index import Axis, Index
from onnxfuse.ir.interpret.values import Iterations
from onnxfuse.ir.scalar import Load, apply

AXIS = Axis("i", Index.of(4))


def rebuilt() -> None:
    x = Load("x", (Index.of(AXIS),), F32)
    rebuild(apply("add", x, apply("exp", x)), lambda node: None, lambda index: index)


def evaluated() -> None:
    here = Iterations((), np.zeros(1, np.int64), {}, {})
    here.axes = {"i": np.arange(4)}
    assert list(here.index(Index.of(AXIS) // 2)) == [0, 0, 1, 1]


@pytest.mark.parametrize("walk", [rebuilt, evaluated], ids=lambda walk: walk.__name__)
def test_a_walk_leaves_no_cycle(walk: Callable[[], None]) -> None:
    walk()  # what is made once
    gc.collect()
    walk()
    assert gc.collect() == 0
