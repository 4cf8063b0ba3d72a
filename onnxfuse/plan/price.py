"""Prices of candidates: seconds on several numbers of cores, for several values of symbols, by lowering and scheduling.

Measured prices are used where known (`samples.py`), else predictions. Equal candidates are priced once (`forms.py`).
The budget counts scheduled candidates, not seconds, so that a build is the same on every machine; candidates beyond the
budget have no price. A window with a product counts as `WINDOWS` of them, since several unrolled lines are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log
from typing import TypeAlias, TypeVar

from onnxfuse.cost import Cost, number, symbols_at
from onnxfuse.cost.fusions import calls_of
from onnxfuse.cost.means import SymbolUnknown
from onnxfuse.cost.nodes import DOMAINS, Call, Tensor
from onnxfuse.ir.graph import Decision, Node
from onnxfuse.ir.group import Group, Plan
from onnxfuse.ir.kernel import Kernel
from onnxfuse.ir.layout import Layout
from onnxfuse.plan.forms import Form, Forms
from onnxfuse.plan.kinds import HEAVY, WINDOW
from onnxfuse.plan.layouts import layouts_of
from onnxfuse.plan.legal import Set, members
from onnxfuse.plan.samples import KernelSample, NodeSample, Sample, corrected
from onnxfuse.plan.search.scope import Scope
from onnxfuse.plan.sizes import FEW_SIZES, Sizes, sizes_of, tensor_of
from onnxfuse.target import Target

IN_BLOCKS = ("Conv", "FusedConv")  # operators whose images the runtime stores in channel blocks, unlike kernels

SLOWER = 5.0  # by which a kernel may be predicted slower than nodes of the runtime; one in ten predictions is off by
# more than about 1.6, and single ones by 4
MARGIN = 10e-6  # seconds that it may be slower, whatever the factor, and that a plan other than that of `anchors` saves

WINDOWS = 4  # candidates that a window with a product counts as: they take 50 to 300 ms, others 5 to 30

TIE = 0.03  # share of time that a plan must save to be preferred: predictions of equal plans differ by less

Seconds = tuple[float, ...]  # at each point
T = TypeVar("T")
Priced: TypeAlias = "Seconds | Decision | None"  # a refusal of a later step; None: not known


@dataclass(slots=True)
class PriceSamples:
    """The samples behind prices, for measuring them: kernels by form, sets of nodes by name, single nodes."""

    kernels: dict[Form, Kernel | Decision] = field(default_factory=dict)
    at: dict[Form, tuple[KernelSample, ...]] = field(default_factory=dict)  # at each size
    sets: dict[tuple[str, ...], Form] = field(default_factory=dict)
    nodes: dict[str, tuple[NodeSample, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class PriceMemo:
    """Known prices by form; `scheduled` counts candidates, at most `budget`, some of which are `kept` for later."""

    budget: int
    kept: int = 0
    scheduled: int = 0
    known: dict[Form, Priced] = field(default_factory=dict)
    measured: set[Form] = field(default_factory=set)  # forms with at least one measured price
    samples: PriceSamples | None = None  # None: prices will not be measured

    @property
    def spent(self) -> bool:
        """Whether no further candidate may be scheduled now."""
        return self.scheduled >= self.budget - self.kept


def clearly_slower(kernel: float, runtime: float) -> bool:
    """Whether a kernel of so many seconds is not built, since the runtime's nodes take so many."""
    return kernel > SLOWER * runtime and kernel - runtime > MARGIN


def nothing_known(sample: Sample, machine: Target) -> float | None:
    """No measurements."""
    return None


@dataclass(frozen=True, slots=True)
class Costing:
    """Functions of later stages that prices need: scheduling of a group, and the cost model.

    `machines` are the numbers of cores that a kernel may run on; `shown` is the index of the reported one. Prices are
    memoized in `memo`; `handing_on` gives the seconds that a merge saves at most, where a value of so many bytes goes
    from one kernel to the next, `measured` the measured seconds of a sample on a machine, or None. A plan that saves at
    most `worth` seconds is no better than another.
    """

    kernel: Callable[[Group, Plan], Kernel | Decision]
    machines: Sequence[Target]
    shown: int
    kernel_cost: Callable[[Kernel, Target, Container[str], float, Mapping[str, int]], Cost | None]
    node_seconds: Callable[[Call, Target, float], float]
    handing_on: Callable[[float, Target], float]
    memo: PriceMemo
    measured: Callable[[Sample, Target], float | None] = nothing_known
    worth: float = 0.0


class Prices:
    """The prices of sets of nodes of one scope."""

    def __init__(self, scope: Scope, costing: Costing) -> None:
        self.scope, self.costing = scope, costing
        self.weight_bytes = float(sum(c.bytes for c in scope.graph.constants.values()))
        self.forms = Forms(scope)
        self.sizes = [s for s in sizes_of(scope.graph, FEW_SIZES) if self._possible(s)]
        self.layouts = layouts_of(scope.graph, [scope.group((i,)) for i in sorted(scope.kinds)], scope.by_name)
        self._places = {n.outputs: at for at, n in enumerate(scope.nodes)}
        self._tensors: list[dict[str, Tensor]] = [{} for _ in self.sizes]
        self._left: dict[int, Seconds | None] = {}
        self._sets: dict[Set, Priced] = {}

    @property
    def points(self) -> int:
        """The number of combinations of machine and size."""
        return len(self.sizes) * len(self.costing.machines)

    @property
    def shown(self) -> int:
        """The index of the reported point."""
        return len(self.sizes) // 2 * len(self.costing.machines) + self.costing.shown

    def on_target(self, each_point: Sequence[T]) -> tuple[T, ...]:
        """The values at the points of the target itself, on one core and on all, without those of a larger machine."""
        machines, last = len(self.costing.machines), self.costing.shown
        return tuple(x for at, x in enumerate(each_point) if at % machines <= last)

    def of(self, nodes: Set) -> Seconds | None:
        """Seconds of a legal set as a kernel among kernels; None if it has no kernel, or the price is unknown."""
        found = self.outcome(nodes)
        return found if isinstance(found, tuple) else None

    def outcome(self, nodes: Set, *, counted: bool = True) -> Priced:
        """Like `of`, but with the refusal if a later stage refuses the set; `counted` says if the budget counts it."""
        if nodes not in self._sets:
            self._sets[nodes] = self._group(self.scope.group(members(nodes)), nodes, self.layouts, counted=counted)
        return self._sets[nodes]

    def counts(self, nodes: Set) -> int:
        """Candidates that a set counts as."""
        kinds = self.scope.kinds
        heavy = [kinds[i].name for i in members(nodes) if i in kinds and kinds[i].name in HEAVY]
        return WINDOWS if WINDOW in heavy and len(heavy) > 1 else 1

    def in_runtime(self, node: int) -> Seconds | None:
        """Seconds of a node that stays with the runtime, among kernels; None if unknown."""
        if node not in self._left:
            n, samples = self.scope.nodes[node], self.costing.memo.samples
            alone = self._nodes([n])
            if samples is not None and alone is not None:
                samples.nodes[n.name] = tuple(s for at in range(len(self.sizes)) for s in self._samples([n], at) or ())
            around = self._transposing([node], self.scope.kinds.keys() - {node}) if alone is not None else ()
            self._left[node] = None if alone is None else summed([alone, around], self.points)
        return self._left[node]

    def handing_on(self, value: str) -> Seconds:
        """Seconds that a merge saves at most, where this value is handed on."""
        sizes = [float(self._tensor(at, value).bytes) for at in range(len(self.sizes))]
        return tuple(self.costing.handing_on(size, m) for size in sizes for m in self.costing.machines)

    def is_measured(self, nodes: Set) -> bool:
        """Whether a set's price as a kernel was measured on at least one machine."""
        group = self.scope.group(members(nodes))
        return self._key(group, nodes, self.layouts) in self.costing.memo.measured

    def plan(self, made: Plan) -> Seconds | None:
        """Seconds of a plan of the scope, including nodes in no group; None if a group has no price.

        Kernels of a whole plan are no candidates: the budget does not count them.
        """
        groups = self.of_groups(made.groups, made.layouts)
        if groups is None:
            return None
        inside = {at for group in made.groups for at in self._members(group)}
        rest = [i for i in range(len(self.scope.nodes)) if i not in inside and self.in_runtime(i) is not None]
        nodes = self._nodes([self.scope.nodes[i] for i in rest]) or ()
        return summed([groups, nodes, self._transposing(rest, inside)], self.points)

    def of_groups(self, groups: Iterable[Group], layouts: Mapping[str, Layout]) -> Seconds | None:
        """Seconds of groups of a plan with these layouts; None if one has no price. The budget does not count them."""
        parts: list[Seconds] = []
        for group in groups:
            found = self._group(group, sum(1 << at for at in self._members(group)), layouts, counted=False)
            if not isinstance(found, tuple):
                return None
            parts.append(found)
        return summed(parts, self.points)

    def _members(self, group: Group) -> tuple[int, ...]:
        return tuple(self._places[n.outputs] for n in group.nodes)

    def _key(self, group: Group, nodes: Set, layouts: Mapping[str, Layout]) -> Form:
        return (self.forms.of(members(nodes), group, layouts), len(self.sizes))

    def _group(self, group: Group, nodes: Set, layouts: Mapping[str, Layout], *, counted: bool = True) -> Priced:
        memo = self.costing.memo
        key = self._key(group, nodes, layouts)
        if key not in memo.known:
            kernel = memo.samples.kernels.get(key) if memo.samples is not None else None
            if kernel is None:
                if counted:
                    counts = self.counts(nodes)
                    if memo.scheduled + counts > memo.budget - memo.kept:
                        return None
                    memo.scheduled += counts
                kernel = self.costing.kernel(group, self.scope.plan((group,), layouts))
            memo.known[key] = kernel if isinstance(kernel, Decision) else self._priced(kernel, key)
            if memo.samples is not None:
                memo.samples.kernels[key] = kernel
        if memo.samples is not None:
            memo.samples.sets[tuple(n.name for n in group.nodes)] = key
        return memo.known[key]

    def _priced(self, kernel: Kernel, key: Form) -> Priced:
        graph, memo = self.scope.graph, self.costing.memo
        constants = {p.value: graph.constants[p.value] for p in kernel.inputs if p.value in graph.constants}
        found: list[float] = []
        samples: list[KernelSample] = []
        for at, sizes in enumerate(self.sizes):
            try:
                shapes = {p.value: self._tensor(at, p.value).shape for p in kernel.inputs}
                symbols = symbols_at(kernel, shapes) if sizes else {}
            except SymbolUnknown:
                return None
            costs = [
                self.costing.kernel_cost(kernel, m, constants, self.weight_bytes, symbols)
                for m in self.costing.machines
            ]
            seconds = tuple(c.seconds for c in costs if c is not None)
            if len(seconds) < len(costs):
                return None
            samples.append(KernelSample(kernel, constants, symbols, self.weight_bytes, seconds))
            found += self._known(samples[-1], key)
        if memo.samples is not None:
            memo.samples.at[key] = tuple(samples)
        return tuple(found)

    def _known(self, sample: Sample, key: Form = None) -> tuple[float, ...]:
        """Seconds of a sample on each machine, measured ones where known."""
        seen = [self.costing.measured(sample, machine) for machine in self.costing.machines]
        if all(s is None for s in seen):
            return sample.seconds
        if key is not None:
            self.costing.memo.measured.add(key)
        return corrected(sample.seconds, seen)

    def _nodes(self, nodes: Sequence[Node]) -> Seconds | None:
        """Seconds of nodes that stay with the runtime, which fuses some of them."""
        found: list[float] = []
        for at in range(len(self.sizes)):
            samples = self._samples(nodes, at)
            if samples is None:
                return None
            found += summed(map(self._known, samples), len(self.costing.machines))
        return tuple(found)

    def _samples(self, nodes: Sequence[Node], at: int) -> list[NodeSample] | None:
        """The runtime's calls for nodes at one size; None if one is invalid or unknown, or a type or an extent is."""
        graph, costing = self.scope.graph, self.costing
        names = dict.fromkeys(v for n in nodes for v in (*n.inputs, *n.outputs) if v)
        strange = any(n.invalid or n.domain not in DOMAINS for n in nodes)
        if strange or any(graph.types.get(v) is None for v in names):
            return None
        try:
            tensors = {v: self._tensor(at, v) for v in names}
        except SymbolUnknown:
            return None
        single = nodes[0] if len(nodes) == 1 else None
        found = []
        for call in calls_of(nodes, tensors):
            seconds = tuple(costing.node_seconds(call, machine, self.weight_bytes) for machine in costing.machines)
            found.append(NodeSample(call, self.weight_bytes, graph.opset, single, graph, seconds))
        return found

    def _transposing(self, left: Iterable[int], inside: Container[int]) -> Seconds:
        """Seconds of the runtime's layout conversions of images between its own convolutions and kernels.

        The measured time of a single convolution includes them.
        """
        units, transposed = self.scope.apart, list[str]()
        for i in left:
            n = self.scope.nodes[i]
            if n.op in IN_BLOCKS and not self.node_is_measured(i):
                made = [m for m in units.before[i] if m in inside and n.inputs[0] in self.scope.nodes[m].outputs]
                transposed += n.inputs[:1] * bool(made) + n.outputs[:1] * any(r in inside for r in units.after[i])
        whole = [Node("Transpose", (v,), (v,), name=f"turn {k}") for k, v in enumerate(transposed)]
        parts = [p for n in whole if (p := self._nodes([n])) is not None]
        return summed(parts, self.points)

    def is_clearly_slower(self, nodes: Set) -> bool:
        """Whether a set would not be built, since the runtime's nodes are faster by far on the target."""
        seconds, alone = self.of(nodes), [self.in_runtime(i) for i in members(nodes)]
        known = [each for each in alone if each is not None]
        if seconds is None or len(known) < len(alone):
            return False
        pairs = zip(seconds, summed(known, self.points), strict=True)
        return all(clearly_slower(*pair) for pair in self.on_target(tuple(pairs)))

    def node_is_measured(self, node: int) -> bool:
        """Whether the time that a node takes in the runtime was measured, on some number of cores at least."""
        samples = self._samples([self.scope.nodes[node]], 0) or []
        return any(self.costing.measured(s, m) is not None for s in samples for m in self.costing.machines)

    def _tensor(self, at: int, name: str) -> Tensor:
        if name not in self._tensors[at]:
            self._tensors[at][name] = tensor_of(self.scope.graph, name, self.sizes[at])
        return self._tensors[at][name]

    def _possible(self, sizes: Sizes) -> bool:
        """Whether every value has a nonempty shape at these sizes; static shapes may be empty."""
        known = (t for t in self.scope.graph.types.values() if t is not None)
        try:
            return all(e.constant is not None or number(e, sizes) >= 1 for t in known for e in t.shape)
        except SymbolUnknown:
            return False


def summed(parts: Iterable[Seconds], points: int) -> Seconds:
    """The sum of seconds at each point."""
    found = [0.0] * points
    for part in parts:
        for at, seconds in enumerate(part):
            found[at] += seconds
    return tuple(found)


def clearly_less(one: Seconds, other: Seconds, worth: float = 0.0) -> bool:
    """Whether `one` is faster by more than `TIE` and `worth` seconds in the mean, and slower by `TIE` at no point."""
    less = mean_ratio(one, other) < 1 - TIE and mean(other) - mean(one) > worth
    return less and max(a / b for a, b in zip(one, other, strict=True)) <= 1 + TIE


def mean(seconds: Seconds) -> float:
    """The arithmetic mean over all points."""
    return sum(seconds) / len(seconds)


def mean_ratio(one: Seconds, other: Seconds) -> float:
    """Time of `one` over that of `other`: the geometric mean over all points."""
    return exp(sum(log(a / b) for a, b in zip(one, other, strict=True)) / max(len(one), 1))
