"""Finds the kernels at fault when a model with its library is wrong, by bisection with the other kernels disabled.

The session config entry `onnxfuse.disable` switches kernels off without another build.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onnxfuse.runtime import feed_limits
from onnxfuse.runtime.provider import Provider
from onnxfuse.verify import bisected, trial
from onnxfuse.verify.original import Original, original
from onnxfuse.verify.run_modes import Note, RunMode, compared, facts_of, run_modes
from onnxfuse.verify.verdicts import verdict_on

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
    provider: Mapping[str, Any],
) -> list[str]:
    """The kernels to drop so that `b` passes with the others in the run modes that `failed`.

    `crashed` are sets of kernels with which an earlier process died. What passes together is kept together: halves of
    what does not are tried one after the other beside it. `limits` are the last arguments of `verdicts.verdict_on`,
    `provider` has the fields of the `Provider` in which `b` runs.
    """
    place = Provider(**provider)
    skeleton = feed_limits.skeleton(Path(a))
    note("the original, no optimizations")
    wish = trial.InputRequest(skeleton, inputs, seed, dims)
    first = original(a, skeleton, custom, wish, rounding, place.ungraphed)
    wanted = [mode for mode in run_modes(library, isas, first.unoptimized, place) if mode.name in failed]
    dead = [frozenset(each) for each in crashed]

    def passes(used: Sequence[str]) -> bool:
        if any(each <= frozenset(used) for each in dead):
            return False
        doing = _PROBE + " ".join(used)
        off = [each for each in kernels if each not in used]
        return all(_right(lambda _: note(doing), b, mode, custom, first, off, limits) for mode in wanted)

    kept = bisected(list(kernels), passes)
    return [each for each in kernels if each not in kept]


def _right(
    note: Note,
    b: str,
    mode: RunMode,
    custom: Sequence[str],
    first: Original,
    disabled: Sequence[str],
    limits: Mapping[str, Any],
) -> bool:
    first = first.alone() if mode.provider.graph else first  # a graph has one set of sizes
    found = compared(note, b, mode, custom, first, disabled)
    return verdict_on(first.answer() | {"runs": [facts_of(mode, found, first)]}, **limits).ok is not False
