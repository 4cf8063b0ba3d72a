"""Whether a node is valid in an opset: operator, attributes and element types, by the ONNX schemas."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import onnx.defs

from onnxfuse.ir.dtype import DType
from onnxfuse.ir.graph import Decision, Graph, Node

_SPELLED = {"float32": "float", "float64": "double"}


@cache
def schema_of(op: str, opset: int) -> Any:
    """The schema of an operator of the default domain in an opset, None where it is not part of it."""
    try:
        found = onnx.defs.get_schema(op, opset, "")
    except onnx.defs.SchemaError:
        return None
    return None if found.deprecated else found


def legal(node: Node, graph: Graph) -> Decision | None:
    """Why a node of the default domain is not valid in the graph's opset (E-OPSET), None where it is."""
    about = node.origin or (node.name,)
    schema = schema_of(node.op, graph.opset)
    if schema is None:
        later = _later_version(node.op, graph.opset)
        reason = f"{node.op} is not in opset {graph.opset}"
        return Decision("E-OPSET", about, reason, f"an opset of {later} or newer" if later else "")
    strange = [k for k in node.attrs if k not in schema.attributes]
    if strange:
        return Decision("E-OPSET", about, f"{node.op} has no attribute {strange[0]} in opset {graph.opset}")
    if not schema.min_input <= len(node.inputs) <= schema.max_input:
        return Decision("E-OPSET", about, f"{node.op} takes no {len(node.inputs)} inputs in opset {graph.opset}")
    bound: dict[str, DType] = {}
    for value, formal in _formals(node, schema):
        have = graph.types.get(value)
        dtype = have.dtype if have is not None else None
        if value in graph.constants:
            dtype = graph.constants[value].dtype
        if dtype is None:
            continue
        mixed = formal.is_homogeneous and bound.setdefault(formal.type_str, dtype) != dtype
        if mixed or f"tensor({_SPELLED.get(dtype.name, dtype.name)})" not in formal.types:
            what = f"{node.op} takes no {dtype.name} as {formal.name}"
            return Decision("E-OPSET", about, f"{what} in opset {graph.opset}")
    return None


def _formals(node: Node, schema: Any) -> Iterator[tuple[str, Any]]:
    """Pairs of a node's operands and formal parameters; a variadic parameter takes all that follow."""
    for values, formals in ((node.inputs, schema.inputs), (node.outputs, schema.outputs)):
        for i, value in enumerate(values):
            if value and formals:
                yield value, formals[min(i, len(formals) - 1)]


@cache
def _later_version(op: str, opset: int) -> int:
    """The first opset after this one that an operator is part of; 0 where there is none."""
    every = (s for s in onnx.defs.get_all_schemas_with_history() if s.name == op and s.domain == "")
    return min((s.since_version for s in every if s.since_version > opset and not s.deprecated), default=0)
