"""The graph while groups grow: which node is in which group, and whether a merge would create a cycle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from onnxfuse.ir.graph import Graph, Node


@dataclass(slots=True)
class Units:
    """Nodes by position, their neighbors, and the group of each (its own position while it is alone).

    `spanned` has a 1 for each position that is in the range of a group that goes on behind it.
    """

    graph: Graph
    nodes: tuple[Node, ...]
    reads: Sequence[tuple[str, ...]]
    before: list[list[int]] = field(default_factory=list)
    after: list[list[int]] = field(default_factory=list)
    group: list[int] = field(default_factory=list)
    members: dict[int, list[int]] = field(default_factory=dict)
    readers: dict[str, list[int]] = field(default_factory=dict)
    spanned: bytearray = field(default_factory=bytearray)

    @staticmethod
    def of(graph: Graph, reads: Sequence[tuple[str, ...]]) -> Units:
        """Every node as a group of its own; `reads` are the values that each depends on."""
        u = Units(graph, graph.nodes, reads)
        made = {o: i for i, n in enumerate(graph.nodes) for o in n.outputs if o}
        u.before = [sorted({made[r] for r in values if r in made}) for values in reads]
        u.after = [[] for _ in graph.nodes]
        for i, befores in enumerate(u.before):
            for b in befores:
                u.after[b].append(i)
        for i, values in enumerate(reads):
            for v in dict.fromkeys(values):
                u.readers.setdefault(v, []).append(i)
        u.group = list(range(len(graph.nodes)))
        u.members = {i: [i] for i in range(len(graph.nodes))}
        u.spanned = bytearray(len(graph.nodes))
        return u

    def join(self, group: int, node: int) -> None:
        """Merge the group of a node into a group."""
        other = self.group[node]
        for m in self.members.pop(other):
            self.group[m] = group
            self.members[group].append(m)
        joined = self.members[group]
        joined.sort()
        first, last = joined[0], joined[-1]
        self.spanned[first:last] = bytes([1]) * (last - first)

    def consumers(self, group: int) -> list[int]:
        """Nodes outside a group that read from it, in order."""
        return sorted({a for m in self.members[group] for a in self.after[m] if self.group[a] != group})

    def producers(self, group: int) -> list[int]:
        """Nodes outside a group that it reads from, last first."""
        return sorted({b for m in self.members[group] for b in self.before[m] if self.group[b] != group}, reverse=True)

    def closes_cycle(self, group: int, node: int) -> bool:
        """Whether a group merged with the group of a node would depend on itself through other nodes."""
        inside = {*self.members[group], *self.members[self.group[node]]}
        latest = self.spanned.index(0, max(inside))
        seen: set[int] = set()
        stack = [a for m in inside for a in self.after[m] if a not in inside]
        while stack:
            unit = self.group[stack.pop()]
            if unit in seen:
                continue
            seen.add(unit)
            members = self.members[unit]
            if members[0] > latest:  # so are all that read it, and the first nodes of their groups
                continue
            for m in members:
                for a in self.after[m]:
                    if a in inside:
                        return True
                    if self.group[a] not in seen:
                        stack.append(a)
        return False

    def between(self, group: int, node: int, most: int = 64) -> list[int]:
        """Nodes through which a group merged with a node would depend on itself; empty if many, or in other groups."""
        inside = {*self.members[group], *self.members[self.group[node]]}
        latest = max(inside)
        behind: set[int] = set()
        pending = [a for m in inside for a in self.after[m]]
        while pending and len(behind) <= most:
            at = pending.pop()
            if at not in inside and at not in behind and at <= latest:
                behind.add(at)
                pending += self.after[at]
        found: set[int] = set()
        pending = [b for m in inside for b in self.before[m]]
        while pending:
            at = pending.pop()
            if at in behind and at not in found:
                found.add(at)
                pending += self.before[at]
        alone = len(behind) <= most and all(len(self.members[self.group[m]]) == 1 for m in found)
        return sorted(found) if alone else []

    def ordered(self, groups: Iterable[int]) -> list[int]:
        """Groups in topological order."""
        wanted = set(groups)
        done: set[int] = set()
        out: list[int] = []

        def visit(unit: int) -> None:
            stack = [(unit, False)]
            while stack:
                at, ready = stack.pop()
                if ready:
                    out.append(at)
                    continue
                if at in done:
                    continue
                done.add(at)
                stack.append((at, True))
                stack.extend(
                    (self.group[b], False)
                    for m in self.members[at]
                    for b in self.before[m]
                    if self.group[b] not in done
                )

        for i in range(len(self.nodes)):
            visit(self.group[i])
        return [u for u in out if u in wanted]
