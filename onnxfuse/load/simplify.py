"""Removes arithmetic on constants, and dead nodes: integers as propagation finds them, small floats before it.

Types hang on the latter where they are the scales of a Resize, say Concat([1, 1], [2, 2]), as exporters that fold
nothing write them; so they are constants before types are found. Propagation itself follows integers (`shapes.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from onnxfuse.ir.graph import Constant, Decision, Graph, Node, TensorType
from onnxfuse.ir.index import Index
from onnxfuse.load.arithmetic import LIMIT, Array, Undecided, elements, evaluate
from onnxfuse.load.convert import ConvertedGraph
from onnxfuse.ops.rows import ROWS
from onnxfuse.ops.spec import UNFORESEEN, View, define

_CODED = "DequantizeLinear"  # a weight in codes stays one: the runtime and rewriting look for the pair of a product


def simplify_shapes(graph: Graph) -> Graph:
    """The graph with nodes of known integers replaced by constants, and without dead nodes and constants.

    Nodes that make graph outputs stay, as do nodes of other domains, which may have side effects.
    """
    made: dict[str, Constant] = {}
    kept: list[Node] = []
    for node in graph.nodes:
        found = _constants(graph, node)
        if found is None:
            kept.append(node)
        else:
            made |= found
    nodes, wanted = alive(kept, graph.outputs)
    constants = {name: c for name, c in {**graph.constants, **made}.items() if name in wanted}
    return graph.with_nodes(nodes, constants=constants)


def _constants(graph: Graph, node: Node) -> dict[str, Constant] | None:
    """The outputs of a node as constants; None unless all of them are constant integers."""
    found: dict[str, Constant] = {}
    for o in filter(None, node.outputs):
        t, values = graph.types.get(o), graph.known.get(o)
        if t is None or values is None or o in graph.outputs or t.static_shape is None:
            return None
        numbers = [e.constant for e in values]
        if any(n is None for n in numbers):
            return None
        found[o] = Constant.of(np.array(numbers, t.dtype.numpy).reshape(t.static_shape), t.dtype)
    return found or None


def alive(nodes: Sequence[Node], outputs: Iterable[str]) -> tuple[list[Node], set[str]]:
    """The live nodes in order, and all values that are read."""
    wanted = set(outputs)
    kept: list[Node] = []
    for node in reversed(nodes):
        if not node.standard or wanted.intersection(node.outputs):
            wanted.update(node.reads)
            kept.append(node)
    return kept[::-1], wanted


def settled(parts: ConvertedGraph, opset: int, outputs: Collection[str]) -> None:
    """Replace nodes that compute small floating-point tensors from constants by these tensors, in place.

    Evaluated is what is rounded correctly everywhere, as in shape arithmetic. Nodes that make `outputs` stay.
    """
    if not opset:
        return
    small = {name: c for name, c in parts.constants.items() if _is_small(c)}
    kept: list[Node] = []
    for node in parts.nodes:
        made = _computed(node, small, opset)
        small |= made
        if made and not any(o in outputs for o in made) and all(c.dtype.kind == "f" for c in made.values()):
            parts.constants |= made
        else:
            kept.append(node)
    parts.nodes = kept


def _is_small(c: Constant) -> bool:
    return c.size <= LIMIT and c.dtype.kind in "iubf" and c.dtype.name != "bfloat16"


def _computed(node: Node, small: Mapping[str, Constant], opset: int) -> dict[str, Constant]:
    """The outputs of a node as constants; none unless all of them follow from small constants."""
    reads = [i for i in node.inputs if i]
    if not (node.standard and reads and all(i in small for i in reads)) or node.captures or node.op == _CODED:
        return {}
    types = {i: TensorType(small[i].dtype, tuple(map(Index.of, small[i].shape))) for i in reads}
    values = {i: elements(small[i].load()) for i in reads}
    whole = {i: tuple(v.reshape(-1)) for i, v in values.items() if small[i].dtype.kind != "f" and v.ndim <= 1}
    found = define(ROWS, View(node, types, small, whole, opset))
    if isinstance(found, Decision):
        return {}
    try:
        results = evaluate(found, values, ())
        made = {d.name: Constant.of(_numbers(results[d.name], d.value.dtype.numpy), d.value.dtype) for d in found}
    except (Undecided, *UNFORESEEN):
        return {}
    wanted = [o for o in node.outputs if o]
    return {o: made[o] for o in wanted} if all(o in made and _is_small(made[o]) for o in wanted) else {}


def _numbers(value: Array, dtype: np.dtype[Any]) -> Array:
    """Elements as a numeric array. Raises Undecided where one is no number, or not a finite one."""
    given = [e.constant if isinstance(e, Index) else e for e in value.reshape(-1)]
    if not all(isinstance(e, (int, np.generic)) and np.isfinite(e) for e in given):
        raise Undecided
    return np.array(given, dtype).reshape(value.shape)
