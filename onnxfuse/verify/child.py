"""The half of verification that runs whole models, one session at a time: the program that `verify.py` starts."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from onnx import ModelProto

from onnxfuse.errors import DeviceError
from onnxfuse.runtime import feed_limits, process
from onnxfuse.runtime.memory import LoadCost
from onnxfuse.runtime.provider import CPU, Provider
from onnxfuse.verify import choices, culprits, nodes, places, trial
from onnxfuse.verify.original import Original, kept, loads, original
from onnxfuse.verify.run_modes import Note, RunMode, compared, facts_of, judged, loaded, run_modes

_LONG = 0.05  # seconds of a run


def main(request: dict[str, Any]) -> object:
    """Answer one request of `verify.py`: `do` names the function, the rest are its arguments."""
    notes = Path(request.pop("notes"))

    def note(text: str) -> None:
        notes.write_text(text, encoding="utf-8")

    table: dict[str, Callable[..., object]] = {
        "models": measure,
        "reference": keep,
        "groups": nodes.measure,
        "culprits": culprits.measure,
        "choices": choices.write,
        "place": places.measure,
    }
    return table[request.pop("do")](note, **request)


def measure(
    note: Note,
    a: str,
    b: str,
    library: str | None,
    isas: Sequence[str],
    custom: Sequence[str],
    inputs: str | None,
    seed: int,
    dims: Mapping[str, int],
    rounding: float = 0.0,
    reference: str | None = None,
    provider: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Run model `a` in three ways, model `b` in two for each of `isas` and in two without library.

    With a `rounding`, relative, `a` also runs on inputs that are moved by so much; where `reference` names a file of
    `keep`, that is what `a` makes of all these. `provider` has the fields of the `Provider` in which `b` runs. Numbers
    only: `verdicts.verdict_on` makes a verdict of them. Where `a` does not run, but can be loaded, `b` is loaded in all
    ways.

    Raises DeviceError when `a` cannot be loaded, ModelError when one of them is no model.
    """
    skeleton = feed_limits.skeleton(Path(a))
    feed_limits.skeleton(Path(b))  # raises where it is no model
    place = Provider(**provider or {})
    note("the original, no optimizations")
    try:
        first = (
            kept(reference)
            if reference is not None
            else _of(a, skeleton, custom, inputs, seed, dims, rounding, place.ungraphed)
        )
    except DeviceError as problem:
        unoptimized = loads(a, custom)
        if unoptimized is None:
            raise
        runs = [
            {"name": mode.name, "with_library": bool(mode.libraries), "message": loaded(note, b, mode, custom)}
            for mode in run_modes(library, isas, unoptimized, place)
        ]
        return {"problem": problem.message, "runs": runs}
    costs = [] if first.load is None else [first.load]
    modes = run_modes(library, isas, first.unoptimized, place)
    runs = list(_runs(note, b, modes, custom, first, costs))
    return first.answer() | {"runs": runs, "loads": [asdict(each) for each in costs]}


def keep(
    note: Note,
    a: str,
    custom: Sequence[str],
    inputs: str | None,
    seed: int,
    dims: Mapping[str, int],
    rounding: float,
    out: str,
) -> None:
    """Write what `measure` needs to know of model `a` to the file `out`. Raises DeviceError where `a` does not run."""
    note("the original, ahead of the build")
    first = _of(a, feed_limits.skeleton(Path(a)), custom, inputs, seed, dims, rounding)
    Path(out).write_bytes(pickle.dumps(first))


def _of(
    a: str,
    skeleton: ModelProto,
    custom: Sequence[str],
    inputs: str | None,
    seed: int,
    dims: Mapping[str, int],
    rounding: float,
    provider: Provider = CPU,
) -> Original:
    return original(a, skeleton, custom, trial.InputRequest(skeleton, inputs, seed, dims), rounding, provider)


def _runs(
    note: Note, b: str, modes: Iterator[RunMode], custom: Sequence[str], first: Original, costs: list[LoadCost]
) -> Iterator[dict[str, Any]]:
    """What became of the model under test, way by way; what loading it takes is added to `costs`.

    Where runs take long, function bodies as they are run on one set: with all optimizations they do on all of them.
    """
    long = first.load is not None and first.load.run_seconds > _LONG
    for mode in modes:
        few = mode.provider.graph or (long and not mode.libraries and not mode.optimize)  # a graph has one set of sizes
        reference = first.alone() if few else first
        found = compared(note, b, mode, custom, reference)
        note("the original, in float64, if need be")
        costs += [found.load] if found.load is not None else []
        yield facts_of(judged(note, b, mode, custom, reference, found), found, reference)


if __name__ == "__main__":
    process.serve(main)
