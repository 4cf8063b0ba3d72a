"""BERT of any size, node for node as torch's two exporters write it, made with onnx and numpy alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from models.net import Extent, Form, Net, Spread
from models.parts import ATTENTION_GAIN, BIAS, GELU_GAIN, TextSizes, attention, dense, gelu, layer_norm

EPSILON = 1e-12


@dataclass(frozen=True, slots=True)
class Sizes(TextSizes):
    """The extents of one BERT."""

    intermediate: int
    vocab: int
    positions: int


@dataclass(frozen=True, slots=True)
class Writer:
    """How one exporter writes the parts in which the two forms of BERT differ."""

    opset: int
    mask: Callable[[Net, Sizes], str]
    position_ids: Callable[[Net, Sizes], str]
    extents: Callable[[Net, Sizes, str, tuple[int, ...]], str]


def bert(
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    intermediate: int = 128,
    vocab: int = 100,
    positions: int = 64,
    batch: Extent = "batch",
    sequence: Extent = "sequence",
    form: Form = "modern",
    seed: int = 0,
) -> onnx.ModelProto:
    """BERT with its pooler: int64 input_ids, attention_mask, token_type_ids to last_hidden_state and pooler_output.

    `modern` is what torch.export and onnxscript give (opset 20), `decomposed` what tracing gave in the years before
    (opset 12): LayerNorm, GELU and softmax as chains of primitives, the mask as (1 - mask) * -10000.
    """
    sizes = Sizes(hidden, heads, batch, sequence, intermediate, vocab, positions)
    write = WRITERS[form]
    net = Net("bert", form, write.opset, seed)
    state = encoder(net, sizes, layers, "last_hidden_state")
    first = net.node("Gather", state, net.constant(0), axis=1)
    weight = net.weight("pooler.dense.weight", net.draw("pooler.dense", (hidden, hidden), Spread(hidden**-0.5)))
    bias = net.weight("pooler.dense.bias", net.draw("pooler.dense.bias", (hidden,), BIAS))
    net.node("Tanh", net.node("Gemm", first, weight, bias, alpha=1.0, beta=1.0, transB=1), out="pooler_output")
    return net.model({"last_hidden_state": (batch, sequence, hidden), "pooler_output": (batch, hidden)})


def encoder(net: Net, sizes: Sizes, layers: int, out: str = "") -> str:
    """The inputs, the embeddings and the layers; the last layer's result is named `out`."""
    write = WRITERS[net.form]
    for name in ("input_ids", "attention_mask", "token_type_ids"):
        net.input(name, TensorProto.INT64, (sizes.batch, sizes.sequence))
    state = _embeddings(net, sizes, write)
    mask = write.mask(net, sizes)
    for number in range(layers):
        last = number == layers - 1
        state = _layer(net, sizes, write, f"encoder.layer.{number}", state, mask, out if last else "")
    return state


def _embeddings(net: Net, sizes: Sizes, write: Writer) -> str:
    def table(kind: str, rows: int) -> str:
        name = f"embeddings.{kind}_embeddings.weight"
        return net.weight(name, net.draw(name, (rows, sizes.hidden), Spread(0.6, 0.1)))

    words = net.node("Gather", table("word", sizes.vocab), "input_ids", axis=0)
    types = net.node("Gather", table("token_type", 2), "token_type_ids", axis=0)
    total = net.node("Add", words, types)
    places = net.node("Gather", table("position", sizes.positions), write.position_ids(net, sizes), axis=0)
    return layer_norm(net, net.node("Add", total, places), "embeddings.LayerNorm", sizes.hidden, EPSILON)


def _layer(net: Net, sizes: Sizes, write: Writer, name: str, state: str, mask: str, out: str) -> str:
    """Attention and MLP, each with its residual and its LayerNorm."""
    hidden, inner, norm = sizes.hidden, sizes.intermediate, f"{name}.attention.output.LayerNorm"
    split = write.extents(net, sizes, state, (-1, sizes.head))
    query, key, value = (
        net.node("Reshape", dense(net, state, f"{name}.attention.self.{part}", hidden, hidden), split)
        for part in ("query", "key", "value")
    )
    static = (sizes.static[0], sizes.heads, sizes.static[1]) if sizes.static else None
    merged = attention(net, query, key, value, static, sizes.head, mask)
    merged = net.node("Reshape", merged, write.extents(net, sizes, state, (-1,)))
    attended = dense(net, merged, f"{name}.attention.output.dense", hidden, hidden, ATTENTION_GAIN)
    state = layer_norm(net, net.node("Add", attended, state), norm, hidden, EPSILON)
    wide = gelu(net, dense(net, state, f"{name}.intermediate.dense", hidden, inner))
    narrow = dense(net, wide, f"{name}.output.dense", inner, hidden, GELU_GAIN)
    return layer_norm(net, net.node("Add", narrow, state), f"{name}.output.LayerNorm", hidden, EPSILON, out)


# --- as torch.export and onnxscript write it -------------------------------------------------------------------------


def _modern_extent(net: Net, axis: int) -> str:
    return net.node("Shape", "token_type_ids", start=axis, end=axis + 1)


def _modern_position_ids(net: Net, sizes: Sizes) -> str:
    if sizes.static:
        return net.constant(np.arange(sizes.static[1])[None])
    one = net.constant([1])
    ids = net.constant(np.arange(sizes.positions)[None])
    return net.node("Slice", ids, net.constant([0]), _modern_extent(net, 1), one, one)


def _modern_extents(net: Net, sizes: Sizes, like: str, rest: tuple[int, ...]) -> str:
    """The shape (batch, sequence, *rest) as a value."""
    if sizes.static:
        return net.constant([*sizes.static, *rest])
    return net.node(
        "Concat", _modern_extent(net, 0), _modern_extent(net, 1), *(net.constant([size]) for size in rest), axis=0
    )


def _modern_mask(net: Net, sizes: Sizes) -> str:
    """0 where a key may be seen and the lowest number where not: (batch, 1, sequence, sequence)."""
    seen = net.node("Cast", "attention_mask", to=TensorProto.BOOL)
    if sizes.static:
        batch, sequence = sizes.static
        places = np.stack(np.broadcast_arrays(np.arange(batch)[:, None], np.arange(sequence)[None]), axis=-1)
        every = net.constant(np.ones((1, 1, sequence, 1), dtype=np.bool_))
        keys = net.node("GatherND", seen, net.constant(places[:, None, None].astype(np.int64)), batch_dims=0)
    else:
        every, keys = _modern_symbolic_mask(net, seen)
    both = net.node("And", every, keys)
    return net.node("Where", both, net.constant(0.0), net.constant(float(np.finfo(np.float32).min)))


def _modern_symbolic_mask(net: Net, seen: str) -> tuple[str, str]:
    """`True` for each query (it tests sequence >= 0) and `seen` for each key, gathered by computed indices."""
    zero, one = net.constant(0), net.constant(1)
    rows = net.node("Range", zero, net.node("Squeeze", _modern_extent(net, 0)), one)
    columns = net.node("Range", zero, net.node("Squeeze", _modern_extent(net, 1)), one)
    rows = net.node("Unsqueeze", net.node("Unsqueeze", rows, net.constant([1, 2])), net.constant([3]))
    columns = net.node("Unsqueeze", columns, net.constant([0, 1]))
    queries = net.node("Unsqueeze", columns, net.constant([3]))
    keys = net.node("Unsqueeze", columns, net.constant([2]))
    every = net.node("And", net.constant(np.array(True)), net.node("GreaterOrEqual", queries, zero))
    shape = net.node("Shape", net.node("Max", rows, keys), start=0)
    last = net.constant([-1])
    pairs = [net.node("Unsqueeze", net.node("Expand", index, shape), last) for index in (rows, keys)]
    return every, net.node("GatherND", seen, net.node("Concat", *pairs, axis=-1), batch_dims=0)


# --- as tracing wrote it ---------------------------------------------------------------------------------------------


def _traced_extent(net: Net, like: str, axis: int) -> str:
    extent = net.node("Gather", net.node("Shape", like), net.constant(axis), axis=0)
    return net.node("Unsqueeze", extent, axes=[0])


def _traced_position_ids(net: Net, sizes: Sizes) -> str:
    if sizes.static:
        return net.constant(np.arange(sizes.static[1])[None])
    ids = net.constant(np.arange(sizes.positions)[None])
    start, axis, step = net.constant([0]), net.constant([1]), net.constant([1])
    return net.node("Slice", ids, start, _traced_extent(net, "input_ids", 1), axis, step)


def _traced_extents(net: Net, sizes: Sizes, like: str, rest: tuple[int, ...]) -> str:
    if sizes.static:
        return net.constant([*sizes.static, *rest])
    extents = (_traced_extent(net, like, 0), _traced_extent(net, like, 1))
    return net.node("Concat", *extents, *(net.constant([size]) for size in rest), axis=0)


def _traced_mask(net: Net, sizes: Sizes) -> str:
    """0 where a key may be seen and -10000 where not: (batch, 1, 1, sequence)."""
    seen = net.node("Unsqueeze", net.node("Unsqueeze", "attention_mask", axes=[1]), axes=[2])
    hidden = net.node("Sub", net.constant(1.0), net.node("Cast", seen, to=TensorProto.FLOAT))
    return net.node("Mul", hidden, net.constant(-10000.0))


WRITERS: dict[Form, Writer] = {
    "modern": Writer(
        opset=20,
        mask=_modern_mask,
        position_ids=_modern_position_ids,
        extents=_modern_extents,
    ),
    "decomposed": Writer(
        opset=12,
        mask=_traced_mask,
        position_ids=_traced_position_ids,
        extents=_traced_extents,
    ),
}
