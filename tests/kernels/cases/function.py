"""Cases of operators without a row, by their function bodies: attention of all kinds, rotary embeddings, others."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper

from onnxfuse.ir.graph import Graph
from tests.kernels.compiled import Array, Case, Feeds, Sizes
from tests.load.models import graph_of

Shape = tuple[int | str, ...]


def call(op: str, *inputs: Shape, out: Shape, opset: int = 23, **attrs: Any) -> Graph:
    """A call of an operator on float32 inputs x0, x1, ...; () marks an absent one."""
    names = [f"x{i}" if shape else "" for i, shape in enumerate(inputs)]
    given = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in zip(names, inputs, strict=True) if n]
    node = helper.make_node(op, names, ["y"], "call", **attrs)
    graph = helper.make_graph([node], op, given, [helper.make_tensor_value_info("y", TensorProto.FLOAT, out)])
    return graph_of(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10))


def attention(
    q: int, kv: int, rows: int | str, keys: int | str, *mask: int | str, opset: int = 23, **attrs: Any
) -> Graph:
    """Attention of q heads over kv heads, each 16 wide, all of a row side by side."""
    heads = {"q_num_heads": q, "kv_num_heads": kv} | attrs
    inputs = ((2, rows, q * 16), (2, keys, kv * 16), (2, keys, kv * 16), *((mask,) if mask else ()))
    return call("Attention", *inputs, out=(2, rows, q * 16), opset=opset, **heads)


def masked(hidden: float) -> Feeds:
    """Random numbers; in the mask (input 3) `hidden` or 0, one row of it hidden whole."""

    def feeds(graph: Graph, rng: np.random.Generator, sizes: Sizes) -> dict[str, Array]:
        out: dict[str, Array] = {}
        for name in graph.inputs:
            type_ = graph.types[name]
            assert type_ is not None and type_.static_shape is not None
            out[name] = rng.normal(size=type_.static_shape).astype(np.float32)
        out["x3"] = np.where(out["x3"] > 0, np.float32(hidden), np.float32(0))
        out["x3"][1] = hidden
        return out

    return feeds


LENGTHS: tuple[Sizes, ...] = ({"n": 5, "m": 9}, {"n": 1, "m": 1}, {"n": 17, "m": 40})
LONGER: tuple[Sizes, ...] = ({"n": 70}, {"n": 33}, {"n": 14})
CASES: tuple[Case, ...] = (
    Case("attention", attention(3, 3, 19, 37)),
    Case("attention_any_length", attention(2, 2, "n", "m"), LENGTHS),
    Case("attention_causal", attention(2, 2, 21, 21, is_causal=1)),
    Case("attention_causal_any_length", attention(2, 2, "n", "m", is_causal=1), LENGTHS),
    Case("attention_causal_long", attention(2, 2, 71, 71, is_causal=1)),
    Case("attention_causal_square", attention(1, 1, 64, 64, is_causal=1)),
    Case("attention_causal_more_keys", attention(2, 2, 45, 130, is_causal=1)),
    Case("attention_causal_fewer_keys", attention(6, 2, 70, 40, is_causal=1)),
    Case("attention_causal_shared_keys", attention(6, 2, 75, 75, is_causal=1)),
    Case("attention_causal_shared_keys_any_length", attention(4, 2, "n", "n", is_causal=1), LONGER),
    Case("attention_causal_capped", attention(2, 2, 45, 45, is_causal=1, softcap=2.0)),
    Case("attention_causal_masked", attention(2, 2, 45, 45, 45, 45, is_causal=1), feeds=masked(-1e9)),
    Case("attention_of_fewer_keys", attention(4, 2, 13, 22)),
    Case("attention_masked", attention(2, 2, 13, 22, 13, 22), feeds=masked(-1e9)),
    Case("attention_hidden", attention(2, 2, 13, 22, 13, 22, opset=24), feeds=masked(-np.inf)),
    Case("attention_capped", attention(2, 2, 13, 22, softcap=2.0, scale=0.3)),
    Case("rotary", call("RotaryEmbedding", (2, 3, 7, 16), (2, 7, 8), (2, 7, 8), out=(2, 3, 7, 16))),
    Case(
        "rotary_interleaved",
        call("RotaryEmbedding", (2, 7, 48), (2, 7, 8), (2, 7, 8), out=(2, 7, 48), num_heads=3, interleaved=1),
    ),
    Case(
        "rotary_in_part",
        call("RotaryEmbedding", (2, 3, "n", 16), (2, "n", 4), (2, "n", 4), out=(2, 3, "n", 16), rotary_embedding_dim=8),
        LENGTHS,
    ),
)
