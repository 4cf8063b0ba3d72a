"""The branch of an If whose condition is known becomes part of the graph around it, as the only one that ever runs.

So does one where the other would end every run: exporters ask whether an extent is 1, squeeze it away or do not, and
hand the result to an operator that takes one rank.
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
from onnxfuse.load.source import Source
from onnxfuse.runtime.graphs import graphs

Outputs = tuple[str, ...]
Path = tuple[tuple[Outputs, str], ...]  # from graph to graph: the outputs of a node, the attribute that holds the next
Again = Callable[[onnx.ModelProto], Graph]
_BRANCHES = ("then_branch", "else_branch")
_ROUNDS = 16  # in which branches that are known to run make more of them known
_TRIES = 8  # Ifs of which one branch is tried, to see whether a run of it could succeed
_RANKS = {"LSTM": 3, "GRU": 3, "RNN": 3}  # of the first inputs, whatever else is given; others are refused


@dataclass(frozen=True, slots=True)
class _Choices:
    """Of a graph: by the outputs of an If the branch that runs, and the choices in the bodies of its nodes."""

    here: Mapping[Outputs, str]
    inner: Mapping[tuple[Outputs, str], _Choices]


def opened(graph: Graph, again: Again) -> Graph:
    """The graph with branches in place of their Ifs, where these are known to run, or no run of the other succeeds.

    `again` loads a changed model. Values keep their names, except those that would be made twice; the nodes of a branch
    are named as those of a body are: IF/BRANCH/NAME.
    """
    graph = _known(graph, again)
    tried: set[tuple[Path, Outputs]] = set()
    while len(tried) < _TRIES:
        spot = next((spot for spot in _unclear(graph, ()) if spot not in tried), None)
        if spot is None:
            break
        tried.add(spot)
        for name, other in (_BRANCHES, _BRANCHES[::-1]):
            if _fails(_known(again(_with(graph, _at(spot, name))), again), spot[0]):
                graph = _known(again(_with(graph, _at(spot, other))), again)
                break
    return graph


def _known(graph: Graph, again: Again) -> Graph:
    """The graph with the branches that are known to run in place of their Ifs."""
    for _ in range(_ROUNDS):
        choices = _choices(graph)
        if choices is None:
            break
        graph = again(_with(graph, choices))
    return graph


def _with(graph: Graph, choices: _Choices) -> onnx.ModelProto:
    """The model of a graph with chosen branches in place of their Ifs."""
    source: Source = graph.source
    proto = onnx.ModelProto()
    proto.CopyFrom(source.proto)
    names = Counter(name for g in graphs(proto.graph) for name in defined(g))
    _splice(proto.graph, choices, names)
    return proto


def _unclear(graph: Graph, path: Path) -> Iterator[tuple[Path, Outputs]]:
    """The Ifs whose results have no known shape, in a graph and in its bodies."""
    held = {n.name: n for n in graph.nodes if graph.source.bodies}
    holders = [held[name] for name in dict.fromkeys(b.node for b in graph.source.bodies)]
    yield from (
        (path, n.outputs) for n in holders if n.op == "If" and any(graph.types.get(o) is None for o in n.outputs)
    )
    for body in graph.source.bodies:
        yield from _unclear(body.graph, (*path, (held[body.node].outputs, body.attribute)))


def _at(spot: tuple[Path, Outputs], name: str) -> _Choices:
    """The choice of one branch of one If."""
    path, outputs = spot
    made = _Choices({outputs: name}, {})
    for step in reversed(path):
        made = _Choices({}, {step: made})
    return made


def _fails(graph: Graph, path: Path) -> bool:
    """Whether a node that runs whenever the graph at the end of a path does is given what the runtime refuses."""
    for outputs, attribute in path:
        held = {n.name: n.outputs for n in graph.nodes}
        found = [b.graph for b in graph.source.bodies if (held[b.node], b.attribute) == (outputs, attribute)]
        if not found:
            return False
        graph = found[0]
    for n in alive(graph.nodes, graph.outputs)[0]:
        types = [graph.types.get(v) for v in n.inputs[:3]]
        if n.standard and n.op in _RANKS and any(t is not None and len(t.shape) != _RANKS[n.op] for t in types):
            return True
    return False


def _choices(graph: Graph) -> _Choices | None:
    """What is known to run in a graph and in its bodies; None where nothing is."""
    bodies = graph.source.bodies
    outputs = {n.name: n.outputs for n in graph.nodes} if bodies else {}
    inner = {(outputs[b.node], b.attribute): made for b in bodies if (made := _choices(b.graph)) is not None}
    here = {n.outputs: name for n in graph.nodes if (name := _branch(graph, n))} if bodies else {}
    return _Choices(here, inner) if here or inner else None


def _branch(graph: Graph, node: Node) -> str:
    """The attribute with the branch of an If that runs; none where that is not known."""
    if node.op != "If" or not node.standard or len(node.inputs) != 1:
        return ""
    known, constant = graph.known.get(node.inputs[0]), graph.constants.get(node.inputs[0])
    value = known[0].constant if known is not None and len(known) == 1 else None
    if constant is not None and constant.size == 1:
        value = int(constant.load().reshape(()).item())
    return "" if value is None else "then_branch" if value else "else_branch"


def _splice(graph: onnx.GraphProto, choices: _Choices, names: Counter[str]) -> None:
    """Put the branches that run in place of their nodes, in a graph and in those inside it."""
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
    kept = onnx.GraphProto(node=nodes)
    del graph.node[:]
    graph.node.extend(kept.node)


def _opened(
    graph: onnx.GraphProto, node: onnx.NodeProto, branch: onnx.GraphProto, name: str, names: Counter[str]
) -> list[onnx.NodeProto]:
    """The nodes of a branch, which give the outputs of its If; its constants and types go to the graph."""
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
    either = set(node.output) - {o.name for o in graph.output}  # what is declared of them is true of both branches
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
