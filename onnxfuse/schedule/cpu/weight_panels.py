"""Constants as sides of contractions, in panels that tiles read from end to end."""

from __future__ import annotations

from dataclasses import dataclass

from onnxfuse.ir.dtype import DType
from onnxfuse.ir.index import Axis, Index, floor_div
from onnxfuse.ir.indexing import flatten, product
from onnxfuse.ir.layout import Layout
from onnxfuse.ir.scalar import Load
from onnxfuse.schedule.analysis.contract import Contracted, panel_layout
from onnxfuse.schedule.analysis.joint_weights import JointWeights, joint_weights
from onnxfuse.schedule.analysis.memory import Place
from onnxfuse.schedule.nests.prepared import Prepared


@dataclass(frozen=True, slots=True)
class WeightPanels:
    """A constant in panels: what a contraction reads of it, by batch, panel, row of k and column in the panel."""

    load: Load
    layout: Layout
    sizes: tuple[Index, ...]

    def free(self, done: Prepared) -> bool:
        """Whether the constant has no other layout or storage dtype yet."""
        source, dtype = self.load.source, self.load.dtype
        return done.layouts.get(source, self.layout) == self.layout and done.types.get(source, dtype) == dtype

    def taken(self, done: Prepared) -> Load:
        """The load, once the constant has this layout."""
        source, sizes = self.load.source, self.sizes
        done.layouts[source], done.types[source] = self.layout, self.load.dtype
        done.panels.add(source)
        done.places[source] = Place(source, self.load.dtype, lambda index: flatten(index, sizes))
        return self.load


def panel_axes(c: Contracted, width: int) -> tuple[Axis, Axis]:
    """The axes of a right side in panels: panel, and column in the panel."""
    count = floor_div(product([a.extent for a in c.columns]) + (width - 1), Index.of(width))
    return Axis(f"{c.definition.name}_p", count), Axis(f"{c.definition.name}_j", Index.of(width))


def in_panels(c: Contracted, axes: tuple[Axis, Axis], stored: DType, step: int, done: Prepared) -> WeightPanels | None:
    """The right side of a contraction, a constant, in panels, `step` consecutive k interleaved.

    None if it is read in parts that have no joint matrix, or its shape is not known.
    """
    assert isinstance(c.right, Load)
    (panel, lane), source = axes, c.right.source
    shape, width = done.shapes[source], lane.extent.constant or 1
    extents = tuple(r.extent for r in c.ranges)
    layout, begin, sizes = panel_layout(c, shape, width, step), (0, 0), (panel.extent, product(extents))
    if layout is None:
        joint = done.joint.get((source, width))
        if joint is None:
            done.partly.setdefault((source, width), []).append(c)
            return None
        layout, own = joint.layout(shape, width, step), joint.begin(c, shape)
        if layout is None or own is None:
            return None
        begin, sizes = own, (Index.of(-(-joint.columns // width)), Index.of(joint.rows))
    k = flatten(tuple(map(Index.of, c.ranges)), extents) + begin[0]
    at = (*map(Index.of, c.batch), Index.of(panel) + begin[1] // width, k, Index.of(lane))
    return WeightPanels(Load(source, at, stored), layout, (*(a.extent for a in c.batch), *sizes, Index.of(width)))


def joined_parts(done: Prepared) -> dict[tuple[str, int], JointWeights]:
    """The joint matrices of constants that contractions read in parts, by constant and width of panels."""
    found = {key: joint_weights(parts, done.shapes[key[0]]) for key, parts in done.partly.items() if len(parts) > 1}
    return {key: matrix for key, matrix in found.items() if matrix is not None}
