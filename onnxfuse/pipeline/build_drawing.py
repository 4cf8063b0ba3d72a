"""The drawing of a build: its model as it was loaded, and with the kernels that it has so far."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from onnxfuse.ir.graph import Graph
from onnxfuse.ir.kernel_text import kernel_lines
from onnxfuse.measure.layers import named_layers
from onnxfuse.measure.lifetimes import timeline
from onnxfuse.measure.lineage import Wire
from onnxfuse.pipeline.groups import bytes_of, costs_of, counted_at
from onnxfuse.pipeline.state import Build, Context, GroupBuild, have
from onnxfuse.pipeline.steps import nodes_left
from onnxfuse.plan.sizes import Sizes
from onnxfuse.report.drawing import Drawing, Drawn, Fired, Listing, Picture, Wired, picture
from onnxfuse.report.result import GroupResult


def drawing(context: Context, b: Build, groups: tuple[GroupResult, ...]) -> Drawing | None:
    """The main graph before and after; None where nothing was planned. `groups` are those of all parts."""
    if b.copy or b.plan is None or b.loaded is None:
        return None
    kinds = {part.op: part for part in b.all_parts if part.kernel is not None}
    mine = groups[: len(b.parts)]  # those of the main graph come first
    sizes = counted_at(context, b)
    return Drawing(
        before=_before(b, groups, sizes),
        after=_after(b, mine, sizes),
        fired=tuple(Fired(f.rule, f.nodes) for f in b.firings),
        listings={op: _listing(context, b, part) for op, part in kinds.items()},
        peaks=context.targets[0].peaks,
    )


def _before(b: Build, groups: tuple[GroupResult, ...], sizes: Sizes) -> Picture:
    graph = have(b.loaded)
    owner = {node: g.name for g in groups for node in g.nodes}
    layers = named_layers((n.name, [i for i in n.inputs if i in graph.constants]) for n in graph.nodes)
    costs = costs_of(graph, graph.nodes, sizes)
    nodes = [
        (Drawn(n.name, n.op, owner.get(n.name), layers[n.name], *costs[n.name]), n.reads, n.outputs)
        for n in graph.nodes
    ]
    return picture(_with_live_bytes(graph, nodes, sizes), tuple(graph.inputs), tuple(graph.outputs))


def _after(b: Build, groups: Sequence[GroupResult], sizes: Sizes) -> Picture:
    graph = have(b.plan).graph
    return picture(
        _with_live_bytes(graph, list(_in_order(b, groups, sizes)), sizes), tuple(graph.inputs), tuple(graph.outputs)
    )


def _with_live_bytes(graph: Graph, nodes: Sequence[Wired], sizes: Sizes) -> Iterator[Wired]:
    """The nodes with what values take while each of them runs; as they are where the size of one is not known."""
    taken = {value: bytes_of(graph, value, sizes) for _, _, made in nodes for value in made if value}
    known = {value: size for value, size in taken.items() if size is not None}
    if len(known) < len(taken):
        yield from nodes
        return
    wires = [(Wire(n.name, n.op, tuple(reads), tuple(filter(None, made))), 0.0) for n, reads, made in nodes]
    for (node, reads, made), step in zip(nodes, timeline(wires, known, graph.outputs), strict=True):
        yield replace(node, live_bytes=step.bytes), reads, made


def _in_order(b: Build, groups: Sequence[GroupResult], sizes: Sizes) -> Iterator[Wired]:
    """Kernels, each where its last node stood, and the nodes that are left."""
    left = set(nodes_left(b))
    graph = have(b.plan).graph
    costs = costs_of(graph, [n for n in graph.nodes if n.name in left], sizes)
    last = {p.group.nodes[-1].outputs: at for at, p in enumerate(b.parts)}
    for node in graph.nodes:
        at = last.get(node.outputs)
        if at is not None:
            part, g = b.parts[at], groups[at]
            yield Drawn(g.name, part.op, g.name, "", g.flops, g.bytes), part.group.inputs, part.group.outputs
        elif node.name in left:
            yield Drawn(node.name, node.op, None, "", *costs[node.name]), node.reads, node.outputs


def _listing(context: Context, b: Build, part: GroupBuild) -> Listing:
    source = b.sources.get((context.targets[0].name, part.op))
    return Listing("\n".join(kernel_lines(have(part.kernel))), source.file if source is not None else "")
