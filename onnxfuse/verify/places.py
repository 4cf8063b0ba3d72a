"""Tries a model in the provider of a device: kernels are not judged where the original itself does not run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onnxfuse.errors import DeviceError
from onnxfuse.runtime import engine, feed_limits
from onnxfuse.runtime.provider import Provider
from onnxfuse.verify import trial
from onnxfuse.verify.run_modes import Note


def measure(
    note: Note,
    a: str,
    custom: Sequence[str],
    inputs: str | None,
    seed: int,
    dims: Mapping[str, int],
    provider: Mapping[str, Any],
) -> str:
    """Why model `a` does not run in the provider with these fields; empty where it does.

    Where no inputs are found with which it runs on the CPU, it has to be opened only.
    """
    place = Provider(**provider)
    note("the original, in the provider")
    wish = trial.InputRequest(feed_limits.skeleton(Path(a)), inputs, seed, dims, larger=False)
    try:
        session = engine.open_session(a, engine.options(libraries=custom, lean=True, arena=False), place)
        values = _values(a, custom, wish)
        if values is not None:
            engine.run(session, values, provider=place)
    except DeviceError as problem:
        return problem.message
    return ""


def _values(a: str, custom: Sequence[str], wish: trial.InputRequest) -> trial.Values | None:
    """The first inputs with which the model runs on the CPU; None where there are none."""
    for optimize in (False, True):
        settings = engine.options(libraries=custom, optimize=optimize, lean=True, arena=False)
        try:
            return trial.input_sets(engine.open_session(a, settings), wish).values[0]
        except DeviceError:
            continue
    return None
