"""Modes to run the model under test: with its library or without, with the runtime's optimizations or without."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from onnxruntime import InferenceSession

from onnxfuse.errors import DeviceError, OnnxFuseError
from onnxfuse.runtime import engine, feed_limits
from onnxfuse.runtime.memory import LoadCost, Watch
from onnxfuse.runtime.provider import CPU, Provider
from onnxfuse.verify import compare
from onnxfuse.verify.compare import Results
from onnxfuse.verify.original import Original
from onnxfuse.verify.trial import shapes_text

Note = Callable[[str], None]  # says what is about to be run, in case this process dies of it


@dataclass(frozen=True, slots=True)
class RunMode:
    """One mode to run the model under test; `isa` is the instruction set its library may use ("": it chooses).

    `like_reference`: without library, and optimized or not as the reference run of the original. Of a quantized model
    this run alone is held to the usual limits.
    """

    name: str
    libraries: tuple[str, ...]
    isa: str
    optimize: bool
    like_reference: bool = False
    provider: Provider = CPU


@dataclass(frozen=True, slots=True)
class RunOutputs:
    """The outputs of a run, or the message of its failure."""

    message: str
    results: Results | None = None
    load: LoadCost | None = None  # what it takes to load it


def run_modes(
    library: str | None, isas: Sequence[str], unoptimized: bool, provider: Provider = CPU
) -> Iterator[RunMode]:
    """With the library, for each of `isas`, and without; with all optimizations and, if the original runs so, none.

    In the provider of a GPU all of these; where it replays CUDA graphs, those with all optimizations replayed as well.
    """
    used = [(f"with library ({isa})" if len(isas) > 1 else "with library", (library,), isa) for isa in isas if library]
    place = f" in {provider.ungraphed.words}" if provider.bound else ""
    for name, libraries, isa in (*used, ("without library", (), "")):
        for optimize in (True, False) if unoptimized else (True,):
            words = f"{name}{place}, {'all' if optimize else 'no'} optimizations"
            like = not libraries and optimize != unoptimized
            yield RunMode(words, libraries, isa, optimize, like, provider.ungraphed)
        if provider.graph:
            yield RunMode(f"{name} in {provider.words}, all optimizations", libraries, isa, True, provider=provider)


def compared(
    note: Note, path: str, mode: RunMode, custom: Sequence[str], first: Original, disabled: Sequence[str] = ()
) -> RunOutputs:
    """Runs the model under test in one mode on all sets of inputs, with the kernels in `disabled` left to their bodies.

    Kernels get reused memory from the arena, so that they cannot rely on zeros.
    """
    note(mode.name)
    try:
        with Watch() as watch:
            session = _opened(path, mode, custom, disabled)
            watch.opened()
            own = engine.output_names(session)
            if len(own) != len(first.names):
                raise DeviceError(f"its outputs are {', '.join(own)} instead of {', '.join(first.names)}")
            matched = first.names if set(own) == set(first.names) else own
            runs = [partial(_ran, note, mode, session, each, matched, first.seed) for each in first.sets]
            found = [watch.timed(runs[0])]
        found += [watch.timed(run) for run in runs[1:]]
    except OnnxFuseError as problem:
        return RunOutputs(problem.message)
    return RunOutputs(
        "", found, watch.load(mode.name.partition(",")[0], bool(mode.libraries)) if mode.optimize else None
    )


def judged(note: Note, path: str, mode: RunMode, custom: Sequence[str], first: Original, found: RunOutputs) -> RunMode:
    """The mode as its run is judged: no longer `like_reference` where without optimizations both models are alike.

    Where only the runtime's optimizations make products of codes exact, they are what the bodies run with, and what
    they fuse of the original they may not find in the bodies: other roundings, so other codes.
    """
    if not (mode.like_reference and mode.optimize and first.quantized and found.results is not None):
        return mode
    if first.within(found.results):
        return mode
    note("the original, no optimizations")
    if (plain := first.plain()) is None:
        return mode
    alike = compared(note, path, replace(mode, optimize=False), custom, plain)
    return replace(mode, like_reference=alike.results is None or not plain.within(alike.results))


def _ran(
    note: Note, mode: RunMode, session: InferenceSession, feeds: engine.Feeds, names: Sequence[str], seed: int
) -> list[engine.Array]:
    """The outputs for one set of inputs. Raises DeviceError that says on which."""
    where = f"on {shapes_text(feeds)} (seed {seed})"
    note(f"{mode.name}: {where}")
    try:
        return engine.run(session, feeds, names, mode.provider)
    except OnnxFuseError as problem:
        raise DeviceError(f"{problem.message} {where}") from None


def facts_of(mode: RunMode, found: RunOutputs, first: Original) -> dict[str, Any]:
    """A run as `verdict_on` takes it, with float64 errors if outputs exceed their limits."""
    about = {"name": mode.name, "with_library": bool(mode.libraries), "message": found.message}
    about |= {"like_reference": mode.like_reference}
    if found.results is None:
        return about | {"distances": [], "largest": [], "own": [], "true": None}
    if not mode.like_reference:
        first.draw_perturbations(found.results)
    nearest, own = first.nearest(found.results)
    float64_errors = first.float64_errors(found.results, mode.like_reference)
    return about | {
        "distances": [asdict(each) for each in nearest],
        "largest": [asdict(each) for each in compare.distances(first.expected, found.results, first.scales)],
        "own": own,
        "true": None if float64_errors is None else asdict(float64_errors),
    }


def loaded(note: Note, path: str, mode: RunMode, custom: Sequence[str]) -> str:
    """The message of the failure to load the model in one mode; empty if it loads."""
    note(mode.name)
    try:
        _opened(path, mode, custom, ())
    except OnnxFuseError as problem:
        return problem.message
    return ""


def _opened(path: str, mode: RunMode, custom: Sequence[str], disabled: Sequence[str]) -> InferenceSession:
    libraries = (*mode.libraries, *custom)
    settings = engine.options(
        libraries=libraries,
        disabled=disabled,
        optimize=mode.optimize,
        lean=True,
        arena=bool(mode.libraries),
        isa=mode.isa,
    )
    session = engine.open_session(path, settings, mode.provider)
    why = ""
    if mode.libraries and mode.provider.bound:
        why = engine.why_bodies_run(feed_limits.skeleton(Path(path)), settings)
    if why:
        raise DeviceError(f"runtime: {why}")
    return session
