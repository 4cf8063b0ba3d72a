"""The nodes of a graph as messages, each group of them as one node; the bodies that its nodes hold likewise."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx

from onnxfuse.emit.checks import check_layouts
from onnxfuse.emit.names import readable, unique
from onnxfuse.emit.planned import Fused, Planned
from onnxfuse.emit.proto import node_proto, set_metadata, value_info, without
from onnxfuse.emit.weights import Weights
from onnxfuse.ir.graph import Graph, Node, sorted_nodes
from onnxfuse.ir.layout import Shape
from onnxfuse.load.inline import defined, free_names
from onnxfuse.load.names import rename
from onnxfuse.load.source import Source
from onnxfuse.runtime.graphs import graphs

_CALL = "\0fused"  # domain of the stand-ins for groups while nodes are put in order


@dataclass(frozen=True, slots=True)
class Held:
    """A body as it was emitted, before names that clash with outer ones were changed; those that hold it come first."""

    planned: Planned
    protos: tuple[onnx.GraphProto, ...]


@dataclass(frozen=True, slots=True)
class Room:
    """What the graphs of a model share while it is emitted. `taken` are names of values, `node_names` of nodes."""

    domain: str
    taken: set[str]
    node_names: set[str] = field(default_factory=set)
    used: list[Fused] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)  # of calls, by the name of a group's first node
    held: list[Held] = field(default_factory=list)


def room_of(main: Planned, domain: str) -> Room:
    """Where the names of the model and of everything that was planned are taken."""
    room = Room(domain, set())
    for inner in graphs(main.source.proto.graph):
        room.taken.update(defined(inner))
    for planned in _everywhere(main):
        room.taken.update(planned.plan.graph.types, planned.plan.graph.constants)
        inside = {n.outputs for f in planned.fused for n in f.group.nodes}
        room.node_names.update(n.name for n in planned.plan.graph.nodes if n.outputs not in inside)
    return room


def _everywhere(planned: Planned) -> Iterator[Planned]:
    yield planned
    for inner in planned.inner:
        yield from _everywhere(inner)


def fill(proto: onnx.GraphProto, planned: Planned, weights: Weights, room: Room, around: tuple[Held, ...] = ()) -> None:
    """Put the nodes of a graph, the constants that they read and the types of its values into its message."""
    graph, source = planned.plan.graph, planned.source
    check_layouts(planned.plan, planned.fused)
    calls = {f.group.name: f for f in planned.fused}
    assert len(calls) == len(planned.fused), "emit: two groups have one name"
    bodies = _bodies(planned, weights, room, (*around, Held(planned, (proto,))))
    nodes = _live(graph, _ordered(_captured_anew(graph, bodies), planned.fused))
    used = [calls[n.name] for n in nodes if n.domain == _CALL]
    for node in nodes:
        if node.domain == _CALL:
            proto.node.append(_call(calls[node.name], graph, weights, room))
        else:
            proto.node.append(_kept(node, graph, source, bodies.get(node.name, {}), nested=bool(around)))
            weights.plain(node.reads, graph)
    weights.plain(graph.outputs, graph)
    weights.store(proto)
    room.used.extend(used)
    _add_types(proto, used, planned)


# Nodes ----------------------------------------------------------------------------------------------------------------


def _ordered(graph: Graph, fused: Sequence[Fused]) -> tuple[Node, ...]:
    """The graph's nodes in topological order, each group as one stand-in where its last node was."""
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
    """Without nodes that nothing reads any more (shape arithmetic, mostly); operators of others may have effects."""
    wanted = set(graph.outputs)
    kept: list[Node] = []
    for node in reversed(nodes):
        if node.domain not in ("", "ai.onnx", _CALL) or wanted.intersection(node.outputs):
            kept.append(node)
            wanted.update(node.reads)
    return tuple(reversed(kept))


def _kept(
    node: Node, graph: Graph, source: Source, bodies: Mapping[str, onnx.GraphProto], *, nested: bool
) -> onnx.NodeProto:
    """A node that stays with the runtime; in a body, a node of the model has the name that it had there."""
    raw = node.raw if node.raw is not None else source.nodes.get(node.name)
    made = node_proto(node, graph.opset, raw)
    if nested and raw is not None:
        without(made, "name")
        made.MergeFrom(onnx.NodeProto(name=raw.name) if raw.name else onnx.NodeProto())
    for a in made.attribute:
        if a.name in bodies:
            a.g.CopyFrom(bodies[a.name])
    return made


def _call(f: Fused, graph: Graph, weights: Weights, room: Room) -> onnx.NodeProto:
    """The node of a group; its constants are stored in the layout that the kernel wants."""
    inputs = [weights.packed(p, graph, room.taken) if p.value in graph.constants else p.value for p in f.kernel.inputs]
    origin = f.group.origin or (f.group.name,)
    name = unique(f"{origin[0]}/{readable(f.body)}", room.node_names)
    room.names[f.group.nodes[0].name] = name
    node = onnx.NodeProto(op_type=f.op, domain=room.domain, name=name, input=inputs)
    node.output.extend(p.value for p in f.kernel.outputs)
    set_metadata(node, origin=json.dumps(origin))
    return node


def _stored(planned: Planned, value: str) -> Shape:
    """The shape of a value in storage over the symbols of the model: those of kernels are each kernel's own."""
    have = planned.plan.graph.types[value]
    assert have is not None, f"emit: a kernel makes {value} of an unknown shape"
    return planned.plan.layout(value).shape(have.shape)


def _add_types(proto: onnx.GraphProto, used: Iterable[Fused], planned: Planned) -> None:
    """Types of what kernels make, in storage, and those that the model had for what is still there."""
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


def fix_extents(info: onnx.ValueInfoProto, graph: Graph, source: Source) -> None:
    """Extents to which the user gave a value say so: the kernels hold for no other."""
    have = graph.types.get(info.name)
    if not source.dims or have is None or not info.type.HasField("tensor_type"):
        return
    for dim, e in zip(info.type.tensor_type.shape.dim, have.shape, strict=False):
        if e.constant is not None:
            dim.dim_value = e.constant


# Bodies ---------------------------------------------------------------------------------------------------------------


def _bodies(
    planned: Planned, weights: Weights, room: Room, around: tuple[Held, ...]
) -> dict[str, dict[str, onnx.GraphProto]]:
    """By node and attribute, the bodies in which something changes."""
    made: dict[str, dict[str, onnx.GraphProto]] = {}
    for inner in planned.inner:
        if inner.changes:
            made.setdefault(inner.node, {})[inner.attribute] = _body(inner, weights, room, around)
    return made


def _body(planned: Planned, weights: Weights, room: Room, around: tuple[Held, ...]) -> onnx.GraphProto:
    """A body whose names are none of those around it: what it stores itself may have an outer name."""
    proto = onnx.GraphProto()
    proto.CopyFrom(planned.source.graph)
    without(proto, "node", "initializer", "sparse_initializer", "value_info")
    fill(proto, planned, weights.inner(planned.source.captured), room, around)
    room.held.append(Held(planned, (*(h.protos[-1] for h in around), proto)))
    outer = {name for h in around for name in (*h.planned.plan.graph.types, *h.planned.plan.graph.constants)}
    made = onnx.GraphProto()
    made.CopyFrom(proto)
    rename(made, {name: unique(name, room.taken) for name in sorted(defined(proto) & outer)})
    return made


def _captured_anew(graph: Graph, bodies: Mapping[str, Mapping[str, onnx.GraphProto]]) -> Graph:
    """The graph whose nodes capture what their new bodies read."""
    nodes = []
    for node in graph.nodes:
        if node.name in bodies:
            mine = bodies[node.name]
            inside = (mine.get(a.name, a.g) for a in node.raw.attribute if a.type == onnx.AttributeProto.GRAPH)
            node = replace(node, captures=tuple(sorted(set[str]().union(*map(free_names, inside)))))
        nodes.append(node)
    return graph.with_nodes(nodes)
