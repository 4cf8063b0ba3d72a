"""Memory over time: bytes of the values alive at each node of a run, from who makes and who reads them last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onnxfuse.measure.lineage import Wire

# Operators whose result is their first input seen in another shape: it takes no memory of its own.
VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"})


@dataclass(frozen=True, slots=True)
class Step:
    """A node of a run: when it began, and the bytes that all values take while it runs, its results included."""

    name: str
    start_ms: float
    bytes: int


def timeline(nodes: Sequence[tuple[Wire, float]], sizes: Mapping[str, int], outputs: Sequence[str]) -> tuple[Step, ...]:
    """The steps of a run of nodes, each with the millisecond at which it began, over values of these sizes.

    A value is there from the node that makes it to the last that reads it, or a view of it; outputs of the model stay.

    >>> run = [(Wire("a", "Abs", ("x",), ("u",)), 0.0), (Wire("b", "Neg", ("u",), ("v",)), 1.0)]
    >>> [step.bytes for step in timeline(run, {"u": 8, "v": 8}, ["v"])]
    [8, 16]
    """
    root: dict[str, str] = {}
    last: dict[str, int] = {}
    for at, (node, _) in enumerate(nodes):
        if node.op in VIEWS and node.reads and node.makes:
            root[node.makes[0]] = root.get(node.reads[0], node.reads[0])
        for value in (*node.reads, *node.makes):
            last[root.get(value, value)] = at
    last |= {root.get(value, value): len(nodes) for value in outputs}
    held, steps = 0, []
    ending: dict[int, int] = {}
    for at, (node, start) in enumerate(nodes):
        for value in node.makes:
            if root.get(value, value) == value:
                held += sizes.get(value, 0)
                ending[last[value]] = ending.get(last[value], 0) + sizes.get(value, 0)
        steps.append(Step(node.name, start, held))
        held -= ending.get(at, 0)
    return tuple(steps)
