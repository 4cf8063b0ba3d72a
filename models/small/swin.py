"""Swin of any size, node for node as torch's two exporters write it, made with onnx and numpy alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from models.net import Array, Extent, Form, Net, Spread
from models.parts import (
    ATTENTION_GAIN,
    GELU_GAIN,
    INT64,
    classify,
    convolution,
    dense,
    gelu,
    layer_norm,
    places,
    reshape,
    roll,
    softmax,
)
from models.small.traced_windows import Windows, missing

OPSETS: dict[Form, int] = {"modern": 20, "decomposed": 12}
MLP = 0.6  # of what a block adds: sums grow with every block
AGAIN = Spread(0.1, 0.25)  # of what is normalized again at once: its mean is not to be zero
HIDDEN = -100.0  # added to scores of places that were not neighbours before the roll


@dataclass(frozen=True, slots=True)
class Block:
    """One block: where it is, channels, heads, places along a side of the image and of a window, how far it rolls."""

    name: str
    width: int
    heads: int
    size: int
    window: int
    shift: int
    batch: Extent

    @property
    def head(self) -> int:
        """Channels of one attention head."""
        return self.width // self.heads

    @property
    def windows(self) -> int:
        """Windows of one image."""
        return (self.size // self.window) ** 2

    @property
    def area(self) -> int:
        """Places of a window."""
        return self.window**2

    @property
    def many(self) -> Extent:
        """Windows of the batch."""
        return self.batch if isinstance(self.batch, str) else self.batch * self.windows


def swin(
    widths: tuple[int, ...] = (16, 32),
    heads: tuple[int, ...] = (2, 4),
    depths: tuple[int, ...] = (2, 1),
    image: int = 40,
    patch: int = 4,
    window: int = 5,
    classes: int = 10,
    batch: Extent = 1,
    form: Form = "modern",
    seed: int = 0,
) -> onnx.ModelProto:
    """Swin with a classifier: pixel_values to logits. A stage for each of the widths, each twice the one before.

    `modern` is what torch.export and onnxscript give (opset 20), `decomposed` what tracing gave in the years before
    (opset 12): LayerNorm, GELU and softmax as chains of primitives, the extents of every window and mask computed.
    The symbolic batch has the modern form only.
    """
    net = Net("swin", form, OPSETS[form], seed)
    net.input("pixel_values", TensorProto.FLOAT, (batch, 3, image, image))
    size = image // patch
    x = convolution(net, "pixel_values", "embeddings.projection", (widths[0], 3, patch), stride=patch)
    x = layer_norm(net, places(net, x, widths[0], size * size, batch), "embeddings.norm", widths[0], beta=AGAIN)
    for stage, (width, count, depth) in enumerate(zip(widths, heads, depths, strict=True)):
        lacking = missing(net, size, window) if form == "decomposed" else ("", "")
        for number in range(depth):
            name, shift = f"layers.{stage}.blocks.{number}", 0 if number % 2 == 0 or size == window else window // 2
            x = _block(net, x, Block(name, width, count, size, window, shift, batch), lacking)
        if stage < len(widths) - 1:
            x = _merged(net, x, f"layers.{stage}.downsample", width, size, batch)
            size //= 2
    x = layer_norm(net, x, "layernorm", widths[-1])
    classify(net, _pooled(net, x, widths[-1], batch), widths[-1], classes)
    return net.model({"logits": (batch, classes)})


def _block(net: Net, x: str, b: Block, lacking: tuple[str, str]) -> str:
    """Attention in windows of the image, rolled or not, and an MLP, each with LayerNorm and residual."""
    normal = layer_norm(net, x, f"{b.name}.layernorm_before", b.width)
    image = reshape(net, normal, (b.batch, b.size, b.size, b.width))
    said = _windowed(net, image, b) if net.form == "modern" else _traced_windowed(net, image, b, lacking)
    x = net.node("Add", x, said)
    normal = layer_norm(net, x, f"{b.name}.layernorm_after", b.width)
    wide = gelu(net, dense(net, normal, f"{b.name}.mlp.fc1", b.width, 4 * b.width))
    return net.node("Add", dense(net, wide, f"{b.name}.mlp.fc2", 4 * b.width, b.width, GELU_GAIN * MLP), x)


def _merged(net: Net, x: str, name: str, width: int, size: int, batch: Extent) -> str:
    """Four neighbours side by side, normalized, and half as many channels: stages get half as large."""
    image = reshape(net, x, (batch, size, size, width))
    rows = [_every_second(net, image, 1, first) for first in (0, 1)]
    parts = [_every_second(net, row, 2, first) for first in (0, 1) for row in rows]
    joined = net.node("Concat", *parts, axis=-1)
    count = (size // 2) ** 2 if isinstance(batch, str) else -1
    joined = layer_norm(net, reshape(net, joined, (batch, count, 4 * width)), f"{name}.norm", 4 * width)
    return dense(net, joined, f"{name}.reduction", 4 * width, 2 * width, bias=False)


def _every_second(net: Net, x: str, axis: int, first: int) -> str:
    bounds = (net.constant([value]) for value in (first, int(INT64.max), axis, 2))
    return net.node("Slice", x, *bounds)


# --- as torch.export and onnxscript write it -------------------------------------------------------------------------


def _windowed(net: Net, image: str, b: Block) -> str:
    """What attention in windows adds to each place: (batch, places, channels)."""
    parts = b.size // b.window
    padded = net.node("Pad", image, net.constant([0] * 8), mode="constant")
    rolled = roll(net, padded, -b.shift, b.size) if b.shift else padded
    apart = reshape(net, rolled, (b.batch, parts, b.window, parts, b.window, b.width))
    windows = reshape(net, net.node("Transpose", apart, perm=(0, 1, 3, 2, 4, 5)), (b.many, b.area, b.width))
    query, key, value = (
        reshape(net, dense(net, windows, f"{b.name}.attention.{part}", b.width, b.width), _heads(b))
        for part in ("q_proj", "k_proj", "v_proj")
    )
    query, value = (net.node("Transpose", part, perm=(0, 2, 1, 3)) for part in (query, value))
    scores = net.node("MatMul", query, net.node("Transpose", key, perm=(0, 2, 3, 1)))
    scores = net.node("Mul", scores, net.constant(float(b.head**-0.5)))
    chances = softmax(net, net.node("Add", scores, _modern_bias(net, b)))
    said = net.node("Transpose", net.node("MatMul", chances, value), perm=(0, 2, 1, 3))
    said = reshape(net, said, (b.many, b.area, b.width if isinstance(b.batch, str) else -1))
    said = dense(net, said, f"{b.name}.attention.o_proj", b.width, b.width, ATTENTION_GAIN)
    apart = reshape(net, said, (b.batch, parts, parts, b.window, b.window, b.width))
    image = net.node("Transpose", apart, perm=(0, 1, 3, 2, 4, 5))
    if b.shift:
        image = roll(net, reshape(net, image, (b.batch, b.size, b.size, b.width)), b.shift, b.size)
    return reshape(net, image, (b.batch, b.size**2, b.width))


def _heads(b: Block) -> tuple[Extent, ...]:
    return (b.many, b.area, b.heads if isinstance(b.batch, str) else -1, b.head)


def _bias_table(net: Net, b: Block) -> Array:
    """What is added to the scores of a window, by how far key and query are apart: (area, area, heads)."""
    name = f"{b.name}.attention.relative_position_bias_table"
    table = net.draw(name, ((2 * b.window - 1) ** 2, b.heads), Spread(0.6))
    y, x = np.divmod(np.arange(b.area), b.window)
    apart = [at[:, None] - at[None] + b.window - 1 for at in (y, x)]
    found: Array = table[apart[0] * (2 * b.window - 1) + apart[1]].astype(np.float32)
    return found


def _modern_bias(net: Net, b: Block) -> str:
    """Relative positions, and the mask of a rolled image: (1 or windows, heads, area, area).

    A table of many heads is too large for the exporter to fold, and stays in the order of its rows.
    """
    table = _bias_table(net, b)
    if b.heads > 2:
        flat = net.weight(f"{b.name}.index", table.reshape(-1, b.heads))
        apart = net.node("Reshape", flat, net.constant([b.area, b.area, -1]), allowzero=1)
        bias = net.node("Unsqueeze", net.node("Transpose", apart, perm=(2, 0, 1)), net.constant([0]))
    else:
        bias = net.constant(np.ascontiguousarray(table.transpose(2, 0, 1)[None]))
    if not b.shift:
        return bias
    differ = net.weight(f"{b.name}.differences", _differences(b))
    same = net.node("Equal", differ, net.constant(0.0))
    mask = net.node("Where", net.node("Not", same), net.constant(HIDDEN), differ)
    mask = net.node("Unsqueeze", net.node("Where", same, net.constant(0.0), mask), net.constant([0, 2]))
    ones = [net.constant([1])] * 4
    if isinstance(b.batch, str):
        shape = net.node("Concat", net.node("Shape", "pixel_values", start=0, end=1), *ones, axis=0)
    else:
        shape = net.constant([b.batch, 1, 1, 1, 1])
    mask = net.node("Reshape", net.node("Expand", mask, shape), net.constant([-1, 1, b.area, b.area]), allowzero=1)
    return net.node("Add", bias, mask)


def _differences(b: Block) -> Array:
    """By window, key and query, how the regions differ that they come from: (windows, area, area)."""
    at = np.arange(b.size)
    region = (at >= b.size - b.window).astype(np.float32) + (at >= b.size - b.shift)
    image = region[:, None] * 3 + region[None]
    parts = b.size // b.window
    windows = image.reshape(parts, b.window, parts, b.window).transpose(0, 2, 1, 3).reshape(-1, b.area)
    found: Array = (windows[:, None] - windows[:, :, None]).astype(np.float32)
    return found


def _pooled(net: Net, x: str, channels: int, batch: Extent) -> str:
    """The mean over places, in the modern form taken apart again by index: (batch, channels)."""
    if net.form == "decomposed":
        means = net.node("GlobalAveragePool", net.node("Transpose", x, perm=(0, 2, 1)))
        return net.node("Flatten", means, axis=1)
    turned = net.node("Unsqueeze", net.node("Transpose", x, perm=(0, 2, 1)), net.constant([-2]))
    mean = net.node("ReduceMean", turned, net.constant([-1, -2]), keepdims=1, noop_with_empty_axes=0)
    flat = net.node("Reshape", mean, net.constant([-1]), allowzero=0)
    if isinstance(batch, str):
        extent = net.node("Squeeze", net.node("Shape", "pixel_values", start=0, end=1))
        rows = net.node("Mul", net.node("Range", net.constant(0), extent, net.constant(1)), net.constant(channels))
        index = net.node("Unsqueeze", rows, net.constant([1, 2, 3]))
        index = net.node("Add", index, net.constant(np.arange(channels).reshape(1, -1, 1, 1)))
        for _ in range(2):
            index = net.node("Add", index, net.constant(np.zeros((1, 1, 1, 1), dtype=np.int64)))
    else:
        index = net.constant(np.arange(batch * channels).reshape(batch, channels, 1, 1))
    picked = net.node("Squeeze", net.node("Gather", flat, index, axis=0), net.constant([-2]))
    return reshape(net, picked, (batch, channels))


# --- as tracing wrote it ---------------------------------------------------------------------------------------------


def _traced_windowed(net: Net, image: str, b: Block, lacking: tuple[str, str]) -> str:
    """What attention in windows adds to each place: (batch, places, channels)."""
    write = Windows(net, b.window)
    padded = write.pad(image, lacking)
    height, width = (write.extent(padded, axis) for axis in (1, 2))
    rolled = roll(net, padded, -b.shift, b.size) if b.shift else padded
    windows = net.node("Reshape", write.partition(rolled), net.constant([-1, b.area, b.width]))
    mask = write.mask(height, width, b.shift, HIDDEN) if b.shift else ""
    count, area = (write.extent(windows, axis) for axis in (0, 1))
    query, key, value = (
        net.node(
            "Reshape",
            dense(net, windows, f"{b.name}.attention.{part}", b.width, b.width),
            write.shape(count, area, -1, b.head),
        )
        for part in ("q_proj", "k_proj", "v_proj")
    )
    value = net.node("Transpose", value, perm=(0, 2, 1, 3))
    query = net.node("Transpose", query, perm=(0, 2, 1, 3))
    bias = net.weight(f"{b.name}.bias", _bias_table(net, b).transpose(2, 0, 1)[None])
    if mask:
        bias = net.node("Add", bias, write.repeated(mask, count, area))
    scores = net.node("MatMul", query, net.node("Transpose", key, perm=(0, 2, 3, 1)))
    scores = net.node("Div", scores, net.constant(float(b.head**0.5)))
    said = net.node("MatMul", softmax(net, net.node("Add", scores, bias)), value)
    said = net.node("Reshape", net.node("Transpose", said, perm=(0, 2, 1, 3)), write.shape(count, area, -1))
    said = dense(net, said, f"{b.name}.attention.o_proj", b.width, b.width, ATTENTION_GAIN)
    image = write.together(net.node("Reshape", said, net.constant([-1, b.window, b.window, b.width])), height, width)
    image = roll(net, image, b.shift, b.size) if b.shift else image
    return net.node("Reshape", image, net.constant([b.batch, b.size**2, b.width]))
