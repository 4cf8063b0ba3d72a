"""Ways to run the model under test: with its library or without, with the runtime's optimizations or without."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from onnxruntime import InferenceSession

from onnxfuse.errors import DeviceError, OnnxFuseError
from onnxfuse.runtime import engine, feed_limits
from onnxfuse.runtime.memory import Load, Watch
from onnxfuse.runtime.provider import CPU, Provider
from onnxfuse.verify import compare
from onnxfuse.verify.compare import Results
from onnxfuse.verify.original import Original
from onnxfuse.verify.trial import words_of
from onnxfuse.verify.verdicts import WITH_LIBRARY

Note = Callable[[str], None]  # says what is about to be run, in case this process dies of it


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run the model under test; `isa` is what its library may use, which chooses where that is empty.

    `closest` is the way that is nearest to how the original runs: of a model of codes it alone is held to `limits`.
    """

    name: str
    libraries: tuple[str, ...]
    isa: str
    optimize: bool
    closest: bool = False
    provider: Provider = CPU


@dataclass(frozen=True, slots=True)
class Found:
    """What was found, or the message of what went wrong."""

    message: str
    results: Results | None = None
    load: Load | None = None  # what it takes to load it


def ways(library: str | None, isas: Sequence[str], plain: bool, provider: Provider = CPU) -> Iterator[Way]:
    """With the library, for each of `isas`, and without; with all optimizations and, if the original runs so, none.

    In the provider of a GPU all of these; where it replays CUDA graphs, those with all optimizations replayed as well.
    """
    used = [(f"{WITH_LIBRARY} ({isa})" if len(isas) > 1 else WITH_LIBRARY, (library,), isa) for isa in isas if library]
    place = f" in {provider.ungraphed.words}" if provider.bound else ""
    for name, libraries, isa in (*used, ("without library", (), "")):
        for optimize in (True, False) if plain else (True,):
            words = f"{name}{place}, {'all' if optimize else 'no'} optimizations"
            yield Way(words, libraries, isa, optimize, not libraries and optimize != plain, provider.ungraphed)
        if provider.graph:
            yield Way(f"{name} in {provider.words}, all optimizations", libraries, isa, True, provider=provider)


def compared(
    note: Note, path: str, way: Way, custom: Sequence[str], first: Original, disabled: Sequence[str] = ()
) -> Found:
    """One way to run the other model, on all sets of inputs, with some kernels left to their function bodies.

    Kernels get memory from the arena, which was used before, so that they cannot count on zeros.
    """
    note(way.name)
    try:
        with Watch() as watch:
            session = _opened(path, way, custom, disabled)
            watch.opened()
            own = engine.output_names(session)
            if len(own) != len(first.names):
                raise DeviceError(f"verify: outputs {', '.join(own)} instead of {', '.join(first.names)}")
            matched = first.names if set(own) == set(first.names) else own
            runs = [partial(_ran, note, way, session, each, matched, first.seed) for each in first.sets]
            found = [watch.timed(runs[0])]
        found += [watch.timed(run) for run in runs[1:]]
    except OnnxFuseError as problem:
        return Found(problem.message)
    return Found("", found, watch.load(way.name.partition(",")[0]) if way.optimize else None)


def _ran(
    note: Note, way: Way, session: InferenceSession, feeds: engine.Feeds, names: Sequence[str], seed: int
) -> list[engine.Array]:
    """The outputs for one set of inputs. Raises DeviceError that says on which."""
    where = f"on {words_of(feeds)} (seed {seed})"
    note(f"{way.name}: {where}")
    try:
        return engine.run(session, feeds, names, way.provider)
    except OnnxFuseError as problem:
        raise DeviceError(f"{problem.message} {where}") from None


def facts_of(way: Way, found: Found, first: Original) -> dict[str, Any]:
    """A run as `verify.judged` takes it; of what is too far away, with what float64 says of it."""
    about = {"name": way.name, "closest": way.closest, "message": found.message}
    if found.results is None:
        return about | {"distances": [], "largest": [], "own": [], "true": None}
    if not way.closest:
        first.draw_perturbations(found.results)
    nearest, own = first.nearest(found.results)
    opinion = first.opinion(found.results, way.closest)
    return about | {
        "distances": [asdict(each) for each in nearest],
        "largest": [asdict(each) for each in compare.distances(first.expected, found.results)],
        "own": own,
        "true": None if opinion is None else asdict(opinion),
    }


def loaded(note: Note, path: str, way: Way, custom: Sequence[str]) -> str:
    """What went wrong when the model was loaded in one way; empty where nothing did."""
    note(way.name)
    try:
        _opened(path, way, custom, ())
    except OnnxFuseError as problem:
        return problem.message
    return ""


def _opened(path: str, way: Way, custom: Sequence[str], disabled: Sequence[str]) -> InferenceSession:
    libraries = (*way.libraries, *custom)
    settings = engine.options(
        libraries=libraries,
        disabled=disabled,
        optimize=way.optimize,
        lean=True,
        arena=bool(way.libraries),
        isa=way.isa,
    )
    session = engine.open_session(path, settings, way.provider)
    why = ""
    if way.libraries and way.provider.bound:
        why = engine.why_bodies_run(feed_limits.skeleton(Path(path)), settings)
    if why:
        raise DeviceError(f"runtime: {why}")
    return session
