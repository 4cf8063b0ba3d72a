"""ViT of any size, node for node as torch's two exporters write it, made with onnx and numpy alone."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from models.net import Extent, Form, Net, Spread
from models.parts import (
    ATTENTION_GAIN,
    GELU_GAIN,
    attention,
    classify,
    convolution,
    dense,
    gelu,
    layer_norm,
    places,
    reshape,
)

OPSETS: dict[Form, int] = {"modern": 20, "decomposed": 12}
EMBEDDING = Spread(0.6, 0.1)
EPSILON = 1e-12
MLP = 0.6  # of what a block adds: sums grow with every block


def vit(
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    image: int = 32,
    patch: int = 8,
    classes: int = 10,
    batch: Extent = 1,
    form: Form = "modern",
    seed: int = 0,
) -> onnx.ModelProto:
    """ViT with a classifier on its first place: pixel_values to logits; the symbolic batch has the modern form only.

    `modern` is what torch.export and onnxscript give (opset 20), with a mask that hides nothing, `decomposed` what
    tracing gave in the years before (opset 12): LayerNorm, GELU and softmax as chains of primitives.
    """
    net = Net("vit", form, OPSETS[form], seed)
    net.input("pixel_values", TensorProto.FLOAT, (batch, 3, image, image))
    state = _embeddings(net, hidden, patch, image // patch, batch)
    count = (image // patch) ** 2 + 1
    mask = _mask(net, count, batch) if form == "modern" else ""
    for number in range(layers):
        state = _block(net, f"layers.{number}", state, mask, (hidden, heads, count), batch)
    state = layer_norm(net, state, "layernorm", hidden, EPSILON)
    classify(net, net.node("Gather", state, net.constant(0), axis=1), hidden, classes)
    return net.model({"logits": (batch, classes)})


def _embeddings(net: Net, hidden: int, patch: int, side: int, batch: Extent) -> str:
    """Patches behind the first place, with their positions."""
    name = "embeddings.patch_embeddings.projection"
    found = convolution(net, "pixel_values", name, (hidden, 3, patch), stride=patch)
    found = places(net, found, hidden, side * side, batch)
    first = net.weight("embeddings.cls_token", net.draw("embeddings.cls_token", (1, 1, hidden), EMBEDDING))
    if net.form == "decomposed":
        first = net.node("Expand", first, _traced_shape(net))
    elif isinstance(batch, str):
        one = net.constant([1])
        shape = net.node("Concat", net.node("Shape", "pixel_values", start=0, end=1), one, one, axis=0)
        first = net.node("Expand", first, shape)
    state = net.node("Concat", first, found, axis=1)
    positions = net.draw("embeddings.position_embeddings", (1, side * side + 1, hidden), EMBEDDING)
    return net.node("Add", state, net.weight("embeddings.position_embeddings", positions))


def _traced_shape(net: Net) -> str:
    """The shape (1, -1, -1), its -1 replaced by 1, as tracing computes it."""
    wanted = net.constant([1, -1, -1])
    ones = net.node("ConstantOfShape", net.constant([3]), value=onnx.numpy_helper.from_array(np.ones(1, np.int64)))
    same = net.node("Equal", wanted, net.node("Mul", ones, net.constant(-1)))
    return net.node("Where", same, ones, wanted)


def _mask(net: Net, count: int, batch: Extent) -> str:
    """0 for every query and key: (1 or batch, 1, count, count)."""
    if isinstance(batch, str):
        every = net.constant(np.ones((1, 1, count, 1), dtype=np.bool_))
        extent = net.node("Shape", "pixel_values", start=0, end=1)
        shape = net.node("Concat", extent, net.constant([1]), *[net.constant([count])] * 2, axis=0)
        every = net.node("Expand", every, shape)
    else:
        every = net.constant(np.ones((batch, 1, count, count), dtype=np.bool_))
    return net.node("Where", every, net.constant(0.0), net.constant(float(np.finfo(np.float32).min)))


def _block(net: Net, name: str, state: str, mask: str, sizes: tuple[int, int, int], batch: Extent) -> str:
    """Attention and MLP, each with its LayerNorm before it and its residual behind it."""
    hidden, heads, count = sizes
    normal = layer_norm(net, state, f"{name}.layernorm_before", hidden, EPSILON)
    query, key, value = (
        reshape(net, dense(net, normal, f"{name}.attention.{part}", hidden, hidden), _heads(batch, sizes))
        for part in ("q_proj", "k_proj", "v_proj")
    )
    static = None if isinstance(batch, str) else (batch, heads, count)
    said = attention(net, query, key, value, static, hidden // heads, mask)
    said = reshape(net, said, (batch, count, hidden if isinstance(batch, str) else -1))
    state = net.node("Add", dense(net, said, f"{name}.attention.o_proj", hidden, hidden, ATTENTION_GAIN), state)
    normal = layer_norm(net, state, f"{name}.layernorm_after", hidden, EPSILON)
    wide = gelu(net, dense(net, normal, f"{name}.mlp.fc1", hidden, 2 * hidden))
    return net.node("Add", dense(net, wide, f"{name}.mlp.fc2", 2 * hidden, hidden, GELU_GAIN * MLP), state)


def _heads(batch: Extent, sizes: tuple[int, int, int]) -> tuple[Extent, ...]:
    """The shape in which heads are apart; without a symbol their number is inferred."""
    hidden, heads, count = sizes
    return (batch, count, heads if isinstance(batch, str) else -1, hidden // heads)
