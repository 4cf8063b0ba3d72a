"""Rows of scans: each element is what all up to it come to. Their loops carry that on (`lower/scans.py`)."""

from __future__ import annotations

from onnxfuse.ir.compose import inside
from onnxfuse.ir.index import Axis, Index
from onnxfuse.ir.monoid import MONOIDS
from onnxfuse.ir.scalar import Guard, Scalar
from onnxfuse.ops.spec import Definition, Row, View
from onnxfuse.ops.stages import At, Stages, total, wide


def scan_row(op: str, combine: str) -> Row:
    """CumSum or CumProd along a known axis, exclusive or not, from either end."""

    def define(view: View) -> tuple[Definition, ...]:
        have, stages, x = view.shape(0), Stages(view), wide(view)
        at = view.axis(view.static_ints(1)[0], len(have))
        own, turned = int(bool(view.attr("exclusive", 0))), bool(view.attr("reverse", 0))
        j = Axis(f"{view.out()}:j", have[at])

        def value(index: At) -> Scalar:
            element = x((*index[:at], Index.of(j), *index[at + 1 :]))
            before = (Index.of(j) - index[at] if turned else index[at] - j) - own
            idle = MONOIDS[combine].init(element.dtype)[0]
            return total(combine, (j,), inside((Guard(before, have[at]),), element, idle))

        if view.dtype(0) == view.dtype(0).accumulator:
            stages.output(have, value)
        else:  # what goes on from element to element is not rounded to the type of the result
            stages.output(have, stages.value("%run", have, value))
        return tuple(stages.made)

    return Row(op, define, shape_inputs=(1,))


ROWS: tuple[Row, ...] = (
    scan_row("CumSum", "sum"),
    scan_row("CumProd", "prod"),
)
