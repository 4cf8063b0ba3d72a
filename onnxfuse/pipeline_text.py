"""The text of what a step made, for `--print`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from onnxfuse.ir.graph import Graph, Node
from onnxfuse.pipeline_state import Build, have


def text_of(step: str, b: Build) -> str:
    """What this step made, one fact per line; the same build, the same text."""
    return "\n".join(_TEXTS[step](b)) + "\n"


def _graph(graph: Graph | None) -> Iterable[str]:
    g = have(graph)
    for name in g.inputs:
        yield f"input {name}: {g.types[name]!r}"
    for node in g.nodes:
        yield _node(g, node)
    for name in g.outputs:
        yield f"output {name}: {g.types[name]!r}"


def _node(graph: Graph, node: Node) -> str:
    outputs = ", ".join(f"{o}: {graph.types[o]!r}" for o in node.outputs if o)
    domain = f"{node.domain}::" if node.domain else ""
    attrs = "".join(f" {k}={v}" for k, v in sorted(node.attrs.items()) if isinstance(v, int | float | str | tuple))
    return f"{outputs} = {domain}{node.op}({', '.join(node.inputs)}){attrs}"


def _plan(b: Build) -> Iterable[str]:
    if b.plan is None:
        return
    for group in b.plan.groups:
        yield f"group {group.name}: {', '.join(f'{n.op} {n.name}' for n in group.nodes)}"
        yield f"  reads {', '.join(group.inputs)}"
        yield f"  gives {', '.join(group.outputs)}"
    for value, layout in sorted(b.plan.layouts.items()):
        yield f"layout {value}: {', '.join(map(repr, layout.steps))}"
    for d in b.plan.decisions:
        yield f"{d.code} {', '.join(d.nodes)}: {d.reason}"


def _lowered(b: Build) -> Iterable[str]:
    for part in b.parts:
        yield f"group {part.group.name}"
        yield from (f"  {d!r}" for d in part.lowered.definitions)


def _kernels(b: Build) -> Iterable[str]:
    for part in b.parts:
        yield f"group {part.group.name}: {part.op}"
        if part.kernel is not None:
            yield from (f"  {s!r}" for phase in part.kernel.phases for s in phase.body)


def _sources(b: Build) -> Iterable[str]:
    for op, source in b.sources.items():
        yield f"// {op}"
        yield source.text


def _library(b: Build) -> Iterable[str]:
    if b.library is not None:
        yield f"{b.library.path.name} {b.library.sha256} ({b.library.compiler})"


def _emitted(b: Build) -> Iterable[str]:
    for node in have(b.emitted).proto.graph.node:
        yield f"{', '.join(node.output)} = {node.domain}::{node.op_type}({', '.join(node.input)})"


def _verdict(b: Build) -> Iterable[str]:
    if b.verdict is not None:
        yield repr(b.verdict)


_TEXTS: dict[str, Callable[[Build], Iterable[str]]] = {
    "load": lambda b: _graph(b.loaded),
    "rewrite": lambda b: _graph(b.graph),
    "plan": _plan,
    "lower": _lowered,
    "schedule": _kernels,
    "render": _sources,
    "build": _library,
    "emit": _emitted,
    "verify": _verdict,
}
