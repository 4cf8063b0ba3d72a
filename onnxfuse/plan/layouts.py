"""How values between groups lie in memory: images channels last, where their channels are not last already."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from onnxfuse.ir.compose import loads
from onnxfuse.ir.graph import Graph, Node
from onnxfuse.ir.group import Group
from onnxfuse.ir.index import ONE, Axis, axes_of
from onnxfuse.ir.indexing import coefficient
from onnxfuse.ir.layout import Layout, channels_last
from onnxfuse.ops.spec import Definition
from onnxfuse.plan.kinds import WINDOW, Kind

CHANNELS = 1  # the dimension of an image that holds them


def layouts_of(graph: Graph, groups: Sequence[Group], kinds: Mapping[str, Kind]) -> dict[str, Layout]:
    """Channels last for every value between groups that holds an image's channels where an operator of images has them.

    That is what such an operator makes or reads, and what its group rearranges from or to that: a Transpose behind a
    convolution may bring the channels to the end, and what it makes lies as it is. Images that come from no convolution
    and go to none, over any number of groups, lie as the runtime has them: pools are as fast on these.
    """
    inside = {n.name for g in groups for n in g.nodes}
    readers = graph.consumers()
    outputs = {o for g in groups for o in g.outputs} - set(graph.outputs)
    ranks = {v: len(t.shape) for v in outputs if (t := graph.types.get(v)) is not None}
    free = {v for v, rank in ranks.items() if rank in (3, 4, 5) and all(n.name in inside for n in readers.get(v, []))}
    wants: set[str] = set()
    known = -1
    while known < len(wants):  # what a group makes of such a value without reducing it lies so as well
        known = len(wants)
        for g in groups:
            channels = channels_in(g.nodes, kinds, wants.intersection((*g.inputs, *g.outputs)))
            wants |= {v for v in (*g.inputs, *g.outputs) if channels.get(v) == CHANNELS and v in free}
    wants = _of_convolutions(groups, kinds, _through_pools(graph, groups, kinds, wants))
    return {v: channels_last(ranks[v]) for v in sorted(wants)}


def _through_pools(graph: Graph, groups: Sequence[Group], kinds: Mapping[str, Kind], images: set[str]) -> set[str]:
    """Those of some values that no pool makes or alone reads of whose images others are not among them.

    A pool does not turn what it reads.
    """
    readers = graph.consumers()
    pools = [g for g in groups if any(kinds[n.name].name == WINDOW for n in g.nodes) and not _convolves(g, kinds)]
    ends: list[tuple[set[str], set[str]]] = []  # the images of a pool, and those of them that are its own
    for g in pools:
        channels, mine = channels_in(g.nodes, kinds), set(g.nodes)
        found = {v for v in (*g.inputs, *g.outputs) if channels.get(v) == CHANNELS and v not in graph.constants}
        ends.append((found, {v for v in found if v in g.outputs or mine.issuperset(readers.get(v, []))}))
    kept, known = images, set[str]()
    while known != kept:
        known = kept
        kept = kept - {v for all_of_it, own in ends if not all_of_it <= kept for v in own}
    return kept


def _convolves(g: Group, kinds: Mapping[str, Kind]) -> bool:
    return any(kinds[n.name].images == "convolution" for n in g.nodes)


def _of_convolutions(groups: Sequence[Group], kinds: Mapping[str, Kind], images: Iterable[str]) -> set[str]:
    """Those of some values that groups with a convolution read or make, or others that do so with any of these."""
    ends = [(g, set(images).intersection((*g.inputs, *g.outputs))) for g in groups]
    found = {v for g, values in ends if _convolves(g, kinds) for v in values}
    known = -1
    while known < len(found):
        known = len(found)
        found |= {v for _, values in ends if values & found for v in values}
    return found


def channels_in(nodes: Sequence[Node], kinds: Mapping[str, Kind], images: Iterable[str] = ()) -> dict[str, int]:
    """For values of a group that hold the channels of an image: the dimension that runs through them.

    It begins with those of the group's operators of images, and with `images` that come from outside.
    """
    found = dict.fromkeys(images, CHANNELS)
    for n in nodes:
        if kinds[n.name].spatial:
            found |= {n.inputs[0]: CHANNELS, n.outputs[0]: CHANNELS}
    if not found:
        return found
    rest = [d for n in nodes if not kinds[n.name].spatial for d in kinds[n.name].definitions]
    known = -1
    while known < len(found):
        known = len(found)
        for d in rest:
            _forward(d, found)
        for d in reversed(rest):
            _backward(d, found)
    return found


def _forward(d: Definition, found: dict[str, int]) -> None:
    for load in loads(d.value):
        at = found.get(load.source)
        if d.name not in found and at is not None:
            axis = next((a for a in d.axes if axes_of(load.index[at]) == {a}), None)
            if axis is not None and coefficient(load.index[at], axis) == ONE:
                found[d.name] = d.axes.index(axis)


def _backward(d: Definition, found: dict[str, int]) -> None:
    if d.name not in found:
        return
    axis: Axis = d.axes[found[d.name]]
    for load in loads(d.value):
        here = [at for at, e in enumerate(load.index) if axis in axes_of(e)]
        if len(here) == 1 and coefficient(load.index[here[0]], axis) == ONE:
            found.setdefault(load.source, here[0])
