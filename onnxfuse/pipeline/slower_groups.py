"""Groups whose kernels are predicted much slower than the runtime's own nodes are refused, one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from onnxfuse.cost import symbols_at, weight_bytes
from onnxfuse.cost.fusions import taken_in
from onnxfuse.cost.means import SymbolUnknown
from onnxfuse.cost.nodes import Call, Tensor
from onnxfuse.ir.graph import Decision, Graph, Node, TensorType
from onnxfuse.ops.rows import ROWS
from onnxfuse.pipeline.groups import attempted, counted_at, forbidden, names_of, predicting
from onnxfuse.pipeline.state import Build, Context, GroupBuild, have
from onnxfuse.plan.kinds import HEAVY, RECURRENT, Kind, convolves_variables, decoded_weights, kind_of
from onnxfuse.plan.price import clearly_slower
from onnxfuse.plan.sizes import Sizes, batches_of, symbols_in, tensor_of
from onnxfuse.plan.small_groups import is_pool
from onnxfuse.plan.unlocks import ALONE
from onnxfuse.target import Target

EVEN = 1.0  # the factor for convolutions with variable weights, which are packed in each run, and for pools alone
SIZES = (1, 16, 128, 512)  # values of all symbols; and again with batch sizes 1
ROUNDS = 4  # of refusals: groups of the new plan may lose too


@dataclass(frozen=True, slots=True)
class Times:
    """Predicted seconds of a group: as a kernel, as nodes of the runtime, and for transposing images for neighbours."""

    kernel: float
    runtime: float
    transposing: float

    @property
    def instead(self) -> float:
        """The time without the kernel."""
        return self.runtime + self.transposing

    @property
    def ratio(self) -> float:
        """The time with the kernel over that without."""
        return self.kernel / self.instead


def worthwhile(context: Context, b: Build) -> Build:
    """The build without groups that are predicted to lose at every size and number of cores, marked for replanning.

    Products, and the nodes that the runtime fuses into them, stay with the runtime; the rest is planned again.
    """
    if context.options.min_group <= 1 or b.rounds > ROUNDS:
        return b
    predictor = _Predictor(context, b)
    found = [(part, None if part.worth else predictor.losing(part)) for part in b.parts]
    lost = [(part, times) for part, times in found if times is not None]
    b = replace(b, parts=tuple(replace(part, worth=times is None) for part, times in found))
    if not lost:
        return b
    refusals = tuple(_refusal(part, times) for part, times in lost)
    out = frozenset[str]().union(*(_left(have(b.plan).graph, part) for part, _ in lost))
    return forbidden(replace(b, refused=(*b.refused, *refusals)), out)


def runtime_times(context: Context, b: Build) -> list[float | None]:
    """Predicted seconds of the runtime for each group of a build and of its bodies, in the order of `all_parts`.

    Open sizes are those of `counted_at`; None where an extent is not known.
    """
    found: list[float | None] = []
    sizes = counted_at(context, b)
    for each in (one for one in b.everywhere() if one.parts):
        predictor = _Predictor(context, each)
        found += [predictor.runtime(part, sizes) for part in each.parts]
    return found


class _Predictor:
    """Predicts the times of the groups of one graph, once for equal kernels."""

    def __init__(self, context: Context, b: Build) -> None:
        self.context = context
        self.plan = have(b.plan)
        self.backend, self.target = context.backend, predicting(context)
        constants = self.plan.graph.constants
        self.weight_bytes = weight_bytes([p.kernel for p in b.parts if p.kernel is not None], constants)
        self.decoded = decoded_weights(self.plan.graph, ROWS)
        self.known: dict[tuple[object, ...], tuple[Times, ...]] = {}

    def losing(self, part: GroupBuild) -> Times | None:
        """The times of a group where it loses, but least, if it loses everywhere.

        A pool alone, if in half of the cases, and a recurrent layer, if in the mean: the runtime divides the products
        of a step among threads, which kernels do not.
        """
        graph = self.plan.graph
        kinds = _kinds(graph, part)
        layers = [n for n in part.group.nodes if isinstance(k := kinds[n.name], Kind) and k.name == RECURRENT]
        found = self._of(part, _sizes(graph, part, layers))
        if is_pool(part.group, graph, kinds):
            lost = 2 * sum(t.ratio > EVEN for t in found) >= len(found)
        elif layers:
            lost = sum(t.ratio for t in found) > EVEN * len(found)
        elif any(self.backend.legality.wins(k) for k in kinds.values() if isinstance(k, Kind)):
            lost = any(t.ratio > EVEN for t in found)
        elif any(convolves_variables(graph, n, ROWS, self.decoded) for n in part.group.nodes):
            lost = all(t.ratio > EVEN for t in found)
        else:
            lost = all(clearly_slower(t.kernel, t.instead) for t in found)
        return min((t for t in found if t.ratio > EVEN), key=lambda t: t.ratio) if found and lost else None

    def runtime(self, part: GroupBuild, sizes: Sizes) -> float | None:
        """Seconds of the runtime on the target's cores at these sizes."""
        found = self._of(part, [sizes])
        return found[-1].runtime if found else None

    def _of(self, part: GroupBuild, sizes: Sequence[Sizes]) -> tuple[Times, ...]:
        if part.kernel is None:
            return ()
        graph = self.plan.graph
        inputs = tuple((p.value in graph.constants, repr(graph.types.get(p.value))) for p in part.kernel.inputs)
        key = (part.op, inputs, len(sizes))
        if key not in self.known:
            made = attempted(self.context, "cost", lambda: tuple(self._times(part, sizes)))
            self.known[key] = () if isinstance(made, Decision) else made
        return self.known[key]

    def _times(self, part: GroupBuild, all_sizes: Sequence[Sizes]) -> Iterator[Times]:
        """The times of a group on one core and on those of the target, at sizes that it can have."""
        graph, kernel = self.plan.graph, have(part.kernel)
        for sizes in all_sizes:
            try:
                tensors = _tensors(graph, part, sizes)
                if any(extent < 1 for t in tensors.values() for extent in t.shape):
                    continue
                symbols = symbols_at(kernel, {name: t.shape for name, t in tensors.items()})
            except SymbolUnknown:
                continue
            transposed = [tensors[v] for v in (*part.group.inputs, *part.group.outputs) if v in self.plan.layouts]
            for machine in self.backend.points(self.target):
                cost = self.backend.kernel_cost(kernel, machine, graph.constants, self.weight_bytes, symbols)
                if cost is not None:
                    nodes = self.backend.group_seconds(part.group.nodes, tensors, machine, self.weight_bytes)
                    yield Times(cost.seconds, nodes, sum(self._transposing(t, machine) for t in transposed))

    def _transposing(self, t: Tensor, target: Target) -> float:
        """Seconds to transpose an image, which a neighbour with channels last would have to do."""
        return self.backend.node_seconds(Call("Transpose", (t,), (t,), {}), target)


def _refusal(part: GroupBuild, times: Times) -> Decision:
    ops = ", ".join(dict.fromkeys(n.op for n in part.group.nodes))
    said = f"{ops}: predicted to take {_shown(times.kernel)} as a kernel, {_shown(times.runtime)} in ONNX Runtime"
    return Decision("E-COST", part.group.origin or (part.group.name,), said, ALONE)


def _shown(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


def _left(graph: Graph, part: GroupBuild) -> frozenset[str]:
    """The nodes of a losing group that stay with the runtime: products, or all if there is little else."""
    nodes, kinds = part.group.nodes, _kinds(graph, part)
    heavy = {name for name, k in kinds.items() if isinstance(k, Kind) and k.name in HEAVY}
    heavy |= taken_in(nodes) if heavy else set()
    others = [n for n in nodes if n.name not in heavy]
    return frozenset(heavy) if heavy and len(others) > 1 else names_of(part.group)


def _kinds(graph: Graph, part: GroupBuild) -> dict[str, Kind | Decision]:
    """The kinds of a group's nodes by name."""
    return {n.name: kind_of(graph, n, ROWS) for n in part.group.nodes}


def _tensors(graph: Graph, part: GroupBuild, sizes: Sizes) -> dict[str, Tensor]:
    """The values of a group with symbols put in. Raises SymbolUnknown."""
    names = dict.fromkeys(v for n in part.group.nodes for v in (*n.inputs, *n.outputs) if v)
    names |= dict.fromkeys(p.value for p in have(part.kernel).inputs)
    return {name: tensor_of(graph, name, sizes) for name in names}


def _sizes(graph: Graph, part: GroupBuild, layers: Sequence[Node]) -> list[dict[str, int]]:
    """Usual values of the symbols in a group: all alike, and with batches of 1; with many steps of recurrent layers."""
    values = (v for n in part.group.nodes for v in (*n.inputs, *n.outputs) if v)
    symbols = symbols_in(graph.types.get(v) for v in dict.fromkeys(values))
    if not symbols:
        return [{}]
    inputs = [t for n in layers if (t := graph.types.get(n.inputs[0])) is not None]
    steps = symbols_in(TensorType(t.dtype, t.shape[:1]) for t in inputs)
    batches = set(symbols) - set(steps) if layers else batches_of(graph)
    alike = [dict.fromkeys(symbols, n) for n in SIZES]
    single = [{s: 1 if s in batches else n for s in symbols} for n in SIZES]
    return [dict(pairs) for pairs in dict.fromkeys(tuple(each.items()) for each in (*alike, *single))]
