"""A job of a phase: one value to be computed, as a loop nest or as a contraction ready for register tiles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from onnxfuse.ir.compose import indices_of, loads, substitute_axes
from onnxfuse.ir.index import Axis, Index
from onnxfuse.ir.indexing import looked_up, substitute
from onnxfuse.ir.scalar import Load
from onnxfuse.lower.scans import Scan
from onnxfuse.lower.scatters import Scatter
from onnxfuse.schedule.analysis.memory import Nest, renamed
from onnxfuse.schedule.nests.tiled import Tiled


def equal_copy(nest: Nest, jobs: Iterable[Job]) -> str | None:
    """The value of the first of some jobs that copies the same elements in the same order; None if there is none."""

    def elements(each: Nest) -> tuple[object, ...]:
        axes = {a: Axis(f"copied{i}", a.extent) for i, a in enumerate(each.axes)}
        values = {a: Index.of(b) for a, b in axes.items()}
        dims = tuple(substitute(e, values) for e in each.dims)
        return each.dtype, each.shape, tuple(axes.values()), dims, substitute_axes(each.value, values)

    wanted = elements(nest)
    return next((job.nest.name for job in jobs if job.operand and elements(job.nest) == wanted), None)


@dataclass(frozen=True, slots=True)
class Recurrence:
    """The jobs of a recurrence in order: those of the first step, and those of each later one, by its `step`.

    `stored` are the values that are read at other steps, or after the recurrence. Nests have no axis for the steps.
    """

    step: Axis
    begun: tuple[Job, ...]
    jobs: tuple[Job, ...]
    stored: frozenset[str]
    in_panels: bool  # whether sums of the step alone stay as tiles store them, panel by panel


@dataclass(frozen=True, slots=True)
class Job:
    """One value to be computed, or all those of a recurrence, whose last one it is named after.

    An `operand` is a copy for the contraction that follows it; a `right_side` depends on batch axes only, not on rows.
    """

    nest: Nest
    tiled: Tiled | None = None
    operand: bool = False
    right_side: bool = False
    scan: Scan | None = None  # the scan along one of its axes
    scatter: Scatter | None = None  # the updates; the nest computes the elements before them
    recurrence: Recurrence | None = None
    apart: bool = False  # whether it needs a phase of its own

    @property
    def values(self) -> tuple[Nest, ...]:
        """The nests of all values that are computed."""
        r = self.recurrence
        return (self.nest,) if r is None else tuple(j.nest for j in r.jobs if j.nest.name in r.stored)

    @property
    def _inside(self) -> tuple[Job, ...]:
        return () if self.recurrence is None else (*self.recurrence.begun, *self.recurrence.jobs)

    @property
    def reads(self) -> tuple[Load, ...]:
        """Every load of the job."""
        if self.recurrence is not None:
            own = {j.nest.name for j in self.recurrence.jobs}
            return tuple(x for j in self._inside for x in j.reads if x.source not in own)
        if self.tiled is None:
            landing = loads(self.scatter.element) if self.scatter is not None else ()
            return (*loads(self.nest.value), *landing)
        zeros = tuple(load for zero in self.tiled.zeros or () for load in loads(zero))
        return (*self.tiled.lefts, self.tiled.right, *zeros, *loads(self.tiled.finish))

    @property
    def plain_reads(self) -> tuple[Load, ...]:
        """The loads that are not operands of tiles."""
        if self.recurrence is not None:
            return tuple(x for j in self._inside for x in j.plain_reads)
        return self.reads if self.tiled is None else tuple(loads(self.tiled.finish))

    @property
    def looks_up(self) -> frozenset[str]:
        """Values whose elements the job uses as indices."""
        if self.recurrence is not None:
            return frozenset[str]().union(*(j.looks_up for j in self._inside))
        t = self.tiled
        parts = (self.nest.value,) if t is None else (*t.lefts, t.right, t.finish)
        indices = [e for x in parts for e in indices_of(x)]
        if self.scatter is not None:
            indices += [*indices_of(self.scatter.element), *(e for _, e in self.scatter.places)]
        return frozenset[str]().union(*map(looked_up, indices))

    def rename(self, names: Mapping[Axis, Axis]) -> Job:
        """The job with axes renamed."""
        nest, s = renamed(self.nest, names), self.scan
        if self.tiled is None:
            return replace(self, nest=nest, scan=s and replace(s, axis=names.get(s.axis, s.axis)))
        t = self.tiled
        values = {a: Index.of(b) for a, b in names.items() if a != b}

        def load(x: Load) -> Load:
            got = substitute_axes(x, values)
            assert isinstance(got, Load)
            return got

        def axes(part: tuple[Axis, ...]) -> tuple[Axis, ...]:
            return tuple(names.get(a, a) for a in part)

        tiled = replace(
            t,
            left=load(t.left),
            right=load(t.right),
            batch=axes(t.batch),
            rows=axes(t.rows),
            columns=axes(t.columns),
            finish=substitute_axes(t.finish, values),
            zeros=(t.zeros[0], substitute_axes(t.zeros[1], values)) if t.zeros is not None else None,
            parts=tuple(replace(p, load=load(p.load)) for p in t.parts),
        )
        return replace(self, nest=nest, tiled=tiled)
