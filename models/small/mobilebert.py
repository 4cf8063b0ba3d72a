"""MobileBERT of any size, node for node as torch's two exporters write it, made with onnx and numpy alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from models.net import Form, Net, Spread
from models.parts import INT64, SCALE, attention, computed_pad, dense, vector

OPSETS: dict[Form, int] = {"modern": 20, "decomposed": 12}
EMBEDDING = Spread(0.6, 0.1)
ATTENTION_GAIN = 0.9  # of what attention says, in two layers
MIX = 0.6  # of sums of a part and its residual, so that they do not grow
RELU_GAIN = 2**0.5  # the root mean square of what ReLU leaves of a standard normal is 1 / sqrt(2)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The extents of one MobileBERT: `narrow` channels inside a layer, `hidden` between layers."""

    hidden: int
    narrow: int
    heads: int
    intermediate: int
    batch: int
    sequence: int

    @property
    def head(self) -> int:
        """Channels of one attention head."""
        return self.narrow // self.heads


def mobilebert(
    layers: int = 2,
    hidden: int = 64,
    narrow: int = 32,
    heads: int = 2,
    intermediate: int = 64,
    feed_forwards: int = 2,
    vocab: int = 100,
    positions: int = 64,
    batch: int = 1,
    sequence: int = 24,
    form: Form = "modern",
    seed: int = 0,
) -> onnx.ModelProto:
    """MobileBERT: int64 input_ids, attention_mask and token_type_ids to last_hidden_state and pooler_output.

    `modern` is what torch.export and onnxscript give (opset 20), `decomposed` what tracing gave in the years before
    (opset 12): softmax as a chain of primitives, the mask as (1 - mask) * -10000, pads computed.
    """
    sizes = Sizes(hidden, narrow, heads, intermediate, batch, sequence)
    net = Net("mobilebert", form, OPSETS[form], seed)
    for name in ("input_ids", "attention_mask", "token_type_ids"):
        net.input(name, TensorProto.INT64, (batch, sequence))
    mask = _traced_mask(net) if form == "decomposed" else ""
    state = _embeddings(net, sizes, vocab, positions)
    mask = mask or _mask(net, sizes)
    for number in range(layers):
        out = "last_hidden_state" if number == layers - 1 else ""
        state = _layer(net, sizes, f"encoder.layer.{number}", state, mask, feed_forwards, out)
    net.node("Gather", state, net.constant(0), out="pooler_output", axis=1)
    return net.model({"last_hidden_state": (batch, sequence, hidden), "pooler_output": (batch, hidden)})


def _embeddings(net: Net, sizes: Sizes, vocab: int, positions: int) -> str:
    """Each word between its neighbours, projected, and its place and type added."""
    narrow, hidden = sizes.narrow, sizes.hidden

    def table(kind: str, rows: int, width: int) -> str:
        name = f"embeddings.{kind}_embeddings.weight"
        return net.weight(name, net.draw(name, (rows, width), EMBEDDING))

    words = net.node("Gather", table("word", vocab, narrow), "input_ids", axis=0)
    after = _neighbour(net, words, (1, INT64.max), (0, 1))
    before = _neighbour(net, words, (0, -1), (1, 0))
    joined = net.node("Concat", after, words, before, axis=2)
    state = dense(net, joined, "embeddings.embedding_transformation", 3 * narrow, hidden)
    ids = net.constant(np.arange(sizes.sequence)[None])
    place = net.node("Gather", table("position", positions, hidden), ids, axis=0)
    kind = net.node("Gather", table("token_type", 2, hidden), "token_type_ids", axis=0)
    state = net.node("Add", net.node("Add", state, place), kind)
    return _no_norm(net, state, "embeddings.LayerNorm", hidden)


def _neighbour(net: Net, words: str, kept: tuple[int, int], pads: tuple[int, int]) -> str:
    """The words moved by one place, with zeros where there is none."""
    one = net.constant([1])
    start, end = (net.constant([int(bound)]) for bound in kept)
    moved = net.node("Slice", words, start, end, one, net.constant([1]))
    if net.form == "decomposed":
        return computed_pad(net, moved, (0, 0, *pads, 0, 0))
    return net.node("Pad", moved, net.constant([0, pads[0], 0, 0, pads[1], 0]), net.constant(0.0), mode="constant")


def _no_norm(net: Net, x: str, name: str, channels: int, scale: float = 1.0, out: str = "") -> str:
    """x * weight + bias."""
    weight = vector(net, f"{name}.weight", channels, Spread(SCALE.deviation * scale, SCALE.mean * scale))
    return net.node("Add", net.node("Mul", x, weight), vector(net, f"{name}.bias", channels, Spread(0.1)), out=out)


def _layer(net: Net, sizes: Sizes, name: str, state: str, mask: str, feed_forwards: int, out: str) -> str:
    """A bottleneck: attention and several MLPs on few channels, and the way back to all of them."""
    hidden, narrow = sizes.hidden, sizes.narrow
    inside = dense(net, state, f"{name}.bottleneck.input.dense", hidden, narrow)
    inside = _no_norm(net, inside, f"{name}.bottleneck.input.LayerNorm", narrow)
    shared = dense(net, state, f"{name}.bottleneck.attention.dense", hidden, narrow)
    shared = _no_norm(net, shared, f"{name}.bottleneck.attention.LayerNorm", narrow)
    said = _attention(net, sizes, f"{name}.attention.self", shared, state, mask)
    said = dense(net, said, f"{name}.attention.output.dense", narrow, narrow, ATTENTION_GAIN)
    inside = _no_norm(net, net.node("Add", said, inside), f"{name}.attention.output.LayerNorm", narrow, MIX)
    for number in range(feed_forwards - 1):
        inside = _feed_forward(net, sizes, inside, f"{name}.ffn.{number}.intermediate", f"{name}.ffn.{number}.output")
    inside = _feed_forward(net, sizes, inside, f"{name}.intermediate", f"{name}.output")
    back = dense(net, inside, f"{name}.output.bottleneck.dense", narrow, hidden)
    state = net.node("Add", back, state)
    return _no_norm(net, state, f"{name}.output.bottleneck.LayerNorm", hidden, MIX, out)


def _feed_forward(net: Net, sizes: Sizes, x: str, first: str, second: str) -> str:
    narrow, wide = sizes.narrow, sizes.intermediate
    y = net.node("Relu", dense(net, x, f"{first}.dense", narrow, wide))
    y = dense(net, y, f"{second}.dense", wide, narrow, RELU_GAIN)
    return _no_norm(net, net.node("Add", y, x), f"{second}.LayerNorm", narrow, MIX)


def _attention(net: Net, sizes: Sizes, name: str, shared: str, state: str, mask: str) -> str:
    """Queries and keys of the bottleneck, values of all channels."""
    apart = [sizes.batch, sizes.sequence, -1, sizes.head]
    how = {"allowzero": 1} if net.form == "modern" else {}
    inputs = {"query": (shared, sizes.narrow), "key": (shared, sizes.narrow), "value": (state, sizes.hidden)}
    query, key, value = (
        net.node("Reshape", dense(net, x, f"{name}.{part}", width, sizes.narrow), net.constant(apart), **how)
        for part, (x, width) in inputs.items()
    )
    said = attention(net, query, key, value, (sizes.batch, sizes.heads, sizes.sequence), sizes.head, mask)
    return net.node("Reshape", said, net.constant([sizes.batch, sizes.sequence, -1]), **how)


def _mask(net: Net, sizes: Sizes) -> str:
    """0 where a key may be seen and the lowest number where not: (batch, 1, sequence, sequence)."""
    seen = net.node("Cast", "attention_mask", to=TensorProto.BOOL)
    where = np.stack(np.broadcast_arrays(np.arange(sizes.batch)[:, None], np.arange(sizes.sequence)[None]), axis=-1)
    every = net.constant(np.ones((1, 1, sizes.sequence, 1), dtype=np.bool_))
    keys = net.node("GatherND", seen, net.constant(where[:, None, None].astype(np.int64)), batch_dims=0)
    lowest = net.constant(float(np.finfo(np.float32).min))
    return net.node("Where", net.node("And", every, keys), net.constant(0.0), lowest)


def _traced_mask(net: Net) -> str:
    """0 where a key may be seen and -10000 where not: (batch, 1, 1, sequence)."""
    seen = net.node("Unsqueeze", net.node("Unsqueeze", "attention_mask", axes=[1]), axes=[2])
    hidden = net.node("Sub", net.constant(1.0), net.node("Cast", seen, to=TensorProto.FLOAT))
    return net.node("Mul", hidden, net.constant(-10000.0))
