"""Biases of products as additions of their own, where the runtime's product would take a kernel more for them."""

from __future__ import annotations

from dataclasses import replace

from onnxfuse.ir.graph import Graph, Node, TensorType

_WITHOUT_BIAS = 11  # the opset since which a Gemm needs none


def biases_apart(graph: Graph) -> Graph:
    """The graph with the bias of each Gemm added by a node behind it, which joins the kernel that reads the product.

    ONNX Runtime's CUDA provider copies a bias into the result before it multiplies: two kernels. Where no kernel takes
    the addition in, there are still two.
    """
    if graph.opset < _WITHOUT_BIAS:
        return graph
    types: dict[str, TensorType | None] = dict(graph.types)
    nodes: list[Node] = []
    for n in graph.nodes:
        made = f"{n.outputs[0]}/unbiased" if n.outputs else ""
        if not _adds_bias(n, graph) or made in types:
            nodes.append(n)
            continue
        types[made] = types[n.outputs[0]]
        nodes.append(replace(n, inputs=n.inputs[:2], outputs=(made,)))
        added = replace(n, op="Add", inputs=(made, n.inputs[2]), attrs={}, name=f"{n.name}/bias")
        nodes.append(added)
    return graph.with_nodes(nodes, types=types) if len(nodes) > len(graph.nodes) else graph


def _adds_bias(n: Node, graph: Graph) -> bool:
    """Whether a node is a Gemm of floats whose bias is added as it is."""
    plain = n.op == "Gemm" and n.standard and len(n.inputs) > 2 and n.inputs[2] != ""
    made = graph.types.get(n.outputs[0]) if plain else None
    return plain and n.attrs.get("beta", 1.0) == 1.0 and made is not None and made.dtype.floating
