"""The rewritten model: fused groups as nodes of a domain of their own, each with a function body that always runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import onnx

from onnxfuse.emit.body import Body
from onnxfuse.emit.names import readable, unique
from onnxfuse.emit.proto import node_proto, set_metadata, value_info, without
from onnxfuse.emit.weights import Weight, Weights
from onnxfuse.ir.dtype import DType
from onnxfuse.ir.graph import Graph, Node, sorted_nodes
from onnxfuse.ir.group import Group, Plan
from onnxfuse.ir.kernel import Kernel
from onnxfuse.ir.layout import PLAIN, Layout
from onnxfuse.load.inline import defined, graphs
from onnxfuse.load.source import Source
from onnxfuse.load.wire import Buffer, slim

_IR_WITH_FUNCTIONS = 8
_CALL = "\0fused"  # domain of the stand-ins for groups while nodes are put in order


@dataclass(frozen=True, slots=True)
class Fused:
    """A group that became a kernel: what it computes, how it is called, and what `identity` named it."""

    group: Group
    kernel: Kernel
    body: Body
    op: str


@dataclass(frozen=True, slots=True)
class Library:
    """What the model says about its kernels; `path` and `manifest` are relative to the model."""

    domain: str
    path: str
    sha256: str
    manifest: str


@dataclass(frozen=True, slots=True, eq=False)
class Emitted:
    """A model to be written: `proto` with stubs for payloads, which `blob` gives by their key.

    `weights` are those that may lie outside the file; `exact` are the model's bytes when it is an unchanged copy.
    """

    proto: onnx.ModelProto
    weights: tuple[Weight, ...]
    blob: Callable[[str], Buffer]
    was_external: bool
    exact: memoryview | None = None

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        return sum(w.bytes for w in self.weights)


def emit(plan: Plan, fused: Sequence[Fused], library: Library) -> Emitted:
    """The model in which every group of `fused` is one node; groups of the plan that are not there stay as they are."""
    graph = plan.graph
    source: Source = graph.source
    _check_layouts(plan, fused)
    calls = {f.group.name: f for f in fused}
    assert len(calls) == len(fused), "emit: two groups have one name"
    nodes = _live(graph, _ordered(graph, fused))
    used = [calls[n.name] for n in nodes if n.domain == _CALL]
    proto = _frame(source, graph)
    weights = Weights(source)
    taken = _names(source, graph)
    node_names = {n.name for n in nodes if n.domain != _CALL}
    for node in nodes:
        if node.domain == _CALL:
            proto.graph.node.append(_call(calls[node.name], library.domain, graph, weights, taken, node_names))
        else:
            raw = node.raw if node.raw is not None else source.nodes.get(node.name)
            proto.graph.node.append(node_proto(node, graph.opset, raw))
            weights.plain(node.reads, graph)
    weights.plain(graph.outputs, graph)
    weights.store(proto.graph)
    for function in proto.functions:
        weights.take(function)
    _add_types(proto, used, graph, source)
    _add_functions(proto, used, library.domain)
    if used:
        proto.ir_version = max(proto.ir_version, _IR_WITH_FUNCTIONS)
        proto.opset_import.add(domain=library.domain, version=1)
        if "" not in source.opsets:  # what is used of it means the same in this opset
            proto.opset_import.add(domain="", version=graph.opset)
        set_metadata(proto, library=library.path, library_sha256=library.sha256, manifest=library.manifest)
    check(proto)
    return Emitted(proto, weights.large, weights.blob, bool(source.external))


def copied(source: Source) -> Emitted:
    """The loaded model as it was, for when nothing is to be done to it."""
    proto = onnx.ModelProto.FromString(slim(source.data))
    weights = Weights(source)
    for part in (proto.graph, *proto.functions):
        weights.take(part)
    return Emitted(proto, weights.large, weights.blob, weights.moved, None if weights.moved else source.data)


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


def _call(
    f: Fused, domain: str, graph: Graph, weights: Weights, taken: set[str], node_names: set[str]
) -> onnx.NodeProto:
    """The node of a group; its constants are stored in the layout that the kernel wants."""
    inputs = [weights.packed(p, graph, taken) if p.value in graph.constants else p.value for p in f.kernel.inputs]
    origin = f.group.origin or (f.group.name,)
    name = unique(f"{origin[0]}/{readable(f.body)}", node_names)
    node = onnx.NodeProto(op_type=f.op, domain=domain, name=name, input=inputs)
    node.output.extend(p.value for p in f.kernel.outputs)
    set_metadata(node, origin=json.dumps(origin))
    return node


def _add_functions(proto: onnx.ModelProto, used: Iterable[Fused], domain: str) -> None:
    """One function per operator; groups that share it are all named in its metadata."""
    versions = {o.domain: o.version for o in proto.opset_import}
    users: dict[str, list[Fused]] = {}
    for f in used:
        users.setdefault(f.op, []).append(f)
    for op, sharing in users.items():
        body = sharing[0].body
        assert all(f.body.text == body.text for f in sharing), f"emit: {op} names two functions"
        function = proto.functions.add(name=op, domain=domain, input=body.inputs, output=body.outputs)
        for other in dict.fromkeys(["", *sorted({n.domain for n in body.nodes if not n.standard})]):
            function.opset_import.add(domain=other, version=versions.get(other, 1) if other else body.opset)
        function.node.extend(node_proto(n, body.opset) for n in body.nodes)
        set_metadata(function, origin=json.dumps([o for f in sharing for o in f.group.origin]))


# The rest of the model ------------------------------------------------------------------------------------------------


def _frame(source: Source, graph: Graph) -> onnx.ModelProto:
    """The loaded model without nodes, types and initializers, but those that are inputs too."""
    proto = onnx.ModelProto()
    proto.CopyFrom(source.proto)
    without(proto.graph, "node", "initializer", "sparse_initializer", "value_info", "input")
    kept = set(source.overridable)
    proto.graph.initializer.extend(t for t in source.proto.graph.initializer if t.name in kept)
    inputs = {v.name: v for v in source.proto.graph.input}
    proto.graph.input.extend(inputs[name] for name in graph.inputs)
    for info in (*proto.graph.input, *proto.graph.output):
        _fix_extents(info, graph, source)
    return proto


def _fix_extents(info: onnx.ValueInfoProto, graph: Graph, source: Source) -> None:
    """Extents to which the user gave a value say so: the kernels hold for no other."""
    have = graph.types.get(info.name)
    if not source.dims or have is None or not info.type.HasField("tensor_type"):
        return
    for dim, e in zip(info.type.tensor_type.shape.dim, have.shape, strict=False):
        if e.constant is not None:
            dim.dim_value = e.constant


def _add_types(proto: onnx.ModelProto, used: Iterable[Fused], graph: Graph, source: Source) -> None:
    """Types of what kernels make, in storage, and those that the model had for what is still there."""
    ends = {*graph.inputs, *graph.outputs}
    ours = {p.value: p for f in used for p in f.kernel.outputs}
    made = {o for n in proto.graph.node for o in n.output if o}
    for info in source.proto.graph.value_info:
        if info.name in made - ours.keys() - ends:
            proto.graph.value_info.append(info)
            _fix_extents(proto.graph.value_info[-1], graph, source)
    infos = [value_info(p.value, p.dtype, p.storage) for p in ours.values() if p.value not in ends]
    proto.graph.value_info.extend(infos)
    there = made | {*graph.inputs} | {t.name for t in proto.graph.initializer}
    kept = [a for a in proto.graph.quantization_annotation if a.tensor_name in there]
    del proto.graph.quantization_annotation[:]
    proto.graph.quantization_annotation.extend(kept)


def _names(source: Source, graph: Graph) -> set[str]:
    """Every value name in the model, inner graphs included."""
    taken = {*graph.types, *graph.constants}
    for inner in graphs(source.proto.graph):
        taken |= defined(inner)
    return taken


# Promises -------------------------------------------------------------------------------------------------------------


def _check_layouts(plan: Plan, fused: Iterable[Fused]) -> None:
    """A value is read as it was made, and is plain wherever the runtime or the model's boundary touches it."""
    graph = plan.graph
    made: dict[str, tuple[Layout, DType]] = {p.value: (p.layout, p.dtype) for f in fused for p in f.kernel.outputs}
    inside = {n.outputs for f in fused for n in f.group.nodes}
    for value, (layout, _) in made.items():
        assert layout == plan.layout(value), f"emit: {value} is not made in the layout of the plan"
    for p in (p for f in fused for p in f.kernel.inputs if p.value not in graph.constants):
        have = made.get(p.value)
        assert (have or (PLAIN,))[0] == p.layout, f"emit: {p.value} is read in another layout than it is made in"
        assert have is None or have[1] == p.dtype, f"emit: {p.value} is read as {p.dtype} but made as {have[1]}"
    touched = {v for n in graph.nodes if n.outputs not in inside for v in n.reads} | {*graph.outputs}
    for value in touched & made.keys():
        have_type = graph.types[value]
        plain = (PLAIN, have_type.dtype if have_type is not None else None)
        assert made[value] == plain, f"emit: {value} is left to the runtime but not plain"


def check(proto: onnx.ModelProto) -> None:
    """Assert what a reader relies on: order, single assignment, functions that fit their calls. Cheap on any model."""
    functions = {(f.domain, f.name): f for f in proto.functions}
    assert len(functions) == len(proto.functions), "emit: a function is defined twice"
    imported = {o.domain for o in proto.opset_import}
    graph = proto.graph
    seen = {v.name for v in graph.input} | {t.name for t in graph.initializer} | {""}
    seen |= {t.values.name for t in graph.sparse_initializer}
    for node in graph.node:
        missing = [i for i in node.input if i not in seen]
        assert not missing, f"emit: {node.op_type} {node.name} reads {missing[0]} before it is made"
        again = [o for o in node.output if o and o in seen]
        assert not again, f"emit: {again[0]} is made twice"
        seen.update(node.output)
        f = functions.get((node.domain, node.op_type))
        if f is not None and node.domain.startswith("onnxfuse."):
            fits = len(node.input) == len(f.input) and len(node.output) == len(f.output)
            assert fits and node.domain in imported, f"emit: {node.name} does not fit its function"
    for f in proto.functions:
        inner = {*f.input, ""}
        for node in f.node:
            assert inner.issuperset(node.input), f"emit: the body of {f.name} reads what is not there"
            inner.update(node.output)
        assert inner.issuperset(f.output), f"emit: the body of {f.name} does not make an output"
    absent = [o.name for o in graph.output if o.name not in seen]
    assert not absent, f"emit: nothing makes the output {absent[0]}"
