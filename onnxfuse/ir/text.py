"""The text form of graphs, groups and plans: equal values have equal text.

A value is shown as `name: dtype[shape]`, a node as one line `value = Operator(inputs) attribute=value  # its name`.
Constants are shown by type, not by content; known integers follow the value that holds them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import singledispatch

from onnxfuse.ir.graph import Constant, Decision, Graph, Node
from onnxfuse.ir.group import Group, Plan
from onnxfuse.ir.layout import Layout


@singledispatch
def text(value: object) -> str:
    """The text of a value, without a final newline; types without a rule of their own (`Definition`) show their `repr`.

    >>> print(text(Decision("E-CYCLE", ("Conv_1", "Add_2"), "the group would depend on itself")))
    E-CYCLE Conv_1, Add_2: the group would depend on itself
    >>> print(text(Node("Clip", ("x", "", "high"), ("y",), {}, "Clip_3")))
    y = Clip(x, , high)  # Clip_3
    """
    return repr(value)


@text.register
def _(value: tuple) -> str:  # type: ignore[type-arg]  # a class is what singledispatch asks for
    return "\n".join(map(text, value))


@text.register
def _(value: Decision) -> str:
    unlock = f" ({value.unlock})" if value.unlock else ""
    return f"{value.code} {', '.join(value.nodes)}: {value.reason}{unlock}"


@text.register
def _(value: Layout) -> str:
    return " ".join(map(repr, value.steps)) or "plain"


@text.register
def _(value: Node) -> str:
    return _node(value, None)


@text.register
def _(value: Graph) -> str:
    return "\n".join(_graph(value))


@text.register
def _(value: Group) -> str:
    return "\n".join(_group(value, None))


@text.register
def _(value: Plan) -> str:
    return "\n".join(_plan(value))


def _typed(name: str, graph: Graph | None) -> str:
    return name if graph is None or not name else f"{name}: {graph.types.get(name) or '?'}"


def _graph(graph: Graph) -> Iterator[str]:
    yield f"graph of {_count(len(graph.nodes), 'node')}, opset {graph.opset}"
    used = dict.fromkeys(name for n in graph.nodes for name in n.reads)
    for name in graph.inputs:
        yield f"  input {_typed(name, graph)}{_known(name, graph)}"
    for name in (n for n in used if n in graph.constants):
        yield f"  constant {_typed(name, graph)}{_known(name, graph)}"
    yield from (f"  {_node(n, graph)}" for n in graph.nodes)
    yield from (f"  output {_typed(name, graph)}" for name in graph.outputs)


def _known(name: str, graph: Graph) -> str:
    found = graph.known.get(name)
    return "" if found is None else f" is ({', '.join(map(repr, found))})"


def _node(node: Node, graph: Graph | None) -> str:
    made = ", ".join(_typed(o, graph) + (_known(o, graph) if graph else "") for o in node.outputs)
    call = f"{node.domain}::{node.op}" if node.domain else node.op
    attrs = "".join(f" {k}={_attribute(v)}" for k, v in sorted(node.attrs.items()))
    outer = f" captures({', '.join(node.captures)})" if node.captures else ""
    origin = f" from {', '.join(node.origin)}" if node.origin and node.origin != (node.name,) else ""
    note = f"  # {node.name}{origin}" if node.name or origin else ""
    return f"{made} = {call}({', '.join(node.inputs)}){attrs}{outer}{note}"


def _attribute(value: object) -> str:
    if isinstance(value, Constant):
        return f"{value.dtype}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(_attribute, value))})"
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, (int, str)):
        return str(value)
    return value.decode(errors="replace") if isinstance(value, bytes) else f"<{type(value).__name__}>"


def _group(group: Group, graph: Graph | None) -> Iterator[str]:
    yield f"group {group.name} of {_count(len(group.nodes), 'node')}"
    for name in group.inputs:
        yield f"  {'constant' if graph is not None and name in graph.constants else 'input'} {_typed(name, graph)}"
    yield from (f"  {_node(n, graph)}" for n in group.nodes)
    yield from (f"  output {_typed(name, graph)}" for name in group.outputs)


def _plan(plan: Plan) -> Iterator[str]:
    inside = sum(len(g.nodes) for g in plan.groups)
    yield f"plan of {_count(len(plan.groups), 'group')}, {inside} of {_count(len(plan.graph.nodes), 'node')} in them"
    for group in plan.groups:
        yield from _group(group, plan.graph)
    for name, layout in sorted(plan.layouts.items()):
        yield f"layout {name}: {text(layout)}"
    yield from (f"stored {name}: {dtype}" for name, dtype in sorted(plan.storage_types.items()))
    yield from map(text, plan.decisions)


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
