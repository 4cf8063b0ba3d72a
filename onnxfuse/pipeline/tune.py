"""`onnxfuse tune`: measures samples for prices, plans again, and races plans in the whole model.

First samples: the kernels of the plan, close alternatives, and nodes that might stay with the runtime, until the plan
no longer changes. Then areas: where the plan predicted to be best, and the one by measured prices, differ from that of
`anchors`, all areas of one kind are changed at once and run interleaved with it, since samples do not show how
neighbours affect each other; significantly faster areas are taken. Last, schedule candidates of contractions
(`candidate_tuning.py`) in the plan that was taken.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from onnxfuse.config import BEST, USUAL, Options
from onnxfuse.emit import refuse_existing, refuse_inputs, write_text
from onnxfuse.errors import UsageError
from onnxfuse.load import files_of
from onnxfuse.measure.cluster import Cluster
from onnxfuse.measure.database import Measurement
from onnxfuse.ops.rows import ROWS
from onnxfuse.ops.traits import is_view
from onnxfuse.pipeline import steps
from onnxfuse.pipeline.alternatives import Areas, Kind, Race, areas_between, raced
from onnxfuse.pipeline.calls import Calls
from onnxfuse.pipeline.candidate_tuning import faster_candidates, measured_on_device
from onnxfuse.pipeline.candidate_tuning import raced as raced_candidates
from onnxfuse.pipeline.lock_files import grouping_of, key_of_plan, text_of_lock
from onnxfuse.pipeline.run import opened, run
from onnxfuse.pipeline.sample_keys import Keys, database_of
from onnxfuse.pipeline.sampling import Sampler
from onnxfuse.pipeline.state import Build, Context, Tell, have
from onnxfuse.plan.price import PriceSamples
from onnxfuse.plan.samples import KernelSample, Sample
from onnxfuse.report.lock import Alternative, FasterSchedule, Grouping, Lock, deciding
from onnxfuse.runtime.provider import need_runtime
from onnxfuse.target import NATIVE, Cpu

ROUNDS = 12  # of planning and measuring, in which what was never measured is tried again and again
CLOSE = 0.3  # part of its own time by which a candidate may be behind and is measured: so far off predictions are
MORE = 8  # times as many candidates as a build schedules, since those that matter are measured
RACES = 0.5  # share of the time that is for races


@dataclass(frozen=True, slots=True)
class SampleResult:
    """What was measured of a kernel or node; `left` says that it was one of the runtime's."""

    what: str
    threads: int
    predicted_us: float
    measured_us: float
    spread: float
    left: bool


@dataclass(frozen=True, slots=True)
class Tuned:
    """The result of tuning: samples, raced areas, whether the plan changed, and faster schedules of contractions."""

    model: str
    lock: str
    database: str
    rounds: int
    samples: tuple[SampleResult, ...]
    problems: tuple[str, ...]
    changed: bool  # whether measured prices gave another plan than predictions did
    alternatives: tuple[Alternative, ...]
    faster_schedules: tuple[FasterSchedule, ...]
    seconds: float


def tune(
    model: str | os.PathLike[str],
    *,
    options: Options | None = None,
    seconds: float = 600.0,
    threads: int = 0,
    lock: str | os.PathLike[str] | None = None,
    cluster: str | None = None,
    tell: Tell = lambda what, facts: None,
    calls: Calls | None = None,
) -> Tuned:
    """Measure for about so many seconds what decides the plan of a model, keep it, and write a lock file.

    `threads` 0 measures on one and on one per core. `cluster` is the address of a Dask scheduler whose workers measure
    the samples; whole models race here. Raises OnnxFuseError.
    """
    need_runtime("tune")
    begin, calls = time.monotonic(), calls or Calls()
    options = replace(options or Options(), verify=False)  # nothing is emitted, and nothing is to run beside samples
    place = Path(lock) if lock is not None else _beside(Path(model))
    refuse_existing([place], overwrite=options.overwrite)
    refuse_inputs([place], files_of(Path(model)))
    if calls.backends[options.target].timer is not None:
        return _on_device(model, options, place, begin + seconds, tell, calls)
    budget = MORE * options.plan_budget
    priced = replace(options, strategy=BEST, plan_budget=budget, lock=None, profile_guided=False)
    with ExitStack() as stack:
        if cluster is not None:
            calls = replace(calls, time_samples=stack.enter_context(Cluster(cluster)).time_samples)
        context = stack.enter_context(opened(model, priced, calls, tell, samples=(samples := PriceSamples())))
        mine = replace(context, options=replace(options, strategy=None, lock=None))
        tuning = _Tuning(context, calls, samples, mine, begin + seconds, _threads(threads))
        found, text = tuning.run()
        write_text(place, text, overwrite=options.overwrite)
    return replace(found, model=os.fspath(model), lock=str(place), seconds=round(time.monotonic() - begin, 2))


def _on_device(
    model: str | os.PathLike[str], options: Options, place: Path, until: float, tell: Tell, calls: Calls
) -> Tuned:
    """Tiles of products measured on a device of this machine."""
    begin = time.monotonic()
    options = replace(options, arch=options.arch or (NATIVE,), lock=None, profile_guided=False)
    with opened(model, options, calls, tell) as context:
        lock, times, problems = measured_on_device(context, calls, until)
        write_text(place, text_of_lock(context, lock), overwrite=options.overwrite)
    samples = tuple(SampleResult(what, 0, p * 1e6, s * 1e6, 0.0, left=False) for what, p, s in times)
    taken = round(time.monotonic() - begin, 2)
    return Tuned(os.fspath(model), str(place), "", 1, samples, tuple(problems), False, (), lock.faster_schedules, taken)


def _beside(model: Path) -> Path:
    return model.with_name(f"{model.name.removesuffix('.onnx')}.fuse.lock")


def _threads(asked: int) -> tuple[int, ...]:
    return (asked,) if asked else tuple(dict.fromkeys((1, len(os.sched_getaffinity(0)))))


class _Tuning:
    """One model under way: `context` plans by prices, `mine` is what a build without a strategy has."""

    def __init__(
        self,
        context: Context,
        calls: Calls,
        samples: PriceSamples,
        mine: Context,
        until: float,
        threads: tuple[int, ...],
    ) -> None:
        database = database_of(context)
        if database is None:
            raise UsageError("tune: there is no cache folder for measurements", hint="leave out --no-cache and --arch")
        self.context, self.calls, self.samples, self.mine, self.until = context, calls, samples, mine, until
        self.database, self.threads, self.keys = database, threads, Keys(context)
        now = time.monotonic()
        stop = now + (until - now) * (1 - RACES)
        self.sampler = Sampler(context, calls, self.keys, database, threads, stop)

    def run(self) -> tuple[Tuned, str]:
        """What was found, and the text of the lock file."""
        loaded = run(self.context, self.calls, "rewrite", lambda step, b: None)
        usual = self._planned(loaded, replace(self.mine, options=replace(self.mine.options, strategy=USUAL)))
        first = self._planned(loaded, self.context)
        made, rounds = first, 1
        while self.sampler.run(self._wanted(made)) and rounds < ROUNDS:
            made, rounds = self._planned(loaded, self.context), rounds + 1
        race = Race(self.mine, self.calls, usual, max(self.threads), self.until)
        alternatives, grouping = self._raced(race, usual, (made, first))
        faster = raced_candidates(race, grouping, self._faster_schedules(race, grouping))
        text = self._kept(loaded, alternatives, grouping, faster)
        changed = grouping_of(made) != grouping_of(first)
        found = [self._sample(*each) for each in self.sampler.measured.values()]
        problems = tuple(dict.fromkeys(self.sampler.problems.values()))
        path = str(self.database.path)
        return Tuned("", "", path, rounds, tuple(found), problems, changed, tuple(alternatives), faster, 0.0), text

    def _planned(self, loaded: Build, context: Context) -> Build:
        """The plan with all that is known by now; kernels that were scheduled before are not scheduled again."""
        memo = context.price_memo
        memo.known.clear()
        memo.measured.clear()
        memo.scheduled = 0
        return steps.plan(context, self.calls, replace(loaded, choices=()))

    def _wanted(self, b: Build) -> Iterator[Sample]:
        """What is to be measured, what matters most first: kernels that are taken or nearly, then single nodes."""
        for each in b.everywhere():
            plan = have(each.plan)
            yield from self._kernels(tuple(n.name for n in g.nodes) for g in plan.groups)
            near = [c for c in plan.candidates if c.reason is not None and c.behind is not None and c.behind <= CLOSE]
            yield from self._kernels(c.nodes for c in sorted(near, key=lambda c: c.behind or 0.0))
        nodes = [s for each in self.samples.nodes.values() for s in each if s.node is not None]
        yield from sorted(nodes, key=lambda s: -max(s.seconds, default=0.0))

    def _kernels(self, sets: Iterable[tuple[str, ...]]) -> Iterator[KernelSample]:
        for names in sets:
            yield from self.samples.at.get(self.samples.sets.get(names), ())

    def _raced(self, race: Race, usual: Build, others: Iterable[Build]) -> tuple[list[Alternative], Grouping | None]:
        """The areas in which plans differ from the usual one, measured in the whole model, and the plan of the best.

        It is the usual one where none of them is faster, and None where none was measured.
        """
        before = grouping_of(usual)
        kinds: dict[Kind, Areas] = {}
        for b in others:
            for area in areas_between(before, grouping_of(b), self._form, _views(usual)):
                kinds.setdefault(area.kind, area)
        alternatives, grouping = raced(race, before, list(kinds.values()))
        return alternatives, grouping or (before if alternatives else None)

    def _faster_schedules(self, race: Race, grouping: Grouping | None) -> list[FasterSchedule]:
        """Schedule candidates of a plan's contractions that are faster than the usual ones, kernel by kernel."""
        now = time.monotonic()
        self.sampler.until = now + (self.until - now) * (1 - RACES)
        options = race.lock((grouping, ()), self.context.folder / "faster.lock")
        b = run(replace(self.mine, options=options), self.calls, "schedule", lambda step, b: None)
        sizes: dict[str, Mapping[str, int]] = {}
        for part in b.all_parts:
            at = self.samples.at.get(self.samples.sets.get(tuple(n.name for n in part.group.nodes)), ())
            sizes |= {part.op: at[len(at) // 2].symbols} if at else {}
        return faster_candidates(self.mine, b, self.sampler, sizes)

    def _form(self, names: tuple[str, ...]) -> tuple[object, float]:
        """What equal groups have in common, and what one is predicted or measured to take."""
        form = self.samples.sets.get(names)
        price, samples = self.context.price_memo.known.get(form), self.samples.at.get(form)
        predicted = samples[0].seconds[0] if samples else 0.0
        return form, price[0] if isinstance(price, tuple) else predicted

    def _kept(
        self,
        b: Build,
        alternatives: Iterable[Alternative],
        grouping: Grouping | None,
        faster: tuple[FasterSchedule, ...],
    ) -> str:
        """The text of the lock, which the database keeps too."""
        source = b.source
        options = deciding(self.mine.options)
        lock = Lock(source.sha256, options, self.mine.target_names, None, (), grouping, tuple(alternatives), faster)
        text = text_of_lock(self.mine, lock)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.database.keep_plan(key_of_plan(self.mine, b), text, now)
        return text

    def _sample(self, sample: Sample, threads: int, row: Measurement) -> SampleResult:
        cores = [m.cores for m in self.context.backend.points(self.context.targets[0]) if isinstance(m, Cpu)]
        at = cores.index(threads) if threads in cores else 0
        predicted = sample.seconds[at] if sample.seconds else 0.0
        left = not isinstance(sample, KernelSample)
        return SampleResult(row.what, threads, predicted * 1e6, row.seconds * 1e6, row.spread, left)


def _views(b: Build) -> frozenset[str]:
    """Names of the nodes that only change a shape."""
    graphs = [have(each.plan).graph for each in b.everywhere()]
    rows = [(n.name, ROWS.find(n, graph.opset)) for graph in graphs for n in graph.nodes]
    return frozenset(name for name, row in rows if row is not None and is_view(row))
