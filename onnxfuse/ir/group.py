"""The planner's result: groups of nodes, the layouts of values between them, and all refusals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from onnxfuse.ir.dtype import DType
from onnxfuse.ir.graph import Decision, Graph, Node
from onnxfuse.ir.layout import PLAIN, Layout


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that become one kernel. `inputs` are defined outside, constants included; `outputs` are used outside."""

    name: str
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def origin(self) -> tuple[str, ...]:
        """Names of the loaded model's nodes that it stands for."""
        return tuple(dict.fromkeys(o for n in self.nodes for o in n.origin))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A group that strategies proposed, by the names of its nodes: its predicted time, and why it was not chosen.

    `reason` is None where it was chosen. `behind` is by how much its region is slower with it, relative to the group's
    own time; None where that was not computed. The time may have been `measured`.
    """

    nodes: tuple[str, ...]
    by: tuple[str, ...]
    seconds: float | None
    reason: Decision | None
    behind: float | None = None
    measured: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """Disjoint groups in topological order, the non-plain layouts of values, and refusals.

    `storage_types` are the types of values that are not stored in the graph's element type; consumers convert them.
    Values of the types in `widened` are float32 between operators of a group.
    """

    graph: Graph
    groups: tuple[Group, ...]
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    decisions: tuple[Decision, ...] = ()
    storage_types: Mapping[str, DType] = field(default_factory=dict)
    candidates: tuple[Candidate, ...] = ()  # where prices decided
    widened: tuple[DType, ...] = ()

    def layout(self, value: str) -> Layout:
        """The layout of a value in memory."""
        return self.layouts.get(value, PLAIN)


def group_of(name: str, nodes: tuple[Node, ...], wanted: Mapping[str, int]) -> Group:
    """A group with its inputs and outputs derived.

    `wanted` counts the readers of each value in the whole graph, graph outputs included.
    """
    made = {o for n in nodes for o in n.outputs if o}
    inside: dict[str, int] = {}
    for n in nodes:
        for i in dict.fromkeys(n.reads):
            inside[i] = inside.get(i, 0) + 1
    inputs = tuple(dict.fromkeys(i for n in nodes for i in n.inputs if i and i not in made))
    outputs = tuple(o for n in nodes for o in n.outputs if o and wanted.get(o, 0) > inside.get(o, 0))
    return Group(name, nodes, inputs, outputs)
