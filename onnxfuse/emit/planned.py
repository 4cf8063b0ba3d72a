"""What emit is given: graphs with their plans, and the groups in them that became kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnxfuse.emit.body import Body
from onnxfuse.ir.group import Group, Plan
from onnxfuse.ir.kernel import Kernel
from onnxfuse.load.source import Source


@dataclass(frozen=True, slots=True)
class Fused:
    """A group that became a kernel: what it computes, how it is called, and what `identity` named it."""

    group: Group
    kernel: Kernel
    body: Body
    op: str


@dataclass(frozen=True, slots=True)
class Planned:
    """A graph with the groups in it that became kernels: the main graph, or the body `attribute` of the node `node`."""

    plan: Plan
    fused: Sequence[Fused]
    inner: tuple[Planned, ...] = ()
    node: str = ""
    attribute: str = ""

    @property
    def changes(self) -> bool:
        """Whether a kernel is in it or in its bodies."""
        return bool(self.fused) or any(i.changes for i in self.inner)

    @property
    def source(self) -> Source:
        """What its graph was loaded from."""
        source: Source = self.plan.graph.source
        return source
