"""Convolutions of lines whose channels are contiguous read overlapping windows in place, of one line or of several."""

from __future__ import annotations

import pytest

from onnxfuse.ir.dtype import F32
from onnxfuse.ir.index import Axis, Index
from onnxfuse.ir.kernel import Kernel, Pack, Store, statements
from onnxfuse.ir.scalar import Load
from onnxfuse.ir.tile import Pointers, Tile
from onnxfuse.schedule.nests.tile_rows import elements_read
from onnxfuse.schedule.nests.tiled import Tiled
from onnxfuse.target import CPUS
from onnxfuse.target.processors import PROCESSORS
from tests.kernels.cases.window import lines
from tests.kernels.compiled import Case, kernel_of

TARGET = CPUS["x86-64-v4"].on(PROCESSORS["zen5"])


def made(case: Case) -> Kernel:
    """The kernel of a case."""
    kernel = kernel_of(case, TARGET)
    assert isinstance(kernel, Kernel)
    return kernel


@pytest.mark.parametrize("images", [1, 8, "N"])
@pytest.mark.parametrize("stride", [1, 2])
def test_windows_are_not_copied(images: int | str, stride: int) -> None:
    kernel = made(lines("line", images, 512, 256, 512, 5, stride=stride, pool="GlobalMaxPool"))
    found = [s for phase in kernel.phases for s in statements(phase.body)]
    assert all(isinstance(s.left, Pointers) for s in found if isinstance(s, Tile))
    assert not any(isinstance(s, Pack) for s in found)


def test_several_lines_are_predicted_to_take_as_long_as_one_each() -> None:
    """Their rows have pointers of their own, since they are not equidistant, and their windows overlap alike."""
    one, eight = (made(lines("line", images, 512, 256, 512, 5)).choices[0].candidates[0][1] for images in (1, 8))
    assert eight == pytest.approx(8 * one, rel=0.02)


@pytest.mark.parametrize("pool", ["GlobalMaxPool", "GlobalAveragePool", "ReduceSum", "ReduceSumSquare"])
def test_what_is_reduced_over_all_steps_is_stored_by_vectors(pool: str) -> None:
    kernel = made(lines("line", 3, 19, 24, 40, 5, pool=pool))
    stores = [s for phase in kernel.phases for s in statements(phase.body) if isinstance(s, Store)]
    assert not any(s.scattered for s in stores)


def test_what_is_read_otherwise_stays_channels_first() -> None:
    (out,) = made(lines("line", 3, 19, 24, 40, 5)).outputs
    assert tuple(e.constant for e in out.storage) == (3, 40, 15)


def _window(channels: int, taps: int, stride: int, lines_of_it: int) -> tuple[Tiled, Index]:
    """Windows of so many lines of 100 pixels, and where they are read."""
    extents = {"row": 90, "line": lines_of_it, "tap": taps, "channel": channels}
    row, line, tap, channel = (Axis(name, Index.of(extent)) for name, extent in extents.items())
    at = (Index.of(row) * stride + tap + Index.of(line) * 100) * channels + channel
    left = Load("x", (at,), F32)
    segments = (line,) if lines_of_it > 1 else ()
    length = Index.of(taps * channels)
    return Tiled(left, left, (), (row,), (), (line, tap, channel), segments, length, left), at


@pytest.mark.parametrize(
    ("taps", "stride", "count", "pixels"),
    [(5, 1, 1, 13 + 5), (5, 2, 1, 13 * 2 + 5), (5, 9, 1, 14 * 5), (1, 1, 1, 14), (3, 1, 3, 14 * 3), (2, 2, 2, 14 * 2)],
)
def test_elements_that_windows_have_in_common_count_once(taps: int, stride: int, count: int, pixels: int) -> None:
    t, at = _window(16, taps, stride, count)
    assert elements_read(t, at, 14, taps * 16 * count) == pixels * 16


def test_blocks_are_of_what_tiles_read() -> None:
    """L2 holds ten tiles of whole windows, and more of windows that overlap."""
    (choice,) = made(lines("line", 8, 512, 256, 512, 5)).choices
    by_columns = [name.split(", ") for name, _ in choice.candidates if "over N" in name]
    blocks = {name: int(block.split()[2]) for name, _, block in by_columns}
    assert blocks["A packed"] == 10 and blocks["A unpacked"] > 30
