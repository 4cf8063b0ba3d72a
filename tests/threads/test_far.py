"""Kernels whose inputs have more than 2^31 elements read the last of them: nothing counts in 32 bits there.

The memory of the inputs is only reserved; pages come to be where something is read or written.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from onnxfuse.ir.dtype import F16, I64
from onnxfuse.ir.graph import Graph
from onnxfuse.render.cuda import device_text
from tests.kernels.compiled import Case
from tests.kernels.pool_host import compiler
from tests.rules.build import Build
from tests.threads.emulator import run
from tests.threads.scheduled import kernel_of

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
WIDTH, LAST = 1024, 5
ROWS = (1 << 31) // WIDTH + 77
Array = np.ndarray[Any, Any]


def far() -> tuple[Array, Array]:
    """A matrix of ROWS x WIDTH, zero but for its last rows, and these rows."""
    whole = np.frombuffer(mmap.mmap(-1, ROWS * WIDTH * 2), np.float16).reshape(ROWS, WIDTH)
    whole.flags.writeable = True
    whole[-LAST:] = np.random.default_rng(1).normal(size=(LAST, WIDTH))
    return whole, whole[-LAST:].astype(np.float64)


def last(b: Build) -> str:
    """The last rows."""
    x = b.input("x", ROWS, WIDTH, dtype=F16)
    return b.node("Slice", x, b.ints(ROWS - LAST), b.ints(ROWS), b.ints(0))


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rows(b: Build) -> Graph:
    return b.graph(b.node("Softmax", last(b), axis=-1))


def elements(b: Build) -> Graph:
    return b.graph(b.node("Relu", last(b)))


def turned(b: Build) -> Graph:
    return b.graph(b.node("Transpose", last(b), perm=(1, 0)))


def columns(b: Build) -> Graph:
    return b.graph(b.node("ReduceMax", last(b), b.ints(0)))


MAKERS: dict[Callable[[Build], Graph], Callable[[Array], Array]] = {
    rows: softmax,
    elements: lambda x: np.maximum(x, 0),
    turned: lambda x: x.T,
    columns: lambda x: x.max(0, keepdims=True),
}


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_the_last_rows_are_read(make: Callable[[Build], Graph]) -> None:
    kernel = kernel_of(Case(make.__name__, make(Build(18))))
    assert "i64" in device_text(kernel, "k")
    whole, rest = far()
    (got,) = run(kernel, f"far_{make.__name__}", [whole])
    np.testing.assert_allclose(got.astype(np.float64), MAKERS[make](rest), rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize("extent", [ROWS, "N"], ids=["known", "unknown"])
def test_the_last_rows_are_looked_up(extent: int | str) -> None:
    b = Build(18)
    x, at = b.input("x", extent, WIDTH, dtype=F16), b.input("i", 3, dtype=I64)
    kernel = kernel_of(Case("looked_up", b.graph(b.node("Neg", b.node("Gather", x, at)))))
    whole, rest = far()
    arrays = {"x": whole, "i": np.asarray([ROWS - 1, -LAST, ROWS - 2], np.int64)}
    (got,) = run(kernel, f"far_looked_up_{extent}", [arrays[p.value] for p in kernel.inputs])
    np.testing.assert_array_equal(got, -rest[[LAST - 1, 0, LAST - 2]].astype(np.float16))
