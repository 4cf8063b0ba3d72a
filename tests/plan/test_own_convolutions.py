"""Convolutions that become kernels for GPUs: those whose changes of layout and kernels behind cost more than turns."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.config import Options
from onnxfuse.cost.gpu import convolution_seconds
from onnxfuse.ir.dtype import F16, F32, DType
from onnxfuse.ir.graph import Graph
from onnxfuse.ir.layout import channels_last
from onnxfuse.ops.rows import ROWS
from onnxfuse.plan import plan
from onnxfuse.plan.legality import CUDA
from onnxfuse.target import GPUS
from tests.rules.build import Build

OPTIONS = Options(target="cuda", arch=("sm_90",))


class Images(Build):
    """Convolutions one behind the other."""

    def __init__(self, dtype: DType, channels: int = 64) -> None:
        Build.__init__(self, 17)
        self.dtype, self.channels = dtype, channels
        self.x = self.input("x", 8, channels, 56, 56, dtype=dtype)

    def conv(self, x: str, window: int = 3, group: int = 1, activation: str = "Relu") -> str:
        """One with as many filters as channels, a bias and an activation."""
        shape = (self.channels, self.channels // group, window, window)
        w = self.constant(self.rng.normal(size=shape).astype(self.dtype.numpy))
        bias = self.constant(self.rng.normal(size=self.channels).astype(self.dtype.numpy))
        y = self.node("Conv", x, w, bias, pads=(window // 2,) * 4, group=group)
        made: str = self.node(activation, y)
        return made


def own(graph: Graph) -> list[tuple[str, ...]]:
    """Operators of the groups with a convolution."""
    made = plan(graph, ROWS, OPTIONS, legality=CUDA)
    return [tuple(n.op for n in g.nodes) for g in made.groups if any(n.op == "Conv" for n in g.nodes)]


def chain(dtype: DType, windows: tuple[int, ...], **how: int) -> Graph:
    """Convolutions with these windows."""
    b = Images(dtype)
    y = b.x
    for window in windows:
        y = b.conv(y, window, **how)
    return b.graph(y)


@pytest.mark.parametrize("dtype", [F16, F32])
def test_a_chain_is_ours_and_its_images_lie_channels_last(dtype: DType) -> None:
    graph = chain(dtype, (3, 1, 3))
    assert own(graph) == [("Conv", "Add", "Relu")] * 3
    made = plan(graph, ROWS, OPTIONS, legality=CUDA)
    between = [o for g in made.groups[:-1] for o in g.outputs]
    assert made.layouts == dict.fromkeys(between, channels_last(4))


def test_what_saves_nothing_stays_with_the_runtime() -> None:
    """Points alone between turns, whose layout nobody changes, and groups."""
    assert own(chain(F16, (1,))) == []
    assert own(chain(F16, (3, 3), group=4)) == []


def test_filters_that_are_computed_stay() -> None:
    b = Images(F16)
    w = b.input("w", 64, 64, 3, 3, dtype=F16)
    assert own(b.graph(b.node("Relu", b.node("Conv", b.x, w, pads=(1,) * 4)))) == []


def test_large_convolutions_are_priced_by_what_they_multiply() -> None:
    target, moved = GPUS["sm_90"], 1e7
    small, large, larger = (convolution_seconds(n, moved, F16, target) for n in (1e6, 1e12, 2e12))
    assert small < 20e-6
    assert np.isclose(larger - large, 1e12 / (target.tensor_gflops * 0.6e9), rtol=1e-3)
