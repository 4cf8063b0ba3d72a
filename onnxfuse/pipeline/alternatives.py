"""Races between plans: the areas in which two plans differ, changed by kind, measured in the whole model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from onnxfuse.config import USUAL, Options
from onnxfuse.errors import OnnxFuseError
from onnxfuse.measure import ratios
from onnxfuse.measure.gain import FLOOR
from onnxfuse.measure.profile import Profile
from onnxfuse.pipeline.calls import Calls
from onnxfuse.pipeline.lock_files import text_of_lock
from onnxfuse.pipeline.run import optimize
from onnxfuse.pipeline.state import Build, Context, have
from onnxfuse.report.lock import Alternative, FasterSchedule, Grouping, Lock, deciding
from onnxfuse.runtime.provider import CPU

Kind = tuple[tuple[str, ...], ...]  # forms of new groups, and of those that they replace
Locked: TypeAlias = "tuple[Grouping | None, tuple[FasterSchedule, ...]]"  # what a lock says of groups and ways
USUALLY: Locked = (None, ())
MOST = 6  # kinds of areas that are raced, those first in which most time is at stake
DURATIONS = (1.0, 8.0)  # seconds for which each model runs; longer where the first were not enough
SURE = 1.01  # the width of an interval around 1 that is narrow enough


@dataclass(frozen=True, slots=True)
class Areas:
    """All areas of one kind: pairs (`instead`) of new groups and the groups of the other plan that they replace.

    `seconds` is what the change is predicted to save in all, `measured` prices being part of that.
    """

    kind: Kind
    instead: tuple[tuple[Grouping, Grouping], ...]  # new groups, and those whose place they take
    seconds: float

    @property
    def nodes(self) -> frozenset[str]:
        """Names of all nodes of it."""
        return frozenset(n for new, old in self.instead for g in (*new, *old) for n in g)

    def applied(self, grouping: Grouping) -> Grouping:
        """A plan with these areas changed; what only changes a shape goes to the new groups that have it."""
        gone = {g for _, old in self.instead for g in old}
        new = tuple(g for each, _ in self.instead for g in each)
        taken = {name for g in new for name in g}
        rest = (tuple(n for n in g if n not in taken) for g in grouping if g not in gone)
        return (*(g for g in rest if g), *new)


def areas_between(
    before: Grouping, after: Grouping, form_of: Callable[[tuple[str, ...]], tuple[object, float]], views: frozenset[str]
) -> list[Areas]:
    """The areas in which two plans differ, equal ones together: groups of both that share nodes, one with another.

    Nodes that only change a shape, `views`, make no difference.
    """

    def heavy(group: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(n for n in group if n not in views)

    same = {heavy(g) for g in before} & {heavy(g) for g in after}
    old, new = ([g for g in plan if heavy(g) and heavy(g) not in same] for plan in (before, after))
    kinds: dict[Kind, list[tuple[Grouping, Grouping]]] = {}
    saved: dict[Kind, float] = {}
    for mine, theirs in _sharing(new, old, heavy):
        kind = tuple(tuple(str(form_of(g)[0]) for g in side) for side in (mine, theirs))
        kinds.setdefault(kind, []).append((mine, theirs))
        less = sum(form_of(g)[1] for g in theirs) - sum(form_of(g)[1] for g in mine)
        saved[kind] = saved.get(kind, 0.0) + less
    return [Areas(kind, tuple(pairs), saved[kind]) for kind, pairs in kinds.items()]


def _sharing(
    new: Sequence[tuple[str, ...]], old: Sequence[tuple[str, ...]], heavy: Callable[[tuple[str, ...]], tuple[str, ...]]
) -> list[tuple[Grouping, Grouping]]:
    """Groups of two plans that share nodes, one with another."""
    home: dict[str, str] = {}

    def root(name: str) -> str:
        while home.setdefault(name, name) != name:
            name = home[name]
        return name

    for first, *others in map(heavy, (*old, *new)):
        for name in others:
            home[root(name)] = root(first)
    found: dict[str, tuple[list[tuple[str, ...]], list[tuple[str, ...]]]] = {}
    for at, side in enumerate((new, old)):
        for group in side:
            found.setdefault(root(heavy(group)[0]), ([], []))[at].append(group)
    return [(tuple(mine), tuple(theirs)) for mine, theirs in found.values()]


def raced(race: Race, before: Grouping, areas: Sequence[Areas]) -> tuple[list[Alternative], Grouping | None]:
    """The effect of each kind of area on the time of the whole model, and the plan with the significantly faster ones.

    That plan is None if it is the usual one.
    """
    chosen = sorted(areas, key=lambda a: -abs(a.seconds))[:MOST]
    if not chosen or race.late:
        return [], None
    found = race.run([(a.applied(before), ()) for a in chosen])
    pairs = [(a, r, ms) for a, (r, ms) in zip(chosen, found, strict=False) if r is not None]
    taken: list[Areas] = []
    for area, ratio, _ in sorted(pairs, key=lambda pair: -pair[1].value):
        if is_faster(ratio) and not any(area.nodes & t.nodes for t in taken):
            taken.append(area)
    several = [taken[:1]] if len(taken) > 1 else []  # where together they are not, perhaps the first one is
    taken = next((some for some in (taken, *several) if some and race.holds((_all(some, before), ()))), [])
    alternatives = [_alternative(race.usual, a, r, ms, taken=a in taken) for a, r, ms in pairs]
    return alternatives, _all(taken, before) if taken else None


def is_faster(ratio: ratios.Ratio) -> bool:
    """Whether a plan is significantly faster than the usual one, by more than two processes of one model differ."""
    return ratio.low > 1.0 + FLOOR


def _all(areas: Iterable[Areas], grouping: Grouping) -> Grouping:
    for each in areas:
        grouping = each.applied(grouping)
    return grouping


def _alternative(b: Build, areas: Areas, ratio: ratios.Ratio, ms: tuple[float, float], *, taken: bool) -> Alternative:
    ops = {n.name: n.op for each in b.everywhere() for n in have(each.plan).graph.nodes}
    new, old = (tuple(" ".join(ops.get(n, n) for n in g) for g in side) for side in areas.instead[0])
    saved, *figures = (float(f"{x:.5g}") for x in (areas.seconds * 1e3, *ms, ratio.value, ratio.low, ratio.high))
    before, after, value, low, high = figures
    return Alternative(new, old, len(areas.instead), saved, before, after, value, low, min(high, 1e9), taken)


@dataclass(frozen=True, slots=True)
class Race:
    """Builds of one model with other groups or schedule candidates, interleaved with a reference build."""

    context: Context
    calls: Calls
    usual: Build
    threads: int
    until: float

    @property
    def late(self) -> bool:
        """Whether there is no time left."""
        return time.monotonic() >= self.until

    def run(
        self, others: Sequence[Locked], first: Locked = USUALLY
    ) -> list[tuple[ratios.Ratio | None, tuple[float, float]]]:
        """Of each plan, the time of the first one to its own, and both in milliseconds; None where it has none."""
        built = list(self._built((first, *others)))
        models = [at for at, path in enumerate(built) if path is not None]
        nothing: tuple[ratios.Ratio | None, tuple[float, float]] = (None, (0.0, 0.0))
        found = [nothing] * (len(built) - 1)
        if len(models) < 2 or models[0] != 0:
            return found
        paths = [have(built[at]) for at in models]
        for duration in DURATIONS:
            one, *rest = self._profile(paths, duration).models
            for at, other in zip(models[1:], rest, strict=True):
                times = (one.latency_ms.min, other.latency_ms.min)
                found[at - 1] = ratios.ratio(one.turns, other.turns), times
            undecided = any(r is not None and r.low < 1.0 < r.high and r.high > r.low * SURE for r, _ in found)
            if not undecided or self.late:
                break
        return found

    def _profile(self, paths: Sequence[Path], duration: float) -> Profile:
        """The models in turns, each for so many seconds."""
        return self.calls.profile_models(
            paths,
            libraries=[p.with_name(f"lib{p.stem}.so") for p in paths],
            provider=CPU,
            custom_libraries=self.context.options.custom_ops_library,
            threads=self.threads,
            duration=duration,
            inputs=self.context.options.inputs,
            seed=self.context.options.seed,
            dims=self.usual.source.dims,
            a_a=False,
            own=True,
            time_limit=self.context.meter.left,
        )

    def holds(self, plan: Locked, first: Locked = USUALLY) -> bool:
        """Whether a plan is faster than the first one once more, in other processes."""
        ((ratio, _),) = self.run([plan], first)
        return ratio is not None and is_faster(ratio)

    def _built(self, plans: Sequence[Locked]) -> Iterator[Path | None]:
        """The models, as files; None for what cannot be built, or not in time."""
        for number, plan in enumerate(plans):
            yield None if number > 1 and self.late else self._model(number, plan)

    def lock(self, plan: Locked, path: Path) -> Options:
        """The options of a build with such a plan; what has to be said of it is written to a file."""
        options = replace(self.context.options, strategy=USUAL, lock=None)
        if plan == USUALLY:
            return options
        source, names = self.usual.source, self.context.target_names
        about = Lock(source.sha256, deciding(options), names, None, (), plan[0], (), plan[1])
        path.write_text(text_of_lock(self.context, about), encoding="utf-8")
        return replace(options, lock=str(path))

    def _model(self, number: int, plan: Locked) -> Path | None:
        out = self.context.folder / f"alternative{number}.onnx"
        options = self.lock(plan, out.with_suffix(".lock"))
        options = replace(options, output=None, overwrite=True, verify=False, gain=False)
        try:
            made = optimize(self.context.model, out, options=options, calls=self.calls)
        except OnnxFuseError as problem:
            self.context.tell("note", {"text": f"a plan cannot be built: {problem.message}"})
            return None
        return out if made.kernels else None
