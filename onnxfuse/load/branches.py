"""Inlining of If branches that are known to run.

That is where the condition is a constant, and where the other branch would always fail: exporters test whether an
extent is 1, squeeze the axis or not, and pass the result to an operator that accepts one rank only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import onnx

from onnxfuse.ir.graph import Graph, Node
from onnxfuse.load.inline import defined
from onnxfuse.load.names import rename_here
from onnxfuse.load.simplify import alive
from onnxfuse.load.source import source_of
from onnxfuse.runtime.graphs import graphs, put_nodes

Outputs = tuple[str, ...]
Path = tuple[tuple[Outputs, str], ...]  # of a subgraph: outputs of the node that holds it, and the attribute
Again = Callable[[onnx.ModelProto], Graph]
_BRANCHES = ("then_branch", "else_branch")
_ROUNDS = 16  # most repetitions: an inlined branch may make further conditions constant
_TRIES = 8  # most Ifs of which a branch is inlined tentatively, to see whether it always fails
_RANKS = {"LSTM": 3, "GRU": 3, "RNN": 3}  # the only rank of the first inputs that the runtime accepts


@dataclass(frozen=True, slots=True)
class _Choices:
    """For a graph, the branch that runs for each If (by its outputs), and the choices for subgraphs of its nodes."""

    here: Mapping[Outputs, str]
    inner: Mapping[tuple[Outputs, str], _Choices]


def opened(graph: Graph, again: Again) -> Graph:
    """The graph with branches inlined that are known to run, or whose other branch always fails.

    `again` loads a changed model. Values keep their names, except for duplicates; the nodes of a branch are named
    IF/BRANCH/NAME, as in subgraphs.
    """
    graph = _known(graph, again)
    tried: set[tuple[Path, Outputs]] = set()
    while len(tried) < _TRIES:
        spot = next((spot for spot in _unclear(graph, ()) if spot not in tried), None)
        if spot is None:
            break
        tried.add(spot)
        graph = _without_failing(graph, spot, again) or graph
    return graph


def _without_failing(graph: Graph, spot: tuple[Path, Outputs], again: Again) -> Graph | None:
    """The graph with one branch of an If inlined whose other branch always fails; None if neither is seen to fail.

    A graph is loaded as seldom as possible, each time as long as the first.
    """
    runs: dict[str, Graph] = {}
    for name, other in (_BRANCHES, _BRANCHES[::-1]):
        made = runs[name] = _known(again(_with(graph, _at(spot, name))), again)
        if _fails(made, spot[0]):
            return runs.get(other) or _known(again(_with(graph, _at(spot, other))), again)
    return None


def _known(graph: Graph, again: Again) -> Graph:
    """The graph with the branches inlined whose condition is a constant."""
    for _ in range(_ROUNDS):
        choices = _choices(graph)
        if choices is None:
            break
        graph = again(_with(graph, choices))
    return graph


def _with(graph: Graph, choices: _Choices) -> onnx.ModelProto:
    """The model of a graph with chosen branches inlined."""
    source = source_of(graph)
    proto = onnx.ModelProto()
    proto.CopyFrom(source.proto)
    names = Counter(name for g in graphs(proto.graph) for name in defined(g))
    _splice(proto.graph, choices, names)
    return proto


def _unclear(graph: Graph, path: Path) -> Iterator[tuple[Path, Outputs]]:
    """The Ifs with outputs of unknown shape, in a graph and its subgraphs."""
    held = {n.name: n for n in graph.nodes if source_of(graph).bodies}
    holders = [held[name] for name in dict.fromkeys(b.node for b in source_of(graph).bodies)]
    yield from (
        (path, n.outputs) for n in holders if n.op == "If" and any(graph.types.get(o) is None for o in n.outputs)
    )
    for body in source_of(graph).bodies:
        yield from _unclear(body.graph, (*path, (held[body.node].outputs, body.attribute)))


def _at(spot: tuple[Path, Outputs], name: str) -> _Choices:
    """The choice of one branch of one If."""
    path, outputs = spot
    made = _Choices({outputs: name}, {})
    for step in reversed(path):
        made = _Choices({}, {step: made})
    return made


def _fails(graph: Graph, path: Path) -> bool:
    """Whether the graph at a path unconditionally runs a node with an input rank that the runtime rejects."""
    for outputs, attribute in path:
        held = {n.name: n.outputs for n in graph.nodes}
        found = [b.graph for b in source_of(graph).bodies if (held[b.node], b.attribute) == (outputs, attribute)]
        if not found:
            return False
        graph = found[0]
    for n in alive(graph.nodes, graph.outputs)[0]:
        types = [t for v in n.inputs[:3] if (t := graph.types.get(v)) is not None]
        rank = _RANKS.get(n.op) if n.domain in ("", "ai.onnx") else None  # of a call that is marked invalid, too
        if rank is not None and any(len(t.shape) != rank for t in types):
            return True
    return False


def _choices(graph: Graph) -> _Choices | None:
    """The Ifs with constant conditions in a graph and its subgraphs; None if there are none."""
    bodies = source_of(graph).bodies
    outputs = {n.name: n.outputs for n in graph.nodes} if bodies else {}
    inner = {(outputs[b.node], b.attribute): made for b in bodies if (made := _choices(b.graph)) is not None}
    here = {n.outputs: name for n in graph.nodes if (name := _branch(graph, n))} if bodies else {}
    return _Choices(here, inner) if here or inner else None


def _branch(graph: Graph, node: Node) -> str:
    """The attribute with the branch of an If that runs; "" where the condition is not a constant."""
    if node.op != "If" or not node.standard or len(node.inputs) != 1:
        return ""
    known, constant = graph.known.get(node.inputs[0]), graph.constants.get(node.inputs[0])
    value = known[0].constant if known is not None and len(known) == 1 else None
    if constant is not None and constant.size == 1:
        value = int(constant.load().reshape(()).item())
    return "" if value is None else "then_branch" if value else "else_branch"


def _splice(graph: onnx.GraphProto, choices: _Choices, names: Counter[str]) -> None:
    """Replace Ifs by their chosen branches, in place, in a graph and its subgraphs."""
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        outputs = tuple(node.output)
        for a in node.attribute:
            if (outputs, a.name) in choices.inner:
                _splice(a.g, choices.inner[outputs, a.name], names)
        name = choices.here.get(outputs, "")
        branch = next((a.g for a in node.attribute if name and a.name == name), None)
        whole = branch is not None and len(branch.output) == len(node.output)
        nodes += _opened(graph, node, branch, name, names) if branch is not None and whole else [node]
    put_nodes(graph, nodes)


def _opened(
    graph: onnx.GraphProto, node: onnx.NodeProto, branch: onnx.GraphProto, name: str, names: Counter[str]
) -> list[onnx.NodeProto]:
    """The nodes of a branch, renamed to make the outputs of its If; its constants and types are added to the graph."""
    new = {old: _fresh(f"{node.output[0]}/{old}", names) for old in sorted(defined(branch)) if names[old] > 1}
    made = {o for n in branch.node for o in n.output}
    again: list[onnx.NodeProto] = []
    given = set[str]()
    for have, want in zip([o.name for o in branch.output], node.output, strict=True):
        if want and have in made and have not in given:
            new[have] = want
            given.add(have)
        elif want:
            again.append(onnx.helper.make_node("Identity", [new.get(have, have)], [want]))
    rename_here(branch, new)
    for inner in (*branch.node, *again):
        inner.name = f"{node.name or node.output[0]}/{name}/{inner.name or inner.output[0]}"
    graph.initializer.extend(branch.initializer)
    graph.sparse_initializer.extend(branch.sparse_initializer)
    either = set(node.output) - {o.name for o in graph.output}  # whose declared types hold for both branches
    types = [v for v in (*graph.value_info, *branch.value_info) if v.name not in either]
    kept = onnx.GraphProto(value_info={v.name: v for v in types[::-1]}.values())
    del graph.value_info[:]
    graph.value_info.extend(kept.value_info)
    return [*branch.node, *again]


def _fresh(name: str, names: Counter[str]) -> str:
    while names[name]:
        name += "'"
    names[name] += 1
    return name
