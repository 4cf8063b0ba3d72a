"""Seeks sizes with which a model runs, symbol by symbol, by how far its runs get."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from onnx import ModelProto

from onnxfuse.runtime import feeds
from onnxfuse.runtime.feed_sizes import likely_sizes

Sizes: TypeAlias = dict[str, int]
Reached: TypeAlias = Callable[[feeds.Recipe, Sizes], float]

SEARCH = 20.0  # seconds of all cores together, which do not depend on what else a machine does
_STARTS = ((1, 64, 16), (1, 64, 64), (64, 64, 64), (2, 224, 128))  # first symbol, sides of images, all other symbols
_LENGTHS = (1, 2, 3, 4, 8, 16, 32, 64, 80, 96, 128, 160, 224, 256, 288, 320, 400, 512, 576, 640, 800, 1024, 1280, 1600,
            2048, 4096, 8000, 16000, 32000, 80000, 160000)  # fmt: skip


def sizes(
    reached: Reached, skeleton: ModelProto, wanted: Sequence[feeds.Input], known: Mapping[str, int]
) -> tuple[feeds.Recipe, Sizes] | None:
    """Sizes with which a model runs, beside the `known` ones, by hill climbing from several starts; None if not found.

    `reached` tells how far a run gets, infinite where it gets to the end. All starts are tried before one is left, and
    those that get furthest are left first.
    """
    until = time.process_time() + SEARCH
    starts = []
    for first, side, other in _STARTS:
        recipe = feeds.Recipe("sought", ((first, *[other] * 9),) * 2, (side,) * 2, shared=True, ones=True)
        found = feeds.sizes_of(wanted, recipe, 0, known)
        far = reached(recipe, found)
        if far == math.inf:
            return recipe, found
        starts.append((far, recipe, found))
    used = {symbol for each in wanted for extent in each.shape for symbol in feeds.symbols(extent)}
    likely = likely_sizes(skeleton)
    for far, recipe, start in sorted(starts, key=lambda each: -each[0]):
        free = [symbol for symbol in start if symbol not in known and symbol in used]
        climbed = _climb(reached, recipe, (far, start), (free, likely), until)
        if climbed is not None:
            return recipe, climbed
    return None


def with_single_batch(
    reached: Reached, recipe: feeds.Recipe, found: Sizes, wanted: Sequence[feeds.Input], known: Mapping[str, int]
) -> Sizes:
    """The sizes that were found, with a batch of 1 where the model runs with that too: a climb ends at any batch.

    The batch is the first symbol of a first axis, unless it is `known`. Others of its size are tried with it: those of
    first axes, then those of second ones of three as well, as of states of recurrent layers.
    """
    first = [symbol for each in wanted for symbol in feeds.symbols(each.shape[0] if each.shape else 1)]
    second = [symbol for each in wanted if len(each.shape) == 3 for symbol in feeds.symbols(each.shape[1])]
    batch = next((symbol for symbol in first if symbol not in known), "")
    equals = [
        frozenset(symbol for symbol in those if symbol not in known and found[symbol] == found[batch])
        for those in ([batch], first, [*first, *second])
        if found.get(batch, 1) > 1
    ]
    for equal in dict.fromkeys(equals):
        single = {**found, **dict.fromkeys(equal, 1)}
        if reached(recipe, single) == math.inf:
            return single
    return found


def _climb(
    reached: Reached,
    recipe: feeds.Recipe,
    start: tuple[float, Sizes],
    proposed: tuple[Sequence[str], Sequence[int]],
    until: float,
) -> Sizes | None:
    """Sizes with which the model runs, from where it gets so far; None at a local optimum, or when time is over.

    The proposed symbols may change; sizes that occur among the model's constants are tried first. Each size is tried
    for all symbols before a larger one is for any: a batch of 160,000 takes long where only the samples are too few.
    """
    best, found = start
    free, likely = proposed
    for lengths in (likely, _LENGTHS):
        before = None
        while before != found:
            before = found
            for value, symbol in itertools.product(lengths, free):
                if time.process_time() > until:
                    return None
                proposal = {**found, symbol: value}
                far = reached(recipe, proposal)
                if far > best:
                    best, found = far, proposal
                if best == math.inf:
                    return found
    return None
