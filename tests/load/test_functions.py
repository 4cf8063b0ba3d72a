"""Operators without a row are defined by the function bodies of their schemas; ONNX and ONNX Runtime agree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from onnxfuse.ir.graph import Decision, Graph
from onnxfuse.ops.evaluate import meaning
from onnxfuse.ops.rows import ROWS
from onnxfuse.ops.spec import define, view_of
from tests.load.models import graph_of, parse

Array = np.ndarray[Any, Any]


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def model(op: str, inputs: tuple[Array | None, ...], opset: int, outputs: int, **attrs: Any) -> onnx.ModelProto:
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(inputs)]
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for n, x in zip(names, inputs, strict=True)
        if x is not None
    ]
    results = [f"y{i}" for i in range(outputs)]
    made = [helper.make_empty_tensor_value_info(r) for r in results]
    graph = helper.make_graph([helper.make_node(op, names, results, "call", **attrs)], op, infos, made)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def ours(graph: Graph, feeds: Mapping[str, Array]) -> list[Array]:
    found = define(ROWS, view_of(graph, graph.nodes[0]))
    assert not isinstance(found, Decision), found.reason
    made = meaning(found, {**{k: c.load() for k, c in graph.constants.items()}, **feeds}, {})
    return [made[o] for o in graph.outputs]


Q, K, V = numbers(2, 5, 24), numbers(2, 7, 24, seed=1), numbers(2, 7, 24, seed=2)
HEADS = {"q_num_heads": 3, "kv_num_heads": 3}
GROUPED = (numbers(2, 4, 5, 8), numbers(2, 2, 7, 8, seed=1), numbers(2, 2, 7, 8, seed=2))
PAST = (numbers(2, 3, 4, 8, seed=4), numbers(2, 3, 4, 8, seed=5))
CACHES = (numbers(2, 5, 4, seed=1), numbers(2, 5, 4, seed=2))
PLACES = np.array([[4, 0, 2, 2, 1], [0, 1, 2, 3, 4]])
CALLS: dict[str, tuple[str, tuple[Array | None, ...], int, int, dict[str, Any]]] = {
    "attention": ("Attention", (Q, K, V), 23, 1, HEADS),
    "attention of opset 24": ("Attention", (Q, K, V), 24, 1, HEADS),
    "causal": ("Attention", (Q, K, V), 23, 1, HEADS | {"is_causal": 1}),
    "added mask": ("Attention", (Q, K, V, numbers(5, 7, seed=3)), 23, 1, HEADS),
    "mask of truths": ("Attention", (Q, K, V, numbers(5, 7, seed=3) < 1), 23, 1, HEADS),
    "grouped": ("Attention", GROUPED, 23, 1, {}),
    "softcap": ("Attention", (Q, K, V), 23, 1, HEADS | {"softcap": 1.5, "scale": 0.7}),
    "past": ("Attention", (Q, K, V, None, *PAST), 23, 3, HEADS),
    "rotary": ("RotaryEmbedding", (numbers(2, 3, 5, 8), *CACHES), 23, 1, {}),
    "rotary interleaved": ("RotaryEmbedding", (numbers(2, 3, 5, 8), *CACHES), 23, 1, {"interleaved": 1}),
    "rotary by place": (
        "RotaryEmbedding",
        (numbers(2, 5, 24), *(c[0] for c in CACHES), PLACES),
        23,
        1,
        {"num_heads": 3},
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_body_means_what_the_operator_does(name: str) -> None:
    op, inputs, opset, outputs, attrs = CALLS[name]
    proto = model(op, inputs, opset, outputs, **attrs)
    feeds = {f"x{i}": x for i, x in enumerate(inputs) if x is not None}
    graph = graph_of(proto)
    assert graph.nodes[0].body is not None and graph.nodes[0].op == op
    got = ours(graph, feeds)
    for want in (ReferenceEvaluator(proto).run(None, feeds), run(proto, feeds)):
        for g, w in zip(got, want or got, strict=True):
            assert g.dtype == w.dtype and g.shape == w.shape
            np.testing.assert_allclose(g, w, rtol=0, atol=2e-6 * max(1.0, float(np.abs(w).max())))


def run(proto: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array] | None:
    """ONNX Runtime's outputs; None where it has no kernel."""
    try:
        session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    except (ort_errors.NotImplemented, ort_errors.InvalidGraph, ort_errors.Fail):
        return None
    return [np.asarray(y) for y in session.run(None, dict(feeds))]


def test_results_have_the_extents_of_the_body() -> None:
    inputs = "float[B, 4, Q, 16] q, float[B, 2, K, 16] k, float[B, 2, K, 8] v, float[B, 2, P, 16] pk"
    text = f"""g ({inputs}, float[B, 2, P, 8] pv) => (float[B, 4, Q, 8] y, float[B, 2, R, 16] keys, float[B, 2, R, 8] w)
    {{ y, keys, w = Attention (q, k, v, , pk, pv) }}"""
    graph = graph_of(parse(text, opset=23, ir=10))
    assert {o: repr(graph.types[o]) for o in graph.outputs} == {
        "y": "float32[B, 4, Q, 8]",
        "keys": "float32[B, 2, K + P, 16]",
        "w": "float32[B, 2, K + P, 8]",
    }


def test_a_body_needs_types() -> None:
    text = "g (float[2, 8] x) => (float[N] y) { t = NonZero(x)\n u = CastLike(t, x)\n y = Squeeze(u) }"
    graph = graph_of(parse(text, opset=23))
    assert [n.op for n in graph.nodes] == ["NonZero", "CastLike", "Squeeze"]


def test_what_has_a_row_or_another_domain_gets_no_body() -> None:
    text = "g (float[2, 8] x) => (float[2, 8] y) { t = Softmax(x)\n y = mine.Attention(t, t, t) }"
    graph = graph_of(parse(text, opset=23, imports=', "mine": 1'))
    assert [n.body for n in graph.nodes] == [None, None]
