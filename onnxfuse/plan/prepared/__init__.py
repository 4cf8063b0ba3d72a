"""Graphs as a GPU's planner wants them: what the runtime's provider has kernels apart for is nodes of its own."""

from __future__ import annotations

from onnxfuse.ir.graph import Graph
from onnxfuse.plan.prepared.biases import biases_apart
from onnxfuse.plan.prepared.patches import patches_as_products

__all__ = ("prepared",)


def prepared(graph: Graph) -> Graph:
    """The graph of the same meaning that is planned for a GPU."""
    return biases_apart(patches_as_products(graph))
