"""Converts a GraphProto to nodes and constants, and checks that names are defined once and there is no cycle."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx

from onnxfuse.errors import ModelError
from onnxfuse.ir.dtype import F32, I64
from onnxfuse.ir.graph import Attribute, Constant, Node, sorted_nodes
from onnxfuse.load.inline import free_names
from onnxfuse.load.tensors import Payloads, constant, sparse_constant
from onnxfuse.runtime.graphs import subgraphs

_KIND = onnx.AttributeProto
_IR_WITH_OVERRIDABLE = 4  # earlier versions list every initializer as an input, and none can be overridden


class _Opaque(Exception):
    """Control flow: an attribute cannot be represented as an `Attribute`."""


@dataclass(slots=True)
class ConvertedGraph:
    """A graph under conversion. `raw` has every NodeProto by the name of its `Node`."""

    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, Constant] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    overridable: list[str] = field(default_factory=list)
    raw: dict[str, onnx.NodeProto] = field(default_factory=dict)


def convert(
    graph: onnx.GraphProto,
    ir_version: int,
    payloads: Payloads,
    outer: Mapping[str, Constant] | None = None,
    path: str = "",
) -> ConvertedGraph:
    """Nodes in topological order, constants and inputs of a graph. Raises ModelError.

    For the body of a control flow node, `outer` are the constants of the graphs around it; those that it reads become
    its constants, and other captured values are appended to its inputs. `path` is the prefix of its nodes' names.
    """
    parts = ConvertedGraph()
    stored = {t.name: t for t in graph.initializer}
    fixed = ir_version < _IR_WITH_OVERRIDABLE
    listed = {v.name for v in graph.input}
    parts.inputs = [v.name for v in graph.input if not (fixed and v.name in stored)]
    parts.overridable = [] if fixed else [name for name in stored if name in listed]
    for name, tensor in stored.items():
        made = constant(tensor, payloads)  # overridable ones are checked too
        if fixed or name not in listed:
            parts.constants[name] = made
    parts.constants.update((t.values.name, sparse_constant(t)) for t in graph.sparse_initializer)
    if outer is not None:
        read = sorted(free_names(graph))
        parts.constants.update((name, outer[name]) for name in read if name in outer)
        parts.inputs += [name for name in read if name not in outer]
    names = _unique_names(graph.node)
    for raw, name in zip(graph.node, names, strict=True):
        _add_node(parts, raw, path + name, payloads)
    _check(parts, [o.name for o in graph.output])
    return parts


def names_in(graph: onnx.GraphProto, path: str) -> Iterator[str]:
    """The names that the nodes of a body have, and those of bodies inside it."""
    for raw, name in zip(graph.node, _unique_names(graph.node), strict=True):
        yield path + name
        for a in raw.attribute:
            inside = (a.g,) if a.type == _KIND.GRAPH else a.graphs
            for number, inner in enumerate(inside):
                yield from names_in(inner, f"{path}{name}/{a.name}/" + (f"{number}/" if a.type == _KIND.GRAPHS else ""))


def _unique_names(nodes: Iterable[onnx.NodeProto]) -> list[str]:
    """The names of the nodes; `OP_K` for those without, and with a suffix for duplicates."""
    nodes = list(nodes)
    taken = {n.name for n in nodes}
    seen: set[str] = set()
    count: dict[str, int] = {}
    out: list[str] = []
    for n in nodes:
        name, stem = n.name, n.name or n.op_type
        while not name or name in seen or (name != n.name and name in taken):
            name = f"{stem}_{count.get(stem, 0)}"
            count[stem] = count.get(stem, 0) + 1
        seen.add(name)
        out.append(name)
    return out


def _add_node(parts: ConvertedGraph, raw: onnx.NodeProto, name: str, payloads: Payloads) -> None:
    if raw.op_type == "Constant" and raw.domain in ("", "ai.onnx") and len(raw.output) == 1:
        made = _constant_node(raw, payloads)
        if made is not None and raw.output[0] not in (*parts.constants, *parts.inputs):
            parts.constants[raw.output[0]] = made
            return
    attrs: dict[str, Attribute] = {}
    opaque = False
    for a in raw.attribute:
        try:
            attrs[a.name] = attribute(a, payloads)
        except _Opaque:
            opaque = True
    captures: set[str] = set()
    for inner in subgraphs(raw):
        captures |= free_names(inner)
    parts.raw[name] = raw
    parts.nodes.append(
        Node(
            op=raw.op_type,
            inputs=tuple(raw.input),
            outputs=tuple(raw.output),
            attrs=attrs,
            name=name,
            domain="" if raw.domain == "ai.onnx" else raw.domain,
            origin=(name,),
            captures=tuple(sorted(captures)),
            raw=raw if opaque else None,
        )
    )


def attribute(a: onnx.AttributeProto, payloads: Payloads) -> Attribute:
    """An attribute as a Python value. Raises _Opaque for graphs, types, sparse tensors and lists of tensors."""
    if a.ref_attr_name:
        raise _Opaque
    if a.type == _KIND.INT:
        return a.i
    if a.type == _KIND.FLOAT:
        return a.f
    if a.type == _KIND.INTS:
        return tuple(a.ints)
    if a.type == _KIND.FLOATS:
        return tuple(a.floats)
    if a.type == _KIND.TENSOR:
        return constant(a.t, payloads)
    try:
        if a.type == _KIND.STRING:
            return a.s.decode()
        if a.type == _KIND.STRINGS:
            return tuple(s.decode() for s in a.strings)
    except UnicodeDecodeError:
        raise _Opaque from None
    raise _Opaque


def _constant_node(raw: onnx.NodeProto, payloads: Payloads) -> Constant | None:
    """The value of a Constant node; None for strings and sparse tensors."""
    for a in raw.attribute:
        if a.ref_attr_name:
            return None
        if a.name == "value" and a.type == _KIND.TENSOR:
            return constant(a.t, payloads)
        if a.name in ("value_int", "value_ints"):
            return Constant.of(np.array(a.i if a.name == "value_int" else a.ints, np.int64), I64)
        if a.name in ("value_float", "value_floats"):
            return Constant.of(np.array(a.f if a.name == "value_float" else a.floats, np.float32), F32)
    return None


def _check(parts: ConvertedGraph, outputs: list[str]) -> None:
    """Sort the nodes topologically. Raises ModelError for undefined or duplicate names, and cycles."""
    available = {*parts.inputs, *parts.constants}
    made: dict[str, str] = {}
    for n in parts.nodes:
        for o in n.outputs:
            if o and (o in made or o in available):
                first = f"by {made[o]} and" if o in made else "as an input or initializer and"
                raise ModelError(f"load: the value {o} is defined twice, {first} by {n.name}", hint="rename one")
            made[o] = n.name
    known = available | made.keys()
    for n in parts.nodes:
        for i in n.reads:
            if i not in known:
                raise ModelError(f"load: {n.op} {n.name} reads {i}, which is not defined", hint=_near(i, known))
    for o in outputs:
        if o not in known:
            raise ModelError(f"load: the output {o} is not defined", hint=_near(o, known))
    try:
        parts.nodes = list(sorted_nodes(parts.nodes, available))
    except ValueError:
        raise ModelError(f"load: the graph has a cycle: {_cycle(parts.nodes, made)}", hint="export it again") from None


def _near(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, 3)
    return f"near: {', '.join(near)}" if near else "the model is not valid ONNX; export it again"


def _cycle(nodes: Iterable[Node], made: Mapping[str, str]) -> str:
    """The names of the nodes of a cycle."""
    waits = {n.name: sorted({made[i] for i in n.reads if i in made}) for n in nodes}
    changed = True
    while changed:  # remove nodes that wait for no remaining node
        done = [name for name, on in waits.items() if not any(o in waits for o in on)]
        changed = bool(done)
        for name in done:
            del waits[name]
    at, path = next(iter(waits)), list[str]()
    while at not in path:
        path.append(at)
        at = next(o for o in waits[at] if o in waits)
    return " -> ".join([*path[path.index(at) :], at])
