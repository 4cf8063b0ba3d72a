"""A group as few definitions, ready to be scheduled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onnxfuse.ir.graph import TensorType
from onnxfuse.ir.group import Group
from onnxfuse.ops.spec import Definition, Demand


@dataclass(frozen=True, slots=True)
class Lowered:
    """A group as definitions in order. `outputs` are those of them that the group hands on, the others stay inside.

    `demands` are those of its operators. Of some inputs only the shape is asked.
    """

    group: Group
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: Mapping[str, TensorType]
    definitions: tuple[Definition, ...]
    demands: tuple[Demand, ...] = ()
