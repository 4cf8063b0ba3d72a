"""Kernels of products of codes compute what their rows mean, whether the machine multiplies 8-bit codes or not."""

from __future__ import annotations

import pytest

from onnxfuse.ir.kernel import Kernel, statements
from onnxfuse.ir.tile import Quantized, Tile
from tests.kernels.code_cases import ATTENTIONS, CASES, MADE, WINDOWS
from tests.kernels.compiled import HERE, SHARING, Case, scheduled, verified
from tests.kernels.pool_host import compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


@pytest.mark.parametrize("target", [*HERE, "amx-model", SHARING])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_a_kernel_computes_what_its_rows_mean(case: Case, target: str) -> None:
    verified(CASES, case, target)
    kernel = scheduled(case, target)
    assert isinstance(kernel, Kernel)
    tiles = [s for phase in kernel.phases for s in statements(phase.body) if isinstance(s, Tile)]
    assert [type(t.left) for t in tiles] == [Quantized]


@pytest.mark.parametrize("target", [*HERE, SHARING])
@pytest.mark.parametrize("case", WINDOWS, ids=lambda c: c.name)
def test_a_window_kernel_computes_what_its_rows_mean(case: Case, target: str) -> None:
    verified(WINDOWS, case, target)
    kernel = scheduled(case, target)
    assert isinstance(kernel, Kernel)
    assert not any(isinstance(s, Tile) for phase in kernel.phases for s in statements(phase.body))


@pytest.mark.parametrize("target", [*HERE, SHARING])
@pytest.mark.parametrize("case", MADE, ids=lambda c: c.name)
def test_a_kernel_makes_the_codes_that_its_rows_mean(case: Case, target: str) -> None:
    verified(MADE, case, target)


@pytest.mark.parametrize("target", [*HERE, SHARING])
@pytest.mark.parametrize("case", ATTENTIONS, ids=lambda c: c.name)
def test_an_attention_of_codes_computes_what_its_rows_mean(case: Case, target: str) -> None:
    verified(ATTENTIONS, case, target)
