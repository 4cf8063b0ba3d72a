"""Sampled iterations: the corners of all loops, where affine indices are extreme, and some in between."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any
from zlib import crc32

import numpy as np

from onnxfuse.ir.index import Loaded
from onnxfuse.ir.interpret.elements import Array, Where
from onnxfuse.ir.interpret.values import Iterations

GROUP = 32  # samples with the same extents, between which races are sought
GROUPS = 4  # corners twice, two tasks side by side, iterations in between
SAMPLES = GROUPS * GROUP
EXTENTS = ((1, 1, 1), (17, 40, 5), (3, 8, 2), (129, 33, 64))  # of the symbols of each group, raised to their minimum
LARGEST_TENSOR = 1 << 35  # elements: of more, products in loop bounds do not fit 64 bits, and the tensor no memory


@lru_cache(64)
def pattern_of(number: int) -> Array:
    """Each sample's iteration of loop `number`: 0 first, 1 second, 2 another, 3 last.

    A group of samples has all corners of five loops; the two groups of corners cover different loops.
    """
    at = np.arange(GROUP)
    corner = [np.where(at >> (number + shift) % 5 & 1, 3, 0) for shift in (0, number // 5, 0)]
    return np.concatenate([*corner, _INSIDE[number % len(_INSIDE)]])


_INSIDE = np.random.default_rng(5).integers(0, 4, (64, GROUP))
ALONE = np.repeat([True, True, True, False], GROUP) | (
    np.arange(SAMPLES) % 2 == 0
)  # samples whose task runs a single step


def picked(count: Any, pattern: Array) -> Array:
    """The iteration number of each sample, of `count`."""
    last = np.asarray(count) - 1
    choices = np.stack([np.zeros_like(last), np.minimum(last, 1), last // 2, last])
    return np.asarray(choices[pattern, np.arange(last.size) if last.size > 1 else 0] if last.ndim else choices[pattern])


class SampledIterations(Iterations):
    """Sampled iterations; indices loaded from tensors are taken as the first or the last valid one.

    An element of a tensor is the same index wherever it is read: what one read of it guards, another may rely on.
    """

    def __init__(self, symbols: Mapping[str, Any], tell: Callable[[str, Any, Any, Where], None]) -> None:
        super().__init__((SAMPLES,), np.zeros(1, np.int32), symbols, {})
        self.tell = tell

    def _looked_up(self, a: Loaded, at: Array, extent: Any, inside: Where) -> Array:
        self.tell(a.source, at, 1, inside)
        turned = np.asarray(at) % 2 * 3  # of neighbours, one is the first index where the other is the last
        return np.maximum(picked(extent, pattern_of(crc32(a.source.encode())) ^ turned), 0)
