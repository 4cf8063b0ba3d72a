"""Which nodes of a model are behind each node that the runtime made of it: found by the values that are still there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wire:
    """A node with the values that it reads and makes, those without a name left out."""

    name: str
    op: str
    reads: tuple[str, ...]
    makes: tuple[str, ...]


def lineage(original: Iterable[Wire], made: Iterable[Wire]) -> dict[str, tuple[str, ...]]:
    """By name of each node that was made, the names of the original nodes that it stands for.

    Values keep their names where the runtime leaves them alone. A node whose results are such values stands for what
    lies between them and the values that are still read; one whose results are new belongs to those that read them.

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
    """Nodes that belong together: each whose results are all new with one that reads them."""
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
    """The nodes that make these values out of those at which to stop."""
    pending, seen = list(ends), set[str]()
    while pending:
        value = pending.pop()
        node = maker.get(value)
        if node is None or node.name in seen:
            continue
        seen.add(node.name)
        yield node
        pending += [each for each in node.reads if each not in stop]
