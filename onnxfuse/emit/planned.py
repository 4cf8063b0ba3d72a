"""The input of emit: graphs with their plans, and the groups that became kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnxfuse.emit.body import Body
from onnxfuse.ir.group import Group, Plan
from onnxfuse.ir.kernel import Kernel
from onnxfuse.load.source import ModelSource, source_of


@dataclass(frozen=True, slots=True)
class Fused:
    """A group that became a kernel, its function body, and its operator type (see `names.identity`)."""

    group: Group
    kernel: Kernel
    body: Body
    op: str


@dataclass(frozen=True, slots=True)
class Planned:
    """A graph with its groups that became kernels: the main graph, or the subgraph `attribute` of the node `node`."""

    plan: Plan
    fused: Sequence[Fused]
    inner: tuple[Planned, ...] = ()
    node: str = ""
    attribute: str = ""

    @property
    def changes(self) -> bool:
        """Whether it or one of its subgraphs has a kernel."""
        return bool(self.fused) or any(i.changes for i in self.inner)

    @property
    def source(self) -> ModelSource:
        """The loaded model or subgraph."""
        source = source_of(self.plan.graph)
        return source
