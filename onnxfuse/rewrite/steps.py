"""Rewrite steps, and laws as steps: match the left-hand side, check the conditions, build the right-hand side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from onnxfuse.ir.graph import Attribute
from onnxfuse.rewrite.draft import Draft
from onnxfuse.rewrite.mutable_graph import Miss, MutableGraph, NoMatch
from onnxfuse.rewrite.operators import commutes
from onnxfuse.rewrite.pattern import Expr, Num, OpPattern, Var, sides
from onnxfuse.rewrite.proofs.conditions import Condition, moderate
from onnxfuse.rewrite.proofs.ranges import Ranges

NUMERICS = ("exact", "reassociates", "assumes")

Attempt = Callable[[MutableGraph, int, bool], Draft]


@dataclass(frozen=True, slots=True)
class StructuralRule:
    """A rewrite at one node: `attempt(work, node, trust)` proposes it, or raises Miss with the reason why not.

    `ops` are the keys of operators at which it is tried (empty: all). `trust` lets it assume what it cannot prove.
    `when` and `assume` are its conditions in words. A step of numerics "assumes" whose assumptions are all proven
    counts as "reassociates".
    """

    name: str
    law: str
    numerics: str
    attempt: Attempt
    ops: frozenset[str] = frozenset()
    when: tuple[str, ...] = ()
    assume: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert self.numerics in NUMERICS, self.numerics


@dataclass(frozen=True, slots=True)
class Rule:
    """A law with two sides. `when` must hold; `assume` must be proven from the graph, or trusted."""

    name: str
    law: str
    lhs: Expr
    rhs: Expr
    when: tuple[Condition, ...] = ()
    assume: tuple[Condition, ...] = ()
    numerics: str = "exact"

    def step(self) -> StructuralRule:
        """The rule as a step of the engine."""
        assert isinstance(self.lhs, OpPattern)
        words = (tuple(map(repr, self.when)), tuple(map(repr, self.assume)))
        return StructuralRule(self.name, self.law, self.numerics, self.attempt, frozenset({self.lhs.op}), *words)

    def attempt(self, work: MutableGraph, at: int, trust: bool) -> Draft:
        """The first match whose conditions hold, as a Draft."""
        node = work.nodes[at]
        missed: Miss = NoMatch(f"{node.name or node.op} does not match {self.law.partition(' => ')[0]}")
        for binding in match_node(work, self.lhs, at, Binding()):
            try:
                self._check(work, binding, trust)
                draft = Draft(work, at)
                draft.replace(node.outputs[0], build(draft, self.rhs, binding))
                if not trust and any(c.name == "bounded" for c in self.assume):
                    _check_both_sides(work, binding, draft)
                return draft
            except Miss as miss:
                missed = miss
        raise missed

    def _check(self, work: MutableGraph, binding: Binding, trust: bool) -> None:
        for condition in (*self.when, *(() if trust else self.assume)):
            condition.check(work, binding.values)


def _check_both_sides(work: MutableGraph, binding: Binding, draft: Draft) -> None:
    """Raise Miss where a value on either side may be NaN or very large, or a divisor very small."""
    ranges = Ranges(work, draft, far=True)
    for node in (*(work.nodes[k] for k in binding.nodes), *draft.nodes):
        moderate(ranges, node.outputs[0], draft.type(node.outputs[0]).dtype)
        for k, i in enumerate(node.inputs[:2]):
            divides = node.op in ("Reciprocal", "Log") or (node.op == "Pow" and k == 0) or (node.op == "Div" and k == 1)
            if draft.type(i).dtype.floating:
                moderate(ranges, i, draft.type(i).dtype, divides=divides)


def rule(name: str, law: str, numerics: str = "exact", when: str = "", assume: str = "") -> Rule:
    """A rule from texts: the law, and conditions as calls separated by spaces such as `constant(a) scalar(b)`."""
    left, right = sides(law)
    return Rule(name, f"{left!r} => {right!r}", left, right, Condition.all(when), Condition.all(assume), numerics)


@dataclass(frozen=True, slots=True)
class Binding:
    """The bindings of the names in a law: values, and for `**k` the attributes and further inputs of a node.

    `nodes` are those matched by calls.
    """

    values: Mapping[str, str] = field(default_factory=dict)
    rest: Mapping[str, tuple[Mapping[str, Attribute], tuple[str, ...]]] = field(default_factory=dict)
    nodes: tuple[int, ...] = ()

    def value(self, name: str, value: str) -> Binding | None:
        """This binding extended by a value; None if the name is bound to another value."""
        if name in self.values:
            return self if self.values[name] == value else None
        return replace(self, values={**self.values, name: value})

    def attributes(self, name: str, attrs: Mapping[str, Any], inputs: tuple[str, ...]) -> Binding | None:
        """This binding extended by attributes and further inputs; None if the name is bound to others."""
        if name in self.rest:
            return self if self.rest[name] == (attrs, inputs) else None
        return replace(self, rest={**self.rest, name: (attrs, inputs)})


def match(work: MutableGraph, e: Expr, value: str, binding: Binding) -> Iterator[Binding]:
    """All ways to match an expression at a value."""
    if isinstance(e, Var):
        found = binding.value(e.name, value)
        if found is not None:
            yield found
    elif isinstance(e, Num):
        if work.number(value) == e.value:
            yield binding
    elif value in work.maker:
        yield from match_node(work, e, work.maker[value], binding)


def match_node(work: MutableGraph, e: Expr, at: int, binding: Binding) -> Iterator[Binding]:
    """All ways to match a call at a node; operands of commutative operators in both orders."""
    assert isinstance(e, OpPattern)
    node = work.nodes[at]
    if node.op != e.op or not node.standard or any(node.outputs[1:]):
        return
    if e.rest:
        held = binding.attributes(e.rest, node.attrs, node.inputs[len(e.args) :])
        if held is None:
            return
        binding = held
    elif len(node.inputs) != len(e.args) or node.attrs:
        return
    binding = replace(binding, nodes=(*binding.nodes, at))
    inputs = node.inputs[: len(e.args)]
    orders = [inputs, inputs[::-1]] if commutes(e.op) and len(inputs) == 2 and inputs[0] != inputs[1] else [inputs]
    for order in orders:
        yield from _match_all(work, e.args, order, binding)


def _match_all(
    work: MutableGraph, es: tuple[Expr, ...], values: tuple[str, ...], binding: Binding
) -> Iterator[Binding]:
    if not es:
        yield binding
        return
    for found in match(work, es[0], values[0], binding):
        yield from _match_all(work, es[1:], values[1:], found)


def build(draft: Draft, e: Expr, binding: Binding) -> str:
    """Build an expression in a draft, equal parts once; the name of its value."""
    return _build(draft, e, binding, "", {})


def _build(draft: Draft, e: Expr, binding: Binding, like: str, made: dict[Expr, str]) -> str:
    """Numbers get the element type of the value `like`."""
    if isinstance(e, Var):
        return binding.values[e.name]
    if isinstance(e, Num):
        return draft.number(e.value, draft.type(like).dtype)
    if e not in made:
        operands = {a: _build(draft, a, binding, "", made) for a in e.args if not isinstance(a, Num)}
        sibling = next(iter(operands.values()))
        inputs = [operands[a] if a in operands else _build(draft, a, binding, sibling, made) for a in e.args]
        attrs, further = binding.rest[e.rest] if e.rest else ({}, ())
        made[e] = draft.node(e.op, (*inputs, *further), attrs)
    return made[e]
