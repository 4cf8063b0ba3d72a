"""Biases of products as additions of their own, where the runtime's product would take a kernel more for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from onnxfuse.ir.graph import Constant, Graph, Node, TensorType
from onnxfuse.ir.index import Index

_WITHOUT_BIAS: Mapping[str, int] = {"Gemm": 11, "Conv": 1}  # the opset since which an operator needs none


def biases_apart(graph: Graph) -> Graph:
    """The graph with the bias of each Gemm and Conv added by a node behind it, which joins the kernel that reads it.

    ONNX Runtime's CUDA provider has a kernel for the bias alone: that of a Gemm is copied into the result before, that
    of a convolution is added behind. Where no kernel takes the addition in, there are still two.
    """
    types: dict[str, TensorType | None] = dict(graph.types)
    constants: dict[str, Constant] = dict(graph.constants)
    nodes: list[Node] = []
    for n in graph.nodes:
        made = f"{n.outputs[0]}/unbiased" if n.outputs else ""
        bias = _added(n, graph)
        if not bias or made in types or (bias in graph.types and bias != n.inputs[2]):
            nodes.append(n)
            continue
        if bias not in types:
            constants[bias], types[bias] = _of_channels(n, graph)
        types[made] = types[n.outputs[0]]
        nodes.append(replace(n, inputs=n.inputs[:2], outputs=(made,)))
        added = replace(n, op="Add", inputs=(made, bias), attrs={}, name=f"{n.name}/bias")
        nodes.append(added)
    if len(nodes) == len(graph.nodes):
        return graph
    return graph.with_nodes(nodes, types=types, constants=constants)


def _added(n: Node, graph: Graph) -> str:
    """The value that an Add behind a node adds in place of its bias; empty where it has none, or adds it otherwise.

    For a Conv that is a new constant, one for each bias and number of axes.
    """
    if not n.standard or graph.opset < _WITHOUT_BIAS.get(n.op, graph.opset + 1) or len(n.inputs) < 3 or not n.inputs[2]:
        return ""
    bias, made = n.inputs[2], graph.types.get(n.outputs[0])
    if made is None or not made.dtype.floating or n.attrs.get("beta", 1.0) != 1.0:
        return ""
    if n.op == "Gemm":
        return bias
    return f"{bias}/channels of {len(made.shape)} axes" if bias in graph.constants else ""


def _of_channels(n: Node, graph: Graph) -> tuple[Constant, TensorType]:
    """The constant bias of a Conv, shaped to be added to its channels."""
    held, made = graph.constants[n.inputs[2]], graph.types[n.outputs[0]]
    assert made is not None, "its type is known"
    shape = (held.size, *(1 for _ in made.shape[2:]))
    moved = Constant(held.dtype, shape, lambda: held.load().reshape(shape), in_memory=held.in_memory)
    return moved, TensorType(held.dtype, tuple(map(Index.of, shape)))
