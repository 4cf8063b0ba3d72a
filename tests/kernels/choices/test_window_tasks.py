"""Tasks of windows: images of all channels are divided by lines before they are divided by channels.

Images of open size with few channels, or one, are divided as well.
"""

from __future__ import annotations

import pytest

from onnxfuse.ir.index import ONE
from onnxfuse.ir.indexing import evaluate
from onnxfuse.ir.kernel import Kernel
from onnxfuse.ir.layout import channels_last
from onnxfuse.target import CPUS
from tests.kernels.cases.window import conv, pads, pool
from tests.kernels.compiled import Case, kernel_of

DEPTHWISE = conv("depthwise", (1, 384, 14, 14), (384, 1, 3, 3), group=384, pads=pads(1))
STRIDED = conv("strided", (2, 576, 14, 14), (576, 1, 3, 3), group=576, pads=pads(1), strides=(2, 2))
POOL = pool("pool", "MaxPool", (1, 512, 28, 28), kernel_shape=(3, 3), pads=pads(1), strides=(2, 2))


@pytest.mark.parametrize(("case", "lines"), [(DEPTHWISE, 14), (STRIDED, 14), (POOL, 14)])
def test_lines_are_divided_before_channels(case: Case, lines: int) -> None:
    """The convolutions around are divided by rows too, so that each core finds what it has made itself."""
    kernel = kernel_of(case, CPUS["x86-64-v4"])
    assert isinstance(kernel, Kernel)
    (phase,) = kernel.phases
    first, _ = phase.splits
    assert first.extent.constant == lines


def test_signals_of_open_length_are_divided() -> None:
    """Images of a batch are no neighbours along a signal: they share no elements."""
    kernel = kernel_of(conv("signal", ("N", 32, "W"), (1, 32, 7), pads=pads(3, 1), last=""), CPUS["x86-64-v4"])
    assert isinstance(kernel, Kernel)
    (phase,) = kernel.phases
    assert [s.extent for s in phase.splits] == [kernel.inputs[0].shape[0], kernel.inputs[0].shape[2]]


def test_lines_of_open_images_are_divided() -> None:
    """One filter has one image for each of a batch, which was one task."""
    kernel = kernel_of(conv("image", (1, 8, "H", "W"), (1, 8, 5, 5), pads=pads(2), last=""), CPUS["x86-64-v4"])
    assert isinstance(kernel, Kernel)
    (phase,) = kernel.phases
    _, lines = phase.splits
    (height,) = (atom for mono, _ in kernel.inputs[0].shape[2].terms for atom in mono)
    counts = [evaluate(lines.extent, lambda a, n=n: n if a == height else None) for n in (1, 4, 64)]
    assert counts == [1, 4, 9]  # of 64 lines: four at each end, seven times 8; short images line by line


@pytest.mark.parametrize("size", [(9, 11), ("H", "W")])
def test_weights_of_one_filter_lie_as_its_image_does(size: tuple[int | str, int | str]) -> None:
    """Vectors are along the channels of an image with channels last: the weights are no gathers."""
    kernel = kernel_of(conv("last", (2, 16, *size), (1, 16, 3, 3), pads=pads(1), last="x"), CPUS["x86-64-v4"])
    assert isinstance(kernel, Kernel)
    (weights,) = (p for p in kernel.inputs if p.shape[0] == ONE)
    assert weights.layout == channels_last(4)
