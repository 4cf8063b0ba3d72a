"""Scatters: a phase stores what is there before all updates, a second one updates, a thread for each line.

Updates of different lines never meet: lines are the elements of a slice, and the axes along which an update lies where
it is applied. A thread applies the updates of its line in their order, as the runtime's CPU provider does, so that the
result does not depend on chance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onnxfuse.ir.compose import loads
from onnxfuse.ir.index import ONE, Axis, Index, Loaded, atoms
from onnxfuse.ir.indexing import product, unflatten
from onnxfuse.ir.kernel import Phase, Store
from onnxfuse.lower.scatters import Scatter, scatter_of
from onnxfuse.ops.spec import Definition
from onnxfuse.schedule.analysis.memory import Nest, Place
from onnxfuse.schedule.gpu.thread_mapping import BLOCK, ThreadMapping, around, over_rows
from onnxfuse.schedule.gpu.writer import ThreadWriter
from onnxfuse.schedule.nests.nest import Level, order_of
from onnxfuse.schedule.nests.updates import goals_of, landed
from onnxfuse.target import Gpu

MOST = 1 << 12  # updates that are applied one after the other where there are few lines
FEW = 32  # lines


@dataclass(frozen=True, slots=True)
class Updates:
    """The updates of a scatter into what its first phase has stored; `value` of the nest is that."""

    nest: Nest
    scatter: Scatter

    @property
    def reads(self) -> frozenset[str]:
        """Values that it reads: what is stored first, and those of indices too."""
        places = [e for _, e in self.scatter.places]
        looked_up = {atom.source for e in places for atom in atoms(e) if isinstance(atom, Loaded)}
        return frozenset(x.source for x in loads(self.scatter.element) if x.index) | looked_up | {self.nest.name}

    @property
    def lines(self) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
        """Axes of a line's place: of the result, and of the updates."""
        compared = {a for a, _ in self.scatter.places}
        mine = tuple(a for a in self.scatter.axes if a not in compared and a.extent != ONE)
        at = {r for r in self.scatter.ranges for _, e in self.scatter.places if e == Index.of(r)}
        return mine, tuple(r for r in self.scatter.ranges if r in at)


def updates_of(d: Definition, outputs: Sequence[str]) -> Updates | None:
    """The scatter that a definition is, None for any other."""
    found = scatter_of(d)
    if found is None:
        return None
    return Updates(Nest(d.name, d.value.dtype, d.shape, d.axes, tuple(map(Index.of, d.axes)), found.start,
                        d.name in outputs), found)  # fmt: skip


def one_after_the_other(d: Definition) -> bool:
    """Whether a scatter has so few lines that a GPU would apply nearly all its updates one after the other."""
    u = updates_of(d, ())
    if u is None:
        return False
    lines = product([a.extent for part in u.lines for a in part]).constant
    updates = product([r.extent for r in u.scatter.ranges if r not in u.lines[1]]).constant
    return (lines is not None and lines < FEW) and (updates is None or updates > MOST)


def start_of(u: Updates) -> Definition:
    """What is stored first."""
    return Definition(u.nest.name, u.nest.axes, u.scatter.start)


def updating_phase(u: Updates, places: Mapping[str, Place], target: Gpu) -> Phase:
    """The phase of the updates."""
    _, update = goals_of(u.nest.name, u.scatter, places)
    mine, at = u.lines
    axes = (*at, *order_of(mine, places[u.nest.name].offset(u.nest.dims)))
    d = ThreadMapping("thread", 1, BLOCK, 1)
    row, launch = over_rows(d, product([a.extent for a in axes]), target.blocks)
    digits = dict(zip(axes, unflatten(Index.of(row), tuple(a.extent for a in axes)), strict=True))
    update = update.substituted(digits)
    writer = ThreadWriter([], at=[[]])

    def fill() -> None:
        element, offset = writer.value(update.value), writer.index(update.offset)
        writer.store(Store(update.buffer, offset, landed(u.scatter, update.buffer, offset, element)))

    writer.loop([Level(r, "serial") for r in u.scatter.ranges if r not in at], (), fill)
    return Phase((), ONE, (), around(d, row, tuple(writer.at[0])), launch=launch)
