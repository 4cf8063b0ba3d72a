"""Models that compute with 8-bit integers, whose products the runtime makes exact with its optimizations alone.

On some machines it saturates sums of products without them (decision 0202).
"""

from __future__ import annotations

from onnx import GraphProto, ModelProto

from onnxfuse.runtime import engine
from onnxfuse.runtime.graphs import all_nodes, written_nodes

PRODUCTS = frozenset({
    "MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv", "QGemm", "MatMulIntegerToFloat",
    "DynamicQuantizeMatMul", "QAttention",
})  # fmt: skip


def needs_optimizations(model: ModelProto) -> bool:
    """Whether the runtime computes a model as it does for users, and exactly, only with its optimizations: they make
    products of codes of those that are written in floats between dequantized values."""
    return (quantizes(model) and engine.saturates()) or saturates(model.graph)


def saturates(graph: GraphProto) -> bool:
    """Whether sums of 8-bit products in a graph, or in one that it holds, saturate without optimizations."""
    return any(node.op_type in PRODUCTS for node in all_nodes(graph)) and engine.saturates()


def quantizes(model: ModelProto) -> bool:
    """Whether a model quantizes values, not only dequantizes them."""
    ops = {node.op_type for node in written_nodes(model)}
    return any(op.startswith(("QLinear", "Quantize", "DynamicQuantize", "QGemm")) for op in ops)
