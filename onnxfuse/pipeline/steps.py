"""The steps from a file to sources, one function each: a `Build` in, a `Build` with more in it out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from onnxfuse.build import TILES
from onnxfuse.emit import domain
from onnxfuse.ir.graph import Decision
from onnxfuse.ir.group import Group, Plan
from onnxfuse.ir.kernel import Kernel, Tile, statements
from onnxfuse.load import Source
from onnxfuse.ops.rows import ROWS
from onnxfuse.pipeline.calls import Calls
from onnxfuse.pipeline.groups import MOST_ROUNDS, attempted, checked_plan, refused
from onnxfuse.pipeline.state import Build, Context, Part, have


def load(context: Context, calls: Calls, b: Build) -> Build:
    """The model as a graph without shape arithmetic; one with kernels of ours is only copied."""
    graph = calls.load(context.model, context.options)
    source: Source = graph.source
    size = source.bytes + sum(path.stat().st_size for path in source.external)
    name = str(context.model) if not isinstance(context.model, bytes) else "standard input"
    context.tell("read", {"path": name, "opset": graph.opset, "nodes": len(graph.nodes), "bytes": size})
    notes = source.warnings
    if source.already_fused:
        notes = (*notes, "the model has kernels of onnxfuse already: it is copied as it is")
    b = replace(b, loaded=graph, graph=graph, notes=notes, copy=source.already_fused)
    return b if b.copy else replace(b, graph=calls.simplify(graph))


def check_graph(b: Build) -> None:
    """Assert that the graph still is the loaded one to those who call the model."""
    graph, loaded = have(b.graph), have(b.loaded)
    graph.verify()
    assert (graph.inputs, graph.outputs) == (loaded.inputs, loaded.outputs), "rewrite: inputs or outputs changed"


def rewrite(context: Context, calls: Calls, b: Build) -> Build:
    """The graph with every allowed rewrite done."""
    if b.copy:
        return b
    before = len(have(b.loaded).nodes)
    graph, firings = calls.rewrite(have(b.graph), context.options)
    rules = Counter[str]()
    for firing in firings:
        rules[firing.rule] += firing.count
    context.tell("rewrite", {"before": before, "after": len(graph.nodes), "rules": dict(rules.most_common(6))})
    return replace(b, graph=graph, firings=firings)


def plan(context: Context, calls: Calls, b: Build) -> Build:
    """Groups of nodes that become kernels, none of them forbidden."""
    if b.copy:
        return b
    graph = have(b.graph)
    if b.rounds >= MOST_ROUNDS:
        reason = f"after {b.rounds} plans there still was a group without a kernel"
        given_up = Decision("E-NO-KERNEL", tuple(n.name for n in graph.nodes), reason, "report it")
        made = Plan(graph, (), {}, (given_up,))
    else:
        made = calls.plan(graph, ROWS, context.options, b.forbidden)
    return replace(b, plan=made, parts=(), rounds=b.rounds + 1, again=False)


def check_plan(b: Build) -> None:
    """Assert what a plan promises."""
    if b.plan is not None:
        checked_plan(b.plan, b.forbidden)


def lower(context: Context, calls: Calls, b: Build) -> Build:
    """Each group as definitions; a group that was scheduled in an earlier round is taken from there."""
    if b.copy:
        return b
    made, parts, refusals = have(b.plan), [], []
    for group in made.groups:
        known = b.made.get(_key(made, group))
        if known is not None:
            parts.append(replace(known, group=group))
            continue
        found = attempted(context, "lower", partial(calls.lower, group, made, ROWS))
        if isinstance(found, Decision):
            refusals.append((group, found))
        else:
            parts.append(Part(group, found))
    return refused(replace(b, parts=tuple(parts)), refusals)


def _key(made: Plan, group: Group) -> tuple[object, ...]:
    """What decides the kernel of a group, besides the graph."""
    ends = (*group.inputs, *group.outputs)
    return (tuple(n.outputs for n in group.nodes), ends, tuple(made.layout(v) for v in ends))


def check_lowered(b: Build) -> None:
    """Assert that each lowered group still gives what the group gives."""
    for part in b.parts:
        assert part.lowered.outputs == part.group.outputs, f"lower: {part.group.name} gives something else"


def schedule(context: Context, calls: Calls, b: Build) -> Build:
    """Each group as a kernel with a body and a name that equal kernels share."""
    if b.copy:
        return b
    parts: list[Part] = []
    refusals: list[tuple[Group, Decision]] = []
    for part in b.parts:
        found = part if part.kernel is not None else _scheduled(context, calls, b, part)
        if isinstance(found, Decision):
            refusals.append((part.group, found))
        else:
            parts.append(found)
    made = have(b.plan)
    b = refused(replace(b, parts=tuple(parts)), refusals)
    b = replace(b, made={**b.made, **{_key(made, p.group): p for p in parts}})
    if not parts and not b.again:
        b = replace(b, copy=True, library=None, sources={}, domain="")
    if not b.again:
        told = {"nodes": len(have(b.graph).nodes), "kernels": len(parts), "left": sum(1 for _ in nodes_left(b))}
        path = context.model if not isinstance(context.model, bytes) else "-"
        context.tell("plan", told | {"path": str(path)})
    return b


def _scheduled(context: Context, calls: Calls, b: Build, part: Part) -> Part | Decision:
    """The part with kernel, body and operator type."""
    plan, group, lowered = have(b.plan), part.group, part.lowered
    graph = plan.graph
    layouts = {v: plan.layouts[v] for v in (*lowered.inputs, *lowered.outputs) if v in plan.layouts}

    def make() -> Part | Decision:
        kernel = calls.schedule(lowered, layouts, graph.constants, context.target)
        if isinstance(kernel, Decision):
            return kernel
        body = calls.body(group, kernel, graph)
        if isinstance(body, Decision):
            return body
        return replace(part, kernel=kernel, body=body, op=calls.identity(calls.kernel_text(kernel), body))

    made: Part | Decision = attempted(context, "schedule", make)
    return made


def nodes_left(b: Build) -> Iterator[str]:
    """Names of the nodes that stay with the runtime: outside of kernels, and read by something."""
    graph = have(b.plan).graph
    inside = {n.outputs: p for p in b.parts for n in p.group.nodes}
    wanted = set(graph.outputs)
    for p in b.parts:
        wanted.update(param.value for param in p.kernel.inputs) if p.kernel is not None else None
    for node in reversed(graph.nodes):
        foreign = node.domain not in ("", "ai.onnx")
        if node.outputs not in inside and (foreign or wanted.intersection(node.outputs)):
            wanted.update(node.reads)
            yield node.name


def check_scheduled(b: Build) -> None:
    """Assert that each kernel gives what its group gives."""
    for part in b.parts:
        gives = {p.value for p in part.kernel.outputs} if part.kernel is not None else set()
        assert gives == set(part.group.outputs), f"schedule: {part.group.name} gives something else"


def render(context: Context, calls: Calls, b: Build) -> Build:
    """One source per distinct kernel, that of the register tiles where one uses them, and the domain of all."""
    if b.copy:
        return b
    distinct = {part.op: have(part.kernel) for part in b.parts}
    sources = {op: calls.render(kernel, op, op) for op, kernel in distinct.items()}
    if any(map(_has_tiles, distinct.values())):
        sources[""] = calls.tiles_source()
    bodies = {part.op: have(part.body).text for part in b.parts}
    headers = [path.read_text(encoding="utf-8") for path in sorted(TILES.glob("*.h"))]
    texts = [f"{op}\0{source.text}\0{bodies.get(op, '')}" for op, source in sorted(sources.items())]
    machine = (context.target.name, *context.target.flags, *context.target.features)
    return replace(b, sources=sources, domain=domain([*headers, *machine, *texts]))


def _has_tiles(kernel: Kernel) -> bool:
    return any(isinstance(s, Tile) for phase in kernel.phases for s in statements(phase.body))


def check_sources(b: Build) -> None:
    """Assert that each kernel has a source of its own name."""
    symbols = [source.symbol for source in b.sources.values()]
    assert len(set(symbols)) == len(symbols), "render: two sources have one name"
    assert all(part.op in b.sources for part in b.parts), "render: a kernel has no source"
