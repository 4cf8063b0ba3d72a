"""Nodes, constants and types of the graph as ONNX protobuf messages, unchanged where the loaded model had them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx

from onnxfuse.emit.legal import schema_of
from onnxfuse.emit.spell import stored
from onnxfuse.ir.dtype import DType
from onnxfuse.ir.graph import Attribute, Constant, Node
from onnxfuse.ir.layout import Shape

_KIND = onnx.AttributeProto


def node_proto(node: Node, opset: int, raw: onnx.NodeProto | None = None) -> onnx.NodeProto:
    """A NodeProto. What did not change since `raw`, the node of the loaded model, is copied from there."""
    out = onnx.NodeProto(op_type=node.op)
    if node.domain:
        out.domain = node.domain
    before: dict[str, onnx.AttributeProto] = {}
    if raw is not None and (raw.op_type, raw.domain) == (node.op, node.domain):
        out.CopyFrom(raw)
        without(out, "input", "output", "attribute")
        before = {a.name: a for a in raw.attribute}
    if node.name:
        out.name = node.name
    out.input.extend(node.inputs)
    out.output.extend(node.outputs)
    for name in dict.fromkeys((*before, *node.attrs)):
        old = before.get(name)
        if old is not None and (node.raw is not None if name not in node.attrs else _unchanged(old, node.attrs[name])):
            out.attribute.append(old)  # also what `Attribute` cannot hold: graphs, types, lists of tensors
        elif name in node.attrs:
            out.attribute.append(attribute_proto(name, node.attrs[name], _declared(node, name, opset)))
    return out


def _unchanged(old: onnx.AttributeProto, value: Attribute) -> bool:
    if old.type == _KIND.TENSOR:
        return isinstance(value, Constant) and value.raw == old.t
    have = onnx.helper.get_attribute_value(old)
    if old.type == _KIND.STRING:
        return bool(value == have.decode(errors="replace"))
    if old.type == _KIND.STRINGS:
        return value == tuple(s.decode(errors="replace") for s in have)
    return bool(value == (tuple(have) if isinstance(value, tuple) else have))


def _declared(node: Node, name: str, opset: int) -> int:
    """The type of an attribute by the operator's schema, 0 where there is none."""
    schema = schema_of(node.op, opset) if node.standard else None
    known = schema.attributes.get(name) if schema is not None else None
    return int(known.type) if known is not None else 0


def attribute_proto(name: str, value: Attribute, kind: int = 0) -> onnx.AttributeProto:
    """An attribute of the type `kind`; 0: derived from its value."""
    if isinstance(value, Constant):
        return _KIND(name=name, type=_KIND.TENSOR, t=tensor_proto(value))
    if kind == _KIND.FLOAT and isinstance(value, int):
        value = float(value)
    if kind == _KIND.FLOATS and isinstance(value, tuple):
        value = tuple(float(v) for v in value)
    return onnx.helper.make_attribute(name, value, attr_type=kind or (_KIND.INTS if value == () else None))


def tensor_proto(constant: Constant, name: str = "") -> onnx.TensorProto:
    """A constant with its payload."""
    out = onnx.TensorProto()
    if constant.raw is not None:
        out.CopyFrom(constant.raw)
    else:
        out.dims.extend(constant.shape)
        out.data_type = constant.dtype.onnx
        out.raw_data = stored(constant.load(), constant.dtype).tobytes()
    if name:
        out.name = name
    return out


def value_info(name: str, dtype: DType, shape: Shape) -> onnx.ValueInfoProto:
    """The type of a value; symbolic extents become dim_params of their text, for a symbol the model's own name."""
    dims = [e.constant if e.constant is not None else repr(e) for e in shape]
    return onnx.helper.make_tensor_value_info(name, dtype.onnx, dims)


def without(message: Any, *fields: str) -> None:
    """Clear some fields of a message."""
    for field in fields:
        message.ClearField(field)


def tensors_in(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.TensorProto]:
    """Every tensor inside the nodes of a graph, those of inner graphs included; not its own initializers."""
    for node in graph.node:
        for a in node.attribute:
            if a.type == _KIND.TENSOR:
                yield a.t
            yield from a.tensors
            for inner in (*a.graphs, a.g) if a.type in (_KIND.GRAPH, _KIND.GRAPHS) else ():
                yield from inner.initializer
                yield from tensors_in(inner)


def set_metadata(message: Any, **values: str) -> None:
    """Set metadata entries `onnxfuse.KEY`, replacing existing ones."""
    for key, value in values.items():
        named = next((p for p in message.metadata_props if p.key == f"onnxfuse.{key}"), None)
        entry = named if named is not None else message.metadata_props.add(key=f"onnxfuse.{key}")
        entry.value = value
