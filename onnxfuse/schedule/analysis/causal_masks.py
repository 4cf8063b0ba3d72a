"""Causal masks in attention: which scores a mask hides, as a bound on the key index that moves with the row."""

from __future__ import annotations

from onnxfuse.ir.dtype import I64
from onnxfuse.ir.index import Index
from onnxfuse.ir.scalar import Apply, Const, FromIndex, Scalar, const


def hidden_below(x: Scalar) -> Index | None:
    """An index such that x is -inf (or NaN) wherever the index is negative; None where x has no such mask."""
    if not isinstance(x, Apply):
        return None
    if x.fn == "add":
        return next((e for e in map(hidden_below, x.args) if e is not None), None)
    if x.fn != "select" or x.args[1] != Const(float("-inf"), x.dtype):
        return None
    test = x.args[0]
    if not isinstance(test, Apply) or test.fn != "less" or test.args[1] != const(0, I64):
        return None
    left = test.args[0]
    return left.index if isinstance(left, FromIndex) and not left.guards else None
