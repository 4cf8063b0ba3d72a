"""Whether what a row defines can be a kernel: element types agree, and its inputs are not too many."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from onnxfuse.ir.compose import indices_of, walk
from onnxfuse.ir.functions import fits
from onnxfuse.ir.graph import Node, TensorType
from onnxfuse.ir.indexing import looked_up
from onnxfuse.ir.scalar import Apply, Scalar

MOST_INPUTS = 64  # of a node: Concat and Sum nest one expression for each, and a compiler takes half a minute for 90


def misfit(node: Node, values: Iterable[Scalar], types: Mapping[str, TensorType | None]) -> tuple[str, str] | None:
    """The code and the reason where a tensor of indices or the operands of a function do not fit; None where all do.

    Of operators of ONNX, whose schemas say which types they take, functions of other types are bugs.
    """
    if len(node.inputs) > MOST_INPUTS:
        return "E-NO-KERNEL", f"{len(node.inputs)} tensors, more than {MOST_INPUTS}, are one expression of an element"
    for value in values:
        for source in (s for e in indices_of(value) for s in looked_up(e) if s in node.inputs):
            known = types.get(source)
            if known is None:
                return "E-SHAPE-UNKNOWN", f"the type of {source} is not known"
            if known.dtype.kind not in "iu":
                return "E-INVALID", f"the indices {source} are {known.dtype}"
        for n in () if node.standard else walk(value):
            if isinstance(n, Apply) and not fits(n.fn, [a.dtype for a in n.args], n.dtype):
                return "E-INVALID", f"{n.fn} takes no operands of types {', '.join(str(a.dtype) for a in n.args)}"
    return None
