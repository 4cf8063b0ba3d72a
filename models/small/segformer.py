"""SegFormer of any size, node for node as torch's two exporters write it, made with onnx and numpy alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from models.net import Extent, Form, Net, Spread
from models.parts import (
    ATTENTION_GAIN,
    BIAS,
    GELU_GAIN,
    attention,
    convolution,
    dense,
    gelu,
    images,
    layer_norm,
    places,
    reshape,
    vector,
)

OPSETS: dict[Form, int] = {"modern": 20, "decomposed": 12}
DEPTHWISE_GAIN = 1.5  # its padding makes the results at the edges smaller
MLP = 0.6  # of what a block adds: sums grow with every block


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage: channels, heads, by how much keys are fewer than queries along a side, size and stride of patches."""

    width: int
    heads: int
    fewer: int
    patch: int
    stride: int
    depth: int = 1


SMALL = (Stage(16, 1, 4, 7, 4), Stage(32, 2, 1, 3, 2))


def segformer(
    stages: tuple[Stage, ...] = SMALL,
    image: int = 64,
    decoder: int = 32,
    classes: int = 5,
    batch: Extent = 1,
    form: Form = "modern",
    seed: int = 0,
) -> onnx.ModelProto:
    """SegFormer with its decoder: pixel_values to logits by place. The symbolic batch has the modern form only.

    `modern` is what torch.export and onnxscript give (opset 20), `decomposed` what tracing gave in the years before
    (opset 12): LayerNorm, GELU and softmax as chains of primitives, BatchNormalization kept, every size computed.
    """
    net = Net("segformer", form, OPSETS[form], seed)
    net.input("pixel_values", TensorProto.FLOAT, (batch, 3, image, image))
    x, size, found = "pixel_values", image, []
    for number, stage in enumerate(stages):
        before = stages[number - 1].width if number else 3
        size //= stage.stride
        x = _stage(net, x, f"stages.{number}", stage, before, size, batch)
        found.append((x, stage.width, size))
    side = found[0][2]
    parts = [_unified(net, part, f"projections.{i}.proj", decoder, side, batch) for i, part in enumerate(found)]
    joined = net.node("Concat", *reversed(parts), axis=1)
    fused = net.node("Relu", _fuse(net, joined, decoder * len(parts), decoder))
    _pointwise(net, fused, "classifier", decoder, classes, out="logits")
    return net.model({"logits": (batch, classes, side, side)})


def _stage(net: Net, x: str, name: str, stage: Stage, before: int, size: int, batch: Extent) -> str:
    """Overlapping patches, blocks, and a LayerNorm: images to images."""
    width, count = stage.width, size * size
    shape = (width, before, stage.patch)
    x = convolution(net, x, f"{name}.patch_embeddings.proj", shape, stage.stride, stage.patch // 2)
    x = layer_norm(net, places(net, x, width, count, batch), f"{name}.patch_embeddings.layer_norm", width)
    for block in range(stage.depth):
        x = _block(net, x, f"{name}.blocks.{block}", stage, size, batch)
    x = layer_norm(net, x, f"{name}.layer_norm", width)
    apart = reshape(net, x, (batch, size, size, width if isinstance(batch, str) else -1))
    return net.node("Transpose", apart, perm=(0, 3, 1, 2))


def _block(net: Net, x: str, name: str, stage: Stage, size: int, batch: Extent) -> str:
    """Attention and an MLP with a depthwise convolution inside, each with LayerNorm and residual."""
    width, wide, count = stage.width, 4 * stage.width, size * size
    said = _attention(net, layer_norm(net, x, f"{name}.layernorm_before", width), name, stage, size, batch)
    x = net.node("Add", dense(net, said, f"{name}.attention.o_proj", width, width, ATTENTION_GAIN), x)
    y = dense(net, layer_norm(net, x, f"{name}.layernorm_after", width), f"{name}.mlp.fc1", width, wide)
    y = images(net, y, wide, size, batch)
    y = convolution(net, y, f"{name}.mlp.dwconv", (wide, wide, 3), pad=1, depthwise=True)
    y = gelu(net, places(net, y, wide, count, batch))
    return net.node("Add", dense(net, y, f"{name}.mlp.fc2", wide, width, GELU_GAIN * DEPTHWISE_GAIN * MLP), x)


def _attention(net: Net, x: str, name: str, stage: Stage, size: int, batch: Extent) -> str:
    """Attention to fewer places, which a convolution makes of all of them."""
    width, head, count = stage.width, stage.width // stage.heads, size * size
    query = _heads(net, dense(net, x, f"{name}.attention.q_proj", width, width), stage, count, batch)
    seen, fewer = x, count
    if stage.fewer > 1:
        reduction = f"{name}.attention.sequence_reduction"
        fewer = (size // stage.fewer) ** 2
        seen = images(net, x, width, size, batch)
        seen = convolution(net, seen, f"{reduction}.sequence_reduction", (width, width, stage.fewer), stage.fewer)
        flat = reshape(net, seen, (batch, width, fewer if isinstance(batch, str) else -1))
        seen = layer_norm(net, net.node("Transpose", flat, perm=(0, 2, 1)), f"{reduction}.layer_norm", width)
    key, value = (
        _heads(net, dense(net, seen, f"{name}.attention.{part}", width, width), stage, fewer, batch)
        for part in ("k_proj", "v_proj")
    )
    symbolic = isinstance(batch, str)
    static = None if isinstance(batch, str) else (batch, stage.heads, fewer)
    view = (batch, 1 if symbolic else -1, count, head) if stage.heads == 1 else ()
    said = attention(net, query, key, value, static, head, view=view)
    return reshape(net, said, (batch, count, width if symbolic else -1))


def _heads(net: Net, x: str, stage: Stage, count: int, batch: Extent) -> str:
    """(batch, places, heads, head); without a symbol the heads are inferred."""
    return reshape(net, x, (batch, count, stage.heads if isinstance(batch, str) else -1, stage.width // stage.heads))


def _unified(net: Net, part: tuple[str, int, int], name: str, decoder: int, side: int, batch: Extent) -> str:
    """What one stage found, with the decoder's channels and in the first stage's size."""
    x, width, size = part
    x = dense(net, places(net, x, width, size * size, batch), name, width, decoder)
    x = net.node("Transpose", x, perm=(0, 2, 1))
    if net.form == "decomposed":
        x = net.node("Reshape", x, net.constant([batch, -1, size, size]))
    else:
        x = reshape(net, x, (batch, decoder, size, size))
    return _resize(net, x, (decoder, side), batch)


def _resize(net: Net, x: str, shape: tuple[int, int], batch: Extent) -> str:
    """Linear interpolation to (batch, channels, side, side)."""
    channels, side = shape
    how: dict[str, Any] = {
        "coordinate_transformation_mode": "half_pixel",
        "cubic_coeff_a": -0.75,
        "mode": "linear",
        "nearest_mode": "floor",
    }
    if net.form == "decomposed":
        axis, start, end = net.constant([0]), net.constant([0]), net.constant([2])
        outer = net.node("Slice", net.node("Shape", x), start, end, axis)
        target = net.node("Concat", outer, net.constant([side, side]), axis=0)
        empty = [net.node("Constant", value=numpy_helper.from_array(np.zeros(0, np.float32))) for _ in range(2)]
        return net.node("Resize", x, *empty, target, **how)
    target = net.constant([0 if isinstance(batch, str) else batch, channels, side, side])
    if isinstance(batch, str):
        target = net.node("Concat", net.node("Shape", x, start=0, end=2), net.constant([side, side]), axis=0)
    how |= {"antialias": 0, "exclude_outside": 0, "extrapolation_value": 0.0, "keep_aspect_ratio_policy": "stretch"}
    return net.node("Resize", x, "", "", target, **how)


def _pointwise(net: Net, x: str, name: str, inputs: int, outputs: int, bias: bool = True, out: str = "") -> str:
    """A 1x1 convolution."""
    weight = net.draw(f"{name}.weight", (outputs, inputs, 1, 1), Spread(inputs**-0.5))
    how: dict[str, Any] = {
        "dilations": (1, 1), "group": 1, "kernel_shape": (1, 1), "pads": (0,) * 4, "strides": (1, 1),
    }  # fmt: skip
    if net.form == "modern":
        how["auto_pad"] = "NOTSET"
    shift = (vector(net, f"{name}.bias", outputs, BIAS),) if bias else ()
    return net.node("Conv", x, net.weight(f"{name}.weight", weight), *shift, out=out, **how)


def _fuse(net: Net, x: str, inputs: int, outputs: int) -> str:
    """A 1x1 convolution and its BatchNormalization: one node in the modern form, two in the decomposed."""
    scale = net.draw("batch_norm.weight", (outputs,), Spread(0.15, 1.0))
    shift, mean = (net.draw(f"batch_norm.{part}", (outputs,), BIAS) for part in ("bias", "running_mean"))
    variance = np.abs(net.draw("batch_norm.running_var", (outputs,), Spread(0.1, 0.8)))
    if net.form == "decomposed":
        product = _pointwise(net, x, "linear_fuse", inputs, outputs, bias=False)
        parts = {"weight": scale, "bias": shift, "running_mean": mean, "running_var": variance}
        names = [net.weight(f"batch_norm.{part}", values) for part, values in parts.items()]
        return net.node("BatchNormalization", product, *names, epsilon=1e-5, momentum=0.9)
    factor = scale / np.sqrt(variance + 1e-5)
    weight = net.draw("linear_fuse.weight", (outputs, inputs, 1, 1), Spread(inputs**-0.5))
    folded = net.weight("linear_fuse.weight", weight * factor[:, None, None, None])
    bias = net.weight("linear_fuse.weight_bias", shift - mean * factor)
    how = {"dilations": (1, 1), "group": 1, "kernel_shape": (1, 1), "pads": (0,) * 4, "strides": (1, 1)}
    return net.node("Conv", x, folded, bias, auto_pad="NOTSET", **how)
