"""Refusals of nodes that could be fused but are in no group, with the change that would fuse them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from onnxfuse.ir.graph import Decision, Graph, Node
from onnxfuse.ir.group import Group
from onnxfuse.plan.kinds import Kind
from onnxfuse.plan.small_groups import is_small_product, left_alone
from onnxfuse.plan.unlocks import ALONE


def unworthy(nodes: Sequence[Node]) -> Decision:
    """The refusal of a group that only changes a shape."""
    ops, verb = " and ".join(dict.fromkeys(n.op for n in nodes)), "changes" if len(nodes) == 1 else "change"
    said = f"{ops} only {verb} a shape, which costs ONNX Runtime nothing"
    return Decision("E-COST", tuple(n.name for n in nodes), said, ALONE)


def too_few(groups: Iterable[Group], graph: Graph, kinds: Mapping[str, Kind], least: int) -> Iterator[Decision]:
    """Refusals of groups with fewer operators than `--min-group` asks for."""
    for g in groups:
        if is_small_product(g, graph, kinds):
            yield left_alone(g, graph)
            continue
        count, ops = len(g.nodes), ", ".join(n.op for n in g.nodes[:3])
        have = f"{ops} alone has" if count == 1 else f"{ops} have"
        said = f"{have} fewer operators than the {least} that --min-group asks for"
        yield Decision("E-COST", tuple(n.name for n in g.nodes), said, f"--min-group {count} makes a kernel of it")


def known_beforehand(graph: Graph, forbidden: Container[str]) -> Iterator[Decision]:
    """Refusals of nodes that compute shapes: kernels and bodies compute these themselves, other readers need them."""
    for n in graph.nodes:
        if n.name not in forbidden and n.outputs and all(o in graph.known for o in n.outputs if o):
            yield Decision(
                "E-COST", (n.name,), f"{n.op} computes shapes, which kernels compute themselves", "none needed"
            )


def about(decisions: Iterable[Decision], names: Iterable[str]) -> list[Decision]:
    """The decisions that name one of these nodes."""
    wanted = set(names)
    return [d for d in decisions if not wanted.isdisjoint(d.nodes)]


def unnamed(nodes: Iterable[Node], decisions: Iterable[Decision]) -> list[Node]:
    """The nodes that no decision names. Those without an origin, which a rewrite added, stand for none of the model."""
    named = {name for d in decisions for name in d.nodes}
    return [n for n in nodes if n.origin and named.isdisjoint((n.name, *n.origin))]


def duration(seconds: float) -> str:
    """Seconds as text, in ms or us."""
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"
