"""Transposed convolutions: what their remainders share is copied once, and results are not stored one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onnxfuse.ir.kernel import Kernel, Pack, Store, statements
from onnxfuse.ir.tile import Tile
from onnxfuse.schedule.cpu.tiles import C
from onnxfuse.target import CPUS
from onnxfuse.target.processors import PROCESSORS
from tests.kernels.cases.recurrent import alone
from tests.kernels.cases.window import upwards
from tests.kernels.compiled import Case, kernel_of

TARGET = CPUS["x86-64-v4"].on(PROCESSORS["zen5"])
SAME = {"strides": (2, 2), "pads": (1, 1, 1, 1), "output_padding": (1, 1)}


def made(side: int | str, size: int, **attrs: object) -> Kernel:
    """The kernel for images of this side, of 96 channels, to 64."""
    kernel = kernel_of(upwards("upwards", (1, 96, side, side), (96, 64, size, size), **attrs), TARGET)
    assert isinstance(kernel, Kernel)
    return kernel


def test_the_image_is_copied_once_for_all_remainders() -> None:
    kernel = made(16, 3, **SAME)
    products = [phase for phase in kernel.phases if any(isinstance(s, Tile) for s in statements(phase.body))]
    copies = [b.name for b in kernel.scratch if b.name.endswith(("%pad", "%left"))]
    assert len(products) == 4 and len(copies) <= 1


@pytest.mark.parametrize("case", [
    upwards("upwards", (1, 96, 16, 16), (96, 64, 3, 3), **SAME),
    upwards("upwards_any", (1, 96, "S", "S"), (96, 64, 3, 3), **SAME),
    upwards("upwards5", (1, 32, 16, 16), (32, 40, 5, 5), strides=(2, 2), pads=(2, 2, 2, 2)),
    upwards("upwards_few", (1, 32, 32, 32), (32, 8, 3, 3), **SAME),
    upwards("upwards_line", (1, 32, 100), (32, 48, 7), strides=(3,)),
    Case("gru", alone("GRU", (9, 4, 32), 64)),
], ids=lambda case: case.name)  # fmt: skip
def test_weights_that_are_read_in_parts_are_not_put_in_order_in_a_run(case: Case) -> None:
    """Remainders of a transposed convolution have taps of their own, the last gate of a GRU columns of its own."""
    kernel = kernel_of(case, TARGET)
    assert isinstance(kernel, Kernel)
    assert any(isinstance(s, Tile) for phase in kernel.phases for s in statements(phase.body))
    assert not [b.name for b in kernel.scratch if b.name.endswith("%right")]


def test_pixels_are_columns_where_a_transposed_convolution_has_few_filters() -> None:
    kernel = kernel_of(upwards("upwards_few", (1, 32, 32, 32), (32, 8, 3, 3), **SAME), TARGET)
    assert isinstance(kernel, Kernel)
    tiles = [s for phase in kernel.phases for s in statements(phase.body) if isinstance(s, Tile)]
    assert len(tiles) == 4 and all(s.core.most == 8 for s in tiles)


@pytest.mark.parametrize("side", [16, "S"])
@pytest.mark.parametrize(("size", "attrs"), [(3, SAME), (4, {"strides": (2, 2), "pads": (1, 1, 1, 1)})])
def test_results_are_stored_by_vectors(side: int | str, size: int, attrs: dict[str, object]) -> None:
    kernel = made(side, size, **attrs)
    tiled = [phase for phase in kernel.phases if any(isinstance(s, Tile) for s in statements(phase.body))]
    assert not any(isinstance(s, Store) and s.scattered for phase in tiled for s in statements(phase.body))


def test_sums_of_one_remainder_are_transposed_at_any_distance() -> None:
    """In the form with pixels as rows of tiles; that with panels of pixels stores them as they lie."""
    case = replace(upwards("upwards", (1, 96, "S", "S"), (96, 64, 3, 3), **SAME), form=0)
    kernel = kernel_of(case, TARGET)
    assert isinstance(kernel, Kernel)
    packs = [s for phase in kernel.phases for s in statements(phase.body) if isinstance(s, Pack)]
    sums = [s for s in packs if s.load.source == C]
    assert len(sums) == 4 and all(s.pitch.constant is None for s in sums)
