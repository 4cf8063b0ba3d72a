"""Output types where ONNX shape inference has none or is wrong: com.microsoft, ai.onnx.ml, Resize, STFT."""

from __future__ import annotations

from collections.abc import Callable

from onnxfuse.ir.dtype import F32, U8
from onnxfuse.ir.graph import Refused, TensorType
from onnxfuse.ir.index import Index, divides, floor_div
from onnxfuse.ops.resize import resized
from onnxfuse.ops.spec import UNFORESEEN, View

Guess = Callable[[View], TensorType | None]


def _same(view: View) -> TensorType | None:
    """The type of the first input."""
    return view.type(0)


def _features(view: View) -> TensorType | None:
    """The shape of the first input, as float32."""
    return TensorType(F32, view.shape(0))


def _quantized(view: View) -> TensorType | None:
    """The shape of the first input, with the type of the zero point."""
    return TensorType(view.dtype(2) if view.has(2) else U8, view.shape(0))


def _dequantized(view: View) -> TensorType | None:
    """The shape of the first input, with the type of the scale."""
    return TensorType(view.dtype(1), view.shape(0))


def _attention(view: View) -> TensorType | None:
    """Attention with packed QKV weights: a third of their columns is the width of the result."""
    x, columns = view.shape(0), view.shape(1)[-1]
    sizes = view.attr("qkv_hidden_sizes", ())
    if len(x) != 3:
        return None
    width = Index.of(sizes[2]) if len(sizes) == 3 else divides(Index.of(3), columns)
    return None if width is None else TensorType(view.dtype(0), (*x[:2], width))


def _multi_head(view: View) -> TensorType | None:
    """MultiHeadAttention: as many rows as the query, as wide as the value, whose heads may be split already."""
    q = view.shape(0)
    if len(q) != 3 or not view.has(2):
        return None
    v = view.shape(2)
    return TensorType(view.dtype(0), (q[0], q[1], v[1] * v[3] if len(v) == 4 else v[-1]))


def _resize(view: View) -> TensorType | None:
    """Resize and Upsample in modes without a row: the shape by `sizes` or scales."""
    return TensorType(view.dtype(0), resized(view))


def _frames(view: View) -> TensorType | None:
    """STFT: frames, bins, and real and imaginary parts; ONNX inference assumes that every STFT is two-sided."""
    (step,), x = view.static_ints(1), view.shape(0)
    size = view.shape(2)[0] if view.has(2) else Index.of(view.static_ints(3)[0])
    points = size.constant
    if points is None or step < 1:
        return None
    bins = points // 2 + 1 if view.attr("onesided", 1) else points
    return TensorType(view.dtype(0), (x[0], floor_div(x[1] - size, Index.of(step)) + 1, Index.of(bins), Index.of(2)))


# By domain and operator: the type of the first output.
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
    "STFT": _frames,
    "Upsample": _resize,
}
_FEATURES: dict[str, Guess] = {"Imputer": _same, "Normalizer": _features, "Scaler": _features}
_GUESSES: dict[str, dict[str, Guess]] = {
    "": _DEFAULT,
    "ai.onnx": _DEFAULT,
    "ai.onnx.ml": _FEATURES,
    "com.microsoft": _MICROSOFT,
}


def guessed(view: View) -> TensorType | None:
    """The type of a node's first output; None for operators without an entry here."""
    guess = _GUESSES.get(view.node.domain, {}).get(view.node.op)
    try:
        return guess(view) if guess is not None else None
    except (Refused, *UNFORESEEN):
        return None
