"""Quantized products are computed by integer register tiles where these pay, and by loops elsewhere."""

from __future__ import annotations

import pytest

from onnxfuse.ir.kernel import Kernel, statements
from onnxfuse.ir.tile import Quantized, Tile
from tests.kernels.cases.codes import CASES, WINDOWS
from tests.kernels.compiled import HERE, SHARING, Case, scheduled


def tiles(case: Case, target: str) -> list[Tile]:
    kernel = scheduled(case, target)
    assert isinstance(kernel, Kernel), kernel
    return [s for phase in kernel.phases for s in statements(phase.body) if isinstance(s, Tile)]


@pytest.mark.parametrize("target", [*HERE, "amx-model", SHARING])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_a_product_is_one_tile_of_codes(case: Case, target: str) -> None:
    assert [type(tile.left) for tile in tiles(case, target)] == [Quantized]


@pytest.mark.parametrize("target", [*HERE, SHARING])
@pytest.mark.parametrize("case", WINDOWS, ids=lambda c: c.name)
def test_windows_of_codes_have_no_tile(case: Case, target: str) -> None:
    assert tiles(case, target) == []
