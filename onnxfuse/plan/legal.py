"""Which sets of nodes may be one group: a set is an integer, with bit i for the node at position i.

Legality is independent of cost: a group must not depend on itself through other nodes, all of its nodes must be
fusible, and it must not exceed the backend's largest number of nodes. Whether a set can be lowered and scheduled is
found when it is priced (`price.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache

from onnxfuse.ir.graph import Decision
from onnxfuse.plan.search.scope import Members, Scope
from onnxfuse.plan.unlocks import cut

Set = int


def set_of(nodes: Iterable[int]) -> Set:
    """The set of these positions."""
    found = 0
    for i in nodes:
        found |= 1 << i
    return found


@lru_cache(1 << 14)
def members(nodes: Set) -> Members:
    """The positions in a set, in order. A search asks for those of a few sets again and again."""
    return tuple(bits(nodes))


def bits(nodes: Set) -> Iterator[int]:
    """The same one by one, for sets that are asked for once."""
    while nodes:
        low = nodes & -nodes
        yield low.bit_length() - 1
        nodes ^= low


def _spanned(nodes: Set, own: Mapping[int, Set]) -> Set:
    """The nodes, with each group that begins before the last of these and ends behind it."""
    for group in sorted(dict.fromkeys(own.values()), key=lambda g: g & -g):
        if group & -group > nodes:
            break
        nodes |= group
    return nodes


class Legal:
    """The legality of groups of one scope."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.before = [set_of(b) for b in scope.apart.before]
        self.after = [set_of(a) for a in scope.apart.after]
        self.free = set_of(scope.kinds)

    @cached_property
    def above(self) -> Sequence[Set]:
        """All nodes that each node depends on."""
        found: list[Set] = []
        for i in range(len(self.before)):
            found.append(self.before[i] | self._joined(found, self.before[i]))
        return found

    @cached_property
    def below(self) -> Sequence[Set]:
        """All nodes that depend on each node."""
        found = [0] * len(self.after)
        for i in reversed(range(len(self.after))):
            found[i] = self.after[i] | self._joined(found, self.after[i])
        return found

    def _joined(self, sets: Sequence[Set], nodes: Set) -> Set:
        found = 0
        for i in bits(nodes):
            found |= sets[i]
        return found

    def between(self, nodes: Set) -> Set:
        """Nodes outside of a set through which it depends on itself."""
        return self._joined(self.above, nodes) & self._joined(self.below, nodes) & ~nodes

    def readers(self, nodes: Set) -> Set:
        """Nodes outside of a set that read from it."""
        return self._joined(self.after, nodes) & ~nodes

    def makers(self, nodes: Set) -> Set:
        """Nodes outside of a set that it reads from."""
        return self._joined(self.before, nodes) & ~nodes

    def allows(self, nodes: Set) -> bool:
        """Whether these nodes may be one group."""
        fits = nodes.bit_count() <= self.scope.legality.most_nodes
        return fits and not nodes & ~self.free and not self.between(nodes)

    def refusal(self, nodes: Set) -> Decision | None:
        """Why these nodes may not be one group."""
        names = tuple(self.scope.nodes[i].name for i in members(nodes))
        strange = [self.scope.nodes[i] for i in members(nodes & ~self.free)]
        if strange:
            return Decision("E-NO-KERNEL", names, f"no kernel can be generated for {strange[0].name}")
        most, have = self.scope.legality.most_nodes, nodes.bit_count()
        if have > most:
            return Decision("E-RESOURCE", names, f"a group holds at most {most} operators, this one would have {have}")
        through = [self.scope.nodes[i].name for i in members(self.between(nodes))]
        if through:
            said = "the group would depend on itself through nodes outside"
            return Decision("E-CYCLE", names, said, cut(through, ()))
        return None

    def circular(self, whole: Set, own: Mapping[int, Set]) -> bool:
        """Whether a set would depend on itself through other groups, which are free of cycles among themselves.

        `own` maps each node that is in a group to that group.
        """
        wanted = self.makers(whole)
        until = _spanned(wanted, own)
        seen, pending = whole, self.readers(whole)
        while pending:
            i = (pending & -pending).bit_length() - 1
            group = own.get(i, 1 << i) & ~whole
            if group & wanted:
                return True
            seen |= group
            if group & -group < until:  # else all of its readers come later, and so do their groups
                pending |= self.readers(group)
            pending &= ~seen
        return False

    def acyclic(self, groups: Iterable[Set]) -> bool:
        """Whether the graph of these disjoint groups and the other nodes is acyclic."""
        own = {i: g for g in groups for i in bits(g)}
        units = dict.fromkeys(own.get(i, 1 << i) for i in range(len(self.before)))
        waiting = {u: {own.get(i, 1 << i) for i in bits(self.makers(u))} for u in units}
        ready = [u for u, needs in waiting.items() if not needs]
        readers: dict[Set, list[Set]] = {}
        for u, needs in waiting.items():
            for n in needs:
                readers.setdefault(n, []).append(u)
        done = 0
        while ready:
            done += 1
            for r in readers.get(at := ready.pop(), ()):
                waiting[r].discard(at)
                if not waiting[r]:
                    ready.append(r)
        return done == len(units)
