"""Output types that ONNX inference does not find: of ONNX Runtime's own operators, dropped ones, symbolic resizing."""

from __future__ import annotations

from collections.abc import Callable

from onnxfuse.ir.dtype import U8
from onnxfuse.ir.graph import Refused, TensorType
from onnxfuse.ir.index import Index, divides, floor_div
from onnxfuse.ops.spec import INVALID_CALL, View

Guess = Callable[[View], TensorType | None]


def _same(view: View) -> TensorType | None:
    """The type of the first input."""
    return view.type(0)


def _quantized(view: View) -> TensorType | None:
    """The shape of the first input in the type of the zero point."""
    return TensorType(view.dtype(2) if view.has(2) else U8, view.shape(0))


def _dequantized(view: View) -> TensorType | None:
    """The shape of the first input in the type of the scale."""
    return TensorType(view.dtype(1), view.shape(0))


def _attention(view: View) -> TensorType | None:
    """Attention of one packed projection: a third of its columns is the width of the result."""
    x, columns = view.shape(0), view.shape(1)[-1]
    sizes = view.attr("qkv_hidden_sizes", ())
    if len(x) != 3:
        return None
    width = Index.of(sizes[2]) if len(sizes) == 3 else divides(Index.of(3), columns)
    return None if width is None else TensorType(view.dtype(0), (*x[:2], width))


def _multi_head(view: View) -> TensorType | None:
    """MultiHeadAttention: as many rows as queries, as wide as the values, whose heads may already be split."""
    q = view.shape(0)
    if len(q) != 3 or not view.has(2):
        return None
    v = view.shape(2)
    return TensorType(view.dtype(0), (q[0], q[1], v[1] * v[3] if len(v) == 4 else v[-1]))


def _resize(view: View) -> TensorType | None:
    """Resize and Upsample: to `sizes`, or by scales that are integers or the inverse of integers."""
    have = view.shape(0)
    if view.attr("keep_aspect_ratio_policy", "stretch") != "stretch":
        return None
    at = tuple(view.axis(a, len(have)) for a in view.attr("axes", range(len(have))))
    shape = list(have)
    if view.has(3):
        wanted: list[Index | None] = list(view.ints(3))
    else:
        given = view.array(2 if view.node.op == "Resize" and view.opset >= 11 else 1)
        scales = view.attr("scales", ()) if given is None else given.reshape(-1).tolist()
        wanted = [_scaled(have[a], float(s)) for a, s in zip(at, scales, strict=True)]
    for a, extent in zip(at, wanted, strict=True):
        if extent is None:
            return None
        shape[a] = extent
    return TensorType(view.dtype(0), tuple(shape))


def _scaled(extent: Index, scale: float) -> Index | None:
    if scale.is_integer():
        return extent * int(scale)
    return floor_div(extent, Index.of(int(1 / scale))) if scale > 0 and (1 / scale).is_integer() else None


# By domain and operator: the type of the first output; of other outputs nothing is said.
_MICROSOFT: dict[str, Guess] = {
    **dict.fromkeys(("BiasAdd", "BiasSoftmax"), _same),
    "QuantizeLinear": _quantized,
    "DequantizeLinear": _dequantized,
    "Attention": _attention,
    "MultiHeadAttention": _multi_head,
}
_DEFAULT: dict[str, Guess] = {
    **dict.fromkeys(("ParametricSoftplus",), _same),
    "Resize": _resize,
    "Upsample": _resize,
}
_GUESSES: dict[str, dict[str, Guess]] = {"": _DEFAULT, "ai.onnx": _DEFAULT, "com.microsoft": _MICROSOFT}


def guessed(view: View) -> TensorType | None:
    """The type of a node's first output, where this page knows its operator."""
    guess = _GUESSES.get(view.node.domain, {}).get(view.node.op)
    try:
        return guess(view) if guess is not None else None
    except (Refused, *INVALID_CALL):
        return None
