"""Groups on their way from plan to sources: each is lowered, scheduled, spelled and named; what refuses is a value."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TypeVar

from onnxfuse.backends.row import Packing, ScheduleRequest
from onnxfuse.cost import Cost, number, symbols_at, weight_bytes
from onnxfuse.cost.means import SymbolUnknown
from onnxfuse.errors import OnnxFuseError
from onnxfuse.ir.compose import walk
from onnxfuse.ir.dtype import DType
from onnxfuse.ir.graph import Decision, Graph, Node
from onnxfuse.ir.group import Group, Plan
from onnxfuse.ir.index import Index
from onnxfuse.ir.indexing import product
from onnxfuse.ir.kernel import Kernel, RankedSchedules, Substitutions, products_of
from onnxfuse.ir.scalar import Reduce
from onnxfuse.ir.unsupported import READ
from onnxfuse.lower import Lowered
from onnxfuse.ops.classify import Facts, NodeFacts, group_facts, node_facts
from onnxfuse.ops.rows import ROWS
from onnxfuse.ops.spec import REPORT, defined
from onnxfuse.pipeline.state import Build, Context, GroupBuild, have, hinted
from onnxfuse.plan.kinds import REDUCTION, Kind, kind_of
from onnxfuse.plan.sizes import Sizes, sizes_at, tensor_of
from onnxfuse.report.result import CandidateTime, GroupResult
from onnxfuse.schedule.passes.driver import Check, verified
from onnxfuse.target import Target

T = TypeVar("T")

SHRINKING_ROUNDS = 3  # in which a refused group loses one node; after them all its nodes stay with the runtime
MOST_ROUNDS = 12


def attempted(context: Context, what: str, make: Callable[[], T]) -> T | Decision:
    """The result of `make`. An exception in it becomes an E-INTERNAL refusal, unless the build is strict."""
    context.meter.check(what)
    try:
        return make()
    except OnnxFuseError:
        raise
    except Exception as problem:
        if context.strict:
            raise
        said = " ".join(f"{type(problem).__name__} {problem}".split())
        return Decision("E-INTERNAL", (), f"{what}: {said}", REPORT)


def raise_bug(context: Context, decisions: Iterable[Decision]) -> None:
    """Raise OnnxFuseError where one of the decisions is a bug and the build is strict."""
    bug = next((d for d in decisions if d.code == "E-INTERNAL"), None)
    if bug is not None and context.strict:
        raise OnnxFuseError(f"internal error: {', '.join(bug.nodes)}: {bug.reason}", hint=bug.unlock)


def refused(b: Build, refusals: Iterable[tuple[Group, Decision]]) -> Build:
    """The build with these groups refused, marked for replanning if there are any."""
    pairs = list(refusals)
    if not pairs:
        return b
    decisions = tuple(replace(d, nodes=group.origin or (group.name,)) for group, d in pairs)
    out = frozenset[str]().union(*(_left_out(b, group, decision) for group, decision in pairs))
    return replace(b, refused=(*b.refused, *decisions), forbidden=b.forbidden | out, again=True)


def _left_out(b: Build, group: Group, decision: Decision) -> frozenset[str]:
    """Nodes of a refused group that stay with the runtime: those that the decision is about, else the last one."""
    names = names_of(group)
    told = names.intersection(decision.nodes) - {group.name}
    if told or b.rounds > SHRINKING_ROUNDS:
        return told or names
    return frozenset({group.nodes[-1].name})


def forbidden(b: Build, names: frozenset[str]) -> Build:
    """The build in which these nodes stay with the runtime; graphs that contain one are planned again."""
    mine = names & {n.name for n in have(b.graph).nodes}
    b = replace(b, inner=tuple(forbidden(each, names) for each in b.inner))
    return replace(b, forbidden=b.forbidden | mine, again=True) if mine else b


def standing(b: Build) -> Plan | None:
    """The plan of which groups that are forbidden since are only to be left out.

    None where strategies have not come to their end, and where the rest of a group is to be planned without some nodes.
    """
    if b.plan is None or not b.settled:
        return None
    groups = map(names_of, b.plan.groups)
    return b.plan if all(names <= b.forbidden or names.isdisjoint(b.forbidden) for names in groups) else None


def names_of(group: Group) -> frozenset[str]:
    """The names of a group's nodes."""
    return frozenset(n.name for n in group.nodes)


def reductions(graph: Graph, group: Group) -> frozenset[str]:
    """The names of a group's nodes that reduce, contractions and windows not among them."""
    kinds = {n.name: kind_of(graph, n, ROWS) for n in group.nodes}
    return frozenset(name for name, kind in kinds.items() if isinstance(kind, Kind) and kind.name == REDUCTION)


def checked_plan(plan: Plan, forbidden: frozenset[str]) -> None:
    """Assert the promises of a plan: groups of the graph's own nodes, disjoint, none of them forbidden."""
    known = {n.name for n in plan.graph.nodes}
    seen: set[str] = set()
    for group in plan.groups:
        mine = names_of(group)
        assert len(mine) == len(group.nodes) > 0, f"plan: two nodes of {group.name} have one name"
        assert mine <= known, f"plan: {group.name} holds nodes that the graph has not"
        assert not mine & (seen | forbidden), f"plan: {group.name} holds a node that it must not have"
        seen |= mine
    assert len({g.name for g in plan.groups}) == len(plan.groups), "plan: two groups have one name"


def scheduler(
    context: Context, plan: Plan, lowered: Lowered, *, check: Check = verified, measured: Substitutions | None = None
) -> Callable[[Target], Kernel | Decision]:
    """The function that schedules a lowered group for a target; `check` and `measured` are those of `Schedule`.

    For a target of another backend than the plan's, weights stay as they are in the model.
    """
    constants, options = plan.graph.constants, context.options
    layouts = {v: plan.layouts[v] for v in (*lowered.inputs, *lowered.outputs) if v in plan.layouts}
    total = sum(c.bytes for c in constants.values())
    common = Packing.OWN if len(context.targets) == 1 else Packing.SHARED

    def made(target: Target) -> Kernel | Decision:
        packing = Packing.NONE if target.name in context.beside else common
        request = ScheduleRequest(lowered, layouts, constants, total, options, packing)
        return context.backend_of(target).schedule(request, target, check=check, measured=measured)

    return made


def narrowed_ops(b: Build) -> frozenset[str]:
    """Operator types that read or write values with a storage dtype narrower than the graph's dtype."""
    pairs = [(part, have(each.plan).storage_types) for each in b.everywhere() for part in each.parts]
    return frozenset(part.op for part, narrow in pairs if narrow.keys() & {*part.group.inputs, *part.group.outputs})


def roundings(parts: Iterable[GroupBuild], narrowed: Container[str] = ()) -> dict[str, float]:
    """By operator type, how far a kernel rounds activations that its body does not round: relative, of one number.

    Kernel and body both round results of operator types in `narrowed`, but may round to different neighbours.
    """
    kernels = {part.op: part.kernel for part in parts if part.kernel is not None}
    found = {op: [p.left.epsilon / 2 for p in products_of([kernel]) if p.rounds] for op, kernel in kernels.items()}
    for op, kernel in kernels.items():
        found[op] += [p.dtype.epsilon / 2 for p in kernel.outputs if op in narrowed and p.dtype.floating]
    return {op: max(each) for op, each in found.items() if each}


# What is said of groups -----------------------------------------------------------------------------------------------


def longest_sums(parts: Iterable[GroupBuild]) -> dict[str, int]:
    """By operator type, the longest sum that its kernel makes; kernels with a symbolic one are left out."""
    found: dict[str, int] = {}
    for part in parts:
        sizes = [
            product([a.extent for a in x.ranges]).constant
            for d in part.lowered.definitions
            for x in walk(d.value)
            if isinstance(x, Reduce)
        ]
        if all(size is not None for size in sizes):
            found[part.op] = max([found.get(part.op, 1), *(size or 1 for size in sizes)])
    return found


def counted_at(context: Context, b: Build) -> dict[str, int]:
    """The values of open sizes for figures that are shown, for the symbols of all graphs.

    They are the first ones at which the gain was measured, else those of `--dim-hint`, else usual ones.
    """
    graphs = [have(each.loaded) for each in b.everywhere()]
    graphs += [each.plan.graph for each in b.everywhere() if each.plan is not None]
    shapes = b.gain.sizes[0].shapes if b.gain is not None else {}
    return sizes_at(graphs, hinted(context.options.dim_hint)[0], shapes)


def phase_bytes(b: Build, sizes: Sizes) -> int | None:
    """Bytes that phases store for later ones and for other nodes, at these sizes; None where that is not known."""
    total = 0
    for graph, kernel in ((have(e.plan).graph, p.kernel) for e in b.everywhere() for p in e.parts if p.kernel):
        stored = [(each.size, each.dtype) for each in kernel.scratch]
        stored += [(product(list(p.storage)), p.dtype) for p in kernel.outputs]
        found = _bytes(stored, symbols_in_kernel(graph, kernel, sizes))
        if found is None:
            return None
        total += found
    return total


def traffic(kernel: Kernel, sizes: Sizes) -> int | None:
    """Bytes of a kernel's inputs and outputs at values of its symbols; None where one has no value."""
    return _bytes(((product(list(p.storage)), p.dtype) for p in (*kernel.inputs, *kernel.outputs)), sizes)


def _bytes(arrays: Iterable[tuple[Index, DType]], sizes: Sizes) -> int | None:
    """Bytes of arrays, by their numbers of elements; None where a symbol has no value."""
    try:
        return sum(number(count, sizes) * dtype.bytes for count, dtype in arrays)
    except SymbolUnknown:
        return None


def predicting(context: Context) -> Target:
    """The machine that predictions are for."""
    return context.targets[0] if context.measured is None else context.measured


def symbols_in_kernel(graph: Graph, kernel: Kernel, sizes: Sizes) -> dict[str, int]:
    """The values of a kernel's own symbols at values of the graph's; empty where the kernel cannot run at these."""
    try:
        shapes = {p.value: tensor_of(graph, p.value, sizes).shape for p in kernel.inputs}
        found = symbols_at(kernel, shapes)
    except SymbolUnknown:
        return {}
    values = (*found.values(), *(extent for shape in shapes.values() for extent in shape))
    return found if min(values, default=1) > 0 else {}


def kernel_cost(
    context: Context, kernel: Kernel, machine: Target, constants: Container[str], held: float, symbols: Sizes
) -> Cost | None:
    """The cost of a kernel on a machine, in a model that holds so many bytes of weights; None where it is not known."""
    found = attempted(context, "cost", partial(context.backend.kernel_cost, kernel, machine, constants, held, symbols))
    return None if isinstance(found, Decision) else found


def predicted(context: Context, b: Build, sizes: Sizes) -> list[Cost | None]:
    """The cost of each kernel of a build and of its bodies, in the order of `all_parts`, at these sizes.

    None where it is not known.
    """
    graphs = [have(each.plan).graph for each in b.everywhere() for _ in each.parts]
    pairs = [(part, graph) for part, graph in zip(b.all_parts, graphs, strict=True) if part.kernel is not None]
    constants = frozenset(name for graph in {id(g): g for g in graphs}.values() for name in graph.constants)
    held = weight_bytes([have(part.kernel) for part, _ in pairs], constants)
    target = predicting(context)
    known: dict[tuple[object, ...], Cost | None] = {}

    def cost(part: GroupBuild, graph: Graph) -> Cost | None:
        kernel = part.kernel
        if kernel is None:
            return None
        symbols = symbols_in_kernel(graph, kernel, sizes)
        key = (part.op, tuple(p.value in constants for p in kernel.inputs), *symbols.items())
        if key not in known:
            known[key] = kernel_cost(context, kernel, target, constants, held, symbols)
        return known[key]

    return [cost(part, graph) for part, graph in zip(b.all_parts, graphs, strict=True)]


def described(
    context: Context, b: Build, names: Iterable[str], runtimes: Iterable[float | None]
) -> Iterator[GroupResult]:
    """The groups of a build and of its bodies as results show them, under these names.

    `runtimes` are the seconds of the runtime's own nodes. A bug in what is only shown costs the figure, not the
    build (unless it is strict). Equal kernels of equal operators on values of equal types are looked at once.
    """
    graphs = [have(each.plan).graph for each in b.everywhere() for _ in each.parts]
    known: dict[tuple[str, ...], tuple[str | None, int | None, int | None]] = {}
    sizes = counted_at(context, b)
    costs = predicted(context, b, sizes)
    for part, name, graph, cost, runtime in zip(b.all_parts, names, graphs, costs, runtimes, strict=True):
        types = (repr(graph.types.get(v)) for v in (*part.group.inputs, *part.group.outputs))
        key = (part.op or name, *(n.op for n in part.group.nodes), *types)
        if key not in known:
            found = attempted(context, "describe", partial(_type_and_work, graph, part, sizes))
            known[key] = (None, None, None) if isinstance(found, Decision) else found
        yield _described(part, name, *known[key], cost, runtime)


def _described(
    part: GroupBuild,
    name: str,
    mapping: str | None,
    flops: int | None,
    moved: int | None,
    cost: Cost | None,
    runtime: float | None,
) -> GroupResult:
    kernel, group = part.kernel, part.group
    return GroupResult(
        name=name,
        kernel=part.op,
        nodes=group.origin or tuple(n.name for n in group.nodes),
        ops=tuple(n.op for n in group.nodes),
        mapping_type=mapping,
        flops=flops,
        bytes=moved,
        phases=len(kernel.phases) if kernel is not None else 0,
        predicted_ms=round(cost.seconds * 1e3, 6) if cost is not None else None,
        runtime_ms=round(runtime * 1e3, 6) if runtime is not None else None,
        bound=cost.bound if cost is not None else None,
        schedules=tuple(_choice_results(choice) for choice in kernel.choices) if kernel is not None else (),
    )


def _choice_results(choice: RankedSchedules) -> tuple[CandidateTime, ...]:
    return tuple(CandidateTime(name, round(seconds * 1e3, 6)) for name, seconds in choice.candidates)


def _type_and_work(graph: Graph, part: GroupBuild, sizes: Sizes) -> tuple[str | None, int | None, int | None]:
    """The mapping type of a group, its operations and the bytes of its inputs and outputs."""
    kernel, group = part.kernel, part.group
    moved = traffic(kernel, symbols_in_kernel(graph, kernel, sizes)) if kernel is not None else None
    known = {n.name: facts for n in group.nodes if (facts := facts_of(graph, n)) is not None}
    if len(known) < len(group.nodes):
        return None, None, moved
    fused, flops = group_facts(Facts(known, {}), group)
    return fused.label, _value(flops, sizes), moved


def _value(e: Index, sizes: Sizes) -> int | None:
    """An extent at these sizes; None where a symbol of it has none."""
    try:
        return number(e, sizes)
    except SymbolUnknown:
        return None


def facts_of(graph: Graph, node: Node) -> NodeFacts | None:
    """The facts of a node; None where it has no definitions."""
    found = defined(ROWS, graph, node)
    return None if isinstance(found, Decision) else node_facts(graph, node, found)


def reads_shape(node: Node) -> bool:
    """Whether a node reads a shape and no elements, which costs nothing."""
    return node.standard and node.op in READ


def costs_of(graph: Graph, nodes: Iterable[Node], sizes: Sizes) -> dict[str, tuple[int | None, int | None]]:
    """By name of each node its operations, and the bytes that it reads and makes; None where they are not known.

    Equal calls on values of equal types are looked at once; those without a definition are not, whose attributes may be
    as large as a forest of trees.
    """
    known: dict[tuple[object, ...], int | None] = {}
    found = {}
    for n in nodes:
        values = [v for v in dict.fromkeys((*n.inputs, *n.outputs)) if v]
        key: tuple[object, ...] = (n.key, reads_shape(n))
        if n.body is not None or ROWS.find(n, graph.opset) is not None:
            types = tuple(map(repr, map(graph.types.get, (*n.inputs, *n.outputs))))
            key = (n.key, repr(sorted(n.attrs.items())), types)
        if key not in known:
            facts = facts_of(graph, n)
            known[key] = _value(facts.flops, sizes) if facts is not None else 0 if reads_shape(n) else None
        taken = [bytes_of(graph, v, sizes) for v in (n.outputs if reads_shape(n) else values)]
        moved = None if None in taken else sum(each or 0 for each in taken)
        found[n.name] = known[key], moved
    return found


def bytes_of(graph: Graph, value: str, sizes: Sizes) -> int | None:
    """What a value takes at these sizes; None where nothing is known of it."""
    if value in graph.constants:
        return graph.constants[value].bytes
    kind = graph.types.get(value)
    return _bytes([(product(list(kind.shape)), kind.dtype)], sizes) if kind is not None else None
