"""What leaves the bodies of Loops and Scans: carried values that never change, and products of rows known before.

Exporters of TensorFlow carry all that a body reads: weights, too, which are constants once they come from outside. The
runtime copies such a value in every iteration. A recurrent layer multiplies each row of its input by the same weights:
Gather(x, step) @ w. That reads all weights in every step, while Gather(x @ w, step) reads them once for as many rows
as a register tile has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import onnx
from onnx import numpy_helper

from onnxfuse.load.inline import free_names
from onnxfuse.load.names import rename_here
from onnxfuse.runtime.graphs import graphs, put_nodes, subgraphs

_FREE_OF_STATES = 11  # the opset from which on a Loop needs no carried value
_SAME = ("Identity", "Cast")  # of a step


class _Places(NamedTuple):
    """Where the carried values of a node begin: in its inputs, and in the inputs and outputs of its body."""

    given: int
    formal: int
    next: int


_PLACES = {"Loop": _Places(2, 2, 1), "Scan": _Places(0, 0, 0)}


def uncarried(proto: onnx.ModelProto, opset: int) -> None:
    """Take values that no iteration changes out of those carried, in place; what comes out is what was given.

    No name in a body may hide one of a graph around it. Of a node without any other result one value stays.
    """
    _in_graph(proto.graph, opset)


def _in_graph(graph: onnx.GraphProto, opset: int) -> None:
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        for body in subgraphs(node):  # first: what passes through an inner loop may be what an outer one never changes
            _in_graph(body, opset)
        nodes.append(node)
        if node.op_type in _PLACES and node.domain in ("", "ai.onnx"):
            nodes += _of_node(node, opset)
    if len(nodes) > len(graph.node):
        put_nodes(graph, nodes)


def _of_node(node: onnx.NodeProto, opset: int) -> Iterator[onnx.NodeProto]:
    """Identities for those results of a node that are what it was given; it has them no longer."""
    body, at = next((a.g for a in node.attribute if a.name == "body"), None), _PLACES[node.op_type]
    count = _count(node, body, at) if body is not None else 0
    if body is None or not count:
        return
    fixed = [k for k in range(count) if _is_fixed(body, body.input[at.formal + k].name, at.next + k)]
    if len(fixed) == count and (len(body.output) == count + at.next or opset < _FREE_OF_STATES):
        fixed = fixed[1:]
    for k in reversed(fixed):
        given = node.input[at.given + k]
        rename_here(body, {body.input[at.formal + k].name: given})
        del node.input[at.given + k], body.input[at.formal + k], body.output[at.next + k]
        if k < len(node.output):
            if node.output[k]:
                yield onnx.helper.make_node("Identity", [given], [node.output[k]], name=f"{node.output[k]}/given")
            del node.output[k]


def _count(node: onnx.NodeProto, body: onnx.GraphProto, at: _Places) -> int:
    """The number of carried values; 0 where node and body do not match."""
    sequences = next((a.i for a in node.attribute if a.name == "num_scan_inputs"), 0)
    count, names = len(node.input) - at.given - sequences, {v.name for v in body.input}
    matches = len(names) == len(body.input) == at.formal + count + sequences and len(body.output) >= at.next + count
    return count if matches and sequences >= 0 and count > 0 and all(node.input[at.given : at.given + count]) else 0


def _is_fixed(body: onnx.GraphProto, name: str, output: int) -> bool:
    """Whether an output of a body is this input of it, and neither is another output."""
    makers = {o: n for n in body.node for o in n.output}
    if name in makers or any(t.name == name for t in body.initializer):
        return False  # not valid, or a default that the runtime may take
    found = last = body.output[output].name
    while found != name:
        maker = makers.pop(found, None)
        if maker is None or maker.op_type != "Identity" or maker.domain not in ("", "ai.onnx") or not maker.input:
            return False
        found = maker.input[0]
    return not {name, last}.intersection(o.name for k, o in enumerate(body.output) if k != output)


def multiplied_before(proto: onnx.ModelProto) -> None:
    """Take products of matrices with rows that follow each other out of the bodies of Loops, in place.

    The loop counts its steps by ones, from any number, and the matrix is an initializer outside of it. The rows are
    not: a table has as many as any loop may need. No name in a body may hide one of a graph around it.
    """
    taken = {name for g in graphs(proto.graph) for n in g.node for name in (*n.input, *n.output)}
    _with_products(proto.graph, {}, taken)


def _with_products(graph: onnx.GraphProto, outer: Mapping[str, onnx.TensorProto], taken: set[str]) -> None:
    known = {**outer, **{t.name: t for t in graph.initializer}}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        value = next((a.t for a in node.attribute if a.name == "value"), None) if node.op_type == "Constant" else None
        if value is not None and len(node.output) == 1:
            known[node.output[0]] = value
        for body in subgraphs(node):
            _with_products(body, known, taken)
        if node.op_type == "Loop" and node.domain in ("", "ai.onnx"):
            nodes += _of_loop(node, known, taken)
        nodes.append(node)
    if len(nodes) > len(graph.node):
        put_nodes(graph, nodes)


def _of_loop(node: onnx.NodeProto, known: Mapping[str, onnx.TensorProto], taken: set[str]) -> Iterator[onnx.NodeProto]:
    """The products before a loop whose rows its body looks up from then on."""
    body = next((a.g for a in node.attribute if a.name == "body"), None)
    if body is None or not body.input or len(body.input) < len(node.input) or len(body.output) < len(node.input) - 1:
        return
    makers = {o: n for n in body.node for o in n.output if o}
    own = {*makers, *(v.name for v in body.input), *(t.name for t in body.initializer)}
    steps = _steps(body, makers, {**known, **{t.name: t for t in body.initializer}})
    for product in body.node:
        if not _is(product, "MatMul", inputs=2):
            continue
        row, matrix = makers.get(product.input[0]), product.input[1]
        if row is None or matrix in own or matrix not in known or not _has_rows(known[matrix]):
            continue
        if not _is_lookup(row) or row.input[0] in own | known.keys() or _source(row.input[1], makers) not in steps:
            continue
        made = _unused(f"{product.output[0]}/rows", taken)
        yield onnx.helper.make_node("MatMul", [row.input[0], matrix], [made], name=made)
        product.CopyFrom(
            onnx.helper.make_node("Gather", [made, row.input[1]], product.output, name=product.name, axis=0)
        )
        _without(body, row)


def _steps(
    body: onnx.GraphProto, makers: Mapping[str, onnx.NodeProto], known: Mapping[str, onnx.TensorProto]
) -> set[str]:
    """The numbers among a body's inputs that grow by one in each iteration: its own, and carried ones plus one."""
    found = {body.input[0].name}
    for formal, result in zip(body.input[2:], body.output[1:], strict=False):
        maker = makers.get(_source(result.name, makers))
        if maker is not None and _is(maker, "Add", inputs=2) and _is_number(formal):
            one, other = maker.input if _is_one(known.get(maker.input[0])) else reversed(maker.input)
            if _is_one(known.get(one)) and _source(other, makers) == formal.name:
                found.add(formal.name)
    return found


def _has_rows(t: onnx.TensorProto) -> bool:
    """Whether a constant is a matrix of more than one row: what is multiplied by it, by one number of it, is a row."""
    return len(t.dims) == 2 and t.dims[0] > 1


def _is_number(v: onnx.ValueInfoProto) -> bool:
    """Whether a value is declared to have one element."""
    declared = v.type.tensor_type
    return declared.HasField("shape") and all(d.dim_value == 1 for d in declared.shape.dim)


def _is_one(t: onnx.TensorProto | None) -> bool:
    """Whether a constant is the integer 1."""
    integer = t is not None and t.data_type in (onnx.TensorProto.INT32, onnx.TensorProto.INT64)
    if t is None or not integer or t.data_location == onnx.TensorProto.EXTERNAL or any(d != 1 for d in t.dims):
        return False
    return bool(numpy_helper.to_array(t).reshape(-1)[0] == 1)


def _source(name: str, makers: Mapping[str, onnx.NodeProto]) -> str:
    """The value that a value is, behind conversions; itself where they go round in a circle."""
    met, found = {name}, name
    while (maker := makers.get(found)) is not None and _is(maker, *_SAME, inputs=1):
        found = maker.input[0]
        if found in met:
            return name
        met.add(found)
    return found


def _is_lookup(node: onnx.NodeProto) -> bool:
    """Whether a node gathers along the first axis."""
    return _is(node, "Gather", inputs=2) and next((a.i for a in node.attribute if a.name == "axis"), 0) == 0


def _is(node: onnx.NodeProto, *operators: str, inputs: int) -> bool:
    """Whether a node calls one of these operators of ONNX with so many inputs."""
    return node.op_type in operators and node.domain in ("", "ai.onnx") and len(node.input) == inputs


def _unused(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "'"
    taken.add(name)
    return name


def _without(body: onnx.GraphProto, node: onnx.NodeProto) -> None:
    """Remove a node from a body that reads its result no longer."""
    made = node.output[0]
    read = any(made in (*n.input, *(f for g in subgraphs(n) for f in free_names(g))) for n in body.node)
    if not read and all(o.name != made for o in body.output):
        body.node.remove(node)
