"""Iterations that are sampled: at the corners of all loops, where affine indices are extreme, and in between."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from onnxfuse.ir.index import Loaded
from onnxfuse.ir.interpret.elements import Array, Where
from onnxfuse.ir.interpret.values import Places

GROUP = 32  # samples of one set of extents, which alone can meet
GROUPS = 4  # corners twice, two tasks side by side, iterations in between
SAMPLES = GROUPS * GROUP
EXTENTS = ((1, 1, 1), (17, 40, 5), (3, 8, 2), (129, 33, 64))  # of the symbols of each group, unless that is too little


@lru_cache(64)
def pattern_of(number: int) -> Array:
    """The iteration of the loop of this number that each sample is in: 0 first, 1 second, 2 another, 3 last.

    Groups of samples are all corners of five loops, those of two groups of different ones.
    """
    at = np.arange(GROUP)
    corner = [np.where(at >> (number + shift) % 5 & 1, 3, 0) for shift in (0, number // 5, 0)]
    return np.concatenate([*corner, _INSIDE[number % len(_INSIDE)]])


_INSIDE = np.random.default_rng(5).integers(0, 4, (64, GROUP))
ALONE = np.repeat([True, True, True, False], GROUP) | (np.arange(SAMPLES) % 2 == 0)  # tasks of one step


def picked(count: Any, pattern: Array) -> Array:
    """The iteration that each sample is in, of so many."""
    last = np.asarray(count) - 1
    choices = np.stack([np.zeros_like(last), np.minimum(last, 1), last // 2, last])
    return np.asarray(choices[pattern, np.arange(last.size) if last.size > 1 else 0] if last.ndim else choices[pattern])


class Samples(Places):
    """Sampled iterations; what they look up in a tensor is the first or the last index that may be there."""

    def __init__(self, symbols: Mapping[str, Any], tell: Callable[[str, Any, Any, Where], None]) -> None:
        super().__init__((SAMPLES,), np.zeros(1, np.int32), symbols, {})
        self.tell = tell

    def _looked_up(self, a: Loaded, at: Array, extent: Any, inside: Where) -> Array:
        self.tell(a.source, at, 1, inside)
        return np.maximum(picked(extent, pattern_of(len(repr(a)))), 0)
