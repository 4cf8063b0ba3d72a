"""Checks nodes against the ONNX schemas. Invalid ones are left to the runtime, which rejects them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import onnx

from onnxfuse.ir.graph import Node
from onnxfuse.load.convert import ConvertedGraph
from onnxfuse.ops.spec import View


def marked(parts: ConvertedGraph, opset: int) -> None:
    """Set `Node.invalid` for nodes of the default domain whose inputs, outputs or attributes violate the schema."""
    if opset:
        parts.nodes = [_marked(n, parts.raw[n.name], opset) for n in parts.nodes]


def _marked(node: Node, raw: onnx.NodeProto, opset: int) -> Node:
    schema = _schema(node.op, opset) if node.standard else None
    later = _first_schemas().get(node.op) if node.standard and schema is None else None
    wrong = _wrong(raw, schema) if schema is not None else _wrong_ends(raw, later) if later is not None else iter(())
    said = next(wrong, None)
    return node if said is None else replace(node, invalid=said)


@cache
def _schema(op: str, opset: int) -> Any:
    """The schema of an operator of the default domain; None where there is none."""
    try:
        return onnx.defs.get_schema(op, opset, "")
    except onnx.defs.SchemaError:
        return None


@cache
def _first_schemas() -> dict[str, Any]:
    """The oldest schema of each operator of the default domain.

    The runtime has some before ONNX, such as LayerNormalization, and asks less of their attributes then.
    """
    found = [each for each in onnx.defs.get_all_schemas_with_history() if each.domain == "" and not each.deprecated]
    return {each.name: each for each in sorted(found, key=lambda each: -each.since_version)}


def _wrong(raw: onnx.NodeProto, schema: Any) -> Iterator[str]:
    """Violations of the schema by a node."""
    yield from _wrong_ends(raw, schema)
    known = schema.attributes
    for a in raw.attribute:
        if a.name not in known:
            yield f"it has no attribute {a.name}"
        elif not a.ref_attr_name and a.type and a.type != int(known[a.name].type):
            yield f"its attribute {a.name} has another type than in the schema"
    missing = [name for name, a in known.items() if a.required and all(b.name != name for b in raw.attribute)]
    if missing:
        yield f"its attribute {missing[0]} is missing"


def _wrong_ends(raw: onnx.NodeProto, schema: Any) -> Iterator[str]:
    """Inputs and outputs that are too many or too few."""
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


def ill_typed(view: View) -> str | None:
    """What is wrong with the element types of a node's inputs by its schema; None where nothing is, or is known."""
    node, bound = view.node, dict[str, str]()
    for at, formal in enumerate(_formals(node.op, view.opset, len(node.inputs)) if node.standard else ()):
        name = node.inputs[at]
        constant, known = view.constants.get(name), view.types.get(name)
        dtype = constant.dtype if constant is not None else known.dtype if known is not None else None
        if dtype is None or dtype.name == "sparse" or not formal.allowed:
            continue
        if dtype.onnx not in formal.allowed:
            return f"its input {formal.name} is {dtype}"
        if bound.setdefault(formal.variable, dtype.name) != dtype.name:
            return f"its input {formal.name} is {dtype}, another one {bound[formal.variable]}"
    return None


@dataclass(frozen=True, slots=True)
class _Formal:
    """An input in a schema. Those with one `variable` have one element type, of `allowed`: none if it is no tensor."""

    name: str
    variable: str
    allowed: frozenset[int]  # ONNX's numbers of them


@cache
def _formals(op: str, opset: int, inputs: int) -> tuple[_Formal, ...]:
    """What the schema of an operator says of its first inputs; of the last one as often as it is repeated."""
    schema = _schema(op, opset) if opset else None
    if schema is None or not schema.inputs:
        return ()
    given = [schema.inputs[min(at, len(schema.inputs) - 1)] for at in range(inputs)]
    return tuple(
        _Formal(f.name, f.type_str if f.is_homogeneous else f"{f.name} {at}", frozenset(map(_number, f.types)) - {0})
        for at, f in enumerate(given)
    )


@cache
def _number(name: str) -> int:
    """ONNX's number of the element type of a tensor as schemas spell it, tensor(float); 0 for other types."""
    inner = re.fullmatch(r"tensor\((\w+)\)", name)
    return int(onnx.TensorProto.DataType.Value(inner[1].upper())) if inner else 0
