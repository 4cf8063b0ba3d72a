"""Canonical keys of groups for price lookups: groups that are equal up to names are priced once.

Two groups of one form have the same operators in the same order with the same connections, types and layouts. Large
constants count by shape only: times do not depend on the values of weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping
from functools import cached_property

from onnxfuse.ir.graph import Constant, Node
from onnxfuse.ir.group import Group
from onnxfuse.ir.layout import Layout
from onnxfuse.plan.search.scope import Members, Scope

HASHED_BYTES = (
    4096,
    64,
)  # integer and float constants up to so many bytes count by value, since indices may depend on it

Form = Hashable


class Forms:
    """The forms of groups of one scope."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self._about: dict[str, Hashable] = {}

    @cached_property
    def _operators(self) -> tuple[Hashable, ...]:
        return tuple(map(self._operator, self.scope.nodes))

    def _operator(self, n: Node) -> Hashable:
        made = tuple(repr(self.scope.graph.types.get(o)) for o in n.outputs)
        return (n.key, repr(sorted(n.attrs.items(), key=lambda pair: pair[0])), made, id(n.body) if n.body else 0)

    def of(self, members: Members, group: Group, layouts: Mapping[str, Layout]) -> Form:
        """The form of a group whose inputs and outputs have these layouts."""
        slots: dict[str, int] = {}
        around: list[Hashable] = []
        inside: list[Hashable] = []
        given, ends = frozenset(group.outputs), frozenset((*group.inputs, *group.outputs))
        for m in members:
            n = self.scope.nodes[m]
            for v in (*n.inputs, *n.outputs):
                if v and v not in slots:
                    slots[v] = len(slots)
                    around.append((self._value(v), repr(layouts.get(v) if v in ends else None), v in given))
            inside.append((self._operators[m], tuple(slots.get(v, -1) for v in (*n.inputs, *n.outputs))))
        return (tuple(inside), tuple(around))

    def _value(self, name: str) -> Hashable:
        if name not in self._about:
            graph = self.scope.graph
            constant = graph.constants.get(name)
            held = _digest(constant) if constant is not None else None
            self._about[name] = (repr(graph.types.get(name)), held, repr(graph.known.get(name)))
        return self._about[name]


def _digest(constant: Constant) -> Hashable:
    if constant.bytes > HASHED_BYTES[constant.dtype.floating]:
        return constant.shape
    return hashlib.sha256(constant.load().tobytes()).hexdigest()
