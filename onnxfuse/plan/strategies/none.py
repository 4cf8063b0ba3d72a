"""No fusion: every operator is a group of its own."""

from __future__ import annotations

from onnxfuse.plan.search.scope import Cover
from onnxfuse.plan.search.space import Space


def none(space: Space) -> Cover:
    """Every operator as a group of its own."""
    return Cover(tuple((i,) for i in space.order))
