"""Memory over time: bytes of the values alive at each node of a run, from their producers and last readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onnxfuse.measure.lineage import Wire
from onnxfuse.ops.traits import is_view_by_name

COPIED = "Dropout"  # a view that the runtime copies nevertheless


def shares_memory(op: str) -> bool:
    """Whether the result of an operator is a view of its first input in the runtime, without memory of its own."""
    return is_view_by_name(op) and op != COPIED


@dataclass(frozen=True, slots=True)
class TimelineStep:
    """A node of a run: its start time, and the bytes of all live values while it runs, its results included."""

    name: str
    start_ms: float
    bytes: int


def timeline(
    nodes: Sequence[tuple[Wire, float]], sizes: Mapping[str, int], outputs: Sequence[str]
) -> tuple[TimelineStep, ...]:
    """The steps of a run; `nodes` are pairs of a node and its start in milliseconds, `sizes` the bytes of values.

    A value is alive from its producer to the last reader of it or of a view of it; model outputs stay alive.

    >>> run = [(Wire("a", "Abs", ("x",), ("u",)), 0.0), (Wire("b", "Neg", ("u",), ("v",)), 1.0)]
    >>> [step.bytes for step in timeline(run, {"u": 8, "v": 8}, ["v"])]
    [8, 16]
    """
    root: dict[str, str] = {}
    last: dict[str, int] = {}
    for at, (node, _) in enumerate(nodes):
        if shares_memory(node.op) and node.reads and node.makes:
            root[node.makes[0]] = root.get(node.reads[0], node.reads[0])
        for value in (*node.reads, *node.makes):
            last[root.get(value, value)] = at
    last |= {root.get(value, value): len(nodes) for value in outputs}
    alive_bytes, steps = 0, []
    ending: dict[int, int] = {}
    for at, (node, start) in enumerate(nodes):
        for value in node.makes:
            if root.get(value, value) == value:
                alive_bytes += sizes.get(value, 0)
                ending[last[value]] = ending.get(last[value], 0) + sizes.get(value, 0)
        steps.append(TimelineStep(node.name, start, alive_bytes))
        alive_bytes -= ending.get(at, 0)
    return tuple(steps)
