"""The jobs of a group as they are made, and where its values are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from onnxfuse.ir.dtype import DType
from onnxfuse.ir.index import Index
from onnxfuse.ir.layout import PLAIN, Layout
from onnxfuse.ops.spec import Definition
from onnxfuse.schedule.analysis.contract import Contracted
from onnxfuse.schedule.analysis.joint_weights import JointWeights
from onnxfuse.schedule.analysis.memory import Place, dense, nest_of
from onnxfuse.schedule.nests.jobs import Job, equal_copy


@dataclass(slots=True)
class Prepared:
    """Jobs in order, the places of parameters and temporaries, and the layouts and storage dtypes of packed weights.

    Of `panels`, constants in the panels of some contraction, only tiles can read elements. What contractions
    read of a constant in part, in panels of a width, has a place in a `joint` matrix; they are `partly` if it has none.
    """

    jobs: list[Job]
    places: dict[str, Place]
    layouts: dict[str, Layout]
    shapes: dict[str, tuple[Index, ...]]
    types: dict[str, DType] = field(default_factory=dict)
    panels: set[str] = field(default_factory=set)
    joint: Mapping[tuple[str, int], JointWeights] = field(default_factory=dict)
    partly: dict[tuple[str, int], list[Contracted]] = field(default_factory=dict)

    @property
    def torn(self) -> frozenset[str]:
        """Constants in panels that something else than tiles reads too."""
        return frozenset(x.source for job in self.jobs for x in job.plain_reads if x.source in self.panels)

    def add(self, d: Definition, layout: Layout = PLAIN, *, right_side: bool = False) -> str:
        """Add a copy, unless an earlier contraction has an equal one; the name of that, or of the new one."""
        place = dense(d.name, d.value.dtype, d.shape, layout)
        nest = nest_of(d, self.places | {d.name: place})
        known = equal_copy(nest, (job for job in self.jobs if self.layouts.get(job.nest.name) == layout))
        if known is None:
            self.shapes[d.name], self.layouts[d.name], self.places[d.name] = d.shape, layout, place
            self.jobs.append(Job(nest, None, True, right_side))
        return known or d.name
