"""`--profile-guided`: measures areas of the model in context, and drops kernels that make it slower.

An area is a set of kernels connected by values in another layout than row-major. A build is measured against itself
with the function bodies of some kernels in their place, interleaved, so that no second build is needed. First the whole
is measured, then areas and single kernels in the order of the time that ONNX Runtime's profiler finds in them, while
there is time: gains of an area may hide a kernel that loses. A slower set is bisected until the kernels at fault are
found; if one half explains the loss, the other half is not measured.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from onnxfuse.errors import DeviceError
from onnxfuse.ir.graph import Decision
from onnxfuse.measure import ratios
from onnxfuse.measure.gain import limit_of
from onnxfuse.pipeline.calls import Calls, ProfileSettings, feed_settings
from onnxfuse.pipeline.groups import counted_at, forbidden, predicted
from onnxfuse.pipeline.state import Build, Context, GroupBuild, have, timed_in
from onnxfuse.report.lock import Choice
from onnxfuse.runtime.provider import CPU

SECONDS = 60.0  # for all measurements, where no --time-budget says otherwise
SHARE = 0.5  # of what is left of a --time-budget
EXPLAINED = 0.8  # of the loss of two halves: where one alone has so much of it, the other is not at fault
TURNS = 0.4  # seconds for which each side of a measurement runs; up to four times as long while it is undecided
_UNLOCK = "--no-profile-guided builds it all the same"


@dataclass(frozen=True, slots=True)
class Area:
    """Parts that are measured together, and how layouts connect them."""

    parts: tuple[GroupBuild, ...]
    costs: tuple[float, ...]  # seconds of each, measured or predicted
    connected: tuple[tuple[str, ...], ...]  # operator types

    @property
    def seconds(self) -> float:
        """Of all of them."""
        return sum(self.costs)

    @property
    def halves(self) -> tuple[Area, Area]:
        """Both halves of the connected sets; of one connected set, both halves of its kernels."""
        sets = self.connected if len(self.connected) > 1 else tuple((op,) for op in self.connected[0])
        middle = len(sets) // 2
        return self._of(sets[:middle]), self._of(sets[middle:])

    def _of(self, connected: tuple[tuple[str, ...], ...]) -> Area:
        ops = {op for each in connected for op in each}
        pairs = [(p, c) for p, c in zip(self.parts, self.costs, strict=True) if p.op in ops]
        return Area(tuple(p for p, _ in pairs), tuple(c for _, c in pairs), connected)

    @property
    def kernels(self) -> tuple[str, ...]:
        """Operator types."""
        return tuple(sorted({p.op for p in self.parts}))

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the graph's nodes."""
        return tuple(n.name for p in self.parts for n in p.group.nodes)


def guide(context: Context, calls: Calls, b: Build) -> Build:
    """The build, or the build without its slower kernels, marked for replanning. It is done once."""
    if not context.options.profile_guided or b.choices is not None:
        return b
    if b.copy or b.verdict is None or b.verdict.ok is None:
        said = "nothing was measured: " + ("nothing is fused" if b.copy else "the model was not run by verification")
        return replace(b, choices=(), notes=(*b.notes, said))
    limit = SECONDS if context.meter.left is None else SHARE * context.meter.left
    start = time.monotonic()
    found = _measured(context, calls, b, start + limit)
    short = time.monotonic() - start >= limit
    notes = (f"after {limit:.0f} s the smallest areas were not measured: --time-budget gives more",) if short else ()
    told = {"measured": len(found), "dropped": sum(not c.kept for c in found)}
    context.tell("guide", told)
    return dropped(replace(b, choices=tuple(found), notes=(*b.notes, *notes)), found)


def dropped(b: Build, choices: Iterable[Choice], unlock: str = _UNLOCK) -> Build:
    """The build without the kernels that were not kept."""
    slower = [c for c in choices if not c.kept]
    if not slower:
        return b
    decisions = tuple(Decision("E-COST", c.nodes, _reason(c), unlock) for c in slower)
    names = frozenset(name for c in slower for name in c.nodes)
    return forbidden(replace(b, refused=(*b.refused, *decisions)), names)


def _reason(c: Choice) -> str:
    times = f"{c.with_ms:.4g} ms with {', '.join(c.kernels[:3])}{' ...' * (len(c.kernels) > 3)}"
    return f"the model takes {times} and {c.without_ms:.4g} ms without"


def _measured(context: Context, calls: Calls, b: Build, until: float) -> list[Choice]:
    """The choices, while there is time; kernels that a larger set has decided are not measured again."""
    search = _Search(context, calls, b, until)
    for area in _areas(b, _costs(context, calls, b)):
        if not search.settled.issuperset(area.kernels):
            search.bisect(area, search.compared(area))
    return search.found


@dataclass(slots=True)
class _Search:
    """The bisection for the kernels at fault."""

    context: Context
    calls: Calls
    build: Build
    until: float
    total: float = 0.0  # seconds of a run of the build, once it was measured
    found: list[Choice] = field(default_factory=list)
    settled: set[str] = field(default_factory=set)  # kernels that are given up, and those beside them that are not

    def bisect(self, area: Area, choice: Choice | None) -> float:
        """Add the choices for an area to `found`; returns the milliseconds per run lost by its dropped kernels.

        A slower area is bisected down to single kernels; it is dropped whole if neither half is slower alone, or time
        is up. The half with the larger loss comes first; if that is nearly all of the loss, the other half is kept.
        Dropped kernels were slower twice, the second time in other processes.
        """
        if choice is None:
            return 0.0
        place = len(self.found)
        if not choice.kept and len(area.kernels) > 1:
            lost = self._of_halves(area, _loss(choice))
            if lost:
                self.found.insert(place, replace(choice, kept=True))
                self.settled.update(area.kernels)
                return lost
        if not choice.kept:
            again = self.compared(area)
            choice = again if again is not None and again.kept else choice
        self.found.append(choice)
        if choice.kept:
            return 0.0
        self.settled.update(area.kernels)
        return _loss(choice)

    def _of_halves(self, area: Area, loss: float) -> float:
        """The choices for the halves of an area that has this loss."""
        pairs = [(half, choice) for half in area.halves if (choice := self.compared(half)) is not None]
        lost = 0.0
        for half, choice in sorted(pairs, key=lambda pair: -_loss(pair[1])):
            explained = lost > EXPLAINED * loss
            lost += self.bisect(half, replace(choice, kept=choice.kept or explained))
        return lost

    def compared(self, area: Area) -> Choice | None:
        """The build with an area's kernels and without; None where it does not run without, or there is no more time.

        They are dropped where it surely is slower with them than without: by --min-gain of their share of its time.
        """
        if time.monotonic() >= self.until:
            return None
        share = min(1.0, area.seconds / self.total) if self.total else 1.0
        choice = _compared(self.context, self.calls, self.build, area, share)
        if choice is not None and not self.total:
            self.total = choice.with_ms / 1e3
        return choice


def _loss(choice: Choice) -> float:
    return choice.with_ms - choice.without_ms


def _compared(context: Context, calls: Calls, b: Build, area: Area, share: float) -> Choice | None:
    """The build with an area's kernels, which take a `share` of its time, and without; None where it does not run."""
    limit = limit_of(share, context.options.min_gain)
    try:
        found = calls.profile_models(
            [b.files[-1]] * 2, **_of_build(context, b, 2), disabled=[area.kernels, ()], duration=TURNS, limit=limit
        )
    except DeviceError:
        return None
    ratio = have(found.slower)
    without_ms, with_ms = (_rounded(m.latency_ms.min) for m in found.models)
    kept = ratios.verdict(ratio, limit) != ratios.SLOWER
    low, high = (_rounded(x) if math.isfinite(x) else None for x in (ratio.inverse.low, ratio.inverse.high))
    return Choice(area.kernels, area.nodes, with_ms, without_ms, _rounded(found.spread or 0.0), kept, low, high)


def _of_build(context: Context, b: Build, engines: int) -> ProfileSettings:
    """What measurements of the build have in common."""
    libraries = [have(b.library).path] * engines
    return {**feed_settings(context, b), "libraries": libraries, "provider": timed_in(context, b)}


def _rounded(x: float) -> float:
    return float(f"{x:.5g}")


def _costs(context: Context, calls: Calls, b: Build) -> dict[int, float]:
    """Seconds of each part, by identity: as the runtime's profiler has them, predicted where it tells nothing."""
    parts = b.all_parts
    wanted = zip(parts, predicted(context, b, counted_at(context, b)), strict=True)
    costs = {id(p): cost.seconds if cost is not None else 0.0 for p, cost in wanted}
    if timed_in(context, b) != CPU:  # single nodes are not profiled there
        return costs
    try:
        model, *_ = calls.profile_models(
            [b.files[-1]], **_of_build(context, b, 1), repeats=1, a_a=False, per_op=True
        ).models
    except DeviceError:
        return costs
    found: dict[str, float] = {}
    for op in model.ops:
        found[op.op_type] = found.get(op.op_type, 0.0) + op.time_ms / 1e3
    return {id(p): found[p.op] / sum(q.op == p.op for q in parts) if p.op in found else costs[id(p)] for p in parts}


def _areas(b: Build, costs: dict[int, float]) -> list[Area]:
    """The distinct sets to measure, in order: all kernels, then areas and single kernels by their time."""
    by_op: dict[str, list[GroupBuild]] = {}
    for p in b.all_parts:
        by_op.setdefault(p.op, []).append(p)
    apart = [tuple(sorted(ops)) for ops in _connected(b)]
    sets = [tuple(apart), *((ops,) for ops in apart), *(((op,),) for op in by_op)]
    made = []
    for connected in dict.fromkeys(sets):
        parts = [p for ops in connected for op in ops for p in by_op[op]]
        made.append(Area(tuple(parts), tuple(costs[id(p)] for p in parts), connected))
    return [made[0], *sorted(made[1:], key=lambda a: (-a.seconds, a.kernels))]


def _connected(b: Build) -> list[frozenset[str]]:
    """Kernels whose nodes share values that do not lie in logical order, or share nothing with any other."""
    home: dict[str, str] = {}

    def root(name: str) -> str:
        while home.setdefault(name, name) != name:
            name = home[name]
        return name

    for each in b.everywhere():
        layouts = each.plan.layouts if each.plan is not None else {}
        narrow = each.plan.storage_types if each.plan is not None else {}
        for p in each.parts:
            for value in (*p.group.inputs, *p.group.outputs):
                if value in narrow or (value in layouts and layouts[value].steps):
                    home[root(p.op)] = root(f"value {value}")
    found: dict[str, set[str]] = {}
    for p in b.all_parts:
        found.setdefault(root(p.op), set()).add(p.op)
    return [frozenset(ops) for ops in found.values()]
