"""Finds inputs that a model can take, by running it on one proposal after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import onnxruntime as ort

from onnxfuse import compare, engine, feeds
from onnxfuse.compare import Results
from onnxfuse.engine import Array
from onnxfuse.errors import DeviceError

Values: TypeAlias = dict[str, Array]


def input_sets(
    session: ort.InferenceSession,
    wanted: Sequence[feeds.Input],
    inputs: str | None,
    seed: int,
    dims: Mapping[str, int],
    recipes: Sequence[feeds.Recipe] = feeds.RECIPES,
) -> tuple[list[Values], Results]:
    """Inputs that the model can take, and its outputs: those of the file, else random ones by the first recipe to work.

    Raises DeviceError when no recipe does.
    """
    if inputs is not None:
        sets = feeds.read_feeds(Path(inputs), wanted)
        return sets, [engine.run(session, each) for each in sets]
    refused = DeviceError("runtime: the model cannot be run")
    unclear: tuple[list[Values], Results] | None = None  # mostly NaN: taken when nothing is better
    for recipe in recipes:
        try:
            sets = feeds.random_sets(wanted, seed=seed, recipe=recipe, dims=dims)
            found = [engine.run(session, each) for each in sets]
        except DeviceError as problem:
            refused = problem
            continue
        if all(compare.relevant(out) for outputs in found for out in outputs):
            return sets, found
        unclear = unclear or (sets, found)
    if unclear is None:
        raise refused
    return unclear
