"""Fills a GraphProto with the nodes of a graph, each fused group as one node, and likewise the subgraphs of nodes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx

from onnxfuse.emit.checks import check_layouts
from onnxfuse.emit.fallback import fallback, relies_on, repeated
from onnxfuse.emit.names import readable, unique
from onnxfuse.emit.older import spelled
from onnxfuse.emit.planned import Fused, Planned
from onnxfuse.emit.proto import node_proto, set_metadata, value_info, without
from onnxfuse.emit.weights import Weights
from onnxfuse.ir.graph import Graph, Node, sorted_nodes
from onnxfuse.ir.index import Symbol
from onnxfuse.ir.layout import Shape
from onnxfuse.load.inline import defined, free_names
from onnxfuse.load.names import rename
from onnxfuse.load.source import ModelSource, source_of
from onnxfuse.runtime.graphs import graphs

_CALL = "\0fused"  # domain of the placeholders of groups while nodes are sorted


@dataclass(frozen=True, slots=True)
class Subgraph:
    """A planned and emitted graph; `protos` are the graphs around it, outermost (the main graph) first, then itself.

    They are as they were before names that clash with outer ones were changed.
    """

    planned: Planned
    protos: tuple[onnx.GraphProto, ...]


@dataclass(frozen=True, slots=True)
class Emission:
    """State shared by all graphs of a model during emission: results, and the names in use of values and nodes."""

    domain: str
    taken: set[str]
    node_names: set[str] = field(default_factory=set)
    used: list[Fused] = field(default_factory=list)
    repeated: frozenset[Symbol] = frozenset()  # symbols of several dimensions of the model's inputs
    names: dict[str, str] = field(default_factory=dict)  # names of fused nodes, by that of the group's first node
    subgraphs: list[Subgraph] = field(default_factory=list)


def emission_of(main: Planned, domain: str) -> Emission:
    """The initial state: all names of the model and of its planned graphs are in use."""
    emission = Emission(domain, set(), repeated=repeated(main.plan.graph))
    for inner in graphs(main.source.proto.graph):
        emission.taken.update(defined(inner))
    for planned in _all_planned(main):
        emission.taken.update(planned.plan.graph.types, planned.plan.graph.constants)
        inside = {n.outputs for f in planned.fused for n in f.group.nodes}
        emission.node_names.update(n.name for n in planned.plan.graph.nodes if n.outputs not in inside)
    return emission


def _all_planned(planned: Planned) -> Iterator[Planned]:
    yield planned
    for inner in planned.inner:
        yield from _all_planned(inner)


def fill(
    proto: onnx.GraphProto,
    planned: Planned,
    weights: Weights,
    emission: Emission,
    around: tuple[Subgraph, ...] = (),
) -> None:
    """Fill `proto` with the nodes of a planned graph, the constants that they read and the types of its values."""
    graph, source = planned.plan.graph, planned.source
    check_layouts(planned.plan, planned.fused)
    calls = {f.group.name: f for f in planned.fused}
    assert len(calls) == len(planned.fused), "emit: two groups have one name"
    bodies = _bodies(planned, weights, emission, (*around, Subgraph(planned, (proto,))))
    ordered = _ordered(_captured_anew(graph, bodies), planned.fused)
    nodes = tuple(spelled(_live(graph, ordered), graph))
    used = [calls[n.name] for n in nodes if n.domain == _CALL]
    for node in nodes:
        if node.domain == _CALL:
            proto.node.append(_call(calls[node.name], graph, weights, emission))
        else:
            proto.node.append(_kept(node, graph, source, bodies.get(node.name, {}), nested=bool(around)))
            weights.plain(node.reads, graph)
    weights.plain(graph.outputs, graph)
    weights.store(proto)
    emission.used.extend(used)
    _add_types(proto, used, planned)
    _add_shapes(proto.output, used, (*(h.planned for h in around), planned))


# Nodes ----------------------------------------------------------------------------------------------------------------


def _ordered(graph: Graph, fused: Sequence[Fused]) -> tuple[Node, ...]:
    """The graph's nodes in topological order, each group replaced by one placeholder."""
    owner = {n.outputs: f for f in fused for n in f.group.nodes}
    assert len(owner) == sum(len(f.group.nodes) for f in fused), "emit: a node is in two groups"
    last = {owner[n.outputs].group.name: n for n in graph.nodes if n.outputs in owner}
    out: list[Node] = []
    for node in graph.nodes:
        f = owner.get(node.outputs)
        if f is None:
            out.append(node)
        elif last[f.group.name] is node:
            reads = tuple(dict.fromkeys(p.value for p in f.kernel.inputs))
            out.append(Node(f.op, reads, tuple(p.value for p in f.kernel.outputs), name=f.group.name, domain=_CALL))
    return sorted_nodes(out, (*graph.inputs, *graph.constants))


def _live(graph: Graph, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """The nodes without dead ones, mostly shape arithmetic; custom operators are kept, since they may have effects."""
    wanted = set(graph.outputs)
    kept: list[Node] = []
    for node in reversed(nodes):
        if node.domain not in ("", "ai.onnx", _CALL) or wanted.intersection(node.outputs):
            kept.append(node)
            wanted.update(node.reads)
    return tuple(reversed(kept))


def _kept(
    node: Node, graph: Graph, source: ModelSource, bodies: Mapping[str, onnx.GraphProto], *, nested: bool
) -> onnx.NodeProto:
    """A node that stays with the runtime; `nested`: it is in a subgraph, where nodes keep the names of the model."""
    raw = node.raw if node.raw is not None else source.nodes.get(node.name)
    made = node_proto(node, graph.opset, raw)
    if nested and raw is not None:
        without(made, "name")
        made.MergeFrom(onnx.NodeProto(name=raw.name) if raw.name else onnx.NodeProto())
    for a in made.attribute:
        if a.name in bodies:
            a.g.CopyFrom(bodies[a.name])
    return made


def _call(f: Fused, graph: Graph, weights: Weights, emission: Emission) -> onnx.NodeProto:
    """The fused node of a group; its constants are stored in the layouts of the kernel's inputs."""
    inputs = [weights.packed(p, graph) if p.value in graph.constants else p.value for p in f.kernel.inputs]
    origin = f.group.origin or (f.group.name,)
    name = unique(f"{origin[0]}/{readable(f.body)}", emission.node_names)
    emission.names[f.group.nodes[0].name] = name
    node = onnx.NodeProto(op_type=f.op, domain=emission.domain, name=name, input=inputs)
    node.output.extend(p.value for p in f.kernel.outputs)
    if relies_on(f, graph, emission.repeated):
        node.attribute.append(fallback(f.body, source_of(graph).opsets))
    set_metadata(node, origin=json.dumps(origin))
    return node


def _stored(planned: Planned, value: str) -> Shape:
    """The storage shape of a value over the symbols of the model, since each kernel may have renamed its own."""
    have = planned.plan.graph.types[value]
    assert have is not None, f"emit: a kernel makes {value} of an unknown shape"
    return planned.plan.layout(value).shape(have.shape)


def _add_types(proto: onnx.GraphProto, used: Iterable[Fused], planned: Planned) -> None:
    """The value_info of kernel outputs (storage shapes), and of values of the loaded model that still exist."""
    graph, source = planned.plan.graph, planned.source
    ends = {*graph.inputs, *graph.outputs}
    ours = {p.value: p for f in used for p in f.kernel.outputs}
    made = {o for n in proto.node for o in n.output if o}
    for info in source.graph.value_info:
        if info.name in made - ours.keys() - ends:
            proto.value_info.append(info)
            fix_extents(proto.value_info[-1], graph, source)
    infos = [value_info(v, p.dtype, _stored(planned, v)) for v, p in ours.items() if v not in ends]
    proto.value_info.extend(infos)
    there = made | {*graph.inputs} | {t.name for t in proto.initializer}
    kept = [a for a in proto.quantization_annotation if a.tensor_name in there]
    del proto.quantization_annotation[:]
    proto.quantization_annotation.extend(kept)


def _add_shapes(outputs: Iterable[onnx.ValueInfoProto], used: Iterable[Fused], around: Sequence[Planned]) -> None:
    """Outputs that kernels make, and of which no shape is declared, get that which the runtime infers of operators.

    A Scan does not run without; a Loop without iterations has it in its result.
    """
    made = {p.value: p for f in used for p in f.kernel.outputs}
    unknown = _uninferred(around)
    for out in outputs:
        if out.name in made.keys() - unknown and not _has_shape(out):
            out.type.CopyFrom(value_info(out.name, made[out.name].dtype, _stored(around[-1], out.name)).type)


def _uninferred(around: Sequence[Planned]) -> set[str]:
    """The values, in a graph and those around it, that come from what a Loop carries on without a declared shape."""
    found, ops = set[str](), dict[str, str]()
    for planned in around:
        if ops.get(planned.node) == "Loop":
            found |= {v.name for v in planned.source.graph.input if not _has_shape(v)}
        for node in planned.plan.graph.nodes:
            found |= set(node.outputs) if found.intersection(node.reads) else set()
        ops = {n.name: n.op for n in planned.plan.graph.nodes}
    return found


def _has_shape(info: onnx.ValueInfoProto) -> bool:
    return bool(info.type.tensor_type.HasField("shape"))


def fix_extents(info: onnx.ValueInfoProto, graph: Graph, source: ModelSource) -> None:
    """Make dimensions that the user fixed static in a value_info: the kernels are valid for no other size."""
    have = graph.types.get(info.name)
    if not source.dims or have is None or not info.type.HasField("tensor_type"):
        return
    for dim, e in zip(info.type.tensor_type.shape.dim, have.shape, strict=False):
        if e.constant is not None:
            dim.dim_value = e.constant


# Bodies ---------------------------------------------------------------------------------------------------------------


def _bodies(
    planned: Planned, weights: Weights, emission: Emission, around: tuple[Subgraph, ...]
) -> dict[str, dict[str, onnx.GraphProto]]:
    """The subgraphs that change, by node and attribute."""
    made: dict[str, dict[str, onnx.GraphProto]] = {}
    for inner in planned.inner:
        if inner.changes:
            made.setdefault(inner.node, {})[inner.attribute] = _body(inner, weights, emission, around)
    return made


def _body(planned: Planned, weights: Weights, emission: Emission, around: tuple[Subgraph, ...]) -> onnx.GraphProto:
    """An emitted subgraph without name clashes with enclosing graphs, which its own initializers may have."""
    proto = onnx.GraphProto()
    proto.CopyFrom(planned.source.graph)
    without(proto, "node", "initializer", "sparse_initializer", "value_info")
    fill(proto, planned, weights.inner(planned.source.captured), emission, around)
    emission.subgraphs.append(Subgraph(planned, (*(h.protos[-1] for h in around), proto)))
    outer = {name for h in around for name in (*h.planned.plan.graph.types, *h.planned.plan.graph.constants)}
    made = onnx.GraphProto()
    made.CopyFrom(proto)
    rename(made, {name: unique(name, emission.taken) for name in sorted(defined(proto) & outer)})
    return made


def _captured_anew(graph: Graph, bodies: Mapping[str, Mapping[str, onnx.GraphProto]]) -> Graph:
    """The graph with the captures of nodes updated to what their new subgraphs read."""
    nodes = []
    for node in graph.nodes:
        if node.name in bodies:
            mine = bodies[node.name]
            inside = (mine.get(a.name, a.g) for a in node.raw.attribute if a.type == onnx.AttributeProto.GRAPH)
            node = replace(node, captures=tuple(sorted(set[str]().union(*map(free_names, inside)))))
        nodes.append(node)
    return graph.with_nodes(nodes)
