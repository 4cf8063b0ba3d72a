"""One model for each class of isolated convolutions, at six sizes each, and a detector.

Each is a convolution with a Relu, whose input and output have ONNX's channels-first layout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from models.net import Net, Spread

SIDES = (14, 23, 28, 40, 56, 112)
LENGTHS = (97, 200, 499, 1000, 2000, 4000)


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution of images of `rank` dimensions in space; as many groups as channels where it goes by channels."""

    channels: int
    filters: int
    kernel: int
    stride: int = 1
    dilation: int = 1
    rank: int = 2
    group: int = 1
    transposed: bool = False
    half: bool = False  # whether its numbers have 16 bits

    @property
    def pads(self) -> list[int]:
        """As much on either side as keeps the size, or makes it `stride` times as large."""
        reach = self.kernel - self.stride if self.transposed else self.dilation * (self.kernel - 1)
        return [reach // 2] * self.rank + [reach - reach // 2] * self.rank

    def model(self, size: int) -> onnx.ModelProto:
        """The convolution of an image of this size and a Relu."""
        net = Net("convolution", "modern", 17, seed=0)
        x = net.input("x", TensorProto.FLOAT, (1, self.channels, *[size] * self.rank))
        window = [self.kernel] * self.rank
        ends = (self.channels, self.filters // self.group)
        shape = (*(ends if self.transposed else (self.filters, self.channels // self.group)), *window)
        deviation = (self.channels // self.group * self.kernel**self.rank) ** -0.5
        inputs = [
            net.weight("weight", net.draw("weight", shape, Spread(deviation))),
            net.weight("bias", net.draw("bias", (self.filters,), Spread(0.5))),
        ]
        y = net.node(
            "ConvTranspose" if self.transposed else "Conv", x, *inputs, kernel_shape=window, pads=self.pads,
            strides=[self.stride] * self.rank, dilations=[self.dilation] * self.rank, group=self.group,
        )  # fmt: skip
        net.node("Relu", y, out="y")
        model = net.model({"y": (1, self.filters, *[self.length(size)] * self.rank)})
        return in_16_bits(model) if self.half else model

    def length(self, size: int) -> int:
        """The size of the result."""
        if self.transposed:
            return (size - 1) * self.stride + self.kernel - sum(self.pads) // self.rank
        return (size - 1) // self.stride + 1


def in_16_bits(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model of float32 in float16."""
    graph = model.graph
    for weight in graph.initializer:
        weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight).astype(np.float16), weight.name))
    for value in (*graph.input, *graph.output, *graph.value_info):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return model


def by_channels(channels: int, kernel: int, **how: int) -> Convolution:
    """A depthwise convolution."""
    return Convolution(channels, channels, kernel, group=channels, **how)


CLASSES: Mapping[str, tuple[Convolution, Sequence[int]]] = {
    "depthwise 3x3": (by_channels(64, 3), SIDES),
    "depthwise 5x5": (by_channels(64, 5), SIDES),
    "depthwise 7x7": (by_channels(64, 7), SIDES),
    "depthwise 3x3, stride 2": (by_channels(64, 3, stride=2), SIDES),
    "depthwise 3x3, dilated": (by_channels(64, 3, dilation=2), SIDES),
    "depthwise 3x3, two filters a channel": (Convolution(32, 64, 3, group=32), SIDES),
    "depthwise line": (by_channels(128, 9, rank=1), LENGTHS),
    "one channel": (Convolution(1, 32, 5), SIDES),
    "one filter": (Convolution(32, 1, 3), SIDES),
    "four filters": (Convolution(64, 4, 1), SIDES),
    "nine filters": (Convolution(32, 9, 3), SIDES),
    "line": (Convolution(64, 64, 3, rank=1), LENGTHS),
    "line, dilated": (Convolution(64, 64, 3, dilation=4, rank=1), LENGTHS),
    "line, stride 2": (Convolution(128, 128, 3, stride=2, rank=1), LENGTHS),
    "wave": (Convolution(1, 128, 10, stride=5, rank=1), LENGTHS),
    "points": (Convolution(64, 128, 1), SIDES),
    "line, 16 bits": (Convolution(64, 64, 3, rank=1, half=True), LENGTHS),
    "line, stride 2, 16 bits": (Convolution(128, 128, 3, stride=2, rank=1, half=True), LENGTHS),
    "wave, 16 bits": (Convolution(1, 64, 10, stride=5, rank=1, half=True), LENGTHS),
    "points, 16 bits": (Convolution(64, 128, 1, half=True), SIDES),
    "dilated as far as the image": (Convolution(64, 64, 3, dilation=12), (7, 12, 16, 23, 33, 65)),
    "upwards": (Convolution(64, 32, 2, stride=2, transposed=True), SIDES),
    "upwards, 3x3": (Convolution(96, 64, 3, stride=2, transposed=True), (7, 14, 16, 28, 32, 56)),
    "upwards, 4x4": (Convolution(64, 32, 4, stride=2, transposed=True), (7, 14, 16, 28, 32, 56)),
}


def detector(size: int = 64) -> onnx.ModelProto:
    """A stem, blocks of a 7x7 depthwise convolution, GroupNormalization and two pointwise ones, and a head."""
    net = Net("detector", "modern", 21, seed=0)

    def conv(x: str, name: str, shape: tuple[int, ...], **how: object) -> str:
        fan = int(np.prod(shape[1:]))
        weight = net.weight(f"{name}.weight", net.draw(f"{name}.weight", shape, Spread(fan**-0.5)))
        bias = net.weight(f"{name}.bias", net.draw(f"{name}.bias", shape[:1], Spread(0.2)))
        return net.node("Conv", x, weight, bias, **how)

    x = net.input("x", TensorProto.FLOAT, (1, 3, size, size))
    x = net.node("Relu", conv(x, "stem", (64, 3, 4, 4), strides=[4, 4]))
    for number in range(2):
        y = conv(x, f"deep{number}", (64, 1, 7, 7), pads=[3] * 4, group=64)
        scale = net.weight(f"scale{number}", net.draw(f"scale{number}", (64,), Spread(0.1, 1.0)))
        shift = net.weight(f"shift{number}", net.draw(f"shift{number}", (64,), Spread(0.1)))
        y = net.node("GroupNormalization", y, scale, shift, num_groups=8)
        y = net.node("Relu", conv(y, f"wide{number}", (256, 64, 1, 1)))
        x = net.node("Add", x, conv(y, f"narrow{number}", (64, 256, 1, 1)))
    boxes = conv(x, "boxes", (4, 64, 1, 1))
    scores = net.node("Sigmoid", conv(x, "scores", (1, 64, 1, 1)))
    net.node("Concat", boxes, scores, out="y", axis=1)
    return net.model({"y": (1, 5, size // 4, size // 4)})


def models() -> Mapping[str, tuple[Callable[[int], onnx.ModelProto], Sequence[int]]]:
    """What builds the model of each class, and the sizes to measure it at."""
    found = {name: (each.model, sizes) for name, (each, sizes) in CLASSES.items()}
    return {**found, "detector": (detector, (64, 96, 128, 160, 224, 320))}
