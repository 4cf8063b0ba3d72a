"""The gain step: measures the build against the original, interleaved, and drops kernels that are slower.

Decisions are cached by the bytes of the build, as verdicts are, so that the same build on the same machine gives the
same result. Nothing is measured for other machines, or if a lock file has the choices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from importlib.util import find_spec

from onnxfuse.build.cache import Cache
from onnxfuse.errors import DeviceError, OnnxFuseError
from onnxfuse.load import source_of
from onnxfuse.measure import ratios
from onnxfuse.measure.gain import CROWDED, GainResult, KernelTrial, gained_of, seconds_needed
from onnxfuse.pipeline.calls import Calls
from onnxfuse.pipeline.groups import counted_at, described
from onnxfuse.pipeline.loading import original_bytes, remembered
from onnxfuse.pipeline.meter import size_of
from onnxfuse.pipeline.profile_guided import dropped
from onnxfuse.pipeline.slower_groups import runtime_times
from onnxfuse.pipeline.state import Build, Context, cache_of, have, hinted, timed_in, tried_here
from onnxfuse.pipeline.verdict_cache import keep, key_of_bytes, recalled
from onnxfuse.plan.sizes import signal_dims
from onnxfuse.report.lock import Choice
from onnxfuse.report.result import Gain, GainAt, GroupResult
from onnxfuse.verify.verdicts import ORIGINAL

SECONDS, SHARE = 2.0, 0.15  # that all measurements together may take: so many, or that part of the build
ON_DEVICE = 3.0  # in place of the first, where each process opens a device
LARGE = 2 << 30  # bytes of a model from which on two sessions of it, as users have them, take more than all else did
AMPLE = 3.0  # times the least that a measurement takes, where the user asks for one
ROUNDS = 2  # after which single kernels are no longer given up, only all of them
_NAMED = 3  # kernels of one line
_UNLOCK = "--no-gain builds it all the same"
_PROGRAM = (
    "measure/gain",
    "measure/gain_child",
    "measure/profile_child",
    "measure/ratios",
    "measure/interleaving",
    "runtime/binding",
    "runtime/engine",
    "runtime/feed_sizes",
    "runtime/feeds",
    "runtime/provider",
    "verify/trial",
)


def wanted(context: Context) -> bool:
    """Whether to measure the gain: by default not for other machines, nor with a lock file."""
    options = context.options
    if options.gain is None:
        return set(options.arch) <= {"native"} and (options.lock is None or options.profile_guided)
    return options.gain


def gain(context: Context, calls: Calls, b: Build) -> Build:
    """The build with its measured gain, or without kernels that lose, marked for replanning."""
    ran = context.options.verify is False or (b.verdict is not None and b.verdict.ok is not None)
    here = tried_here(context, b)
    if not wanted(context) or b.copy or not ran or not here or find_spec("onnxruntime") is None:
        return b
    sizes, cache = sizes_of(context, b), cache_of(context)
    key = "" if cache is None else key_of_bytes("gain", context, b, _PROGRAM, {"sizes": sizes})
    b = replace(b, loads=remembered(cache, key, b.verdict.loads if b.verdict is not None else ()))
    try:
        found, cached = _found(context, calls, b, sizes, cache, key)
    except OnnxFuseError as problem:  # whatever it is, it costs the measurement only
        said = "; ".join(filter(None, (problem.message.removeprefix("gain: "), problem.hint)))
        return replace(b, notes=(*b.notes, f"the gain was not measured: {said}"))
    choices = tuple(_choices(b, found)) if context.options.lock is None or context.options.profile_guided else ()
    b = replace(b, tried=(*b.tried, *choices), gains=b.gains + 1)
    lost = [c for c in choices if not c.kept]
    if lost:
        return _without(b, lost)
    made = _gain(found)
    context.tell("gain", {**asdict(made), "cached": cached})
    measured = replace(b, gain=made, notes=(*b.notes, *_loses(found)))
    return replace(measured, groups=tuple(_timed(context, b, measured, found.nodes)))


def _timed(context: Context, before: Build, b: Build, nodes: Mapping[str, float]) -> Iterator[GroupResult]:
    """The groups with the measured times of their kernels, and all other figures at the sizes that were measured."""
    groups: Iterable[GroupResult] = b.groups
    if counted_at(context, b) != counted_at(context, before):
        groups = described(context, b, [g.name for g in b.groups], runtime_times(context, b))
    for g in groups:
        yield replace(g, time_ms=_milliseconds(nodes.get(g.name)))


def _without(b: Build, lost: list[Choice]) -> Build:
    """The build without kernels that lose, and a line that says so."""
    names = sorted({name for c in lost for name in c.kernels})
    worst = max(lost, key=lambda c: c.with_ms / c.without_ms)
    times = f"the model takes {worst.with_ms:.3g} ms with and {worst.without_ms:.3g} ms without"
    said = f"slower than ONNX Runtime, and left to it: {_few(names)} ({times})"
    return dropped(replace(b, notes=(*b.notes, said)), lost, _UNLOCK)


def _few(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
    return ", ".join(listed[:_NAMED]) + more


def _loses(found: GainResult) -> Iterable[str]:
    """The message about a result that is slower than the original."""
    if found.ratio.value < 1.0:
        sure = "is" if found.ratio.high < 1.0 else "may be"
        kernels = f"; most lose {_few(found.slow)}" if found.slow else ""
        yield f"the result {sure} slower than the original, {found.ratio.value:.2f}x{kernels}"


def _choices(b: Build, found: GainResult) -> Iterable[Choice]:
    """The measurements without some kernels, and the kernels that are dropped.

    Of kernels that lose together, those that significantly win alone are kept. If the whole build is slower and no
    kernel is found to be the cause, all kernels are dropped.
    """
    if b.gains < ROUNDS:
        proven = [each for each in found.tried if each.loses]
        fine = {op for each in found.tried if each.wins and len(each.kernels) == 1 for op in each.kernels}
        out = {op for each in proven for op in each.kernels} - fine
        yield from (_choice(b, each, out) for each in found.tried)
        if out:
            return
    if found.loses:
        worst = max(found.sizes, key=lambda each: each.after_ms / each.before_ms)
        ops = tuple(sorted({p.op for p in b.all_parts}))
        yield _choice(b, KernelTrial(ops, found.ratio.inverse, 1.0, worst.after_ms, worst.before_ms), set(ops))


def _choice(b: Build, tried: KernelTrial, out: set[str]) -> Choice:
    kept = not out.issuperset(tried.kernels)
    nodes = tuple(n.name for p in b.all_parts if p.op in tried.kernels for n in p.group.nodes)
    low, high = (float(f"{x:.4g}") if x < 1e9 else None for x in (tried.ratio.inverse.low, tried.ratio.inverse.high))
    with_ms, without_ms = (float(f"{x:.5g}") for x in (tried.with_ms, tried.without_ms))
    return Choice(tried.kernels, nodes, with_ms, without_ms, 0.0, kept, low, high)


def _milliseconds(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _gain(found: GainResult) -> Gain:
    first = found.sizes[0]
    return Gain(
        before_ms=first.before_ms,
        after_ms=first.after_ms,
        speedup=found.ratio.value,
        low=found.ratio.low,
        high=found.ratio.high,
        spread=found.spread,
        threads=found.threads,
        statistic=ratios.STATISTIC,
        busy=found.ratio.busy,
        sizes=tuple(GainAt(dict(s.shapes), s.before_ms, s.after_ms, s.before_ms / s.after_ms) for s in found.sizes),
    )


# what is measured, and what is remembered of it ----------------------------------------------------------------------


def _found(
    context: Context, calls: Calls, b: Build, sizes: list[dict[str, int]], cache: Cache | None, key: str
) -> tuple[GainResult, bool]:
    """The measured gain, and whether it came from the cache."""
    options = context.options
    known = recalled(cache, key, gained_of)
    if known is not None:
        return known, True
    seconds = _seconds(context, b, len(sizes))
    found = calls.measure_gain(
        context.original,
        b.files[-1],
        library=have(b.library).path,
        kernels=_kernels(b),
        custom_libraries=options.custom_ops_library,
        sizes=sizes,
        inputs=options.inputs,
        seed=options.seed,
        seconds=seconds if context.meter.left is None else min(seconds, context.meter.left / 2),
        time_limit=context.meter.left,
        memory_limit=size_of(options.memory_budget) if options.memory_budget else None,
        provider=timed_in(context, b),
        nodes=seconds >= 2 * (_needed(context, b, len(sizes), crowded=CROWDED) or 0.0),
    )
    keep(cache, key, asdict(found))
    return found, False


def _seconds(context: Context, b: Build, sizes: int) -> float:
    """The seconds that a measurement may take: more if the user asks for it.

    Raises DeviceError if it would certainly take more time or memory. Runs were timed beside other work; if they might
    fit on an idle machine, the measurement tries two of them.
    """
    place = timed_in(context, b)
    most = max(ON_DEVICE if place.bound else SECONDS, SHARE * context.meter.elapsed)
    left = most - context.meter.seconds.get("gain", 0.0)
    needed = _needed(context, b, sizes)
    if needed is None:
        return left
    if context.options.gain:
        return max(left, AMPLE * needed)
    if (size := original_bytes(b)) > LARGE:
        raise DeviceError(f"two models of {size / 1e9:.2g} GB take much memory", hint="--gain takes it")
    least = have(_needed(context, b, sizes, crowded=CROWDED))
    if least > left:
        run = next(load.run_seconds for load in have(b.verdict).loads if load.way == ORIGINAL)
        taken = f"a run took {run:.2g} s beside other work, too long for {left:.0f} s"
        said = f"sessions on the GPU take about {least:.0f} s, more than {left:.0f} s" if place.bound else taken
        raise DeviceError(said, hint="--gain takes the time")
    return left


def _needed(context: Context, b: Build, sizes: int, *, crowded: float = 1.0) -> float | None:
    """The least seconds of a measurement; None where verification did not time both models."""
    loads = b.verdict.loads if b.verdict is not None else ()
    before = next((load for load in loads if load.way == ORIGINAL), None)
    after = next((load for load in loads if load.with_library), None)
    if before is None or after is None:
        return None
    return seconds_needed(before, after, sizes, crowded=crowded, provider=timed_in(context, b))


def _kernels(b: Build) -> dict[str, tuple[str, ...]]:
    """By node of the result that calls a kernel, the original nodes that it stands for, and their values."""
    outputs = {n.name: n.outputs for each in b.everywhere() for n in have(each.loaded).nodes}
    return {g.name: (*g.nodes, *(value for name in g.nodes for value in outputs.get(name, ()))) for g in b.groups}


def sizes_of(context: Context, b: Build) -> list[dict[str, int]]:
    """Values of symbols, for each measurement: those that were given, with each value that is hinted at.

    A signal has a usual number of samples: with as few as a sequence has tokens, it would be less than one frame.
    """
    loaded = have(b.loaded)
    given: Mapping[str, int] = source_of(loaded).dims
    return [{**signal_dims(loaded), **each, **given} for each in hinted(context.options.dim_hint)]
