"""No fusion: every operator is a group."""

from __future__ import annotations

from onnxfuse.plan.search.scope import Cover
from onnxfuse.plan.search.space import Space


def none(space: Space) -> Cover:
    """Every operator alone."""
    return Cover(tuple((i,) for i in space.order))
