"""A decoder of LLaMA's kind with a cache of keys and values, node for node as torch's tracing writes it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from models.dynamic.text import LOWEST, linear, rms_norm, table
from models.net import Array, Extent, Net
from models.shapes import cut, extent, reshape, shape, unsqueeze
from models.sized import sized

TOTAL = "past + sequence"
BASE = 10000.0  # of the rotations' frequencies


@dataclass(frozen=True, slots=True)
class Sizes:
    """The extents of one decoder; `shared` query heads read one head of keys and values."""

    hidden: int
    heads: int
    kept: int
    intermediate: int

    @property
    def head(self) -> int:
        """Channels of one head."""
        return self.hidden // self.heads


def llama(
    layers: int = 2, hidden: int = 64, heads: int = 4, kept: int = 2, intermediate: int = 96, vocab: int = 100,
    seed: int = 0,
) -> onnx.ModelProto:  # fmt: skip
    """Logits of the next tokens, and the cache with them: `past` places are known, `sequence` are new.

    Inputs are input_ids and position_ids (batch, sequence), attention_mask (batch, past + sequence), and keys and
    values of each layer (batch, kept, past, head); outputs are logits and the longer cache. `kept` heads of keys and
    values are repeated for all query heads.
    """
    sizes = Sizes(hidden, heads, kept, intermediate)
    net = Net("llama", "decomposed", 13, seed)
    net.input("input_ids", TensorProto.INT64, ("batch", "sequence"))
    net.input("attention_mask", TensorProto.INT64, ("batch", TOTAL))
    net.input("position_ids", TensorProto.INT64, ("batch", "sequence"))
    for number in range(layers):
        for kind in ("key", "value"):
            net.input(f"past_key_values.{number}.{kind}", TensorProto.FLOAT, ("batch", kept, "past", sizes.head))
    state = net.node("Gather", table(net, "model.embed_tokens", vocab, hidden), "input_ids", axis=0)
    mask = _mask(net, state)
    turns = _rotations(net, sizes.head)
    for number in range(layers):
        state = _block(net, state, number, sizes, mask, turns)
    state = rms_norm(net, state, "model.norm", hidden)
    net.node("Identity", linear(net, state, "lm_head", hidden, vocab), out="logits")
    cache: dict[str, tuple[Extent, ...]] = {
        f"present.{number}.{kind}": ("batch", kept, TOTAL, sizes.head)
        for number in range(layers)
        for kind in ("key", "value")
    }
    made = net.model({"logits": ("batch", "sequence", vocab), **cache})
    return sized(made, _sample(sizes, layers, vocab), {"rotary": 0.0, r"(o|down)_proj": 0.3})


def _sample(sizes: Sizes, layers: int, vocab: int) -> dict[str, Array]:
    """Two sequences of 24 tokens, and nothing before them."""
    ids = np.random.default_rng(9).integers(0, vocab, (2, 24))
    places = np.broadcast_to(np.arange(24), ids.shape).astype(np.int64)
    empty = np.zeros((2, sizes.kept, 0, sizes.head), np.float32)
    past = {f"past_key_values.{number}.{kind}": empty for number in range(layers) for kind in ("key", "value")}
    return {"input_ids": ids, "position_ids": places, "attention_mask": np.ones_like(ids), **past}


def _block(net: Net, state: str, number: int, sizes: Sizes, mask: str, turns: tuple[str, str]) -> str:
    """Attention and gated MLP, each with its norm before it."""
    name, hidden = f"model.layers.{number}", sizes.hidden
    x = rms_norm(net, state, f"{name}.input_layernorm", hidden)
    state = net.node("Add", state, _attention(net, x, number, sizes, mask, turns))
    x = rms_norm(net, state, f"{name}.post_attention_layernorm", hidden)
    gate = linear(net, x, f"{name}.mlp.gate_proj", hidden, sizes.intermediate)
    gate = net.node("Mul", gate, net.node("Sigmoid", gate))
    up = linear(net, x, f"{name}.mlp.up_proj", hidden, sizes.intermediate)
    down = linear(net, net.node("Mul", gate, up), f"{name}.mlp.down_proj", sizes.intermediate, hidden)
    return net.node("Add", state, down)


def _attention(net: Net, x: str, number: int, sizes: Sizes, mask: str, turns: tuple[str, str]) -> str:
    """Grouped attention over the cache and what is new."""
    name, head = f"model.layers.{number}.self_attn", sizes.head
    batch, length = extent(net, x, 0), extent(net, x, 1)
    query, key, value = (
        net.node("Transpose", reshape(net, product, batch, length, heads, head), perm=(0, 2, 1, 3))
        for product, heads in (
            (linear(net, x, f"{name}.{part}_proj", sizes.hidden, heads * head), heads)
            for part, heads in (("q", sizes.heads), ("k", sizes.kept), ("v", sizes.kept))
        )
    )
    query, key = (_turned(net, each, turns) for each in (query, key))
    kept = []
    for kind, new in (("key", key), ("value", value)):
        past = f"past_key_values.{number}.{kind}"
        kept.append(net.node("Concat", past, new, axis=2, out=f"present.{number}.{kind}"))
    key, value = (_repeated(net, each, sizes) for each in kept)
    scores = net.node("MatMul", query, net.node("Transpose", key, perm=(0, 1, 3, 2)))
    scores = net.node("Div", scores, net.constant(float(head**0.5)))
    said = net.node("MatMul", net.node("Softmax", net.node("Add", scores, mask), axis=-1), value)
    said = reshape(net, net.node("Transpose", said, perm=(0, 2, 1, 3)), batch, length, sizes.hidden)
    return linear(net, said, f"{name}.o_proj", sizes.hidden, sizes.hidden)


def _repeated(net: Net, x: str, sizes: Sizes) -> str:
    """(batch, kept, total, head) as (batch, heads, total, head): Unsqueeze, Expand and Reshape."""
    batch, total = extent(net, x, 0), extent(net, x, 2)
    times = sizes.heads // sizes.kept
    wide = net.node("Expand", unsqueeze(net, x, 2), shape(net, batch, sizes.kept, times, total, sizes.head))
    return reshape(net, wide, batch, sizes.heads, total, sizes.head)


def _rotations(net: Net, head: int) -> tuple[str, str]:
    """Cosines and sines, (batch, 1, sequence, head), of the places in `position_ids`."""
    speeds = net.weight("model.rotary_emb.inv_freq", BASE ** -(np.arange(0, head, 2) / head)[None, :, None])
    batch = extent(net, "position_ids", 0)
    wide = net.node("Expand", speeds, shape(net, batch, head // 2, 1))
    places = net.node("Cast", unsqueeze(net, "position_ids", 1), to=TensorProto.FLOAT)
    angles = net.node("Transpose", net.node("MatMul", wide, places), perm=(0, 2, 1))
    angles = net.node("Concat", angles, angles, axis=-1)
    return unsqueeze(net, net.node("Cos", angles), 1), unsqueeze(net, net.node("Sin", angles), 1)


def _turned(net: Net, x: str, turns: tuple[str, str]) -> str:
    """Each pair of channels turned: the halves are cut at half of an extent that is read."""
    half = unsqueeze(net, net.node("Div", extent(net, x, 3), net.constant(2)), 0)
    first, last = cut(net, x, 3, 0, half), cut(net, x, 3, half, np.iinfo(np.int64).max)
    crossed = net.node("Concat", net.node("Neg", last), first, axis=-1)
    return net.node("Add", net.node("Mul", x, turns[0]), net.node("Mul", crossed, turns[1]))


def _mask(net: Net, state: str) -> str:
    """0 where a query may see a key and the lowest number where not, (batch, 1, sequence, past + sequence).

    A key is seen that the mask shows and that does not come after the query: a triangle, moved on by `past`.
    """
    length, total = extent(net, state, 1), extent(net, "attention_mask", 1)
    past = extent(net, "past_key_values.0.key", 2)
    lowest = numpy_helper.from_array(np.array([LOWEST], np.float32))
    full = net.node("ConstantOfShape", shape(net, length, total), value=lowest)
    keys = net.node("Range", net.constant(0), total, net.constant(1))
    queries = net.node("Range", past, net.node("Add", past, length), net.constant(1))
    later = net.node("Greater", keys, reshape(net, queries, -1, 1))
    causal = net.node("Mul", full, net.node("Cast", later, to=TensorProto.FLOAT))
    batch = extent(net, state, 0)
    causal = net.node("Expand", unsqueeze(net, causal, 0, 1), shape(net, batch, 1, length, total))
    shown = net.node("Cast", unsqueeze(net, "attention_mask", 1, 2), to=TensorProto.FLOAT)
    unseen = net.node("Equal", net.node("Add", causal, shown), net.constant(0.0))
    return net.node("Where", unseen, net.constant(LOWEST), causal)
