"""Encoders of text with symbolic sizes: a sentence encoder in int8, DistilBERT, a T5 encoder, and a tagger."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto
from onnxruntime.quantization import QuantType, quantize_dynamic

from models.dynamic.ocr import recurrent
from models.net import Net, Spread
from models.parts import ATTENTION_GAIN, BIAS, GELU_GAIN, dense, gelu, layer_norm
from models.shapes import cut, extent, reshape, unsqueeze
from models.sized import sized
from models.small.bert import Sizes, encoder

LOWEST = float(np.finfo(np.float32).min)
EMBEDDING = Spread(0.6, 0.1)


def table(net: Net, name: str, rows: int, width: int) -> str:
    """Embeddings."""
    return net.weight(f"{name}.weight", net.draw(f"{name}.weight", (rows, width), EMBEDDING))


# --- sentences -------------------------------------------------------------------------------------------------------


def sentences(
    layers: int = 2, hidden: int = 64, heads: int = 4, intermediate: int = 128, vocab: int = 100, positions: int = 64,
    quantized: bool = True, seed: int = 0,
) -> onnx.ModelProto:  # fmt: skip
    """A sentence encoder of MiniLM's kind: tokens and mask to sentence_embedding (batch, hidden) of length 1.

    A traced BERT, the mean of what it says over the tokens that the mask shows, and its Euclidean norm; `quantized`
    is what ONNX Runtime's dynamic quantization makes of it: weights in int8, activations in uint8 by their range.
    """
    net = Net("sentences", "decomposed", 12, seed)
    state = encoder(net, Sizes(hidden, heads, "batch", "sequence", intermediate, vocab, positions), layers)
    shown = net.node("Expand", unsqueeze(net, "attention_mask", -1), net.node("Shape", state))
    shown = net.node("Cast", shown, to=TensorProto.FLOAT)
    total = net.node("ReduceSum", net.node("Mul", state, shown), axes=[1], keepdims=0)
    count = net.node("Clip", net.node("ReduceSum", shown, axes=[1], keepdims=0), net.constant(1e-9))
    mean = net.node("Div", total, count)
    length = net.node("Clip", net.node("ReduceL2", mean, axes=[1], keepdims=1), net.constant(1e-12))
    net.node("Div", mean, net.node("Expand", length, net.node("Shape", mean)), out="sentence_embedding")
    made = net.model({"sentence_embedding": ("batch", hidden)})
    return _in_int8(made) if quantized else made


def _in_int8(model: onnx.ModelProto) -> onnx.ModelProto:
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder, "float.onnx"), Path(folder, "int8.onnx")
        onnx.save(model, before)
        quantize_dynamic(before, after, weight_type=QuantType.QInt8, extra_options={"DefaultTensorType": 1})
        return onnx.load(after)


# --- DistilBERT ------------------------------------------------------------------------------------------------------


def distilbert(
    layers: int = 2, hidden: int = 64, heads: int = 4, intermediate: int = 128, vocab: int = 100, positions: int = 64,
    seed: int = 0,
) -> onnx.ModelProto:  # fmt: skip
    """DistilBERT as it was traced: input_ids and attention_mask to last_hidden_state.

    Hidden scores are replaced, not lowered: the mask is compared with 0, viewed as (batch, 1, 1, keys) by extents
    read from it, and expanded to the shape of the scores.
    """
    net = Net("distilbert", "decomposed", 13, seed)
    for name in ("input_ids", "attention_mask"):
        net.input(name, TensorProto.INT64, ("batch", "sequence"))
    length = unsqueeze(net, extent(net, "input_ids", 1), 0)
    ids = cut(net, net.constant(np.arange(positions)[None]), 1, 0, length)
    words = net.node("Gather", table(net, "embeddings.word_embeddings", vocab, hidden), "input_ids", axis=0)
    places = net.node("Gather", table(net, "embeddings.position_embeddings", positions, hidden), ids, axis=0)
    state = layer_norm(net, net.node("Add", words, places), "embeddings.LayerNorm", hidden, 1e-12)
    for number in range(layers):
        out = "last_hidden_state" if number == layers - 1 else ""
        state = _distilled(net, state, f"transformer.layer.{number}", (hidden, heads, intermediate), out)
    return net.model({"last_hidden_state": ("batch", "sequence", hidden)})


def _distilled(net: Net, state: str, name: str, sizes: tuple[int, int, int], out: str) -> str:
    """Attention and MLP, each with its LayerNorm behind its residual."""
    hidden, heads, intermediate = sizes
    head = hidden // heads
    batch, keys = extent(net, state, 0), extent(net, state, 1)
    query, key, value = (
        net.node("Transpose", reshape(net, product, batch, -1, heads, head), perm=(0, 2, 1, 3))
        for product in (dense(net, state, f"{name}.attention.{part}_lin", hidden, hidden) for part in "qkv")
    )
    query = net.node("Div", query, net.constant(float(head**0.5)))
    scores = net.node("MatMul", query, net.node("Transpose", key, perm=(0, 1, 3, 2)))
    unseen = net.node("Equal", "attention_mask", net.constant(0))
    unseen = net.node("Expand", reshape(net, unseen, batch, 1, 1, keys), net.node("Shape", scores))
    chances = net.node("Softmax", net.node("Where", unseen, net.constant(LOWEST), scores), axis=-1)
    said = net.node("Transpose", net.node("MatMul", chances, value), perm=(0, 2, 1, 3))
    said = reshape(net, said, batch, -1, hidden)
    said = dense(net, said, f"{name}.attention.out_lin", hidden, hidden, ATTENTION_GAIN)
    state = layer_norm(net, net.node("Add", said, state), f"{name}.sa_layer_norm", hidden, 1e-12)
    wide = gelu(net, dense(net, state, f"{name}.ffn.lin1", hidden, intermediate))
    narrow = dense(net, wide, f"{name}.ffn.lin2", intermediate, hidden, GELU_GAIN)
    return layer_norm(net, net.node("Add", narrow, state), f"{name}.output_layer_norm", hidden, 1e-12, out)


# --- T5 --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Buckets:
    """How far apart two tokens are, in steps that grow: half of them for each direction."""

    count: int = 32
    farthest: int = 128


def t5_encoder(
    layers: int = 2, hidden: int = 64, heads: int = 4, intermediate: int = 128, vocab: int = 100, seed: int = 0
) -> onnx.ModelProto:
    """The encoder of T5: input_ids and attention_mask to last_hidden_state.

    Relative positions come from ranges as long as the sequence; their buckets, by a logarithm, index a table whose
    rows are added to all scores. Norms are by the root mean square, scores are not divided.
    """
    net = Net("t5_encoder", "decomposed", 13, seed)
    for name in ("input_ids", "attention_mask"):
        net.input(name, TensorProto.INT64, ("batch", "sequence"))
    state = net.node("Gather", table(net, "shared", vocab, hidden), "input_ids", axis=0)
    bias = net.node("Add", _relative_bias(net, heads, Buckets()), _seen(net))
    for number in range(layers):
        name = f"encoder.block.{number}"
        state = net.node("Add", state, _t5_attention(net, state, f"{name}.layer.0", hidden, heads, bias))
        x = rms_norm(net, state, f"{name}.layer.1.layer_norm", hidden)
        wide = net.node("Relu", linear(net, x, f"{name}.layer.1.wi", hidden, intermediate))
        state = net.node("Add", state, linear(net, wide, f"{name}.layer.1.wo", intermediate, hidden))
    rms_norm(net, state, "encoder.final_layer_norm", hidden, out="last_hidden_state")
    made = net.model({"last_hidden_state": ("batch", "sequence", hidden)})
    random = np.random.default_rng(9)
    feed = {"input_ids": random.integers(0, vocab, (2, 24)), "attention_mask": np.ones((2, 24), np.int64)}
    narrow = (hidden // heads) ** -0.25  # of queries and keys, whose products are not divided
    return sized(made, feed, {r"Attention\.[qk]\.": narrow, r"\.(o|wo)\.": 0.3})


def rms_norm(net: Net, x: str, name: str, channels: int, out: str = "") -> str:
    """x divided by its root mean square, times a weight."""
    square = net.node("ReduceMean", net.node("Pow", x, net.constant(2.0)), axes=[-1], keepdims=1)
    root = net.node("Sqrt", net.node("Add", square, net.constant(1e-6)))
    normal = net.node("Mul", x, net.node("Div", net.constant(1.0), root))
    weight = net.weight(f"{name}.weight", net.draw(f"{name}.weight", (channels,), Spread(0.15, 1.0)))
    return net.node("Mul", weight, normal, out=out)


def linear(net: Net, x: str, name: str, inputs: int, outputs: int) -> str:
    """A linear layer without a bias."""
    draw = net.draw(f"{name}.weight", (inputs, outputs), Spread(inputs**-0.5))
    return net.node("MatMul", x, net.weight(f"{name}.weight", draw))


def _t5_attention(net: Net, state: str, name: str, hidden: int, heads: int, bias: str) -> str:
    x = rms_norm(net, state, f"{name}.layer_norm", hidden)
    batch, head = extent(net, x, 0), hidden // heads
    query, key, value = (
        net.node("Transpose", reshape(net, product, batch, -1, heads, head), perm=(0, 2, 1, 3))
        for product in (linear(net, x, f"{name}.SelfAttention.{part}", hidden, hidden) for part in "qkv")
    )
    scores = net.node("MatMul", query, net.node("Transpose", key, perm=(0, 1, 3, 2)))
    said = net.node("MatMul", net.node("Softmax", net.node("Add", scores, bias), axis=-1), value)
    said = reshape(net, net.node("Transpose", said, perm=(0, 2, 1, 3)), batch, -1, hidden)
    return linear(net, said, f"{name}.SelfAttention.o", hidden, hidden)


def _seen(net: Net) -> str:
    """0 where a key may be seen and the lowest number where not: (batch, 1, 1, sequence)."""
    seen = net.node("Cast", unsqueeze(net, unsqueeze(net, "attention_mask", 1), 2), to=TensorProto.FLOAT)
    return net.node("Mul", net.node("Sub", net.constant(1.0), seen), net.constant(LOWEST))


def _relative_bias(net: Net, heads: int, buckets: Buckets) -> str:
    """A bias for each head and pair of places, (1, heads, sequence, sequence)."""
    length = extent(net, "input_ids", 1)
    places = net.node("Range", net.constant(0), length, net.constant(1))
    apart = net.node("Sub", unsqueeze(net, places, 0), unsqueeze(net, places, 1))
    half, exact = buckets.count // 2, buckets.count // 4
    later = net.node("Cast", net.node("Greater", apart, net.constant(0)), to=TensorProto.INT64)
    later = net.node("Mul", later, net.constant(half))
    far = net.node("Abs", apart)
    steps = net.node("Log", net.node("Div", net.node("Cast", far, to=TensorProto.FLOAT), net.constant(float(exact))))
    steps = net.node("Div", steps, net.constant(float(np.log(buckets.farthest / exact))))
    steps = net.node("Cast", net.node("Mul", steps, net.constant(float(half - exact))), to=TensorProto.INT64)
    steps = net.node("Add", steps, net.constant(exact))
    most = net.node("Expand", net.constant(half - 1), net.node("Shape", steps))
    steps = net.node("Min", steps, most)
    bucket = net.node("Add", later, net.node("Where", net.node("Less", far, net.constant(exact)), far, steps))
    name = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias"
    bias = net.node("Gather", table(net, name, buckets.count, heads), bucket, axis=0)
    return unsqueeze(net, net.node("Transpose", bias, perm=(2, 0, 1)), 0)


# --- tagger ----------------------------------------------------------------------------------------------------------


def tagger(
    words: int = 80, characters: int = 40, width: int = 24, letters: int = 8, filters: int = 12, hidden: int = 16,
    tags: int = 9, seed: int = 0,
) -> onnx.ModelProto:  # fmt: skip
    """A tagger of words: words (batch, length) and characters (batch, length, letters) to tags (batch, length, tags).

    A convolution over the characters of each word and its maximum, beside the word's embedding; a bidirectional LSTM
    over the words, whose first states are zeros of a shape that is read; a softmax over tags.
    """
    net = Net("tagger", "decomposed", 13, seed)
    net.input("words", TensorProto.INT64, ("batch", "length"))
    net.input("characters", TensorProto.INT64, ("batch", "length", "letters"))
    spelled = net.node("Gather", table(net, "characters.embedding", characters, letters), "characters", axis=0)
    batch, length, count = (extent(net, "characters", axis) for axis in range(3))
    flat = reshape(net, spelled, net.node("Mul", batch, length), count, letters)
    weight = net.draw("characters.conv.weight", (filters, letters, 3), Spread((0.6 * 3 * letters) ** -0.5))
    shift = net.weight("characters.conv.bias", net.draw("characters.conv.bias", (filters,), BIAS))
    how = {"dilations": (1,), "group": 1, "kernel_shape": (3,), "pads": (1, 1), "strides": (1,)}
    y = net.node("Transpose", flat, perm=(0, 2, 1))
    y = net.node("Relu", net.node("Conv", y, net.weight("characters.conv.weight", weight), shift, **how))
    most = reshape(net, net.node("ReduceMax", y, axes=[2], keepdims=0), batch, length, filters)
    known = net.node("Gather", table(net, "words.embedding", words, width), "words", axis=0)
    x = net.node("Transpose", net.node("Concat", known, most, axis=-1), perm=(1, 0, 2))
    x = recurrent(net, x, "lstm", width + filters, hidden)
    scores = dense(net, net.node("Transpose", x, perm=(1, 0, 2)), "tags", 2 * hidden, tags, 2.0)
    net.node("Softmax", scores, axis=2, out="tags")
    return net.model({"tags": ("batch", "length", tags)})
