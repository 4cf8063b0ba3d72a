"""Finds inputs that a model can take, by running it on one proposal after another."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import onnxruntime as ort

from onnxfuse import compare, engine, feeds
from onnxfuse.compare import Results
from onnxfuse.engine import Array
from onnxfuse.errors import DeviceError

Values: TypeAlias = dict[str, Array]

LONG_RUN = 3.0  # seconds of all cores together, which do not depend on what else a machine does


def input_sets(
    session: ort.InferenceSession,
    wanted: Sequence[feeds.Input],
    inputs: str | None,
    seed: int,
    dims: Mapping[str, int],
    recipes: Sequence[feeds.Recipe] = feeds.RECIPES,
    also: Sequence[str] = (),
) -> tuple[list[Values], Results]:
    """Inputs that the model can take, and its outputs: those of the file, else random ones by the first recipe to work.

    `also` names outputs that are given besides, behind the others; what they hold is not looked at. Where one run takes
    longer than `LONG_RUN`, one set of random inputs has to do. Raises DeviceError when no recipe works.
    """
    own = [name for name in engine.output_names(session) if name not in also]
    names = [*own, *also]
    if inputs is not None:
        sets = feeds.read_feeds(Path(inputs), wanted)
        return sets, [engine.run(session, each, names) for each in sets]
    refused = DeviceError("runtime: the model cannot be run")
    unclear: tuple[list[Values], Results] | None = None  # mostly NaN: taken when nothing is better
    for recipe in recipes:
        try:
            sets = feeds.random_sets(wanted, seed=seed, recipe=recipe, dims=dims)
            found = _runs(session, sets, names)
        except DeviceError as problem:
            refused = problem
            continue
        sets = sets[: len(found)]
        if all(compare.relevant(out) for outputs in found for out in outputs[: len(own)]):
            return sets, found
        unclear = unclear or (sets, found)
    if unclear is None:
        raise refused
    return unclear


def _runs(session: ort.InferenceSession, sets: Sequence[Values], names: Sequence[str]) -> Results:
    """What the model makes of the sets; of the first one only, where that takes long."""
    found: Results = []
    for each in sets:
        begin = time.process_time()
        found.append(engine.run(session, each, names))
        if time.process_time() - begin > LONG_RUN:
            break
    return found
