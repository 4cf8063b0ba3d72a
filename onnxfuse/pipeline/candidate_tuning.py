"""Measures schedule candidates of contractions that predictions cannot rank reliably on this machine.

As DeepCuts does: row blocks, k-splits, tile rows and the axis divided among tasks are enumerated for each kernel
(`schedule/cpu/gemm.py`); candidates that exceed a cache or a pointer table are not built, those predicted to be much
slower than the best are not measured, and the fastest of the rest, by the geometric mean over numbers of threads, is
taken if it makes the whole model faster too.

On a GPU (`--target cuda`) tiles of products are measured on the first GPU of this machine (`cost/gpu_products.py`),
and what is clearly faster by itself is taken.

Source: W. Jung, T. T. Dao, J. Lee, "DeepCuts: a deep learning optimization framework for versatile GPU workloads",
PLDI 2021.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import exp, log

from onnxfuse.backends.row import KernelTimer
from onnxfuse.errors import DeviceError
from onnxfuse.ir.graph import Constant, Decision
from onnxfuse.ir.group import Plan
from onnxfuse.ir.kernel import Kernel, Substitutions
from onnxfuse.measure.database import Measurement
from onnxfuse.pipeline.alternatives import Locked, Race, is_faster
from onnxfuse.pipeline.calls import Calls
from onnxfuse.pipeline.groups import attempted, counted_at, kernel_cost, predicted, predicting, scheduler
from onnxfuse.pipeline.run import run
from onnxfuse.pipeline.sampling import Sampler
from onnxfuse.pipeline.state import Build, Context, GroupBuild, have
from onnxfuse.plan.samples import KernelSample
from onnxfuse.report.lock import FasterSchedule, Grouping, Lock, deciding

KERNELS = 10  # whose candidates are measured, those with the most predicted time first
EACH = 8  # candidates of each contraction
CLOSE = 1.4  # candidates above this multiple of the least predicted time are not measured
ALONE = 3  # candidates that are raced one at a time
LESS = 0.97  # a candidate replaces the usual one if it takes at most this fraction of its time


@dataclass(frozen=True, slots=True)
class TunedContraction:
    """A contraction of a kernel with some of its candidates, the usual one first, as samples at one size."""

    part: GroupBuild
    places: int
    candidates: tuple[str, ...]
    samples: tuple[KernelSample, ...]


def faster_candidates(
    context: Context, b: Build, sampler: Sampler, sizes: Mapping[str, Mapping[str, int]]
) -> list[FasterSchedule]:
    """Candidates that are faster than the usual ones of a scheduled build.

    `sizes` has values of symbols by operator type of the kernel; kernels with other symbols are left out.
    """
    found = list(contractions(context, b, sizes))
    sampler.run(s for each in found for s in each.samples)
    known = sampler.database.known(sampler.keys.place)
    return [made for each in found if (made := _fastest(each, sampler, known)) is not None]


def contractions(context: Context, b: Build, sizes: Mapping[str, Mapping[str, int]]) -> Iterator[TunedContraction]:
    """The contractions to measure, those with the most predicted time first."""
    graphs = [have(each.plan) for each in b.everywhere() for _ in each.parts]
    costs = [c.seconds if c is not None else 0.0 for c in predicted(context, b, counted_at(context, b))]
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
            if not choice.substitutable:
                continue
            (usual, least), *others = choice.candidates
            near = [name for name, seconds in others if seconds <= CLOSE * least][: EACH - 1]
            kernels = [(name, schedule(((usual, name),))) for name in near]
            pairs = [(usual, every), *((name, k) for name, k in kernels if k is not None)]
            sample = partial(_sample, context, made.graph.constants, sizes.get(op, {}))
            samples = tuple(sample(k) for _, k in pairs if k is not None)
            yield TunedContraction(part, len(kinds[op]), tuple(name for name, _ in pairs), samples)


def _made(context: Context, plan: Plan, part: GroupBuild, candidates: Substitutions) -> Kernel | None:
    """A kernel with substituted candidates; None if it cannot be scheduled."""
    schedule = scheduler(context, plan, part.lowered, measured=candidates)
    found = attempted(context, "schedule", lambda: schedule(context.targets[0]))
    return None if isinstance(found, Decision) else found


def _sample(
    context: Context, constants: Mapping[str, Constant], sizes: Mapping[str, int], kernel: Kernel
) -> KernelSample:
    own = {p.value: constants[p.value] for p in kernel.inputs if p.value in constants}
    held = float(sum(c.bytes for c in constants.values()))
    costs = [kernel_cost(context, kernel, m, own, held, sizes) for m in context.backend.points(predicting(context))]
    return KernelSample(kernel, own, dict(sizes), held, tuple(0.0 if c is None else c.seconds for c in costs))


def _fastest(c: TunedContraction, sampler: Sampler, known: Mapping[str, Measurement]) -> FasterSchedule | None:
    """The fastest candidate, if it is clearly faster than the usual one; else None."""
    times = {}
    for name, sample in zip(c.candidates, c.samples, strict=True):
        rows = [known.get(sampler.keys.of(sample, threads)) for threads in sampler.threads]
        if all(row is not None for row in rows):
            times[name] = _mean([row.seconds for row in rows if row is not None])
    return _faster(c, times)


def _faster(c: TunedContraction, times: Mapping[str, float]) -> FasterSchedule | None:
    """The candidate that takes least of these seconds, not yet taken; None where the usual one is nearly as fast."""
    usual, best = c.candidates[0], min(times, key=lambda name: times[name], default="")
    if usual not in times or best == usual or times[best] > LESS * times[usual]:
        return None
    before, after = (float(f"{times[name] * 1e6:.5g}") for name in (usual, best))
    return FasterSchedule(c.part.op, c.places, usual, best, before, after, taken=False)


def _mean(seconds: Sequence[float]) -> float:
    return exp(sum(map(log, seconds)) / len(seconds))


def _marked(found: Iterable[FasterSchedule], which: Iterable[FasterSchedule]) -> tuple[FasterSchedule, ...]:
    """All candidates, with those marked that are taken."""
    chosen = set(which)
    return tuple(replace(each, taken=each in chosen) for each in found)


def raced(race: Race, grouping: Grouping | None, found: Sequence[FasterSchedule]) -> tuple[FasterSchedule, ...]:
    """The candidates; taken are those with which the model is significantly faster: all, or the best single one."""
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


# GPUs -----------------------------------------------------------------------------------------------------------------


def measured_on_device(
    context: Context, calls: Calls, until: float
) -> tuple[Lock, list[tuple[str, float, float]], list[str]]:
    """The lock of the build; of each tile its name, predicted and measured seconds; and what went wrong.

    Raises DeviceError where this machine has no such device.
    """
    b = run(context, calls, "schedule", lambda step, b: None)
    times: list[tuple[str, float, float]] = []
    problems: list[str] = []
    faster: list[FasterSchedule] = []
    with have(context.backend.timer)(context.targets[0]) as timer:
        for each in contractions(context, b, {}):
            found = _on_device(each, timer, until, problems)
            predicted = each.samples[0].seconds[0]
            times += [(f"{each.part.op}: {name}", predicted, seconds) for name, seconds in found.items()]
            best = _faster(each, found)
            faster += [replace(best, taken=True)] if best is not None else []
    source = b.source
    options = deciding(context.options)
    lock = Lock(source.sha256, options, context.target_names, None, (), None, (), tuple(faster))
    return lock, times, problems


def _on_device(c: TunedContraction, timer: KernelTimer, until: float, problems: list[str]) -> dict[str, float]:
    """Seconds of the tiles of a product, as far as there is time; the usual one is the first."""
    found: dict[str, float] = {}
    for name, sample in zip(c.candidates, c.samples, strict=True):
        if time.monotonic() > until:
            break
        try:
            found[name] = timer.seconds(sample.kernel)
        except DeviceError as problem:
            problems.append(f"{c.part.op}: {name}: {problem}")
    return found
