"""A lowered group, the input of scheduling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onnxfuse.ir.graph import TensorType
from onnxfuse.ir.group import Group
from onnxfuse.ops.spec import Definition, Demand


@dataclass(frozen=True, slots=True)
class Lowered:
    """A group as definitions in order. `outputs` name those that leave the group; the others are temporaries.

    `demands` are the constraints on extents that its operators state. Of some inputs only the shape is read.
    """

    group: Group
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: Mapping[str, TensorType]
    definitions: tuple[Definition, ...]
    demands: tuple[Demand, ...] = ()
