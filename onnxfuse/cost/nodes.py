"""What a node of ONNX Runtime does: operations of a kind, from its operator, tensors and attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from onnxfuse.ir.dtype import I8, U8, DType
from onnxfuse.ir.graph import Attribute
from onnxfuse.ops.traits import is_view_by_name

VIEW = "view"
EACH_ROW = 20  # elements that begin and end of a row that is reduced takes as long as
FEW = 8  # numbers of a constant that say how a node works
DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")  # whose operators have prices by their names
RESIZED = ("nearest", "linear", "cubic")  # modes of Resize


@dataclass(frozen=True, slots=True)
class Tensor:
    """What is known of a value of a node before it runs."""

    dtype: DType
    shape: tuple[int, ...]
    constant: bool = False
    ints: tuple[int, ...] = ()  # what a constant of a few whole numbers holds, such as axes or an exponent

    @property
    def elements(self) -> int:
        """Their number."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Storage."""
        return self.elements * self.dtype.bytes


def whole(values: Any) -> tuple[int, ...]:
    """The numbers of an array where all of them are whole, else none.

    >>> whole(np.array([2.0, 3.0])), whole(np.array(0.5)), whole(np.array("x"))
    ((2, 3), (), ())
    """
    flat = np.asarray(values).reshape(-1)
    numbers = flat.dtype.kind in "iuf" and bool((np.isfinite(flat) & (flat == np.trunc(flat))).all())
    return tuple(int(x) for x in flat) if numbers else ()


@dataclass(frozen=True, slots=True)
class Call:
    """A node with the tensors that it reads and makes; None where an input is absent."""

    op: str
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor, ...]
    attrs: Mapping[str, Attribute]

    def input(self, at: int) -> Tensor | None:
        """An input, None where it is absent."""
        return self.inputs[at] if at < len(self.inputs) else None

    @property
    def read(self) -> tuple[Tensor, ...]:
        """The inputs that are there."""
        return tuple(t for t in self.inputs if t is not None)


@dataclass(frozen=True, slots=True)
class NodeWork:
    """What a node does: operations of a kind (a multiply-add is two), and how often it moves all that it touches.

    `nodes` counts those that put an image into blocks of channels and back too.
    """

    kind: str
    operations: float
    moves: float = 1.0
    nodes: int = 1


def work_of(call: Call) -> NodeWork:
    """What a node does. Of operators that nobody measured: something cheap for each element."""
    special = _SPECIAL.get(call.op)
    if special is not None:
        return special(call)
    kind = _KIND_OF.get(call.op) or (VIEW if is_view_by_name(call.op) else "cheap")
    return NodeWork(kind, float(max((t.elements for t in call.outputs), default=0)))


# Kinds of operators ---------------------------------------------------------------------------------------------------

_CODES = ("QLinearConv", "QLinearMatMul", "QGemm")  # scale and zero point stand before the weights
_SIGNED = 8.0  # of operations on unsigned codes: 5 to 12 times on a Zen 4, products and convolutions
_BOTH_UNSIGNED = 3.0  # as those: 3.9 to 5 times on a Sapphire Rapids, less where unsigned by signed ones saturate
_MADE_CODE = 180.0  # operations on codes that rounding a result to one takes as long as
_PIECE, _PIECE_OF_GROUP = 2000.0, 4000.0  # that copying the channels of a tap takes as long as, or of one of its groups
_PUT = 150.0  # that an element takes as long as where images are laid out as columns
_OWN_TAP = 11.0  # as an operation where each channel has its own filter
_SHORT, _FEW = 8, 4  # rows of a product that has few; channels of an image that has few
_BLOCK = 16  # channels of images that are computed at a time, however many there are
_IN_BLOCKS = 8.0  # operations of a pool that an element takes as long as to be put into blocks of channels, or back
_EACH_READ, _EACH_WINDOW = 12.0, 10.0  # of a pool without blocks: for each element that it reads, and that it makes
_TURNED = 3.0  # times that bytes are moved by a node that also puts images into blocks and back
_EACH = 45.0  # operations that loading and storing an element takes as long as, where each channel has its own filter
_SHALLOW = 32  # products of a result, below which putting them together takes as long as they do
_ELEMENT, _IN_SLICE = 0.5, 0.02  # parts of a slice's time that a scattered element takes, by itself and in a slice
_EACH_GATE = (60.0, 150.0)  # operations that a value of a gate takes as long as, beside its products: alone, in rows
_EACH_STEP = 4000.0  # operations that begin and end of a step take as long as
_EACH_RUN = 13.0  # elements that begin and end of a run of them that is added to the one before takes as long as

_OPERATORS = {
    "cheap": "Relu BatchNormalization ImageScaler Affine BitwiseAnd BitwiseOr BitwiseXor BitwiseNot BitShift EyeLike",
    VIEW: "Shape Size ConstantOfShape Range",
    "moderate": "Div Reciprocal Sqrt Mod Floor Ceil Round LeakyRelu HardSigmoid PRelu ThresholdedRelu Shrink Sign",
    "exponential": "Exp Sigmoid Tanh ScaledTanh Swish QuickGelu",
    "error function": "Erf Gelu BiasGelu FastGelu HardSwish",
    "function": "Log Sin Cos Tan Sinh Cosh Asin Acos Atan Asinh Acosh Atanh Softsign Elu Selu Celu",
    "power": "Softplus Mish",
    "comparison": "Equal Greater GreaterOrEqual Less LessOrEqual And Or Xor Not IsNaN IsInf",
    "selection": "Where",
    "cast": "Cast CastLike",
    "code": "QuantizeLinear DequantizeLinear DynamicQuantizeLinear QLinearAdd QLinearMul QLinearSigmoid"
    " QLinearLeakyRelu QLinearWhere",
    "transpose": "Transpose",
    "shuffle": "DepthToSpace SpaceToDepth Col2Im",
    "copy": "Concat Slice Split Expand Tile QLinearConcat Trilu CenterCropPad Crop",
    "pad": "Pad",
    "scatter": "OneHot",
    "gather inner": "GatherElements GatherND ReverseSequence ArrayFeatureExtractor",
}
_KIND_OF = {op: kind for kind, ops in _OPERATORS.items() for op in ops.split()}


def _signs(left: Tensor, right: Tensor) -> float:
    """How many times as long products of these codes take as those of unsigned ones by signed ones.

    Instructions for sums of four products are for these: the runtime's products of others on x86-64 widen both sides.
    In models with QuantizeLinear it makes activations unsigned first, but not those of its operators on codes.
    """
    return _SIGNED if left.dtype == I8 else _BOTH_UNSIGNED if right.dtype == U8 else 1.0


def _product(call: Call) -> NodeWork:
    """A product of matrices: two operations for each column, row and step."""
    left, right = call.inputs[0], call.inputs[3 if call.op in _CODES else 1]
    assert left is not None and right is not None
    depth = left.shape[0] if call.op == "Gemm" and call.attrs.get("transA") else left.shape[-1]
    out = call.outputs[0]
    operations = 2.0 * out.elements * depth
    if left.dtype.bytes == 1:
        return NodeWork("product of codes", operations * _signs(left, right))
    if len(right.shape) > 2 and len(out.shape) > 1:
        return NodeWork("product batched" if out.shape[-2] > _SHORT else "product of few rows", operations)
    rows = out.elements // max(out.shape[-1], 1) if out.shape else 1
    return NodeWork(
        "product of a row" if rows == 1 else "product of few rows" if rows <= _SHORT else "product", operations
    )


def _attention(call: Call) -> NodeWork:
    """Products of queries and keys, and of what they weigh and values; with packed weights those before them too."""
    q, k, out = call.inputs[0], call.inputs[1], call.outputs[0]
    assert q is not None and k is not None
    packed = call.op == "Attention"
    former = call.input(4 if packed else 6)
    keys = sum(prod(t.shape[-2:-1]) for t in (q if packed else k, former) if t is not None)
    projected = q.elements * prod(k.shape[-1:]) if packed else 0
    return NodeWork("product batched", 2.0 * (projected + 2 * out.elements * keys))


def _einsum(call: Call) -> NodeWork:
    """Of a product of i x k by k x j the steps are the root of what all three tensors multiply to."""
    steps = prod(t.elements for t in (*call.read, *call.outputs)) ** 0.5
    return NodeWork("product batched", 2.0 * steps)


def _convolution(call: Call) -> NodeWork:
    """A convolution by what its window is, and how many channels it reads for each that it makes."""
    image, weights, out = call.inputs[0], call.inputs[3 if call.op in _CODES else 1], call.outputs[0]
    assert image is not None and weights is not None
    groups = call.attrs.get("group", 1)
    window = prod(weights.shape[2:])
    if call.op == "ConvTranspose":
        return NodeWork("convolution transposed", 2.0 * image.elements * prod(weights.shape[1:]))
    operations = 2.0 * out.elements * prod(weights.shape[1:])
    if image.dtype.bytes == 1:
        return NodeWork("convolution of codes", _on_codes(call.op, image, weights, out))
    if groups == 1 and len(weights.shape) == 4:
        operations *= -(-weights.shape[0] // _BLOCK) * _BLOCK / max(weights.shape[0], 1)
    if groups != 1 and weights.shape[1] == 1 and len(weights.shape) == 4:
        operations += _EACH * max(image.elements, out.elements)
    return NodeWork(f"convolution {_window(weights, groups, window)}", operations)


def _on_codes(op: str, image: Tensor, weights: Tensor, out: Tensor) -> float:
    """Operations of a convolution of codes, with what comes before and behind its products.

    QLinearConv copies what each tap reads, for each group, and rounds results. ConvInteger lays images out as columns,
    and has its filters on the left of products.
    """
    operations = 2.0 * out.elements * prod(weights.shape[1:])
    window, groups = prod(weights.shape[2:]), image.shape[1] // max(weights.shape[1], 1)
    taps = out.elements // max(weights.shape[0], 1) * groups * window if window > 1 or groups > 1 else 0
    if op == "ConvInteger":
        return operations * _signs(weights, image) + _PUT * taps * weights.shape[1]
    made = _MADE_CODE * out.elements
    if weights.shape[1] == 1:
        return operations * _OWN_TAP + made
    return operations * _signs(image, weights) + (_PIECE if groups == 1 else _PIECE_OF_GROUP) * taps + made


def _window(weights: Tensor, groups: object, window: int) -> str:
    if groups != 1:
        deep = "depthwise 1-D" if len(weights.shape) == 3 else "depthwise"
        return deep if weights.shape[1] == 1 else "grouped"
    if len(weights.shape) == 3:
        return "1-D" if prod(weights.shape[1:]) >= _SHALLOW else "1-D shallow"
    if weights.shape[1] <= _FEW:
        return "few"
    return "1x1" if window == 1 else "3x3" if window <= 9 else "large"


def _pooling(call: Call) -> NodeWork:
    """An operation for each element of each window, and some for each element of both images.

    Images of whole blocks of channels are put into blocks and back, by which all bytes are moved three times; windows
    of others are taken one by one.
    """
    image, out = call.inputs[0], call.outputs[0]
    assert image is not None
    shape = call.attrs.get("kernel_shape")
    blocks = image.dtype.floating and len(image.shape) == 4 and image.shape[1] % _BLOCK == 0
    if not blocks and not isinstance(shape, tuple):
        return NodeWork("reduction", float(image.elements))
    window = prod(map(int, shape)) if isinstance(shape, tuple) else image.elements / max(out.elements, 1)
    read, made = (_IN_BLOCKS, _IN_BLOCKS) if blocks else (_EACH_READ, _EACH_WINDOW)
    operations = out.elements * (window + made) + read * image.elements
    return NodeWork("pooling", float(operations), *((_TURNED, 3) if blocks else ()))


def _reduction(call: Call) -> NodeWork:
    """An operation for each element that is read; by whether those side by side become one."""
    image = call.inputs[0]
    assert image is not None
    out = call.outputs[0]
    kept = bool(out.shape) and bool(image.shape) and out.shape[-1] == image.shape[-1] != 1
    outer = "extreme outer" if call.op in ("ReduceMax", "ReduceMin") else "reduction outer"
    return NodeWork(outer, float(image.elements)) if kept else NodeWork("reduction", _with_rows(image))


def _gathered(call: Call) -> NodeWork:
    """An element each; blocks that follow the axis go at once."""
    image, out = call.inputs[0], call.outputs[0]
    assert image is not None
    axis = call.attrs.get("axis", 0)
    last = bool(image.shape) and axis in (-1, len(image.shape) - 1)
    return NodeWork("gather inner" if last else "gather", float(out.elements))


def _scattered(call: Call) -> NodeWork:
    """An update each: of ScatterElements an element, of ScatterND a slice, whose elements go at once."""
    places, updates = call.inputs[1:3]
    assert places is not None and updates is not None
    if call.op == "ScatterElements":
        return NodeWork("scatter", _ELEMENT * updates.elements)
    return NodeWork("scatter", places.elements / max(prod(places.shape[-1:]), 1) + _IN_SLICE * updates.elements)


def _arithmetic(call: Call) -> NodeWork:
    """One operation for each element; the runtime's own loops over large integers are slower."""
    out = call.outputs[0]
    wide = not out.dtype.floating and out.dtype.bytes == 8
    return NodeWork("integer" if wide else "cheap", float(out.elements))


def _rows(kind: str) -> Callable[[Call], NodeWork]:
    """Something for each element that is read, and for each row of them."""

    def work(call: Call) -> NodeWork:
        image = call.inputs[0]
        assert image is not None
        return NodeWork(kind, _with_rows(image))

    return work


def _with_rows(image: Tensor) -> float:
    return image.elements + EACH_ROW * image.elements / max(image.shape[-1] if image.shape else 1, 1)


def _embedded(call: Call) -> NodeWork:
    """The same of rows that are made: sums of rows of tables."""
    return NodeWork("normalization", _with_rows(call.outputs[0]))


def _cumulated(call: Call) -> NodeWork:
    """Something for each element, and for each run of those behind the axis, which go at once."""
    image, axes = call.inputs[0], call.input(1)
    assert image is not None
    at = axes.ints[0] if axes is not None and axes.ints else -1
    run = prod(image.shape[at:][1:]) if at >= -len(image.shape) else 1
    return NodeWork("cumulation", image.elements + _EACH_RUN * image.elements / max(run, 1))


def _softmax(call: Call) -> NodeWork:
    """Something for each element; along another axis than the last one, the runtime turns the tensor round."""
    image = call.inputs[0]
    assert image is not None
    axis = call.attrs.get("axis", -1)
    last = axis in (-1, len(image.shape) - 1)
    return NodeWork("softmax", _with_rows(image)) if last else NodeWork("softmax inner", float(image.elements))


def _power(call: Call) -> NodeWork:
    """Something for each element; by a constant 2 or 3 it is multiplied."""
    exponent = call.input(1)
    multiplied = exponent is not None and exponent.ints in ((2,), (3,))
    return NodeWork("moderate" if multiplied else "power", float(call.outputs[0].elements))


def _resize(call: Call) -> NodeWork:
    """Something for each element that is made, by mode; the runtime refuses modes that ONNX has not."""
    mode = _mode(call, "nearest")
    return NodeWork(f"resize {mode if mode in RESIZED else RESIZED[-1]}", float(call.outputs[0].elements))


def _sample(call: Call) -> NodeWork:
    """The same; for linear interpolation padded with zeros the runtime computes places once for all channels."""
    mode = _mode(call, "linear").removeprefix("bi")
    once = mode == "linear" and call.attrs.get("padding_mode", "zeros") in ("zeros", b"zeros")
    return NodeWork(f"sample {mode}{' zeros' * once}", float(call.outputs[0].elements))


def _regions(call: Call) -> NodeWork:
    """One for each sample."""
    ratio = call.attrs.get("sampling_ratio", 0)
    samples = max(ratio, 1) ** 2 if isinstance(ratio, int) else 1
    return NodeWork("sample regions", float(call.outputs[0].elements * samples))


def _recurrence(call: Call) -> NodeWork:
    """Products of the gates of all steps with input and state, and something for each value of a gate."""
    image, weights, recurrent = call.inputs[:3]
    assert image is not None and weights is not None and recurrent is not None
    alone = prod(image.shape[1:2]) == 1
    each = 2.0 * (weights.elements + recurrent.elements) + _EACH_GATE[not alone] * prod(recurrent.shape[:2])
    operations = prod(image.shape[:2]) * each + prod(image.shape[:1]) * _EACH_STEP
    return NodeWork(f"{call.op} of a row" if alone else call.op, operations)


def _mode(call: Call, usual: str) -> str:
    mode = call.attrs.get("mode", usual)
    return mode.decode() if isinstance(mode, bytes) else str(mode)


def _each(function: Callable[[Call], NodeWork], ops: str) -> Iterator[tuple[str, Callable[[Call], NodeWork]]]:
    return ((op, function) for op in ops.split())


_SPECIAL: dict[str, Callable[[Call], NodeWork]] = dict(
    (
        *_each(_product, "MatMul Gemm FusedMatMul FusedGemm"),
        *_each(_product, "MatMulInteger MatMulIntegerToFloat QLinearMatMul QGemm"),
        *_each(_attention, "Attention MultiHeadAttention"),
        ("Einsum", _einsum),
        *_each(_convolution, "Conv FusedConv ConvTranspose ConvInteger QLinearConv"),
        *_each(_rows("scan"), "ArgMax ArgMin"),
        *_each(_cumulated, "CumSum CumProd"),
        *_each(_rows("normalization"), "LayerNormalization SimplifiedLayerNormalization RMSNormalization"),
        *_each(_rows("normalization"), "InstanceNormalization GroupNormalization MeanVarianceNormalization"),
        *_each(_rows("normalization"), "LpNormalization LRN"),
        *_each(_rows("skipping normalization"), "SkipLayerNormalization SkipSimplifiedLayerNormalization"),
        ("EmbedLayerNormalization", _embedded),
        *_each(_softmax, "Softmax LogSoftmax Hardmax QLinearSoftmax"),
        ("Pow", _power),
        *_each(_resize, "Resize Upsample"),
        *_each(_recurrence, "LSTM GRU RNN"),
        ("GridSample", _sample),
        ("RoiAlign", _regions),
        *_each(_pooling, "MaxPool AveragePool LpPool GlobalAveragePool GlobalMaxPool GlobalLpPool QLinearAveragePool"),
        *_each(_reduction, "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare"),
        *_each(_reduction, "ReduceLogSum ReduceLogSumExp QLinearGlobalAveragePool"),
        *_each(_gathered, "Gather"),
        *_each(_scattered, "ScatterElements ScatterND"),
        *_each(_arithmetic, "Add Sub Mul Neg Abs Max Min Sum Mean Clip"),
    )
)
