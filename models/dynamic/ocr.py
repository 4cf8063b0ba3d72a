"""Text detection and recognition with symbolic sizes, node for node as paddle2onnx and torch's tracing write them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import onnx
from onnx import TensorProto

from models.net import UNNAMED, Net, Spread
from models.shapes import cut, extent, paddle_extent, paddle_flat, paddle_shape, squeeze, zeros
from models.sized import sized

OPSET = 12
BATCH = "p2o.DynamicDimension.0"
HEIGHT = "p2o.DynamicDimension.1"
WIDTH = "p2o.DynamicDimension.2"
TEXT_HEIGHT = 48
BIAS = Spread(0.1, 0.1)


@dataclass(frozen=True, slots=True)
class Window:
    """How a convolution looks at its input."""

    size: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    pads: tuple[int, int] = (0, 0)
    group: int = 1


@dataclass(frozen=True, slots=True)
class Block:
    """A depthwise and a pointwise convolution: outputs, size and stride of the first, with squeeze-and-excite."""

    outputs: int
    size: int = 3
    stride: tuple[int, int] = (1, 1)
    excite: bool = False


SMALL_DETECTOR = (
    Block(8), Block(16, stride=(2, 2)), Block(16), Block(24, stride=(2, 2)),
    Block(32, stride=(2, 2)), Block(32, 5), Block(48, 5, (2, 2), True),
)  # fmt: skip
DETECTOR = (
    Block(32), Block(48, stride=(2, 2)), Block(48), Block(96, stride=(2, 2)), Block(96), Block(192, stride=(2, 2)),
    *(Block(192, 5),) * 4, Block(384, 5, (2, 2), True), Block(384, 5, excite=True), *(Block(384, 5),) * 2,
)  # fmt: skip
SMALL_RECOGNIZER = (
    Block(16), Block(24), Block(24, stride=(2, 1)), Block(32, stride=(1, 2)), Block(48, 5, (2, 1), True),
    Block(48, 5, (2, 1)),
)  # fmt: skip
RECOGNIZER = (
    Block(32), Block(64), Block(64), Block(128, stride=(2, 1)), Block(128), Block(240, stride=(1, 2)),
    *(Block(240, 5),) * 4, Block(480, 5, (2, 1), True), Block(480, 5, excite=True), Block(480, 5, (2, 1)),
    Block(480, 5),
)  # fmt: skip


def conv(net: Net, x: str, name: str, inputs: int, outputs: int, window: Window, bias: Spread | None = BIAS) -> str:
    """Conv, with a bias or without."""
    shape_ = (outputs, inputs // window.group, *window.size)
    fan = int(np.prod(shape_[1:]))
    weight = net.weight(f"{name}.w_0", net.draw(f"{name}.w_0", shape_, Spread(fan**-0.5)))
    shift = (net.weight(f"{name}.b_0", net.draw(f"{name}.b_0", (outputs,), bias)),) if bias else ()
    how: dict[str, Any] = {
        "dilations": (1, 1), "kernel_shape": window.size, "strides": window.stride, "group": window.group,
        "pads": (*window.pads, *window.pads),
    }  # fmt: skip
    return net.node("Conv", x, weight, *shift, **how)


def normalize(net: Net, x: str, name: str, channels: int) -> str:
    """BatchNormalization, whose statistics are measured later."""
    scale = net.weight(f"{name}.w_0", net.draw(f"{name}.w_0", (channels,), Spread(0.1, 1.0)))
    shift = net.weight(f"{name}.b_0", net.draw(f"{name}.b_0", (channels,), Spread(0.3, 0.2)))
    mean, variance = (net.weight(f"{name}.w_{number}", np.full(channels, number - 1.0)) for number in (1, 2))
    return net.node("BatchNormalization", x, scale, shift, mean, variance, epsilon=1e-5, momentum=0.9)


def affine(net: Net, x: str, name: str) -> str:
    """Times and plus one learned number each."""
    parts = (net.weight(f"{name}.w_{number}", net.draw(f"{name}.w_{number}", (1,), spread)) for number, spread in
             enumerate((Spread(0.05, 1.0), Spread(0.05, 0.1))))  # fmt: skip
    factor, shift = parts
    return net.node("Add", net.node("Mul", factor, x), shift)


def hard_swish(net: Net, x: str) -> str:
    """x * relu6(x + 3) / 6, as it was written at opset 12."""
    bounded = net.node("Clip", net.node("Add", x, net.constant(3.0)), net.constant(0.0), net.constant(6.0))
    return net.node("Div", net.node("Mul", x, bounded), net.constant(6.0))


def swish(net: Net, x: str) -> str:
    """x * sigmoid(x), with the factor 1 that paddle2onnx writes."""
    return net.node("Mul", x, net.node("Sigmoid", net.node("Mul", x, net.constant(1.0))))


def excite(net: Net, x: str, name: str, channels: int, alpha: float = 1 / 6) -> str:
    """Channels times what two 1x1 convolutions say about their means."""
    inner = max(channels // 4, 4)
    y = net.node("GlobalAveragePool", x)
    y = net.node("Relu", conv(net, y, f"{name}.conv1", channels, inner, Window(), Spread(0.5, 0.7)))
    y = conv(net, y, f"{name}.conv2", inner, channels, Window())
    return net.node("Mul", x, net.node("HardSigmoid", y, alpha=alpha, beta=0.5))


def layer(net: Net, x: str, name: str, inputs: int, block: Block) -> str:
    """A block of PP-LCNetV3: both convolutions with their learned affine maps around hardswish."""
    pad = block.size // 2
    window = Window((block.size,) * 2, block.stride, (pad, pad), inputs)
    y = affine(net, conv(net, x, f"{name}.dw", inputs, inputs, window), f"{name}.dw.lab")
    if block.stride != (2, 2):
        y = affine(net, hard_swish(net, y), f"{name}.dw.act")
    if block.excite:
        y = excite(net, y, f"{name}.se", inputs)
    y = affine(net, conv(net, y, f"{name}.pw", inputs, block.outputs, Window()), f"{name}.pw.lab")
    return affine(net, hard_swish(net, y), f"{name}.pw.act")


def stem(net: Net, x: str, channels: int) -> str:
    """The first convolution, of stride 2."""
    y = conv(net, x, "conv1", 3, channels, Window((3, 3), (2, 2), (1, 1)), bias=None)
    return normalize(net, y, "conv1.bn", channels)


# --- detector --------------------------------------------------------------------------------------------------------


def detector(
    blocks: Sequence[Block] = SMALL_DETECTOR,
    first: int = 8,
    inner: int = 16,
    enlarge: Literal["scales", "sizes"] = "scales",
    image: int = 64,
    seed: int = 0,
) -> onnx.ModelProto:
    """A text detector of PP-OCR's kind: x (batch, 3, height, width) to a map of probabilities of the same size.

    Four levels at strides 4 to 32 meet in a pyramid, each enlarged level added to the next, then all are enlarged to
    the largest and concatenated. `enlarge` is how Resize is told: by scales (extents must be multiples of 32, or the
    levels do not meet), or by the extents of what the result is added to, read by Shape.
    """
    net = Net("detector", "decomposed", OPSET, seed)
    net.input("x", TensorProto.FLOAT, (BATCH, 3, HEIGHT, WIDTH))
    x, inputs, levels = stem(net, "x", first), first, []
    for number, block in enumerate(blocks):
        if block.stride == (2, 2):
            levels.append((x, inputs))
        x, inputs = layer(net, x, f"blocks.{number}", inputs, block), block.outputs
    levels = [*levels[1:], (x, inputs)]
    fused = _pyramid(net, levels, inner, enlarge)
    out = _head(net, fused, inner)
    made = net.model({out: ("p2o.DynamicDimension.3", 1, "p2o.DynamicDimension.4", "p2o.DynamicDimension.5")})
    images = np.random.default_rng(9).standard_normal((2, 3, image, image), dtype=np.float32)
    # Of the sums and products of branches: what is added to a level must not outgrow it.
    return sized(made, {"x": images}, {r"\.se\.conv2": 1.5, r"neck\.lateral|\.[dp]w\.": 0.7})


def _pyramid(net: Net, levels: list[tuple[str, int]], inner: int, enlarge: str) -> str:
    """From the deepest level up: lateral plus enlarged; then all as large as the first, in one Concat."""
    wide = Window((3, 3), (1, 1), (1, 1))
    laterals = []
    for number, (x, channels) in enumerate(levels):
        x = conv(net, x, f"neck.lateral.{number}", channels, inner, Window())
        laterals.append(net.node("Add", x, excite(net, x, f"neck.lateral.{number}.se", inner, 0.2)))
    sums = [laterals[-1]]
    for lateral in reversed(laterals[:-1]):
        sums.insert(0, net.node("Add", lateral, _enlarged(net, sums[0], 2, lateral if enlarge == "sizes" else "")))
    quarter, out = inner // 4, []
    for number, x in enumerate(sums):
        x = conv(net, x, f"neck.out.{number}", inner, quarter, wide, bias=None)
        x = net.node("Add", x, excite(net, x, f"neck.out.{number}.se", quarter, 0.2))
        out.append(_enlarged(net, x, 1 << number, out[0] if enlarge == "sizes" else "") if number else x)
    return net.node("Concat", *reversed(out), axis=1)


def _enlarged(net: Net, x: str, times: int, like: str) -> str:
    """Nearest neighbours: by a factor, or to the last two extents of `like`."""
    how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    nothing = net.constant(np.array([], np.float32))
    if not like:
        return net.node("Resize", x, nothing, net.constant(np.array([1, 1, times, times], np.float32)), **how)
    kept = cut(net, net.node("Shape", x), 0, 0, 2)
    wanted = net.node("Cast", cut(net, net.node("Shape", like), 0, 2, 4), to=TensorProto.INT64)
    return net.node("Resize", x, nothing, nothing, net.node("Concat", kept, wanted, axis=0), **how)


def _head(net: Net, x: str, channels: int) -> str:
    """Two transposed convolutions of stride 2 back to the size of the image, and Sigmoid."""
    inner = channels // 4
    y = conv(net, x, "head.conv1", channels, inner, Window((3, 3), (1, 1), (1, 1)), bias=None)
    y = net.node("Relu", normalize(net, y, "head.bn1", inner))
    y = net.node("Relu", normalize(net, _transposed(net, y, "head.conv2", inner, inner), "head.bn2", inner))
    return net.node("Sigmoid", _transposed(net, y, "head.conv3", inner, 1), out="sigmoid_0.tmp_0")


def _transposed(net: Net, x: str, name: str, inputs: int, outputs: int) -> str:
    """ConvTranspose of 2x2 and stride 2, its bias an Add."""
    weight = net.weight(f"{name}.w_0", net.draw(f"{name}.w_0", (inputs, outputs, 2, 2), Spread(inputs**-0.5)))
    how: dict[str, Any] = {"dilations": (1, 1), "kernel_shape": (2, 2), "strides": (2, 2), "group": 1, "pads": (0,) * 4}
    shift = net.weight(f"{name}.b_0", net.draw(f"{name}.b_0", (1, outputs, 1, 1), BIAS))
    return net.node("Add", net.node("ConvTranspose", x, weight, **how), shift)


# --- recognizer ------------------------------------------------------------------------------------------------------


def recognizer(
    blocks: Sequence[Block] = SMALL_RECOGNIZER,
    first: int = 8,
    inner: int = 32,
    heads: int = 4,
    layers: int = 2,
    classes: int = 40,
    seed: int = 0,
) -> onnx.ModelProto:
    """A text recognizer of PP-OCRv4's kind: x (batch, 3, 48, width) to characters (batch, width / 8, classes).

    A convolutional backbone, a transformer over the places of the line, and a softmax over characters. The height is an
    extent without a name; the batch is -1 in every shape, the length is read from shapes by Cast and Slice.
    """
    net = Net("recognizer", "decomposed", OPSET, seed)
    net.input("x", TensorProto.FLOAT, (BATCH, 3, UNNAMED, HEIGHT))
    x, inputs = stem(net, "x", first), first
    for number, block in enumerate(blocks):
        x, inputs = layer(net, x, f"blocks.{number}", inputs, block), block.outputs
    how = {"kernel_shape": (3, 2), "strides": (3, 2), "pads": (0,) * 4, "ceil_mode": 0, "count_include_pad": 0}
    pooled = net.node("AveragePool", x, **how)
    line = _svtr(net, pooled, inputs, inner, heads, layers)
    line = net.node("Transpose", squeeze(net, line, 2), perm=(0, 2, 1))
    scores = _dense(net, line, "head.fc", inner, classes)
    net.node("Softmax", scores, axis=2, out="softmax_11.tmp_0")
    made = net.model({"softmax_11.tmp_0": (WIDTH, "p2o.DynamicDimension.3", classes)})
    images = np.random.default_rng(9).standard_normal((4, 3, TEXT_HEIGHT, 160), dtype=np.float32)
    return sized(made, {"x": images}, {r"\.se\.conv2": 1.5, r"\.(proj|fc2)": 0.5})


def _svtr(net: Net, x: str, channels: int, inner: int, heads: int, layers: int) -> str:
    """Convolutions to and from a transformer over the places, beside a way around it."""
    along = Window((1, 3), (1, 1), (0, 1))
    narrow = max(channels // 8, 8)
    y = _conv_swish(net, x, "svtr.conv1", channels, narrow, along)
    y = _conv_swish(net, y, "svtr.conv2", narrow, inner, Window())
    width = paddle_extent(net, y, 3)
    state = net.node("Transpose", paddle_flat(net, y, 2), perm=(0, 2, 1))
    for number in range(layers):
        state = _mixed(net, state, f"svtr.blocks.{number}", inner, heads)
    state = _layer_norm(net, state, "svtr.norm", inner, 1e-6)
    y = net.node("Reshape", state, paddle_shape(net, 0, 1, width, inner))
    y = _conv_swish(net, net.node("Transpose", y, perm=(0, 3, 1, 2)), "svtr.conv3", inner, channels, Window())
    y = _conv_swish(net, net.node("Concat", x, y, axis=1), "svtr.conv4", 2 * channels, narrow, along)
    return _conv_swish(net, y, "svtr.conv1x1", narrow, inner, Window())


def _conv_swish(net: Net, x: str, name: str, inputs: int, outputs: int, window: Window) -> str:
    return swish(net, normalize(net, conv(net, x, name, inputs, outputs, window, bias=None), f"{name}.bn", outputs))


def _mixed(net: Net, state: str, name: str, hidden: int, heads: int) -> str:
    """Attention and MLP, each with LayerNorm before it: Q, K and V are slices of one product."""
    x = _layer_norm(net, state, f"{name}.norm1", hidden, 1e-5)
    length = paddle_extent(net, x, 1)
    packed = _dense(net, x, f"{name}.qkv", hidden, 3 * hidden)
    packed = net.node("Reshape", packed, paddle_shape(net, 0, length, 3, heads, hidden // heads))
    packed = net.node("Transpose", packed, perm=(2, 0, 3, 1, 4))
    query, key, value = (squeeze(net, cut(net, packed, 0, part, part + 1), 0) for part in range(3))
    query = net.node("Mul", query, net.constant(float((hidden // heads) ** -0.5)))
    scores = net.node("MatMul", query, net.node("Transpose", key, perm=(0, 1, 3, 2)))
    said = net.node("MatMul", net.node("Softmax", scores, axis=3), value)
    said = net.node("Reshape", net.node("Transpose", said, perm=(0, 2, 1, 3)), paddle_shape(net, 0, length, hidden))
    state = net.node("Add", state, _dense(net, said, f"{name}.proj", hidden, hidden))
    x = _dense(net, _layer_norm(net, state, f"{name}.norm2", hidden, 1e-5), f"{name}.fc1", hidden, 2 * hidden)
    return net.node("Add", state, _dense(net, swish(net, x), f"{name}.fc2", 2 * hidden, hidden))


def _dense(net: Net, x: str, name: str, inputs: int, outputs: int) -> str:
    weight = net.weight(f"{name}.w_0", net.draw(f"{name}.w_0", (inputs, outputs), Spread(inputs**-0.5)))
    return net.node("Add", net.node("MatMul", x, weight), net.weight(f"{name}.b_0", net.draw(name, (outputs,), BIAS)))


def _layer_norm(net: Net, x: str, name: str, channels: int, epsilon: float) -> str:
    """LayerNorm of primitives."""
    centred = net.node("Sub", x, net.node("ReduceMean", x, axes=[-1]))
    variance = net.node("ReduceMean", net.node("Pow", centred, net.constant(2.0)), axes=[-1])
    normal = net.node("Div", centred, net.node("Sqrt", net.node("Add", variance, net.constant(epsilon))))
    scale = net.weight(f"{name}.w_0", net.draw(f"{name}.w_0", (channels,), Spread(0.15, 1.0)))
    shift = net.weight(f"{name}.b_0", net.draw(f"{name}.b_0", (channels,), BIAS))
    return net.node("Add", net.node("Mul", normal, scale), shift)


# --- CRNN ------------------------------------------------------------------------------------------------------------


def crnn(
    widths: Sequence[int] = (8, 16, 24, 32), hidden: int = 16, classes: int = 40, seed: int = 0
) -> onnx.ModelProto:
    """Convolutions, two bidirectional LSTMs over the columns, and a softmax: x (batch, 1, 32, width), traced by torch.

    The first states are zeros of a shape read from the input; outputs of both directions are merged by a Reshape.
    """
    net = Net("crnn", "decomposed", 13, seed)
    net.input("x", TensorProto.FLOAT, ("batch", 1, 32, "width"))
    x, inputs = "x", 1
    pools = ((2, 2), (2, 2), (2, 1), (4, 1))
    for number, (width, pool) in enumerate(zip(widths, pools, strict=True)):
        x = net.node("Relu", conv(net, x, f"cnn.{number}", inputs, width, Window((3, 3), (1, 1), (1, 1))))
        how: dict[str, Any] = {"kernel_shape": pool, "strides": pool, "pads": (0,) * 4, "ceil_mode": 0}
        x, inputs = net.node("MaxPool", x, **how), width
    x = net.node("Transpose", squeeze(net, x, 2), perm=(2, 0, 1))
    for number in range(2):
        x = recurrent(net, x, f"rnn.{number}", inputs, hidden)
        inputs = 2 * hidden
    scores = net.node("Transpose", _dense(net, x, "embedding", inputs, classes), perm=(1, 0, 2))
    net.node("Softmax", scores, axis=2, out="characters")
    made = net.model({"characters": ("batch", "columns", classes)})
    images = np.random.default_rng(9).standard_normal((4, 1, 32, 120), dtype=np.float32)
    return sized(made, {"x": images})


def recurrent(net: Net, x: str, name: str, inputs: int, hidden: int) -> str:
    """A bidirectional LSTM over (length, batch, inputs) to (length, batch, 2 * hidden)."""
    gates = 4 * hidden
    weights = [
        net.weight(f"{name}.{kind}", net.draw(f"{name}.{kind}", size, Spread(1.5 * size[-1] ** -0.5)))
        for kind, size in (("weight_ih", (2, gates, inputs)), ("weight_hh", (2, gates, hidden)))
    ]
    shift = net.weight(f"{name}.bias", net.draw(f"{name}.bias", (2, 2 * gates), BIAS))
    state = zeros(net, 2, extent(net, x, 1), hidden)
    y, *_ = net.nodes("LSTM", 3, x, *weights, shift, "", state, state, direction="bidirectional", hidden_size=hidden)
    both = net.node("Transpose", y, perm=(0, 2, 1, 3))
    return net.node("Reshape", both, net.constant([0, 0, -1]))
