"""Every form of a group whose images lie line by line computes what its rows mean, and predictions find the best."""

from __future__ import annotations

import pytest

from onnxfuse.config import TARGETS
from onnxfuse.ir.compose import walk
from onnxfuse.ir.index import ZERO
from onnxfuse.ir.kernel import Fold, Kernel, Let, Tile, statements
from onnxfuse.ir.scalar import Load
from tests.kernels.compiled import HERE, Case, kernel_of, verified
from tests.kernels.form_cases import CASES
from tests.kernels.pool_host import compiler
from tests.kernels.window_cases import conv, pads

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


@needs_compiler
@pytest.mark.parametrize("target", HERE)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_a_kernel_computes_what_its_rows_mean(case: Case, target: str) -> None:
    verified(CASES, case, target)


def kernel(case: Case) -> Kernel:
    made = kernel_of(case, TARGETS["x86-64-v4"])
    assert isinstance(made, Kernel), made
    return made


def tiles(made: Kernel) -> list[Tile]:
    return [s for phase in made.phases for s in statements(phase.body) if isinstance(s, Tile)]


def exchanged(made: Kernel) -> bool:
    """Whether there are tiles, all of which have filters for rows and places of a line for columns."""
    found = tiles(made)
    return bool(found) and all(tile.columns != ZERO for tile in found)


@pytest.mark.parametrize("case", [c for c in CASES if c.name.startswith("exchanged")], ids=lambda c: c.name)
def test_sides_are_exchanged(case: Case) -> None:
    assert exchanged(kernel(case))


def test_a_lone_depthwise_convolution_is_not_summed_lane_by_lane() -> None:
    made = kernel(conv("lone", (1, 64, 40, 40), (64, 1, 7, 7), group=64, pads=pads(3), last=""))
    *_, summed = [phase for phase in made.phases if any(isinstance(s, Fold) for s in statements(phase.body))]
    reads = [n for s in statements(summed.body) if isinstance(s, Let) for n in walk(s.value) if isinstance(n, Load)]
    assert len(made.phases) > 1  # a copy of the image first
    assert not any(n.guards for n in reads)


def test_small_windows_go_over_lines_with_their_padding_written_out() -> None:
    made = kernel(conv("small", (1, 37, 23, 23), (37, 1, 3, 3), group=37, pads=pads(1), last=""))
    assert [p.name for p in made.scratch] == ["out0%pad0"]
    assert len(made.phases) == 2


def test_few_filters_have_their_sides_exchanged() -> None:
    made = kernel(conv("few", (1, 128, 64, 64), (4, 128, 1, 1), last=""))
    assert exchanged(made)


def test_images_with_channels_last_have_one_form() -> None:
    made = kernel(conv("last", (1, 64, 28, 28), (64, 64, 3, 3), pads=pads(1)))
    assert not exchanged(made)


def test_windows_without_padding_that_are_strided_have_tiles() -> None:
    """The feature encoder of a speech network: 512 segments of three elements, which a tile cannot read."""
    made = kernel(conv("encoder", (1, 512, 399), (512, 512, 3), strides=(2,), last=""))
    assert tiles(made)
