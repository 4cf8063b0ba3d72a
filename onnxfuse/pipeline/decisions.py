"""Why nodes stay with the runtime: every refusal of a build once."""

from __future__ import annotations

from dataclasses import replace

from onnxfuse.ir.graph import Decision
from onnxfuse.pipeline.state import Build

_HOLDS = "it holds graphs, which are fused on their own"


def decisions(b: Build) -> tuple[Decision, ...]:
    """Every refusal once, those of kernels first: what they leave over is planned again, and may be too little."""
    planned = [d for each in b.everywhere() if each.plan is not None for d in each.plan.decisions]
    later = [d for each in b.everywhere() for d in each.refused]
    holders = {(each.node,) for each in b.everywhere()}
    return tuple(dict.fromkeys(_of_holder(d) if d.nodes in holders else d for d in (*later, *planned)))


def _of_holder(d: Decision) -> Decision:
    """What is said of a node whose bodies have plans of their own: not that it has no kernel itself."""
    return replace(d, code="E-SUBGRAPH", reason=_HOLDS, unlock="") if d.code == "E-NO-KERNEL" else d
