"""The steps from a file to sources, one function each: a `Build` in, a `Build` with more in it out."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from onnxfuse.config import Options
from onnxfuse.emit import domain
from onnxfuse.emit.tables import stored_once
from onnxfuse.errors import DeviceError, ModelError, UsageError
from onnxfuse.ir.graph import Decision, Graph
from onnxfuse.ir.group import Group, Plan
from onnxfuse.ir.kernel import Kernel, Substitutions
from onnxfuse.ir.layout import PLAIN
from onnxfuse.ir.verify import verify
from onnxfuse.load import everywhere, source_of
from onnxfuse.ops.rows import ROWS
from onnxfuse.ops.spec import REPORT
from onnxfuse.pipeline.calls import Calls
from onnxfuse.pipeline.groups import (
    MOST_ROUNDS,
    attempted,
    checked_plan,
    raise_bug,
    refused,
    scheduler,
    standing,
)
from onnxfuse.pipeline.lock_files import apply_lock
from onnxfuse.pipeline.pricing import costing
from onnxfuse.pipeline.slower_groups import worthwhile
from onnxfuse.pipeline.state import Build, Context, GroupBuild, have, hinted
from onnxfuse.plan.refusals import unnamed
from onnxfuse.plan.sizes import input_symbols
from onnxfuse.render.source import Source
from onnxfuse.runtime import feed_limits, feeds
from onnxfuse.schedule.passes.driver import verified
from onnxfuse.target import Target


def load(context: Context, calls: Calls, b: Build) -> Build:
    """The model as a graph without shape arithmetic; one with kernels of ours is only copied."""
    graph = calls.load(context.model, context.options)
    source = source_of(graph)
    if context.options.inputs is not None:  # what cannot be read is better said before anything is compiled
        with suppress(DeviceError):  # inputs that are no tensors are left for the runtime to judge
            given = Path(context.options.inputs)
            _fitting(graph, feeds.read_feeds(given, feeds.inputs_of(feed_limits.skeleton(context.original))), given)
    size = source.bytes + sum(path.stat().st_size for path in source.external)
    name = str(context.model) if not isinstance(context.model, bytes) else "standard input"
    context.tell("read", {"path": name, "opset": graph.opset, "nodes": len(graph.nodes), "bytes": size})
    notes = (*source.warnings, *_without_effect(graph, context.options))
    if source.already_fused:
        notes = (*notes, "the model has kernels of onnxfuse already: it is copied as it is")
    b = replace(b, loaded=graph, graph=graph, notes=notes, copy=source.already_fused)
    if b.copy:
        return b
    b, options = _simplified(calls, b), context.options
    if options.verifies:
        _runnable(have(b.graph))
    return b


def _fitting(graph: Graph, sets: Sequence[Mapping[str, feeds.Array]], path: Path) -> None:
    """Raise UsageError where inputs have other extents than the model has, or was given by --dim or --input-shape."""
    for name, value in ((name, value) for each in sets for name, value in each.items()):
        if (t := graph.types.get(name)) is None:
            continue
        fits = all(e.constant is None or e.constant == n for e, n in zip(t.shape, value.shape, strict=False))
        if len(t.shape) != value.ndim or not fits:
            found = f"{name} is {'x'.join(map(str, value.shape))} in {path}"
            raise UsageError(f"inputs: {found}, and {'x'.join(map(str, t.shape))} in the model", hint="leave one out")


def _without_effect(graph: Graph, options: Options) -> Iterator[str]:
    """What was asked for and does nothing to this model."""
    for pattern in options.skip_node:
        if not any(re.search(pattern, node.name) for each in everywhere(graph) for node in each.nodes):
            yield f"no node matches --skip-node {pattern}"
    symbols = set(input_symbols(graph).values())
    for name in {name: None for each in hinted(options.dim_hint) for name in each}:
        if name not in symbols:
            yield f"--dim-hint {name}: no input has such a dimension"


def _runnable(graph: Graph) -> None:
    """Raise ModelError where one value is larger than this machine: the original could not be run to compare with."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in (o for n in graph.nodes for o in n.outputs):
        t = graph.types.get(name)
        size = t.dtype.bytes * math.prod(t.static_shape) if t is not None and t.static_shape is not None else 0
        if size > machine:
            took = f"{name} alone takes {size / 1e9:.0f} GB, more than the {machine / 1e9:.0f} GB of this machine"
            raise ModelError(f"load: {took}: the model cannot be verified", hint="--no-verify does without")


def _simplified(calls: Calls, b: Build) -> Build:
    """The build without shape arithmetic, and one for each body that is still there."""
    graph = calls.simplify(have(b.graph))
    there = {n.name for n in graph.nodes}
    bodies = [body for body in b.source.bodies if body.node in there]
    inner = [Build(loaded=o.graph, graph=o.graph, node=o.node, attribute=o.attribute) for o in bodies]
    return replace(b, graph=graph, inner=tuple(_simplified(calls, each) for each in inner))


def _each(step: Callable[[Context, Calls, Build], Build]) -> Callable[[Context, Calls, Build], Build]:
    """The step on a graph and on the bodies in it; none on a model that is copied."""

    def run(context: Context, calls: Calls, b: Build) -> Build:
        if b.copy:
            return b
        done = step(context, calls, b)
        return replace(done, inner=tuple(run(context, calls, each) for each in done.inner))

    return run


def check_graph(b: Build) -> None:
    """Assert that the graphs still are the loaded ones to those who call the model or hold the body."""
    for each in b.everywhere():
        graph, loaded = have(each.graph), have(each.loaded)
        graph.verify()
        assert (graph.inputs, graph.outputs) == (loaded.inputs, loaded.outputs), "rewrite: inputs or outputs changed"


def rewrite(context: Context, calls: Calls, b: Build) -> Build:
    """The graphs with every allowed rewrite done."""
    if b.copy:
        return b
    before = sum(len(have(each.loaded).nodes) for each in b.everywhere())
    b = _each(_rewritten)(context, calls, b)
    rules = Counter[str]()
    for firing in (f for each in b.everywhere() for f in each.firings):
        rules[firing.rule] += firing.count
    after = sum(len(have(each.graph).nodes) for each in b.everywhere())
    context.tell("rewrite", {"before": before, "after": after, "rules": dict(rules.most_common(6))})
    return b


def _rewritten(context: Context, calls: Calls, b: Build) -> Build:
    """One graph with every allowed rewrite done; bodies of nodes that are gone are forgotten."""
    bugs: list[Decision] = []
    graph, firings = calls.rewrite(have(b.graph), context.options, None if context.strict else bugs)
    there = {n.name for n in graph.nodes}
    inner = tuple(each for each in b.inner if each.node in there)
    return replace(b, graph=graph, firings=firings, inner=inner, refused=(*b.refused, *dict.fromkeys(bugs)))


def plan(context: Context, calls: Calls, b: Build) -> Build:
    """Groups of nodes that become kernels, none of them forbidden; a graph that lost nothing keeps its plan."""
    return _each(_planned)(context, calls, apply_lock(context, b))


def _planned(context: Context, calls: Calls, b: Build) -> Build:
    graph = have(b.graph)
    if b.plan is not None and not b.again:
        made = b.plan
    elif b.rounds >= MOST_ROUNDS:
        reason = f"after {b.rounds} attempts at planning, some group still had no kernel"
        given_up = Decision("E-INTERNAL", tuple(n.name for n in graph.nodes), reason, REPORT)
        made = Plan(graph, (), {}, (given_up,))
    else:
        settings = (context.options, b.forbidden, context.backend.legality, costing(context, calls))
        earlier = partial(calls.plan, grouping=b.grouping, kept=standing(b))
        found = attempted(context, "plan", partial(earlier, graph, ROWS, *settings))
        if isinstance(found, Decision):
            found = Plan(graph, (), {}, (replace(found, nodes=tuple(n.name for n in graph.nodes)),))
        made = found
        raise_bug(context, made.decisions)
    return replace(b, plan=made, parts=(), rounds=b.rounds + 1, again=False)


def check_plan(b: Build) -> None:
    """Assert what a plan promises."""
    for each in b.everywhere():
        if each.plan is not None:
            checked_plan(each.plan, each.forbidden)


def lower(context: Context, calls: Calls, b: Build) -> Build:
    """Each group as definitions; a group that was scheduled in an earlier round is taken from there."""
    return _each(_lowered)(context, calls, b)


def _lowered(context: Context, calls: Calls, b: Build) -> Build:
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
            parts.append(GroupBuild(group, found))
    return refused(replace(b, parts=tuple(parts)), refusals)


def _key(made: Plan, group: Group) -> tuple[object, ...]:
    """What decides the kernel of a group, besides the graph."""
    ends = (*group.inputs, *group.outputs)
    return (
        tuple(n.outputs for n in group.nodes),
        ends,
        tuple((made.layout(v), made.storage_types.get(v)) for v in ends),
    )


def check_lowered(b: Build) -> None:
    """Assert that each lowered group still gives what the group gives."""
    for part in b.all_parts:
        assert part.lowered.outputs == part.group.outputs, f"lower: {part.group.name} gives something else"


def schedule(context: Context, calls: Calls, b: Build) -> Build:
    """Each group as a kernel with a body and a name that equal kernels share."""
    if b.copy:
        return b
    b = _each(_with_kernels)(context, calls, b)
    if b.stale:
        return b
    parts = b.all_parts
    b = _explained(context, b)
    if not parts:
        b = replace(b, copy=True, library=None, sources={}, domain="")
    nodes = sum(len(have(each.graph).nodes) for each in b.everywhere())
    left = sum(1 for each in b.everywhere() for _ in nodes_left(each))
    path = context.model if not isinstance(context.model, bytes) else "-"
    context.tell("plan", {"nodes": nodes, "kernels": len(parts), "left": left, "path": str(path)})
    return b


def _explained(context: Context, b: Build, around: tuple[Decision, ...] = ()) -> Build:
    """The build in which each node that stays with the runtime is named by a decision; strict about it where asked.

    What was refused in a body may be told by the graph `around` it.
    """
    b = replace(b, inner=tuple(_explained(context, each, (*around, *b.refused)) for each in b.inner))
    staying = set(nodes_left(b))
    nodes = [n for n in have(b.plan).graph.nodes if n.name in staying]
    missed = unnamed(nodes, (*have(b.plan).decisions, *b.refused, *around))
    assert not (missed and context.strict), f"plan: no reason is known why {missed[0].name} stays"
    told = (Decision("E-INTERNAL", (n.name,), f"{n.op}: no reason is known why it stays", REPORT) for n in missed)
    return replace(b, refused=(*b.refused, *told))


def _with_kernels(context: Context, calls: Calls, b: Build) -> Build:
    parts: list[GroupBuild] = []
    refusals: list[tuple[Group, Decision]] = []
    for number, part in enumerate(b.parts):
        context.part(number, len(b.parts))
        found = part if part.kernel is not None else _scheduled(context, calls, b, part)
        if isinstance(found, Decision):
            refusals.append((part.group, found))
        else:
            parts.append(found)
    b = refused(replace(b, parts=tuple(parts)), refusals)
    b = b if refusals else worthwhile(context, b)
    b = replace(b, made={**b.made, **{_key(have(b.plan), p.group): p for p in b.parts}})
    return b if b.again else _with_tables_once(context, calls, replace(b, settled=True))


def _with_tables_once(context: Context, calls: Calls, b: Build) -> Build:
    """The build in which rows are looked up in tables as products have packed them, where nothing else reads those."""
    graph, left = have(b.plan).graph, set(nodes_left(b))
    around = [have(each.graph) for each in b.everywhere()][1:]
    elsewhere = {*graph.outputs, *(v for each in around for v in each.constants)}
    elsewhere |= {v for n in graph.nodes if n.name in left for v in n.reads}
    kernels = [(p.lowered, p.kernel) for p in b.parts if p.kernel is not None]
    layouts = stored_once(kernels, graph.constants, elsewhere) if not b.node else {}
    if not layouts:
        return b
    other = replace(b, plan=replace(have(b.plan), layouts={**have(b.plan).layouts, **layouts}))
    made = dict(b.made)
    parts: list[GroupBuild] = []
    for part in b.parts:
        key = _key(have(other.plan), part.group)
        reads = any(p.value in layouts and p.layout == PLAIN for p in have(part.kernel).inputs)
        known = replace(made[key], group=part.group) if key in made else None
        found = known or _scheduled(context, calls, other, part) if reads else part
        if isinstance(found, Decision):
            return b
        made |= {key: found} if reads else {}
        parts.append(found)
    return replace(b, parts=tuple(parts), made=made)


def _scheduled(context: Context, calls: Calls, b: Build, part: GroupBuild) -> GroupBuild | Decision:
    """The part with kernel, body and operator type."""
    plan, group, lowered = have(b.plan), part.group, part.lowered
    graph = plan.graph

    def make(measured: Substitutions | None = None) -> GroupBuild | Decision:
        scheduled = scheduler(context, plan, lowered, check=verified, measured=measured)
        own = _alike([scheduled(target) for target in context.targets if target.name not in context.beside])
        if isinstance(own, Decision):
            return own
        kernels = (*own, *_beside(context, scheduled, own[0]))
        made = [(context.backend_of(t), k) for t, k in zip(context.targets, kernels, strict=True) if k is not None]
        wrong = [finding for _, kernel in made for finding in verify(kernel)]
        assert not wrong, wrong[0]
        body = calls.body(group, own[0], graph)
        if isinstance(body, Decision):
            return body
        op = calls.identity("".join(backend.kernel_text(kernel) for backend, kernel in made), body)
        if measured is None and op in b.substitutions:
            return make(b.substitutions[op])
        return replace(part, kernel=own[0], others=kernels[1:], body=body, op=op)

    return attempted(context, "schedule", make)


def _beside(
    context: Context, scheduled: Callable[[Target], Kernel | Decision], first: Kernel
) -> Iterator[Kernel | None]:
    """The kernels for targets of other backends; None where it is refused, or takes or gives something else."""
    for target in context.targets:
        if target.name in context.beside:
            made = attempted(context, "schedule", partial(scheduled, target))
            same = isinstance(made, Kernel) and (made.inputs, made.outputs) == (first.inputs, first.outputs)
            yield made if isinstance(made, Kernel) and same else None


def _alike(found: Sequence[Kernel | Decision]) -> tuple[Kernel, ...] | Decision:
    """The kernels of one group for several targets, which one model calls: all take and give the same."""
    refused = next((each for each in found if isinstance(each, Decision)), None)
    if refused is not None:
        return refused
    kernels = tuple(each for each in found if not isinstance(each, Decision))
    if any((k.inputs, k.outputs) != (kernels[0].inputs, kernels[0].outputs) for k in kernels):
        return Decision("E-LAYOUT", (), "its instruction sets need different data layouts", "build for one --arch")
    return kernels


def nodes_left(b: Build) -> Iterator[str]:
    """Names of the nodes that stay with the runtime: outside of kernels, and read by something."""
    graph = have(b.plan).graph
    inside = {n.outputs: p for p in b.parts for n in p.group.nodes}
    wanted = set(graph.outputs)
    for p in b.parts:
        wanted.update(param.value for param in p.kernel.inputs) if p.kernel is not None else None
    for node in reversed(graph.nodes):
        foreign = not node.standard
        if node.outputs not in inside and (foreign or wanted.intersection(node.outputs)):
            wanted.update(node.reads)
            yield node.name


def check_scheduled(b: Build) -> None:
    """Assert that each kernel gives what its group gives."""
    for part in b.all_parts:
        gives = {p.value for p in part.kernel.outputs} if part.kernel is not None else set()
        assert gives == set(part.group.outputs), f"schedule: {part.group.name} gives something else"


def render(context: Context, calls: Calls, b: Build) -> Build:
    """One source per target and distinct kernel, those of register tiles where they are used, and the domain of all.

    A kernel that an earlier round rendered has the same source.
    """
    if b.copy:
        return b
    sources: dict[tuple[str, str], Source] = {}
    machines: list[str] = []
    for at, target in enumerate(context.targets):
        backend, tail = context.backend_of(target), f"_{target.identifier}" if len(context.targets) > 1 else ""
        distinct = {part.op: k for part in b.all_parts if (k := part.kernels[at]) is not None}
        for op, kernel in distinct.items():
            known = b.sources.get((target.name, op))
            sources[target.name, op] = known or backend.render(kernel, op + tail, op, backend.flags(target, (kernel,)))
        kernels, common = tuple(distinct.values()), backend.flags(target, ())
        for made in backend.support(kernels, tail, common):
            sources[target.name, f" {made.symbol}"] = made
        machines += [target.name, *common, *backend.features(target, kernels)]
    bodies = {part.op: have(part.body).text for part in b.all_parts}
    texts = [f"{op}\0{source.text}\0{bodies.get(op, '')}" for (_, op), source in sorted(sources.items())]
    headers = [text for row in dict.fromkeys(map(context.backend_of, context.targets)) for text in row.headers()]
    return replace(b, sources=sources, domain=domain([*headers, *machines, *texts]))


def check_sources(b: Build) -> None:
    """Assert that each kernel has a source of its own name."""
    symbols = [source.symbol for source in b.sources.values()]
    assert len(set(symbols)) == len(symbols), "render: two sources have one name"
    ops = {op for _, op in b.sources}
    assert all(part.op in ops for part in b.all_parts), "render: a kernel has no source"
