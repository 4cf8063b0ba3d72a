"""Quantized constants stay constants, and movement is done on quantized values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxfuse.ir.dtype import I8, U8
from tests.rules.build import Build, only, ops, rewritten, same


def chain(b: Build, *, scales: tuple[float, float] = (0.5, 0.5), zeros: tuple[int, int] = (3, 3), move: Any) -> str:
    """Codes that are decoded, moved and coded again."""
    x = b.input("x", 4, 6, dtype=U8)
    decoding, coding = (
        (b.constant(np.float32(s)), b.constant(np.array(z, np.uint8))) for s, z in zip(scales, zeros, strict=True)
    )
    return str(b.node("QuantizeLinear", move(b, b.node("DequantizeLinear", x, *decoding)), *coding))


MOVES = {
    "nothing": lambda b, x: x,
    "Transpose": lambda b, x: b.node("Transpose", x, perm=(1, 0)),
    "Slice": lambda b, x: b.node("Slice", x, b.ints(1), b.ints(4), b.ints(1)),
    "two": lambda b, x: b.node("Reshape", b.node("Transpose", x, perm=(1, 0)), b.ints(3, 8)),
}


@pytest.mark.parametrize("move", MOVES)
def test_codes_are_moved_as_codes(move: str) -> None:
    b = Build(21)
    before = b.graph(b.node("Identity", chain(b, move=MOVES[move])))
    after, fired = rewritten(before, only("quantized-movement"))
    assert fired == {"quantized-movement": 1}
    assert not {"QuantizeLinear", "DequantizeLinear"} & set(ops(after))
    same(before, after)


@pytest.mark.parametrize(("opset", "fires"), [(21, True), (11, False)])
def test_the_largest_codes_are_taken_as_codes(opset: int, fires: bool) -> None:
    b = Build(opset)
    x = b.input("x", 1, 3, 6, 7, dtype=I8)
    how = b.constant(np.float32(0.5)), b.constant(np.array(-3, np.int8))
    y = b.node("MaxPool", b.node("DequantizeLinear", x, *how), kernel_shape=(3, 3), pads=(1, 1, 1, 1), strides=(2, 2))
    before = b.graph(b.node("Identity", b.node("QuantizeLinear", y, *how)))
    after, fired = rewritten(before, only("quantized-movement"))
    assert fired == ({"quantized-movement": 1} if fires else {})
    assert ("QuantizeLinear" in ops(after)) is not fires
    same(before, after)


OTHERS = {
    "scale": {"scales": (0.5, 0.25)},
    "zero point": {"zeros": (3, 4)},
    "work": {"move": lambda b, x: b.node("Relu", x)},
    "guard": {"move": lambda b, x: b.node("Pad", x, b.ints(0, 1, 0, 1))},
    "no number": {"scales": (1e-38, 1e-38)},
}


@pytest.mark.parametrize("what", OTHERS)
def test_codes_of_other_scales_are_not_moved(what: str) -> None:
    b = Build(21)
    graph = b.graph(chain(b, **{"move": MOVES["Transpose"]} | OTHERS[what]))  # type: ignore[arg-type]
    assert rewritten(graph, only("quantized-movement"))[1] == {}


def test_codes_of_another_type_are_not() -> None:
    b = Build(21)
    x, scale = b.input("x", 4, 6, dtype=I8), b.constant(np.float32(0.5))
    decoded = b.node("DequantizeLinear", x, scale, b.constant(np.array(0, np.int8)))
    graph = b.graph(b.node("QuantizeLinear", decoded, scale, b.constant(np.array(0, np.uint8))))
    assert rewritten(graph, only("quantized-movement"))[1] == {}


def test_weights_stay_codes() -> None:
    b = Build(21)
    x, scale = b.input("x", 4, 64), b.constant(np.float32(0.5))
    codes = b.constant(np.arange(64 * 16, dtype=np.int64).astype(np.int8).reshape(64, 16))
    graph = b.graph(b.node("MatMul", x, b.node("DequantizeLinear", codes, scale)))
    after, _ = rewritten(graph)
    assert ops(after) == ["DequantizeLinear", "MatMul"] and codes in after.constants


@pytest.mark.parametrize("zeros", [(0, 0, 0, 0, 0, 0), (0, 0, 3, 0, 0, 0), (0,)])
def test_several_zero_points_that_are_all_0_are_left_out(zeros: tuple[int, ...]) -> None:
    b = Build(21)
    codes = b.constant(b.rng.integers(-99, 99, (4, 6)).astype(np.int8))
    scales = b.constant(b.rng.random(len(zeros)).astype(np.float32))
    w = b.node("DequantizeLinear", codes, scales, b.constant(np.array(zeros, np.int8)), axis=1)
    before = b.graph(b.node("Add", b.input("x", 4, 6), w))
    after, fired = rewritten(before, only("zero-points-of-zero"))
    assert fired == ({"zero-points-of-zero": 1} if len(zeros) > 1 and not any(zeros) else {})
    assert [len(n.inputs) for n in after.nodes if n.op == "DequantizeLinear"] == [2 if fired else 3]
    same(before, after)


@pytest.mark.parametrize("case", ["folds", "turned", "two readers", "quantized image", "product"])
def test_filters_are_folded_from_codes(case: str) -> None:
    """The runtime convolves images that are not quantized in floating point, with filters dequantized in each run."""
    b, turned = Build(), case == "turned"
    codes = b.constant(b.rng.integers(-127, 128, (6, 6, 3, 3)).astype(np.int8))
    scales = b.constant(b.rng.random(6).astype(np.float32))
    zeros = b.constant(np.arange(6, dtype=np.int8))
    w = b.node("DequantizeLinear", codes, scales, zeros, axis=0)
    x = b.input("x", 1, 6, 7, 3)
    if case == "quantized image":
        x = b.node("DequantizeLinear", b.input("q", 1, 6, 7, 3, dtype=U8), b.constant(np.float32(0.1)))
    reader = "MatMul" if case == "product" else "ConvTranspose" if turned else "Conv"
    bias = (
        ()
        if case == "product"
        else (b.node("DequantizeLinear", b.constant(np.arange(6, dtype=np.int32)), scales, axis=0),)
    )
    y = [b.node(reader, x, w, *bias)]
    if case == "two readers":
        y.append(b.node("Neg", w))
    before = b.graph(*y)
    after, _ = rewritten(before, only("fold"))
    folds = {"folds": [reader], "turned": [reader], "two readers": ["DequantizeLinear", "Conv", "Neg"]}
    assert sorted(ops(after)) == sorted(folds.get(case, ops(before)))
    same(before, after)


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("case", ["Gemm", "Gemm turned", "MatMul", "MatMul turned"])
def test_weights_in_another_order_are_folded_from_codes(case: str, quantized: bool) -> None:
    """The runtime dequantizes these in each run; it multiplies codes in order with values that it quantizes itself."""
    b, (op, *turned) = Build(), case.split()
    codes = b.constant(b.rng.integers(-127, 128, (9, 6) if turned else (6, 9)).astype(np.int8))
    scales = b.constant(b.rng.random(9).astype(np.float32))
    w = b.node("DequantizeLinear", codes, scales, axis=0 if turned else 1)
    x = b.input("x", 4, 6)
    if quantized:
        x = b.node("DequantizeLinear", b.input("q", 4, 6, dtype=U8), b.constant(np.float32(0.1)))
    if op == "Gemm":
        y = b.node("Gemm", x, w, b.weights(9), transB=len(turned))
    else:
        y = b.node("MatMul", x, b.node("Transpose", w, perm=(1, 0)) if turned else w)
    before = b.graph(y)
    after, _ = rewritten(before, only("fold"))
    assert ops(after) == ([op] if turned and not quantized else ops(before))
    same(before, after)
