"""Why nodes stay with the runtime: every refusal of a build once, each with what would lift it.

Where nothing does, the unlock says so: "none" and why, or "none needed".
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace

from onnxfuse.ir.extents import expanded, place_of
from onnxfuse.ir.graph import Decision, Graph, Node
from onnxfuse.ir.index import symbols_of
from onnxfuse.ir.unsupported import INVALID, READ
from onnxfuse.ops.rows import ROWS
from onnxfuse.ops.spec import REPORT
from onnxfuse.pipeline.state import Build

_FUSED = "none needed: all of them are in kernels"
# By code, where a refusal names no unlock of its own.
_NONE = {
    "E-TYPE": "none: one kernel cannot compute both",
    "E-NUMEL": "none: their loops differ",
    "E-SHAPE-UNKNOWN": "correct the shapes: no sizes satisfy them",
    "E-BROADCAST": "correct the shapes: ONNX Runtime refuses them too",
    "E-INVALID": INVALID,
    "E-DTYPE": "none: no kernel has elements of that type",
    "E-RESOURCE": "none: a group cannot hold more",
    "E-FANOUT": "none: the value is needed outside of the kernel",
    "E-CYCLE": "none: too many nodes are between them",
    "E-OPSET": "none: no opset has that call",
}


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
    every = tuple(dict.fromkeys((*later, *planned, *closed(b))))
    return tuple(dict.fromkeys(_unlocked(every, set(_in_kernels(b)))))


def closed(b: Build) -> Iterator[Decision]:
    """Refusals of the nodes in bodies that the loader does not understand, of all graphs of a build."""
    for each in b.everywhere():
        graph = each.plan.graph if each.plan is not None else each.graph
        there = {n.name for n in graph.nodes} if graph is not None else set()
        found = each.source.closed if each.loaded is not None else ()
        yield from (Decision("E-SUBGRAPH", c.nodes, c.reason, c.unlock) for c in found if c.node in there and c.nodes)


def _in_kernels(b: Build) -> Iterator[str]:
    """The names of nodes in kernels, those of the loaded model included."""
    for n in (n for part in b.all_parts for n in part.group.nodes):
        yield n.name
        yield from n.origin


def _unlocked(every: Iterable[Decision], fused: Container[str]) -> Iterator[Decision]:
    """The decisions, each with an unlock: where it names none, that of the nodes which stay, or why there is none."""
    own: dict[str, str] = {}
    for d in every:
        if d.unlock and len(d.nodes) == 1:
            own.setdefault(d.nodes[0], d.unlock)
    for d in every:
        staying = [name for name in d.nodes if name not in fused]
        alone = [f"{name} alone: {own[name]}" for name in staying if name in own]
        unlock = d.unlock or (alone[0] if alone else _NONE.get(d.code, REPORT) if staying else _FUSED)
        yield replace(d, unlock=unlock)


def _planned(b: Build) -> tuple[Decision, ...]:
    return b.plan.decisions if b.plan is not None else ()


def _of_foreign(d: Decision, graph: Graph, makers: Mapping[str, Node]) -> Decision:
    """The decision with an unlock for a shape that depends on an operator without a row, not on input shapes."""
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
        if maker.op not in READ and maker.body is None and ROWS.find(maker, graph.opset) is None:
            return replace(d, unlock=f"state the shape of {value}, which {maker.key} makes, in value_info of the model")
        waiting.extend(maker.inputs)
    return d


def _open(graph: Graph, value: str) -> bool:
    """Whether a value has no shape, or extents that are only names given by the loader."""
    t = graph.types.get(value)
    return t is None or any(place_of(s.name) for e in t.shape for s in symbols_of(expanded(e)))
