"""What candidates cost: seconds on several numbers of cores, at several values of symbols, by lowering and scheduling.

Equal candidates are priced once (`forms.py`). A budget counts candidates that are scheduled, not seconds, so that a
build is the same on every machine; what nobody may schedule any more has no price.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log
from typing import Any, TypeAlias

from onnxfuse.cost import Cost, number, symbols_at
from onnxfuse.cost.means import SymbolUnknown
from onnxfuse.cost.runtime import Tensor
from onnxfuse.ir.graph import Decision, Node
from onnxfuse.ir.group import Group, Plan
from onnxfuse.ir.kernel import Kernel
from onnxfuse.ir.layout import Layout
from onnxfuse.plan.forms import Form, Forms
from onnxfuse.plan.layouts import layouts_of
from onnxfuse.plan.legal import Set, members
from onnxfuse.plan.scope import Scope
from onnxfuse.plan.sizes import FEW_SIZES, Sizes, sizes_of, tensor_of

SURELY = 1.7  # times the prediction that nine in ten of the runtime's nodes take at most: a kernel is better known

IN_BLOCKS = ("Conv", "FusedConv")  # operators whose images the runtime holds in blocks of channels, unlike kernels

Seconds = tuple[float, ...]  # at each point
Priced: TypeAlias = "Seconds | Decision | None"  # a refusal of a later step; None: not known


@dataclass(slots=True)
class PriceMemo:
    """Prices that are known by form; `scheduled` candidates of at most `budget`."""

    budget: int
    scheduled: int = 0
    known: dict[Form, Priced] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Costing:
    """What prices are made of, from the rooms behind this one: how a group becomes a kernel, and predictions.

    `machines` are those that a kernel may run on: numbers of cores; one of them is `shown`. What was priced is kept in
    `memo`.
    """

    kernel: Callable[[Group, Plan], Kernel | Decision]
    machines: Sequence[Any]
    shown: int
    kernel_cost: Callable[[Kernel, Any, Container[str], float, Mapping[str, int]], Cost | None]
    group_seconds: Callable[[Sequence[Node], Mapping[str, Tensor], Any, float], float]
    memo: PriceMemo


class Prices:
    """The prices of sets of nodes of one scope."""

    def __init__(self, scope: Scope, costing: Costing) -> None:
        self.scope, self.costing = scope, costing
        self.held = float(sum(c.bytes for c in scope.graph.constants.values()))
        self.forms = Forms(scope)
        self.sizes = [s for s in sizes_of(scope.graph, FEW_SIZES) if self._possible(s)]
        self.layouts = layouts_of(scope.graph, [scope.group((i,)) for i in sorted(scope.kinds)], scope.by_name)
        self._tensors: list[dict[str, Tensor]] = [{} for _ in self.sizes]
        self._left: dict[int, Seconds | None] = {}
        self._sets: dict[Set, Priced] = {}

    @property
    def points(self) -> int:
        """At how many machines and sizes there are prices."""
        return len(self.sizes) * len(self.costing.machines)

    @property
    def shown(self) -> int:
        """The point whose seconds are told."""
        return len(self.sizes) // 2 * len(self.costing.machines) + self.costing.shown

    def of(self, nodes: Set) -> Seconds | None:
        """Seconds of a legal set as a kernel whose neighbours are kernels too; None where there is none, or unknown."""
        found = self.told(nodes)
        return found if isinstance(found, tuple) else None

    def told(self, nodes: Set) -> Priced:
        """The same, with the reason where a later step refuses it."""
        if nodes not in self._sets:
            self._sets[nodes] = self._group(self.scope.group(members(nodes)), nodes, self.layouts)
        return self._sets[nodes]

    def left(self, node: int) -> Seconds | None:
        """Seconds of a node that stays with the runtime, at most, among kernels; None where nothing is known of it."""
        if node not in self._left:
            alone = self._nodes([self.scope.nodes[node]])
            around = self._turning([node], self.scope.kinds.keys() - {node}) if alone is not None else ()
            self._left[node] = None if alone is None else summed([alone, around], self.points)
        return self._left[node]

    def plan(self, made: Plan) -> Seconds | None:
        """Seconds of a plan of the scope, nodes in no group included; None where a group has no price."""
        at = {n.outputs: i for i, n in enumerate(self.scope.nodes)}
        inside: set[int] = set()
        parts: list[Seconds] = []
        for group in made.groups:
            mine = tuple(at[n.outputs] for n in group.nodes)
            inside.update(mine)
            found = self._group(group, sum(1 << m for m in mine), made.layouts)
            if not isinstance(found, tuple):
                return None
            parts.append(found)
        rest = [i for i in range(len(self.scope.nodes)) if i not in inside and self.left(i) is not None]
        nodes = self._nodes([self.scope.nodes[i] for i in rest]) or ()
        return summed([*parts, nodes, self._turning(rest, inside)], self.points)

    def _group(self, group: Group, nodes: Set, layouts: Mapping[str, Layout]) -> Priced:
        memo = self.costing.memo
        key = (self.forms.of(members(nodes), group, layouts), len(self.sizes))
        if key not in memo.known:
            if memo.scheduled >= memo.budget:
                return None
            memo.scheduled += 1
            memo.known[key] = self._priced(group, layouts)
        return memo.known[key]

    def _priced(self, group: Group, layouts: Mapping[str, Layout]) -> Priced:
        graph = self.scope.graph
        kernel = self.costing.kernel(group, Plan(graph, (group,), layouts))
        if isinstance(kernel, Decision):
            return kernel
        found: list[float] = []
        for at, sizes in enumerate(self.sizes):
            try:
                shapes = {p.value: self._tensor(at, p.value).shape for p in kernel.inputs}
                symbols = symbols_at(kernel, shapes) if sizes else {}
            except SymbolUnknown:
                return None
            for machine in self.costing.machines:
                cost = self.costing.kernel_cost(kernel, machine, graph.constants, self.held, symbols)
                if cost is None:
                    return None
                found.append(cost.seconds)
        return tuple(found)

    def _nodes(self, nodes: Sequence[Node]) -> Seconds | None:
        """Seconds of nodes that stay with the runtime, which does some of them at once, at most."""
        found: list[float] = []
        for at in range(len(self.sizes)):
            names = dict.fromkeys(v for n in nodes for v in (*n.inputs, *n.outputs) if v)
            if any(self.scope.graph.types.get(v) is None for v in names):
                return None
            try:
                tensors = {v: self._tensor(at, v) for v in names}
            except SymbolUnknown:
                return None
            found += [SURELY * self.costing.group_seconds(nodes, tensors, m, self.held) for m in self.costing.machines]
        return tuple(found)

    def _turning(self, left: Iterable[int], inside: Container[int]) -> Seconds:
        """Seconds in which the runtime turns images that convolutions of its own read from kernels, or give to them."""
        units, turned = self.scope.apart, list[str]()
        for i in left:
            n = self.scope.nodes[i]
            if n.op in IN_BLOCKS:
                made = [m for m in units.before[i] if m in inside and n.inputs[0] in self.scope.nodes[m].outputs]
                turned += n.inputs[:1] * bool(made) + n.outputs[:1] * any(r in inside for r in units.after[i])
        whole = [Node("Transpose", (v,), (v,), name=f"turn {k}") for k, v in enumerate(turned)]
        parts = [p for n in whole if (p := self._nodes([n])) is not None]
        return summed(parts, self.points)

    def _tensor(self, at: int, name: str) -> Tensor:
        if name not in self._tensors[at]:
            self._tensors[at][name] = tensor_of(self.scope.graph, name, self.sizes[at])
        return self._tensors[at][name]

    def _possible(self, sizes: Sizes) -> bool:
        """Whether every value has a shape of these sizes."""
        known = (t for t in self.scope.graph.types.values() if t is not None)
        try:
            return all(number(e, sizes) >= 1 for t in known for e in t.shape)
        except SymbolUnknown:
            return False


def summed(parts: Iterable[Seconds], points: int) -> Seconds:
    """Seconds of all of them, at each point."""
    found = [0.0] * points
    for part in parts:
        for at, seconds in enumerate(part):
            found[at] += seconds
    return tuple(found)


def mean_ratio(one: Seconds, other: Seconds) -> float:
    """How many times as long one takes as the other: the geometric mean over all points."""
    return exp(sum(log(a / b) for a, b in zip(one, other, strict=True)) / max(len(one), 1))
