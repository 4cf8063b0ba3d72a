"""Quantized products are computed by integer register tiles, depthwise convolutions by tiles of channels."""

from __future__ import annotations

import pytest

from onnxfuse.ir.kernel import Kernel, statements
from onnxfuse.ir.tile import Channels, Quantized, Tile
from tests.kernels.cases.codes import CASES, WINDOWS, ZEROS_OF_CHANNELS
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
def test_windows_of_codes_are_one_tile_of_channels(case: Case, target: str) -> None:
    assert [type(tile.left) for tile in tiles(case, target)] == [Channels]


def test_windows_of_codes_with_zero_points_have_no_tile() -> None:
    assert tiles(ZEROS_OF_CHANNELS, "x86-64-v4") == []


@pytest.mark.parametrize(
    ("name", "slides"),
    [
        ("codes_depthwise", True),  # tiles are lines of 12
        ("codes_depthwise_large", True),  # two tiles in a line of 28
        ("codes_depthwise_halved", False),  # windows two columns apart
        ("codes_depthwise_dilated", True),  # along lines, windows are one column apart
        ("codes_depthwise_any_size", False),  # a tile may be parts of two lines
    ],
)
def test_windows_of_neighbours_share_columns(name: str, slides: bool) -> None:
    (case,) = (case for case in WINDOWS if case.name == name)
    (tile,) = tiles(case, "x86-64-v4")
    assert isinstance(tile.left, Channels)
    assert tile.left.slides is slides
