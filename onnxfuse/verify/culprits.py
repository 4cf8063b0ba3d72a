"""Which kernels are at fault when a model with its library is wrong, by bisection: the others are left to their bodies.

The session config entry `onnxfuse.disable` switches kernels off without another build.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onnxfuse.runtime import feed_limits
from onnxfuse.verify import bisected, trial
from onnxfuse.verify.original import Original, original
from onnxfuse.verify.verdicts import judged
from onnxfuse.verify.ways import Note, Way, compared, facts_of, ways

_PROBE = "probe "  # what a note begins with while some kernels are tried; `verify.verify_culprits` reads it


def measure(
    note: Note,
    a: str,
    b: str,
    library: str,
    isas: Sequence[str],
    custom: Sequence[str],
    inputs: str | None,
    seed: int,
    dims: Mapping[str, int],
    rounding: float,
    limits: Mapping[str, Any],
    kernels: Sequence[str],
    failed: Sequence[str],
    crashed: Sequence[Sequence[str]],
) -> list[str]:
    """The kernels that are dropped, so that `b` passes with the others in the ways that `failed`.

    `crashed` are sets of kernels with which an earlier process died. What passes together is kept together: halves of
    what does not are tried one after the other beside it. `limits` are the last arguments of `verify.judged`.
    """
    bare = feed_limits.skeleton(Path(a))
    note("the original, no optimizations")
    first = original(a, bare, custom, trial.Wish(bare, inputs, seed, dims), rounding)
    wanted = [way for way in ways(library, isas, first.plain) if way.name in failed]
    dead = [frozenset(each) for each in crashed]

    def passes(used: Sequence[str]) -> bool:
        if any(each <= frozenset(used) for each in dead):
            return False
        doing = _PROBE + " ".join(used)
        off = [each for each in kernels if each not in used]
        return all(_right(lambda _: note(doing), b, way, custom, first, off, limits) for way in wanted)

    kept = bisected(list(kernels), passes)
    return [each for each in kernels if each not in kept]


def _right(
    note: Note,
    b: str,
    way: Way,
    custom: Sequence[str],
    first: Original,
    disabled: Sequence[str],
    limits: Mapping[str, Any],
) -> bool:
    found = compared(note, b, way, custom, first, disabled)
    return judged(first.answer() | {"runs": [facts_of(way, found, first)]}, **limits).ok is not False
