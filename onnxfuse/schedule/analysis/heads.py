"""Batched contractions of a group and what is computed from them, element by element: the scores of attention heads.

Their rows stay together: the axes of each value are split as those of the values that it reads and as its readers read
it, and a contraction that reads them row by row has them on its left, so that all of them fit one phase.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from onnxfuse.ir.compose import free_axes, loads, sources
from onnxfuse.ir.index import Axis, Index, floor_div
from onnxfuse.ir.scalar import Scalar
from onnxfuse.ops.spec import Definition
from onnxfuse.schedule.analysis.contract import recognise
from onnxfuse.schedule.analysis.memory import Nest


@dataclass(slots=True)
class Heads:
    """The nests of these values, and which of their axes are rows of the contractions."""

    nests: dict[str, Nest] = field(default_factory=dict)
    rows: dict[str, frozenset[Axis]] = field(default_factory=dict)

    def add(self, nest: Nest, rows: Iterable[Axis] | None) -> None:
        """Adds a batched contraction with its `rows`; without them a value that is computed from others, if it is."""
        if rows is not None or sources(nest.value) & self.nests.keys():
            self.nests[nest.name] = nest
            self.rows[nest.name] = frozenset(rows) if rows is not None else self.rows_read(nest.value)

    def rows_read(self, x: Scalar) -> frozenset[Axis]:
        """The free axes of x along which it reads rows of contractions; each of them is one of these axes."""
        read = (
            e
            for load in loads(x)
            if load.source in self.nests
            for axis, e in self.nests[load.source].digits_at(load.index).items()
            if axis in self.rows[load.source]
        )
        return frozenset(a for e in read for a in free_axes(x) if e == Index.of(a))


def cut_as_read(definitions: Sequence[Definition], constants: Container[str]) -> Mapping[str, tuple[Index, ...]]:
    """Indices that divide axes of batched contractions, and of what is computed from them, as their readers do.

    A reader of rows that lie in the lines of an image reads `width * line + place`.
    """
    by_name = {d.name: d for d in definitions}
    found: dict[str, dict[int, Index]] = {}  # of each value and dimension, what divides it
    for d in reversed(definitions):
        own = {a: found.get(d.name, {}).get(k) for k, a in enumerate(d.axes)}
        for load in (x for x in loads(d.value) if x.source in by_name):
            for k, (e, extent) in enumerate(zip(load.index, by_name[load.source].shape, strict=True)):
                low = _divisor(e, extent, own)
                if low is not None:
                    found.setdefault(load.source, {}).setdefault(k, low)
    heads = _heads(definitions, constants) if found else set()
    return {
        name: tuple(floor_div(Index.of(by_name[name].axes[k]), low) for k, low in dims.items())
        for name, dims in found.items()
        if name in heads
    }


def _heads(definitions: Sequence[Definition], constants: Container[str]) -> set[str]:
    """The names of batched contractions and of what is computed from them."""
    heads: set[str] = set()
    for d in definitions:
        c = None if sources(d.value) & heads else recognise(d, constants)
        if sources(d.value) & heads or (c is not None and c.batch):
            heads.add(d.name)
    return heads


def _divisor(e: Index, extent: Index, own: Mapping[Axis, Index | None]) -> Index | None:
    """What divides a dimension that is read at e; None if nothing does. `own` has what divides the axes of the reader.

    It is `low` where e is `low * a + b` and the axes a and b of the reader run over all of the dimension.
    """
    for b in own:
        if e == Index.of(b):
            return own[b]
        a = next((a for a in own if a != b and e == Index.of(a) * b.extent + b), None)
        if a is not None:
            return b.extent if a.extent * b.extent == extent else None
    return None
