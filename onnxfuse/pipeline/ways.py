"""Ways through contractions, measured: what predictions cannot tell apart, or get wrong, on this machine.

As DeepCuts does: blocks of rows, parts of the depth, the height of tiles and what tasks share are enumerated for each
kernel (`schedule/cpu/gemm.py`), what does not fit a cache or a table is not even made, what is predicted to take much
longer than the best is not measured, and of the few that are left the fastest is taken, on all numbers of threads
together. It has to make the whole model faster too.

Source: W. Jung, T. T. Dao, J. Lee, "DeepCuts: a deep learning optimization framework for versatile GPU workloads",
PLDI 2021.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import exp, log
from typing import Any

from onnxfuse.ir.graph import Decision
from onnxfuse.ir.kernel import Kernel
from onnxfuse.measure.database import Measured
from onnxfuse.pipeline.groups import attempted, predicted, scheduler
from onnxfuse.pipeline.rivals import Grouping, Locked, Race, is_faster
from onnxfuse.pipeline.sampling import Sampler
from onnxfuse.pipeline.state import Build, Context, Part, Ways, have
from onnxfuse.plan.known import KernelSample
from onnxfuse.report.lock import Faster

KERNELS = 10  # of which ways are measured, those first in which most time is predicted to go
EACH = 8  # ways of each contraction
CLOSE = 1.4  # times the least predicted time: what is above is not measured
ALONE = 3  # ways that are raced without the others
LESS = 0.97  # of the time of the usual way, above which another one is not worth the change


@dataclass(frozen=True, slots=True)
class _Contraction:
    """One of a kernel, as it would be by each of some ways, the usual one first; all are samples at one size."""

    part: Part
    places: int
    ways: tuple[str, ...]
    samples: tuple[KernelSample, ...]


def faster_ways(context: Context, b: Build, sampler: Sampler, sizes: Mapping[str, Mapping[str, int]]) -> list[Faster]:
    """Ways that take less time than the usual ones of a scheduled build, by operators of its kernels.

    `sizes` are values of the symbols of kernels by operator; kernels with symbols that are not there are left out.
    """
    found = list(_contractions(context, b, sizes))
    sampler.run(s for each in found for s in each.samples)
    known = sampler.database.known(sampler.keys.place)
    return [made for each in found if (made := _fastest(each, sampler, known)) is not None]


def _contractions(context: Context, b: Build, sizes: Mapping[str, Mapping[str, int]]) -> Iterator[_Contraction]:
    """Those in which most time is predicted to go, as many as are measured."""
    graphs = [have(each.plan) for each in b.everywhere() for _ in each.parts]
    costs = [cost.seconds if cost is not None else 0.0 for cost in predicted(context, b)]
    kinds: dict[str, list[int]] = {}
    for at, part in enumerate(b.all_parts):
        kinds.setdefault(part.op, []).append(at)
    open_ = {op for op, (at, *_) in kinds.items() if have(b.all_parts[at].kernel).binds and op not in sizes}
    order = sorted(kinds.keys() - open_, key=lambda op: (-sum(costs[at] for at in kinds[op]), op))
    count = 0
    for op in order:
        part, made = b.all_parts[kinds[op][0]], graphs[kinds[op][0]]
        if not have(part.kernel).choices or count == KERNELS:
            continue
        count += 1
        schedule = partial(_made, context, made, part)
        every = schedule(())
        for choice in every.choices if every is not None else ():
            (usual, least), *others = choice.candidates
            near = [name for name, seconds in others if seconds <= CLOSE * least][: EACH - 1]
            kernels = [(name, schedule(((usual, name),))) for name in near]
            pairs = [(usual, every), *((name, k) for name, k in kernels if k is not None)]
            sample = partial(_sample, made.graph.constants, sizes.get(op, {}), costs[kinds[op][0]])
            samples = tuple(sample(k) for _, k in pairs if k is not None)
            yield _Contraction(part, len(kinds[op]), tuple(name for name, _ in pairs), samples)


def _made(context: Context, plan: Any, part: Part, ways: Ways) -> Kernel | None:
    """A kernel as it is by these ways; None where it would take or give something else than the usual one."""
    schedule = scheduler(context, plan, part.lowered, measured=ways)
    found = attempted(context, "schedule", lambda: schedule(context.targets[0]))
    return None if isinstance(found, Decision) else found


def _sample(constants: Mapping[str, Any], sizes: Mapping[str, int], seconds: float, kernel: Kernel) -> KernelSample:
    own = {p.value: constants[p.value] for p in kernel.inputs if p.value in constants}
    held = float(sum(c.bytes for c in constants.values()))
    return KernelSample(kernel, own, dict(sizes), held, (seconds,))


def _fastest(c: _Contraction, sampler: Sampler, known: Mapping[str, Measured]) -> Faster | None:
    """The way that takes least time, where it is one besides the usual one."""
    times = {}
    for name, sample in zip(c.ways, c.samples, strict=True):
        rows = [known.get(sampler.keys.of(sample, threads)) for threads in sampler.threads]
        if all(row is not None for row in rows):
            times[name] = _mean([row.seconds for row in rows if row is not None])
    usual, best = times.get(c.ways[0]), min(times, key=lambda name: times[name], default="")
    if usual is None or best == c.ways[0] or times[best] > LESS * usual:
        return None
    before, after = (float(f"{seconds * 1e6:.5g}") for seconds in (usual, times[best]))
    return Faster(c.part.op, c.places, c.ways[0], best, before, after, taken=False)


def _mean(seconds: Sequence[float]) -> float:
    return exp(sum(map(log, seconds)) / len(seconds))


def _marked(found: Iterable[Faster], which: Iterable[Faster]) -> tuple[Faster, ...]:
    """All ways, with those marked that are taken."""
    chosen = set(which)
    return tuple(replace(each, taken=each in chosen) for each in found)


def raced(race: Race, grouping: Grouping | None, found: Sequence[Faster]) -> tuple[Faster, ...]:
    """The ways, those taken with which the whole model surely is faster: all, or the one that saves most alone."""
    if not found or race.late:
        return tuple(found)
    order = sorted(found, key=lambda f: f.places * (f.after_us - f.before_us))
    sets = [order, *([each] for each in order[:ALONE] if len(order) > 1)]
    first: Locked = (grouping, ())
    plans: list[Locked] = [(grouping, _marked(found, chosen)) for chosen in sets]
    times = [ratio for ratio, _ in race.run(plans, first)]
    good = [(-ratio.value, at) for at, ratio in enumerate(times) if ratio is not None and is_faster(ratio)]
    if not good or not race.holds(plans[min(good)[1]], first):
        return _marked(found, ())
    return plans[min(good)[1]][1]
