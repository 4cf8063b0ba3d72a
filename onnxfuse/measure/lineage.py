"""Maps nodes of the runtime's optimized graph to the original nodes they replace, by the values both graphs have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wire:
    """A node with its named inputs and outputs."""

    name: str
    op: str
    reads: tuple[str, ...]
    makes: tuple[str, ...]


def lineage(original: Iterable[Wire], made: Iterable[Wire]) -> dict[str, tuple[str, ...]]:
    """The names of the original nodes that each node of the optimized graph replaces, by name.

    Values that the runtime does not change keep their names. A node that produces such values replaces all original
    nodes between them and the values that still exist; a node whose results are new belongs to its readers.

    >>> before = [Wire("m", "MatMul", ("x", "w"), ("a",)), Wire("b", "Add", ("a", "c"), ("y",))]
    >>> lineage(before, [Wire("fused", "Gemm", ("x", "w", "c"), ("y",))])
    {'fused': ('m', 'b')}
    """
    before, after = list(original), list(made)
    maker = {value: node for node in before for value in node.makes}
    alive = {value for node in after for value in (*node.reads, *node.makes)}
    found: dict[str, tuple[str, ...]] = {}
    place = {node.name: at for at, node in enumerate(before)}
    for union in _unions(after, maker):
        reads = {value for node in union for value in node.reads}
        inner = {value for node in union for value in node.makes}
        ends = [value for value in inner if value in maker]
        behind = {node.name for node in _behind(ends, maker, (alive | reads) - inner) if node.op != "Constant"}
        names = tuple(sorted(behind, key=place.__getitem__))
        found |= {node.name: names for node in union}
    return found


def _unions(after: list[Wire], maker: Mapping[str, Wire]) -> Iterator[list[Wire]]:
    """Sets of nodes: each node whose results are all new is put into the set of a reader."""
    readers = {value: at for at, node in enumerate(after) for value in node.reads}
    owner = list(range(len(after)))
    for at in reversed(range(len(after))):
        node = after[at]
        if not any(value in maker for value in node.makes):
            read = next((readers[value] for value in node.makes if value in readers), at)
            owner[at] = owner[read] if read > at else at
    members: dict[int, list[Wire]] = {}
    for at, node in enumerate(after):
        members.setdefault(owner[at], []).append(node)
    yield from members.values()


def _behind(ends: Iterable[str], maker: Mapping[str, Wire], stop: set[str]) -> Iterator[Wire]:
    """The backward slice: the nodes that compute the values `ends` from those in `stop`."""
    pending, seen = list(ends), set[str]()
    while pending:
        value = pending.pop()
        node = maker.get(value)
        if node is None or node.name in seen:
            continue
        seen.add(node.name)
        yield node
        pending += [each for each in node.reads if each not in stop]
