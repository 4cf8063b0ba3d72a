"""Redundant clips, clips of clips, and the cost of proofs over a whole graph."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from onnxfuse.ir.dtype import F16, I64
from onnxfuse.rewrite.mutable_graph import MutableGraph
from onnxfuse.rewrite.proofs.ranges import NEAR, Ranges
from tests.rules.build import Build, only, ops, rewritten, run, same

PROBE = np.asarray([-np.inf, -7.5, -1.0, -0.0, 0.0, 0.25, 1.0, 5.0, 6.0, 9.0, np.inf, np.nan], np.float32)


def clip(b: Build, x: str, low: float | None, high: float | None) -> str:
    if b.opset < 11:
        ends = {"min": low, "max": high}
        return str(b.node("Clip", x, **{k: v for k, v in ends.items() if v is not None}))
    inputs = ["" if end is None else b.constant(np.float32(end)) for end in (low, high)]
    return str(b.node("Clip", x, *(inputs if inputs[1] else inputs[:1])))


PROVEN = [
    ("Sigmoid", 0.0, 1.0), ("Relu", 0.0, None), ("Relu", -3.0, None), ("Tanh", -1.0, 1.0), ("Exp", 0.0, None),
    ("Abs", 0.0, None), ("Softmax", 0.0, 1.5),
]  # fmt: skip
UNPROVEN = [
    ("Sigmoid", 0.1, 1.0), ("Sigmoid", 0.0, 0.9), ("Relu", 0.0, 6.0), ("Tanh", 0.0, 1.0), ("Neg", 0.0, None),
    ("Exp", 1e-6, None),
]  # fmt: skip


@pytest.mark.parametrize("opset", [10, 17])
@pytest.mark.parametrize(("op", "low", "high"), PROVEN)
def test_a_redundant_clip_is_removed(opset: int, op: str, low: float | None, high: float | None) -> None:
    b = Build(opset)
    before = b.graph(clip(b, b.node(op, b.input("x", 1, 12)), low, high))
    after, fired = rewritten(before, only("redundant-clip"))
    assert fired == {"redundant-clip": 1} and ops(after) == [op]
    with np.errstate(all="ignore"):
        want, got = (run(g, {"x": PROBE[None]})[before.outputs[0]] for g in (before, after))
    np.testing.assert_array_equal(got, want)  # NaN too


@pytest.mark.parametrize(("op", "low", "high"), UNPROVEN)
def test_a_clip_that_may_do_something_stays(op: str, low: float | None, high: float | None) -> None:
    b = Build()
    before = b.graph(clip(b, b.node(op, b.input("x", 4, 6)), low, high))
    assert rewritten(before, only("redundant-clip"))[1] == {}


PAIRS = [
    ((0.0, 6.0), (1.0, 4.0)), ((1.0, 4.0), (0.0, 6.0)), ((0.0, 1.0), (2.0, 3.0)), ((-1.0, None), (None, 5.0)),
    ((None, 5.0), (0.0, None)), ((0.0, None), (None, 6.0)),
]  # fmt: skip


@pytest.mark.parametrize("opset", [10, 17])
@pytest.mark.parametrize(("inner", "outer"), PAIRS)
def test_consecutive_limits_are_merged(
    opset: int, inner: tuple[float | None, float | None], outer: tuple[float | None, float | None]
) -> None:
    b = Build(opset)
    before = b.graph(clip(b, clip(b, b.input("x", 12), *inner), *outer))
    after, fired = rewritten(before, only("clip-of-clip"))
    assert fired == {"clip-of-clip": 1} and len(after.nodes) == 1
    want, got = (run(g, {"x": PROBE})[before.outputs[0]] for g in (before, after))
    np.testing.assert_array_equal(got, want)


def test_relu_is_a_limit_too() -> None:
    for first, second, left in (("Relu", "Clip", "Clip"), ("Clip", "Relu", "Clip")):
        b = Build()
        x = b.input("x", 12)
        x = b.node("Relu", x) if first == "Relu" else clip(b, x, -1.0, 6.0)
        before = b.graph(b.node("Relu", x) if second == "Relu" else clip(b, x, -1.0, 6.0))
        after, _ = rewritten(before, only("clip-of-clip"))
        assert ops(after) == [left]
        np.testing.assert_array_equal(
            run(after, {"x": PROBE})[after.outputs[0]], run(before, {"x": PROBE})[before.outputs[0]]
        )


def test_limits_that_are_inputs_stay() -> None:
    b = Build()
    x, low = b.input("x", 12), b.input("low")
    before = b.graph(b.node("Clip", b.node("Clip", x, low), b.constant(np.float32(0.0))))
    assert rewritten(before, only("clip-of-clip", "redundant-clip"))[1] == {}


def attention(masked: float) -> Build:
    """Softmax over products of embedded tokens, with a test for NaN behind it, as exporters write it."""
    b = Build()
    ids, seen = b.input("ids", 1, 5, dtype=I64), b.input("mask", 1, 5, dtype=I64)
    x = b.node("Gather", b.weights(20, 8), ids)
    x = b.node("LayerNormalization", x, b.weights(8), b.weights(8), axis=-1)
    scores = b.node("MatMul", b.dense(x, 8), b.node("Transpose", b.dense(x, 8), perm=(0, 2, 1)))
    hidden = b.node("Equal", seen, b.constant(np.asarray(0, np.int64)))
    bias = b.node("Where", hidden, b.constant(np.float32(masked)), b.constant(np.float32(0.0)))
    chances = b.node("Softmax", b.node("Add", scores, bias), axis=-1)
    b.node("Where", b.node("IsNaN", chances), b.constant(np.float32(0.0)), chances, out="y")
    return b


def test_a_test_for_nan_is_removed_if_no_row_can_be_empty() -> None:
    before = attention(float(np.finfo(np.float32).min)).graph("y")
    after, fired = rewritten(before, only("where-false"))
    assert fired == {"where-false": 1} and "IsNaN" not in ops(after)
    same(before, after, terms=64)
    before = attention(-inf).graph("y")  # a mask of zeros hides all places
    assert rewritten(before, only("where-false"))[1] == {}


def test_values_unknown_until_the_run_may_be_nan() -> None:
    b = Build()
    chances = b.node("Softmax", b.input("x", 4, 6), axis=-1)
    before = b.graph(b.node("Where", b.node("IsNaN", chances), b.constant(np.float32(0.0)), chances))
    assert rewritten(before, only("where-false"))[1] == {}


def test_rules_respect_the_narrower_range_of_float16() -> None:
    """exp(a) * exp(b) with sums to 8 keeps its digits in float32, not in float16."""
    for dtype, count in ((10, 0), (1, 1)):
        b = Build()
        parts = []
        for name in "ab":
            whole = b.node("Cast", b.input(name, 4, dtype=I64), to=dtype)
            limit = b.constant(np.asarray(4, F16.numpy if dtype == 10 else np.float32))
            parts.append(b.node("Exp", b.node("Mul", b.node("Sigmoid", whole), limit)))
        before = b.graph(b.node("Mul", *parts))
        assert rewritten(before, only("exp-product"))[1].get("exp-product", 0) == count


def test_weights_are_only_looked_into_for_a_proof_of_all_of_a_graph() -> None:
    b = Build()
    large = b.constant(np.full((NEAR + 1,), 2.0, np.float32))
    y = b.node("Mul", b.node("Sigmoid", b.node("Cast", b.input("i", 1, dtype=I64), to=1)), large)
    work = MutableGraph(b.graph(y))
    assert Ranges(work).of(y).high == inf
    assert Ranges(work, far=True).of(y).high == 2.0
    assert work.looked_into == NEAR + 1


def test_dequantized_values_keep_their_test_for_nan() -> None:
    """The runtime picks other kernels of codes where the test is gone, which round otherwise."""
    for coded, count in ((False, 1), (True, 0)):
        b = Build(21)
        x = b.node("Sigmoid", b.node("Cast", b.input("x", 4, dtype=I64), to=1))
        if coded:
            scale, zero = b.constant(np.float32(0.01)), b.constant(np.array(0, np.uint8))
            x = b.node("DequantizeLinear", b.node("QuantizeLinear", x, scale, zero), scale, zero)
        before = b.graph(b.node("Where", b.node("IsNaN", x), b.constant(np.float32(0.0)), x))
        assert rewritten(before, only("where-false"))[1].get("where-false", 0) == count
