"""Which axes of a phase tasks divide, where values that one line holds are of several rows or matrices."""

from __future__ import annotations

import pytest

from onnxfuse.ir.kernel import Kernel
from onnxfuse.target import CPUS
from tests.kernels.compiled import Case, kernel_of
from tests.rules.build import Build

V4 = CPUS["x86-64-v4"]


def made(case: Case) -> Kernel:
    kernel = kernel_of(case, V4)
    assert isinstance(kernel, Kernel)
    return kernel


def softmax(heads: int) -> Case:
    """Scores of each head, with heads last as a convolution of heads made them."""
    b = Build()
    return Case("s", b.graph(b.node("Softmax", b.input("x", 1, heads, 49, 49), axis=-1, out="y")), last=("x", "y"))


def scores(heads: int, last: tuple[str, ...]) -> Case:
    """Products of each head, stored with heads last."""
    b = Build()
    product = b.node("MatMul", b.input("q", 1, heads, 49, 32), b.input("k", 1, heads, 32, 49))
    return Case("m", b.graph(b.node("Add", product, b.input("r", heads, 49, 49), out="y")), last=last)


@pytest.mark.parametrize("heads", [3, 8])
def test_tasks_of_a_softmax_divide_lines(heads: int) -> None:
    """Two cores that store every other element of a line wait for it: 118 us instead of 21."""
    (phase,) = made(softmax(heads)).phases
    assert phase.rows is not None
    row, _ = phase.rows
    text = repr(phase.body)
    assert f"({row.name})//{heads}" in text and f"({row.name})//49" not in text


@pytest.mark.parametrize(("last", "first"), [(("y",), 4), ((), 8)])
def test_tasks_of_a_product_divide_rows_where_matrices_share_lines(last: tuple[str, ...], first: int) -> None:
    *_, phase = made(scores(8, last)).phases
    assert [s.extent.constant for s in phase.splits] == [first, 12 - first]
