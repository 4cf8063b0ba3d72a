"""Why nodes stay with the runtime: every refusal of a build once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from onnxfuse.ir.extents import expanded
from onnxfuse.ir.graph import Decision, Graph, Node
from onnxfuse.ir.index import symbols_of
from onnxfuse.ops.rows import ROWS
from onnxfuse.pipeline.state import Build

_HOLDS = "it contains subgraphs, which are fused separately"


def decisions(b: Build) -> tuple[Decision, ...]:
    """Every refusal once, those of kernels first: they cause replanning, which may leave groups that are too small."""
    planned: list[Decision] = []
    later: list[Decision] = []
    for each in b.everywhere():
        graph = each.plan.graph if each.plan is not None else each.graph
        makers = {o: n for n in graph.nodes for o in n.outputs if o} if graph is not None else {}
        told = {d: _of_foreign(d, graph, makers) if graph is not None else d for d in (*_planned(each), *each.refused)}
        planned += [told[d] for d in _planned(each)]
        later += [told[d] for d in each.refused]
    holders = {(each.node,) for each in b.everywhere()}
    return tuple(dict.fromkeys(_of_holder(d) if d.nodes in holders else d for d in (*later, *planned)))


def _planned(b: Build) -> tuple[Decision, ...]:
    return b.plan.decisions if b.plan is not None else ()


def _of_foreign(d: Decision, graph: Graph, makers: Mapping[str, Node]) -> Decision:
    """The decision with an unlock for a shape that depends on an operator of an unknown domain, not on input shapes."""
    if "--input-shape" not in d.unlock:
        return d
    seen: set[str] = set()
    waiting = [v for n in graph.nodes if n.name in d.nodes for v in n.inputs]
    while waiting:
        value = waiting.pop()
        maker = makers.get(value)
        if value in seen or maker is None or not _open(graph, value):
            continue
        seen.add(value)
        if not maker.standard and maker.body is None and ROWS.find(maker, graph.opset) is None:
            return replace(d, unlock=f"state the shape of {value}, which {maker.key} makes, in value_info of the model")
        waiting.extend(maker.inputs)
    return d


def _open(graph: Graph, value: str) -> bool:
    """Whether a value has no shape, or extents that are only names given by the loader."""
    t = graph.types.get(value)
    return t is None or any(s.name.startswith("?") for e in t.shape for s in symbols_of(expanded(e)))


def _of_holder(d: Decision) -> Decision:
    """The decision about a node whose subgraphs are planned by themselves."""
    return replace(d, code="E-SUBGRAPH", reason=_HOLDS, unlock="") if d.code == "E-NO-KERNEL" else d
