"""GPT-2 of any size, node for node as torch's two exporters write it, made with onnx and numpy alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from models.net import Extent, Form, Net, Spread
from models.parts import ATTENTION_GAIN, BIAS, TextSizes, attention, gelu_new, layer_norm, vector

OPSETS: dict[Form, int] = {"modern": 20, "decomposed": 12}
EMBEDDING = Spread(0.6, 0.1)


@dataclass(frozen=True, slots=True)
class Sizes(TextSizes):
    """The extents of one GPT-2."""

    positions: int


def gpt2(
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    vocab: int = 100,
    positions: int = 64,
    batch: Extent = "batch",
    sequence: Extent = "sequence",
    form: Form = "modern",
    seed: int = 0,
) -> onnx.ModelProto:
    """GPT-2 without a cache: int64 input_ids and attention_mask to last_hidden_state.

    `modern` is what torch.export and onnxscript give (opset 20), `decomposed` what tracing gave in the years before
    (opset 12): LayerNorm and softmax as chains of primitives, the triangle a slice of a constant, hidden scores -10000.
    """
    sizes = Sizes(hidden, heads, batch, sequence, positions)
    net = Net("gpt2", form, OPSETS[form], seed)
    for name in ("input_ids", "attention_mask"):
        net.input(name, TensorProto.INT64, (batch, sequence))
    write: type[_Modern | _Traced] = _Modern if form == "modern" else _Traced
    words = net.weight("wte.weight", net.draw("wte.weight", (vocab, hidden), EMBEDDING))
    table = net.weight("wpe.weight", net.draw("wpe.weight", (positions, hidden), EMBEDDING))
    hidden_mask = write.mask(net, sizes)
    found = net.node("Gather", words, write.ids(net, sizes), axis=0)
    state = net.node("Add", found, write.position(net, sizes, table))
    for number in range(layers):
        state = _block(net, sizes, write, f"h.{number}", state, hidden_mask)
    state = layer_norm(net, state, "ln_f", hidden)
    net.node("Reshape", state, write.last_shape(net, sizes), out="last_hidden_state", **_allowzero(net))
    return net.model({"last_hidden_state": (batch, sequence, hidden)})


def _block(net: Net, sizes: Sizes, write: type[_Modern | _Traced], name: str, state: str, mask: str) -> str:
    """Attention and MLP, each with its LayerNorm before it and its residual behind it."""
    hidden = sizes.hidden
    normal = layer_norm(net, state, f"{name}.ln_1", hidden)
    packed = _conv1d(net, sizes, write, normal, f"{name}.attn.c_attn", hidden, 3 * hidden)
    how = {"num_outputs": 3} if net.form == "modern" else {"split": [hidden] * 3}
    query, key, value = net.nodes("Split", 3, packed, axis=2, **how)
    key, value, query = (
        net.node("Reshape", part, write.extents(net, sizes, (-1, sizes.head)), **_allowzero(net))
        for part in (key, value, query)
    )
    said = write.attention(net, sizes, query, key, value, mask)
    said = _conv1d(net, sizes, write, said, f"{name}.attn.c_proj", hidden, hidden, ATTENTION_GAIN, merges=True)
    state = net.node("Add", said, state)
    wide = _conv1d(net, sizes, write, layer_norm(net, state, f"{name}.ln_2", hidden), f"{name}.mlp.c_fc", hidden, 256)
    narrow = _conv1d(net, sizes, write, gelu_new(net, wide), f"{name}.mlp.c_proj", 256, hidden)
    return net.node("Add", state, narrow)


def _allowzero(net: Net) -> dict[str, int]:
    return {"allowzero": 1} if net.form == "modern" else {}


def _conv1d(
    net: Net, sizes: Sizes, write: type[_Modern | _Traced], x: str, name: str, inputs: int, outputs: int,
    gain: float = 1.0, merges: bool = False,
) -> str:  # fmt: skip
    """A Gemm between two Reshapes; one that `merges` heads reads them as (batch, sequence, heads, head)."""
    weight = net.weight(f"{name}.weight", net.draw(f"{name}.weight", (inputs, outputs), Spread(gain * inputs**-0.5)))
    bias = vector(net, f"{name}.bias", outputs, BIAS)
    if merges and net.form == "decomposed":
        x = net.node("Reshape", x, write.extents(net, sizes, (-1,)))
    flat = net.node("Reshape", x, net.constant([-1, inputs]), **_allowzero(net))
    product = net.node("Gemm", flat, weight, bias, alpha=1.0, beta=1.0)
    return net.node("Reshape", product, write.extents(net, sizes, (outputs,)), **_allowzero(net))


class _Modern:
    """As torch.export and onnxscript write it."""

    @staticmethod
    def _extent(net: Net, axis: int) -> str:
        return net.node("Shape", "attention_mask", start=axis, end=axis + 1)

    @staticmethod
    def ids(net: Net, sizes: Sizes) -> str:
        """input_ids through a Reshape that changes nothing."""
        if sizes.static:
            shape = net.constant([-1, sizes.static[1]])
        else:
            shape = net.node("Concat", net.constant([-1]), _Modern._extent(net, 1), axis=0)
        return net.node("Reshape", "input_ids", shape, allowzero=1)

    @staticmethod
    def _count(net: Net, sizes: Sizes) -> str:
        return net.node("Range", net.constant(0), net.node("Squeeze", _Modern._extent(net, 1)), net.constant(1))

    @staticmethod
    def position(net: Net, sizes: Sizes, table: str) -> str:
        """Rows of the table for all places, (1, sequence, hidden)."""
        if sizes.static:
            return net.node("Gather", table, net.constant(np.arange(sizes.static[1])[None]), axis=0)
        return net.node("Gather", table, net.node("Unsqueeze", _Modern._count(net, sizes), net.constant([0])), axis=0)

    @staticmethod
    def extents(net: Net, sizes: Sizes, rest: tuple[int, ...]) -> str:
        """The shape (batch, sequence, *rest) as a value."""
        if sizes.static:
            return net.constant([*sizes.static, *rest])
        own = (net.constant([size]) for size in rest)
        return net.node("Concat", _Modern._extent(net, 0), _Modern._extent(net, 1), *own, axis=0)

    @staticmethod
    def last_shape(net: Net, sizes: Sizes) -> str:
        """The shape of the output."""
        if sizes.static:
            return net.constant([-1, sizes.static[1], sizes.hidden])
        return net.node("Concat", net.constant([-1]), _Modern._extent(net, 1), net.constant([sizes.hidden]), axis=0)

    @staticmethod
    def mask(net: Net, sizes: Sizes) -> str:
        """0 where a query may see a key and the lowest number where not: (batch, 1, sequence, sequence)."""
        triangle, keys = _Modern._seen(net, sizes)
        both = net.node("And", net.node("And", net.constant(np.array(True)), triangle), keys)
        return net.node("Where", both, net.constant(0.0), net.constant(float(np.finfo(np.float32).min)))

    @staticmethod
    def _seen(net: Net, sizes: Sizes) -> tuple[str, str]:
        """The triangle, and what of the mask each key has, gathered."""
        if sizes.static:
            batch, sequence = sizes.static
            seen = net.node("Reshape", "attention_mask", net.constant([batch, -1]), allowzero=1)
            seen = net.node("Cast", seen, to=TensorProto.BOOL)
            triangle = np.tri(sequence, dtype=np.bool_)[None, None]
            where = np.stack(np.broadcast_arrays(np.arange(batch)[:, None], np.arange(sequence)[None]), axis=-1)
            keys = net.node("GatherND", seen, net.constant(where[:, None, None].astype(np.int64)), batch_dims=0)
            return net.constant(triangle), keys
        shape = net.node("Concat", _Modern._extent(net, 0), net.constant([-1]), axis=0)
        seen = net.node("Cast", net.node("Reshape", "attention_mask", shape, allowzero=1), to=TensorProto.BOOL)
        rows = net.node("Range", net.constant(0), net.node("Squeeze", _Modern._extent(net, 0)), net.constant(1))
        rows = net.node("Unsqueeze", net.node("Unsqueeze", rows, net.constant([1, 2])), net.constant([3]))
        columns = net.node("Unsqueeze", _Modern._count(net, sizes), net.constant([0, 1]))
        queries = net.node("Unsqueeze", columns, net.constant([3]))
        columns = net.node("Unsqueeze", columns, net.constant([2]))
        triangle_ = net.node("LessOrEqual", columns, queries)
        like = net.node("Shape", net.node("Max", rows, columns), start=0)
        last = net.constant([-1])
        pairs = [net.node("Unsqueeze", net.node("Expand", index, like), last) for index in (rows, columns)]
        return triangle_, net.node("GatherND", seen, net.node("Concat", *pairs, axis=-1), batch_dims=0)

    @staticmethod
    def attention(net: Net, sizes: Sizes, query: str, key: str, value: str, mask: str) -> str:
        """scaled_dot_product_attention."""
        static = (sizes.static[0], sizes.heads, sizes.static[1]) if sizes.static else None
        return attention(net, query, key, value, static, sizes.head, mask)


class _Traced:
    """As tracing wrote it."""

    @staticmethod
    def _extent(net: Net, like: str, axis: int) -> str:
        extent = net.node("Gather", net.node("Shape", like), net.constant(axis), axis=0)
        return net.node("Unsqueeze", extent, axes=[0])

    @staticmethod
    def ids(net: Net, sizes: Sizes) -> str:
        """input_ids through a Reshape that changes nothing."""
        if sizes.static:
            return net.node("Reshape", "input_ids", net.constant([-1, sizes.static[1]]))
        shape = net.node("Concat", net.constant([-1]), _Traced._extent(net, "input_ids", 1), axis=0)
        return net.node("Reshape", "input_ids", shape)

    @staticmethod
    def position(net: Net, sizes: Sizes, table: str) -> str:
        """Rows of the table for all places, (1, sequence, hidden)."""
        if sizes.static:
            ids = net.constant(np.arange(sizes.static[1])[None])
        else:
            count = net.node("Gather", net.node("Shape", "input_ids"), net.constant(1), axis=0)
            places = net.node("Range", net.constant(0), count, net.constant(1))
            ids = net.node("Unsqueeze", places, axes=[0])
        return net.node("Cast", net.node("Gather", table, ids, axis=0), to=TensorProto.FLOAT)

    @staticmethod
    def extents(net: Net, sizes: Sizes, rest: tuple[int, ...]) -> str:
        """The shape (batch, sequence, *rest) as a value."""
        if sizes.static:
            return net.constant([*sizes.static, *rest])
        own = (net.constant([size]) for size in rest)
        both = (_Traced._extent(net, "input_ids", axis) for axis in (0, 1))
        return net.node("Concat", *both, *own, axis=0)

    @staticmethod
    def last_shape(net: Net, sizes: Sizes) -> str:
        """The shape of the output."""
        if sizes.static:
            return net.constant([-1, sizes.static[1], sizes.hidden])
        extent = _Traced._extent(net, "input_ids", 1)
        return net.node("Concat", net.constant([-1]), extent, net.constant([sizes.hidden]), axis=0)

    @staticmethod
    def mask(net: Net, sizes: Sizes) -> str:
        """0 where a key may be seen and -10000 where not: (batch, 1, 1, sequence)."""
        seen = net.node("Unsqueeze", net.node("Unsqueeze", "attention_mask", axes=[1]), axes=[2])
        hidden = net.node("Sub", net.constant(1.0), net.node("Cast", seen, to=TensorProto.FLOAT))
        return net.node("Mul", hidden, net.constant(-10000.0))

    @staticmethod
    def attention(net: Net, sizes: Sizes, query: str, key: str, value: str, mask: str) -> str:
        """Where behind the scores, by a triangle that is a constant, or a slice of one."""
        value = net.node("Transpose", value, perm=(0, 2, 1, 3))
        query = net.node("Transpose", query, perm=(0, 2, 1, 3))
        key = net.node("Transpose", key, perm=(0, 2, 3, 1))
        scores = net.node("Div", net.node("MatMul", query, key), net.constant(float(sizes.head**0.5)))
        seen = _Traced._triangle(net, sizes, query, scores)
        scores = net.node("Where", seen, scores, net.constant(-10000.0))
        scores = net.node("Add", scores, mask)
        powers = net.node("Exp", net.node("Sub", scores, net.node("ReduceMax", scores, axes=[-1], keepdims=1)))
        chances = net.node("Div", powers, net.node("ReduceSum", powers, axes=[-1], keepdims=1))
        return net.node("Transpose", net.node("MatMul", chances, value), perm=(0, 2, 1, 3))

    @staticmethod
    def _triangle(net: Net, sizes: Sizes, query: str, scores: str) -> str:
        if sizes.static:
            return net.constant(np.tri(sizes.static[1], dtype=np.bool_)[None, None])
        rows = net.node("Gather", net.node("Shape", query), net.constant(-2), axis=0)
        columns = net.node("Gather", net.node("Shape", scores), net.constant(-1), axis=0)
        first = net.node("Unsqueeze", net.node("Sub", columns, rows), axes=[0])
        last = net.node("Unsqueeze", columns, axes=[0])
        whole = net.constant(np.tri(sizes.positions, dtype=np.bool_)[None, None])
        below = net.node("Slice", whole, first, last, net.constant([2]), net.constant([1]))
        return net.node("Slice", below, net.constant([0]), last, net.constant([3]), net.constant([1]))
