"""Output types where ONNX shape inference has none or is wrong: com.microsoft, ai.onnx.ml, Resize, STFT."""

from __future__ import annotations

from collections.abc import Callable

from onnxfuse.ir.dtype import F32, I32, I64, U8
from onnxfuse.ir.graph import Refused, TensorType
from onnxfuse.ir.index import Index, divides, floor_div
from onnxfuse.ops.resampling.resize import resized
from onnxfuse.ops.spec import UNFORESEEN, View

Guess = Callable[[View], TensorType | tuple[TensorType | None, ...] | None]  # of the first output, or of the first ones


def _same(view: View) -> TensorType | None:
    """The type of the first input."""
    return view.type(0)


def _features(view: View) -> TensorType | None:
    """The shape of the first input, as float32."""
    return TensorType(F32, view.shape(0))


def _regressed(columns: str) -> Guess:
    """Regressors: a float32 for each row and each of the targets, whose number is an attribute (none: one)."""
    return lambda view: TensorType(F32, (view.ranked(0, 2, 2)[0], Index.of(int(view.attr(columns, 1)))))


def _classified(view: View) -> tuple[TensorType | None, ...] | None:
    """Classifiers: labels, which may be strings, and a score for each class."""
    rows = view.ranked(0, 2, 2)[0]
    numbers = view.attr("classlabels_ints", ()) or view.attr("classlabels_int64s", ())
    classes = len(numbers or view.attr("classlabels_strings", ()))
    if view.node.op == "SVMClassifier" and not view.attr("prob_a", ()):
        return None  # a score for each pair of classes
    scores = TensorType(F32, (rows, Index.of(classes)))
    return (TensorType(I64, (rows,)) if numbers else None, scores) if classes > 1 else None


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


def _grouped(view: View) -> TensorType | None:
    """GroupQueryAttention: as wide as the query, which has keys and values behind it where these are missing."""
    q = view.shape(0)
    if len(q) != 3:
        return None
    if view.has(1):
        return TensorType(view.dtype(0), q)
    heads, shared = int(view.attr("num_heads", 0)), int(view.attr("kv_num_heads", 0))
    size = divides(Index.of(heads + 2 * shared), q[2])
    return None if size is None else TensorType(view.dtype(0), (*q[:2], size * heads))


def _blocks_of_codes(view: View) -> TensorType | None:
    """MatMulNBits and its kin: a product with weights in blocks of a few bits, N columns wide."""
    return TensorType(view.dtype(0), (*view.ranked(0, 1)[:-1], Index.of(int(view.attr("N", 0)))))


def _product(view: View) -> TensorType | None:
    """A product of matrices, the second one constant or of rank 2, of the type of the first one."""
    a, b = view.ranked(0, 1), view.ranked(1, 2, 2)
    return TensorType(view.dtype(0), (*a[:-1], b[1]))


def _quantized_attention(view: View) -> TensorType | None:
    """QAttention: as `_attention`, of the type of the bias."""
    packed = _attention(view)
    return None if packed is None else TensorType(view.dtype(2), packed.shape)


def _embedded(view: View) -> tuple[TensorType | None, ...]:
    """QEmbedLayerNormalization: a row of the table of words for each id, of the type of its scale; and lengths."""
    ids, table = view.ranked(0, 2, 2), view.ranked(2, 2, 2)
    return TensorType(view.dtype(8), (*ids, table[1])), TensorType(I32, ids[:1])


def _looked_up(view: View) -> TensorType | None:
    """GatherBlockQuantized: slices of a table of codes, of which bytes may hold several, of the type of its scales."""
    table, at = list(view.shape(0)), view.shape(1)
    axis, bits = int(view.attr("gather_axis", 0)) % len(table), int(view.attr("bits", 4))
    if view.dtype(0) == U8:
        table[-1] = table[-1] * (8 // bits)
    return TensorType(view.dtype(2), (*table[:axis], *at, *table[axis + 1 :]))


def _lstm(view: View) -> tuple[TensorType, ...] | None:
    """DynamicQuantizeLSTM: outputs of all steps, and the last states."""
    (steps, batch, _), kind = view.ranked(0, 3, 3), view.dtype(0)
    ways = Index.of(2 if view.attr("direction", "forward") == "bidirectional" else 1)
    width = Index.of(int(view.attr("hidden_size", 0)))
    last = TensorType(kind, (ways, batch, width))
    return TensorType(kind, (steps, ways, batch, width)), last, last


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
    **dict.fromkeys(
        ("BiasAdd", "BiasSoftmax", "RotaryEmbedding", "MoE", "QMoE", "Inverse", "GroupNorm", "Trilu"), _same
    ),
    **dict.fromkeys(("MatMulNBits", "MatMulBnb4", "MatMulFpQ4"), _blocks_of_codes),
    "DynamicQuantizeMatMul": _product,
    "GemmFastGelu": _product,
    "DynamicQuantizeLSTM": _lstm,
    "GatherBlockQuantized": _looked_up,
    "GroupQueryAttention": _grouped,
    "QAttention": _quantized_attention,
    "QEmbedLayerNormalization": _embedded,
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
_FEATURES: dict[str, Guess] = {
    **dict.fromkeys(("LinearClassifier", "SVMClassifier", "TreeEnsembleClassifier"), _classified),
    "Imputer": _same,
    "LinearRegressor": _regressed("targets"),
    "Normalizer": _features,
    "SVMRegressor": _regressed(""),
    "Scaler": _features,
    "TreeEnsembleRegressor": _regressed("n_targets"),
}
_GUESSES: dict[str, dict[str, Guess]] = {
    "": _DEFAULT,
    "ai.onnx": _DEFAULT,
    "ai.onnx.ml": _FEATURES,
    "com.microsoft": _MICROSOFT,
}


def guessed(view: View) -> tuple[TensorType | None, ...]:
    """The types of a node's first outputs, None where kernels have none; none for operators without an entry here."""
    guess = _GUESSES.get(view.node.domain, {}).get(view.node.op)
    try:
        found = guess(view) if guess is not None else None
    except (Refused, *UNFORESEEN):
        found = None
    return () if found is None else found if isinstance(found, tuple) else (found,)
