"""Checks nodes against the ONNX schemas. Invalid ones are left to the runtime, which rejects them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import onnx

from onnxfuse.ir.graph import Node
from onnxfuse.load.convert import ConvertedGraph


def marked(parts: ConvertedGraph, opset: int) -> None:
    """Set `Node.invalid` for nodes of the default domain whose inputs, outputs or attributes violate the schema."""
    if opset:
        parts.nodes = [_marked(n, parts.raw[n.name], opset) for n in parts.nodes]


def _marked(node: Node, raw: onnx.NodeProto, opset: int) -> Node:
    schema = _schema(node.op, opset) if node.standard else None
    said = next(_wrong(raw, schema), None) if schema is not None else None
    return node if said is None else replace(node, invalid=said)


@cache
def _schema(op: str, opset: int) -> Any:
    """The schema of an operator of the default domain; None where there is none."""
    try:
        return onnx.defs.get_schema(op, opset, "")
    except onnx.defs.SchemaError:
        return None


def _wrong(raw: onnx.NodeProto, schema: Any) -> Iterator[str]:
    """Violations of the schema by a node."""
    ends = (
        ("inputs", raw.input, schema.inputs, schema.min_input, schema.max_input),
        ("outputs", raw.output, schema.outputs, schema.min_output, schema.max_output),
    )
    for what, values, formals, least, most in ends:
        given = len(values)
        while given and not values[given - 1]:
            given -= 1
        if not least <= len(values) or given > most:
            yield f"it has {given} {what}"
        needed = [f.name for f, v in zip(formals, values, strict=False) if not v and f.option == f.option.Single]
        if what == "inputs" and needed:
            yield f"its input {needed[0]} is absent"
    known = schema.attributes
    for a in raw.attribute:
        if a.name not in known:
            yield f"it has no attribute {a.name}"
        elif not a.ref_attr_name and a.type and a.type != int(known[a.name].type):
            yield f"its attribute {a.name} has another type than in the schema"
    missing = [name for name, a in known.items() if a.required and all(b.name != name for b in raw.attribute)]
    if missing:
        yield f"its attribute {missing[0]} is missing"
