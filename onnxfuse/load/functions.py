"""Function bodies from the ONNX schemas, for operators without a row.

A body is a graph attached to the node, which itself stays unchanged; its definitions are composed of those of the body.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import onnx
from onnx import helper

from onnxfuse.errors import OnnxFuseError
from onnxfuse.ir.extents import expanded
from onnxfuse.ir.graph import Constant, Graph, Node, TensorType
from onnxfuse.ir.index import Index, symbols_of
from onnxfuse.load.convert import convert
from onnxfuse.load.dims import Names
from onnxfuse.load.infer import NodeInference, type_proto
from onnxfuse.load.sequences import Around
from onnxfuse.load.setting import Setting
from onnxfuse.load.shapes import propagate
from onnxfuse.load.tensors import Payloads
from onnxfuse.ops.rows import ROWS
from onnxfuse.runtime.graphs import subgraphs

_DEEPEST = 3  # deepest nesting of bodies


def with_bodies(graph: Graph, raw: Mapping[str, onnx.NodeProto], depth: int = 0) -> Graph:
    """The graph with bodies for nodes of the default domain whose operator has a function body and no row.

    Names inside a body are unique in the graph; its inputs are those of the schema.
    """
    if not graph.opset or depth == _DEEPEST:
        return graph
    nodes = tuple(replace(n, body=body_of(graph, n, raw, depth)) if _lacks_row(graph, n) else n for n in graph.nodes)
    return graph.with_nodes(nodes)


@dataclass(eq=False, slots=True)
class Inside:
    """What the function bodies of the nodes of a graph tell of the types of their results.

    ONNX inference of an operator may leave extents open that its body has: those of caches that become longer, or of
    shapes that are computed. Remembered for equal inputs.
    """

    raw: Mapping[str, onnx.NodeProto]
    _found: dict[tuple[object, ...], Mapping[str, TensorType]] = field(default_factory=dict)

    def __call__(self, node: Node, around: Around) -> Mapping[str, TensorType]:
        """The types of the results of a node, by their names: those whose extents all follow from its inputs."""
        about = (node.name, *((around.types.get(v), around.known.get(v)) for v in node.inputs))
        if about not in self._found:
            self._found[about] = self._told(node, around)
        return self._found[about]

    def _told(self, node: Node, around: Around) -> Mapping[str, TensorType]:
        graph = Graph((), (), (), around.types, around.constants, around.known, around.opset)
        body = body_of(graph, node, self.raw, 0) if _lacks_row(graph, node) else None
        if body is None:
            return {}
        given = [e for v in node.inputs for e in (*_extents(around.types.get(v)), *around.known.get(v, ()))]
        read = frozenset(chain.from_iterable(symbols_of(expanded(e)) for e in given))
        made = zip(filter(None, node.outputs), map(body.types.get, body.outputs), strict=False)
        return {o: t for o, t in made if t is not None and all(symbols_of(expanded(e)) <= read for e in _extents(t))}


def _extents(t: TensorType | None) -> tuple[Index, ...]:
    return t.shape if t is not None else ()


def _lacks_row(graph: Graph, node: Node) -> bool:
    return node.standard and node.raw is None and not node.captures and ROWS.find(node, graph.opset) is None


def body_of(graph: Graph, node: Node, raw: Mapping[str, onnx.NodeProto], depth: int) -> Graph | None:
    """The body of a node, typed for its inputs; None if its schema has none for this opset."""
    types = [graph.types.get(v) if v else None for v in node.inputs]
    if any(v and t is None for v, t in zip(node.inputs, types, strict=True)) or node.name not in raw:
        return None
    found = _function(raw[node.name], types, graph.opset)
    if found is None:
        return None
    function, opset = found
    formal = dict(zip(function.input, types, strict=False))
    held = {
        name: graph.constants[v] for name, v in zip(function.input, node.inputs, strict=False) if v in graph.constants
    }
    known = {
        name: graph.known[v]
        for name, v in zip(function.input, node.inputs, strict=False)
        if v in graph.known and name not in held
    }
    try:
        return _graph(function, opset, formal, held, known, node, depth)
    except OnnxFuseError:  # the body does not fit the node, which the runtime will report
        return None


def _function(
    call: onnx.NodeProto, types: Iterable[TensorType | None], opset: int
) -> tuple[onnx.FunctionProto, int] | None:
    """The function body of a node with attribute values substituted, and its opset; or None."""
    given = [type_proto(t, repr).SerializeToString() if t is not None else b"" for t in types]
    function = onnx.FunctionProto()
    try:
        schema: Any = onnx.defs.get_schema(call.op_type, opset, "")  # onnx declares no types for what it binds
        if schema.has_context_dependent_function:
            version = max(v for v in schema.context_dependent_function_opset_versions if v <= opset)
            text = schema.get_context_dependent_function_with_opset_version(version, call.SerializeToString(), given)
        elif schema.has_function:
            version = max(v for v in schema.function_opset_versions if v <= opset)
            text = schema.get_function_with_opset_version(version)
        else:
            return None
        function.ParseFromString(text)
    except Exception:  # C++ errors of many kinds, and versions that are all newer: there is no body
        return None
    defaults = {name: a.default_value for name, a in schema.attributes.items() if a.default_value.type}
    _fill(function.node, defaults | {a.name: a for a in call.attribute})
    return function, version


def _fill(nodes: Iterable[onnx.NodeProto], values: Mapping[str, onnx.AttributeProto]) -> None:
    """Substitute attribute references by the values of the call, in place; those without a value are removed."""
    for node in nodes:
        for inner in subgraphs(node):
            _fill(inner.node, values)
        for k in reversed(range(len(node.attribute))):
            name, wanted = node.attribute[k].name, node.attribute[k].ref_attr_name
            if wanted and wanted in values:
                node.attribute[k].CopyFrom(values[wanted])
                node.attribute[k].name = name
            elif wanted:
                del node.attribute[k]


def _graph(
    function: onnx.FunctionProto,
    opset: int,
    formal: Mapping[str, TensorType | None],
    held: Mapping[str, Constant],
    known: Mapping[str, tuple[Index, ...]],
    call: Node,
    depth: int,
) -> Graph:
    wanted = [o for o, made in zip(function.output, call.outputs, strict=False) if made]
    given = [i for i in function.input if formal.get(i) is not None]
    made = {o for n in function.node for o in n.output}
    names = {v: f"{call.outputs[0]}%{v}" for v in made} | {v: v for v in given}
    nodes = [_renamed(n, names) for n in function.node]
    outputs = [f"{call.outputs[0]}%{o}" for o in wanted]
    ins, outs = ([helper.make_empty_tensor_value_info(v) for v in names] for names in (given, outputs))
    proto = helper.make_graph(nodes, function.name, ins, outs)
    parts = convert(proto, onnx.IR_VERSION, Payloads(memoryview(b""), None))
    constants = parts.constants | dict(held)
    shapes = propagate(
        Setting(
            nodes=parts.nodes,
            live={n.name for n in parts.nodes},
            inputs={i: formal[i] for i in given if i not in held},
            constants=constants,
            opset=opset,
            claimed={},
            declared={},
            inference=NodeInference(opset, parts.raw),
            names=Names(),
            known=known,
            inside=Inside(parts.raw),
        )
    )
    body = Graph(
        nodes=tuple(parts.nodes),
        inputs=tuple(function.input),
        outputs=tuple(outputs),
        types=shapes.types,
        constants=constants,
        known=shapes.known,
        opset=opset,
    )
    return with_bodies(body, parts.raw, depth + 1)


def _renamed(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    """A copy of a node with renamed values; values without a new name become absent inputs."""
    out = onnx.NodeProto()
    out.CopyFrom(node)
    out.name = ""
    out.input[:] = [names.get(v, "") for v in node.input]
    out.output[:] = [names.get(v, "") for v in node.output]
    return out
