"""Layouts of values between groups: channels last for images."""

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

CHANNELS = 1  # the channel dimension of an image in ONNX


def layouts_of(graph: Graph, groups: Sequence[Group], kinds: Mapping[str, Kind]) -> dict[str, Layout]:
    """Channels last for every value between groups whose dimension 1 is the channels of an operator on images.

    These are the inputs and outputs of such operators, and values of their groups computed from those by elementwise
    operators or movement; a Transpose after a convolution may put channels last, and its result keeps its layout.
    Images that are not connected to a convolution through groups keep the runtime's layout, on which pools are as fast.
    """
    inside = {n.name for g in groups for n in g.nodes}
    readers = graph.consumers()
    outputs = {o for g in groups for o in g.outputs} - set(graph.outputs)
    ranks = {v: len(t.shape) for v in outputs if (t := graph.types.get(v)) is not None}
    free = {v for v, rank in ranks.items() if rank in (3, 4, 5) and all(n.name in inside for n in readers.get(v, []))}
    wants: set[str] = set()
    known = -1
    while known < len(wants):  # propagates the layout through groups that do not reduce the channels
        known = len(wants)
        for g in groups:
            channels = channels_in(g.nodes, kinds, wants.intersection((*g.inputs, *g.outputs)))
            wants |= {v for v in (*g.inputs, *g.outputs) if channels.get(v) == CHANNELS and v in free}
    wants = _of_convolutions(groups, kinds, _through_pools(graph, groups, kinds, wants))
    return {v: channels_last(ranks[v]) for v in sorted(wants)}


def _through_pools(graph: Graph, groups: Sequence[Group], kinds: Mapping[str, Kind], images: set[str]) -> set[str]:
    """The `images` without those that only a pool makes or reads, if other images of that pool are not in the set.

    A pool does not transpose its input, nor does an operator that samples its input (Resize): each element of the
    result would be stored by itself.
    """
    readers = graph.consumers()
    ends: list[tuple[set[str], set[str]]] = []  # the images of a pool, and those that only it makes or reads
    for g in (g for g in groups if not _convolves(g, kinds)):
        pool = any(kinds[n.name].name == WINDOW for n in g.nodes)
        channels, mine = channels_in(g.nodes, kinds, () if pool else images.intersection(g.inputs)), set(g.nodes)
        if not pool and not _samples(g, kinds, channels):
            continue
        found = {v for v in (*g.inputs, *g.outputs) if channels.get(v) == CHANNELS and v not in graph.constants}
        ends.append((found, {v for v in found if v in g.outputs or mine.issuperset(readers.get(v, []))}))
    kept, known = images, set[str]()
    while known != kept:
        known = kept
        kept = kept - {v for all_of_it, own in ends if not all_of_it <= kept for v in own}
    return kept


def _samples(g: Group, kinds: Mapping[str, Kind], channels: Mapping[str, int]) -> bool:
    """Whether a group reads images at other places than one after the other."""
    read = [(d, x) for n in g.nodes for d in kinds[n.name].definitions for x in loads(d.value) if x.source in channels]
    return any(coefficient(e, axis) != ONE for d, x in read for e in x.index for axis in axes_of(e) & set(d.axes))


def _convolves(g: Group, kinds: Mapping[str, Kind]) -> bool:
    return any(kinds[n.name].images == "convolution" for n in g.nodes)


def _of_convolutions(groups: Sequence[Group], kinds: Mapping[str, Kind], images: Iterable[str]) -> set[str]:
    """The `images` that are connected to a group with a convolution, directly or through other groups."""
    ends = [(g, set(images).intersection((*g.inputs, *g.outputs))) for g in groups]
    found = {v for g, values in ends if _convolves(g, kinds) for v in values}
    known = -1
    while known < len(found):
        known = len(found)
        found |= {v for _, values in ends if values & found for v in values}
    return found


def channels_in(nodes: Sequence[Node], kinds: Mapping[str, Kind], images: Iterable[str] = ()) -> dict[str, int]:
    """The channel dimension of each value of a group that has the channels of an image.

    Starts from the inputs and outputs of operators on images, and from `images` outside of the group.
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
