"""Products of rows that a Loop reads one after the other, taken before the loop, all of them at once.

A recurrent layer multiplies each row of its input by the same weights: Gather(x, step) @ w. That reads all weights in
every step, while Gather(x @ w, step) reads them once for as many rows as a register tile has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx
from onnx import numpy_helper

from onnxfuse.load.inline import free_names
from onnxfuse.runtime.graphs import graphs, subgraphs

_SAME = ("Identity", "Cast")  # of a step


def multiplied_before(proto: onnx.ModelProto) -> None:
    """Take products of matrices with rows that follow each other out of the bodies of Loops, in place.

    The loop counts its steps by ones, from any number, and the matrix is an initializer outside of it. No name in a
    body may hide one of a graph around it.
    """
    taken = {name for g in graphs(proto.graph) for n in g.node for name in (*n.input, *n.output)}
    _in_graph(proto.graph, {}, taken)


def _in_graph(graph: onnx.GraphProto, outer: Mapping[str, onnx.TensorProto], taken: set[str]) -> None:
    known = {**outer, **{t.name: t for t in graph.initializer}}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        value = next((a.t for a in node.attribute if a.name == "value"), None) if node.op_type == "Constant" else None
        if value is not None and len(node.output) == 1:
            known[node.output[0]] = value
        for body in subgraphs(node):
            _in_graph(body, known, taken)
        if node.op_type == "Loop" and node.domain in ("", "ai.onnx"):
            nodes += _of_loop(node, known, taken)
        nodes.append(node)
    if len(nodes) > len(graph.node):
        kept = onnx.GraphProto(node=nodes)
        del graph.node[:]
        graph.node.extend(kept.node)


def _of_loop(node: onnx.NodeProto, known: Mapping[str, onnx.TensorProto], taken: set[str]) -> Iterator[onnx.NodeProto]:
    """The products before a loop whose rows its body looks up from then on."""
    body = next((a.g for a in node.attribute if a.name == "body"), None)
    if body is None or len(body.input) < len(node.input) or len(body.output) < len(node.input) - 1:
        return
    makers = {o: n for n in body.node for o in n.output if o}
    own = {*makers, *(v.name for v in body.input), *(t.name for t in body.initializer)}
    steps = _steps(body, makers, {**known, **{t.name: t for t in body.initializer}})
    for product in body.node:
        if product.op_type != "MatMul" or product.domain not in ("", "ai.onnx"):
            continue
        row, matrix = makers.get(product.input[0]), product.input[1]
        if row is None or matrix in own or matrix not in known or len(known[matrix].dims) != 2:
            continue
        if not _is_lookup(row) or row.input[0] in own or _source(row.input[1], makers) not in steps:
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
    """The inputs of a body that grow by one in each iteration: its number, and carried values plus one."""
    found = {body.input[0].name}
    for formal, result in zip(body.input[2:], body.output[1:], strict=False):
        maker = makers.get(_source(result.name, makers))
        if maker is not None and maker.op_type == "Add" and maker.domain in ("", "ai.onnx"):
            one, other = maker.input if _is_one(known.get(maker.input[0])) else reversed(maker.input)
            if _is_one(known.get(one)) and _source(other, makers) == formal.name:
                found.add(formal.name)
    return found


def _is_one(t: onnx.TensorProto | None) -> bool:
    """Whether a constant is the integer 1."""
    integer = t is not None and t.data_type in (onnx.TensorProto.INT32, onnx.TensorProto.INT64)
    if t is None or not integer or t.data_location == onnx.TensorProto.EXTERNAL or any(d != 1 for d in t.dims):
        return False
    return bool(numpy_helper.to_array(t).reshape(-1)[0] == 1)


def _source(name: str, makers: Mapping[str, onnx.NodeProto]) -> str:
    """The value that a value is, behind conversions."""
    while (maker := makers.get(name)) is not None and maker.op_type in _SAME and maker.domain in ("", "ai.onnx"):
        name = maker.input[0]
    return name


def _is_lookup(node: onnx.NodeProto) -> bool:
    """Whether a node gathers along the first axis."""
    along = next((a.i for a in node.attribute if a.name == "axis"), 0)
    return node.op_type == "Gather" and node.domain in ("", "ai.onnx") and along == 0 and len(node.input) == 2


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
