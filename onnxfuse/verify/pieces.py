"""Divides two models into pieces that correspond to each other: the nodes between values that both models name."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, ValueInfoProto, helper

from onnxfuse.errors import ModelError
from onnxfuse.runtime import feed_limits
from onnxfuse.runtime.graphs import subgraphs

ORIGIN = "onnxfuse.origin"  # metadata of a fused node or its function: a JSON list of the original nodes' names


@dataclass(frozen=True, slots=True)
class Piece:
    """Nodes of the second model, by number, between values of both models: its `inputs` and `outputs`."""

    nodes: tuple[int, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def whole(path: str) -> ModelProto:
    """A model with its external data. Raises UsageError and ModelError."""
    model = feed_limits.load_proto(Path(path))
    try:
        onnx.load_external_data_for_model(model, str(Path(path).parent))
    except (OSError, ValueError, onnx.checker.ValidationError) as problem:
        said = str(problem).splitlines()[0]
        raise ModelError(f"inputs: external data of {path} cannot be read: {said}") from None
    return model


def tapped(model: ModelProto, names: Iterable[str]) -> ModelProto:
    """The same with further outputs."""
    made = ModelProto()
    made.CopyFrom(model)
    own = {o.name for o in made.graph.output}
    made.graph.output.extend(ValueInfoProto(name=name) for name in dict.fromkeys(names) if name not in own)
    return made


def shared_names(a: GraphProto, b: GraphProto) -> set[str]:
    """Names of the values that both graphs have, weights left out."""
    constants = {t.name for t in b.initializer} | {t.name for t in a.initializer}
    first, second = ({v.name for v in g.input} | {o for n in g.node for o in n.output} for g in (a, b))
    return (first & second) - constants - {""}


def pieces(b: GraphProto, shared: Collection[str]) -> list[Piece]:
    """The smallest pieces of `b` whose inputs and outputs are `shared` values, in order; weights are not inputs."""
    maker = {o: at for at, n in enumerate(b.node) for o in n.output if o}
    read = {i for n in b.node for i in reads(n)} | {o.name for o in b.output}
    behind: list[frozenset[int]] = []  # of each node, itself and those before it that make what `a` does not name
    found = []
    for at, node in enumerate(b.node):
        mine = {at}
        for value in reads(node):
            if value in maker and value not in shared:
                mine |= behind[maker[value]]
        behind.append(frozenset(mine))
        outputs = tuple(o for o in node.output if o in shared and o in read)
        taken = dict.fromkeys(v for n in sorted(mine) for v in reads(b.node[n]) if v in shared)
        own = {o for n in mine for o in b.node[n].output}
        if outputs:
            found.append(Piece(tuple(sorted(mine)), tuple(v for v in taken if v not in own or v in outputs), outputs))
    return [p for p in found if not set(p.inputs) & set(p.outputs)]


def reads(node: NodeProto) -> list[str]:
    """All values that a node reads, its inner graphs included."""
    inner = [v for graph in subgraphs(node) for n in graph.node for v in reads(n)]
    own = {o for graph in subgraphs(node) for n in graph.node for o in n.output}
    own |= {v.name for graph in subgraphs(node) for v in (*graph.input, *graph.initializer)}
    return [v for v in (*node.input, *(v for v in inner if v not in own)) if v]


def transposed(nodes: Sequence[NodeProto], piece: Piece, layouts: Mapping[str, tuple[int, ...]]) -> list[NodeProto]:
    """The nodes of a piece between values as the first model holds them, where the second holds them in a layout."""
    other = {
        name: order for name in (*piece.inputs, *piece.outputs) if (order := layouts[name]) != tuple(sorted(order))
    }
    inside = {name: f"{name}/turned" for name in other}
    before, after, between = [], [], []
    for name, order in other.items():
        if name in piece.inputs:
            before.append(helper.make_node("Transpose", [name], [inside[name]], perm=order))
        else:
            back = [order.index(axis) for axis in range(len(order))]
            after.append(helper.make_node("Transpose", [inside[name]], [name], perm=back))
    for node in nodes:
        copy = NodeProto()
        copy.CopyFrom(node)
        copy.input[:] = [inside.get(v, v) for v in node.input]
        copy.output[:] = [inside.get(v, v) for v in node.output]
        between.append(copy)
    return [*before, *between, *after]


def origin_of(model: ModelProto, node: NodeProto) -> tuple[str, ...]:
    """The original nodes that a node stands for, as its metadata or its function's tell; else itself."""
    functions = {(f.domain, f.name): f for f in model.functions}
    for each in (node, functions.get((node.domain, node.op_type))):
        for entry in each.metadata_props if each is not None else ():
            if entry.key == ORIGIN:
                return tuple(map(str, json.loads(entry.value)))
    return (node.name or node.output[0],)


def behind(graph: GraphProto, inputs: Iterable[str], outputs: Iterable[str]) -> list[NodeProto]:
    """The nodes of a graph that make the outputs of the inputs, in their order."""
    maker = {o: at for at, n in enumerate(graph.node) for o in n.output if o}
    pending, stop, seen = list(outputs), set(inputs), set[int]()
    while pending:
        at = maker.get(pending.pop())
        if at is not None and at not in seen:
            seen.add(at)
            pending += [v for v in reads(graph.node[at]) if v not in stop]
    return [graph.node[at] for at in sorted(seen)]


def cut(
    model: ModelProto, nodes: Sequence[NodeProto], outputs: Sequence[str], values: Mapping[str, npt.NDArray[Any]]
) -> ModelProto:
    """A model of these nodes of a model alone: its inputs are what they read of `values`, its weights what else."""
    made = {o for n in nodes for o in n.output}
    wanted = dict.fromkeys(v for n in nodes for v in reads(n) if v not in made)
    weights = [t for t in model.graph.initializer if t.name in wanted]
    named = {t.name for t in weights}
    inputs = [_typed(name, values[name]) for name in wanted if name not in named and name in values]
    listed = [_typed(name, values[name]) for name in outputs]
    functions = [f for f in model.functions if f.name in _called(model, nodes)]
    graph = helper.make_graph(list(nodes), "piece", inputs, listed, initializer=weights)
    return helper.make_model(
        graph, opset_imports=list(model.opset_import), functions=functions, ir_version=model.ir_version
    )


def _called(model: ModelProto, nodes: Iterable[NodeProto]) -> set[str]:
    """Names of the functions that nodes call, and those that these call."""
    functions: dict[str, FunctionProto] = {f.name: f for f in model.functions}
    found, pending = set[str](), [n.op_type for n in nodes]
    while pending:
        name = pending.pop()
        if name in functions and name not in found:
            found.add(name)
            pending += [n.op_type for n in functions[name].node]
    return found


def _typed(name: str, value: npt.NDArray[Any]) -> Any:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype)), value.shape)
