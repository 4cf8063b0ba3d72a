"""Tasks of windows: images of all channels are divided by lines before they are divided by channels."""

from __future__ import annotations

import pytest

from onnxfuse.ir.kernel import Kernel
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
