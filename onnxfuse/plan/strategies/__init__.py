"""The strategies by the names that `--strategy` gives them: each makes a cover of a space, as its paper says."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from onnxfuse.plan.scope import Cover
from onnxfuse.plan.space import Space
from onnxfuse.plan.strategies.anchors import anchors
from onnxfuse.plan.strategies.astitch import astitch
from onnxfuse.plan.strategies.dnnfusion import dnnfusion
from onnxfuse.plan.strategies.nnvm import nnvm
from onnxfuse.plan.strategies.none import none
from onnxfuse.plan.strategies.priority import priority
from onnxfuse.plan.strategies.stitch import stitch

__all__ = ("STRATEGIES",)

STRATEGIES: Mapping[str, Callable[[Space], Cover]] = {
    "anchors": anchors,
    "none": none,
    "nnvm": nnvm,
    "dnnfusion": dnnfusion,
    "stitch": stitch,
    "astitch": astitch,
    "priority": priority,
}
