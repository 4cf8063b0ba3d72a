"""ConvNeXt of any size, node for node as torch's two exporters write it, made with onnx and numpy alone."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import TensorProto

from models.net import Extent, Form, Net, Spread
from models.parts import GELU_GAIN, classify, convolution, dense, gelu, layer_norm, vector

OPSETS: dict[Form, int] = {"modern": 20, "decomposed": 12}
PATCH = 4
EPSILON = 1e-6
ADDED = 0.6  # of what a block adds: sums grow with every block


def convnext(
    widths: Sequence[int] = (24, 40),
    depths: Sequence[int] = (1, 1),
    image: int = 36,
    classes: int = 10,
    batch: Extent = 1,
    form: Form = "modern",
    seed: int = 0,
) -> onnx.ModelProto:
    """ConvNeXt with a classifier: pixel_values to logits. A stage for each of the widths.

    `modern` is what torch.export and onnxscript give (opset 20), `decomposed` what tracing gave in the years before
    (opset 12): LayerNorm and GELU as chains of primitives.
    """
    net = Net("convnext", form, OPSETS[form], seed)
    net.input("pixel_values", TensorProto.FLOAT, (batch, 3, image, image))
    x = convolution(net, "pixel_values", "embeddings.patch_embeddings", (widths[0], 3, PATCH), stride=PATCH)
    x = _norm(net, x, "embeddings.layernorm", widths[0])
    for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
        if stage:
            name, before = f"stages.{stage}.downsampling_layer", widths[stage - 1]
            x = _norm(net, x, f"{name}.0", before)
            x = convolution(net, x, f"{name}.1", (width, before, 2), stride=2)
        for block in range(depth):
            x = _block(net, x, f"stages.{stage}.layers.{block}", width)
    mean = _mean(net, x)
    classify(net, layer_norm(net, mean, "layernorm", widths[-1], 1e-12), widths[-1], classes)
    return net.model({"logits": (batch, classes)})


def _norm(net: Net, x: str, name: str, channels: int) -> str:
    """LayerNorm over the channels of images."""
    last = net.node("Transpose", x, perm=(0, 2, 3, 1))
    return net.node("Transpose", layer_norm(net, last, name, channels, EPSILON), perm=(0, 3, 1, 2))


def _block(net: Net, x: str, name: str, channels: int) -> str:
    """A depthwise 7x7 convolution, and an MLP on its normalized result, scaled by channel."""
    y = convolution(net, x, f"{name}.dwconv", (channels, channels, 7), pad=3, depthwise=True)
    y = layer_norm(net, net.node("Transpose", y, perm=(0, 2, 3, 1)), f"{name}.layernorm", channels, EPSILON)
    y = gelu(net, dense(net, y, f"{name}.pwconv1", channels, 4 * channels))
    y = dense(net, y, f"{name}.pwconv2", 4 * channels, channels, GELU_GAIN * ADDED)
    y = net.node("Mul", vector(net, f"{name}.layer_scale_parameter", channels, Spread(0.15, 0.9)), y)
    return net.node("Add", x, net.node("Transpose", y, perm=(0, 3, 1, 2)))


def _mean(net: Net, x: str) -> str:
    """The mean over places: (batch, channels)."""
    if net.form == "decomposed":
        return net.node("ReduceMean", x, axes=[-2, -1], keepdims=0)
    return net.node("ReduceMean", x, net.constant([-2, -1]), keepdims=0, noop_with_empty_axes=0)
