"""Every structural rule fires on one graph here, and not on another that is similar.

Laws with two sides are tried in `test_laws.py`, which draws such graphs from what a law says.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from onnxfuse.ir.dtype import BOOL, F32, I64, U8
from onnxfuse.ir.graph import Node
from onnxfuse.rewrite import STEPS
from onnxfuse.rewrite.algebra import RULES
from onnxfuse.rewrite.mutable_graph import type_of
from onnxfuse.rewrite.spectrum import LONGEST
from tests.rules.build import Build, only, rewritten, same
from tests.rules.test_codes import chain
from tests.rules.test_linear_positions import resize
from tests.rules.test_lookups import embedded, looked_up, one_hot
from tests.rules.test_qlinear import coded, decoded, parameters

Make = Callable[[Build], str]


def _x(b: Build, *shape: int | str) -> str:
    return b.input("x", *(shape or (4, 6)))


def _neg(b: Build, x: str) -> str:
    return str(b.node("Neg", x))


def _first_rows(b: Build, x: str) -> str:
    return str(b.node("Slice", x, b.ints(0), b.ints(1), b.ints(0)))


def _transposed(b: Build, x: str, perm: tuple[int, ...] = (1, 0)) -> str:
    return str(b.node("Transpose", x, perm=perm))


def _with_statistics(b: Build) -> tuple[str, ...]:
    found: tuple[str, ...] = b.node("LayerNormalization", _x(b), b.weights(6), count=3)
    return found


def _reshaped(b: Build, computed: str) -> str:
    x = _x(b, "n", 6)
    front = b.node("Shape", b.node("ReduceMax", x, axes=(1,), keepdims=0))
    y = b.input("z", "k") if computed == "elsewhere" else x
    rest = b.node("Shape", y) if computed == "elsewhere" else b.ints(2, 3)
    return _neg(b, str(b.node("Reshape", x, b.node("Concat", front, rest, axis=0))))


def _framed(b: Build, step: str) -> str:
    at = b.constant(np.asarray(5, np.int64)) if step == "constant" else b.node("Size", b.input("z", 5))
    return str(b.node("STFT", _x(b, 1, 20), at, "", b.constant(np.asarray(10, np.int64))))


def _dynamic(b: Build, scales: int) -> str:
    """A product of five columns whose left side is quantized in each run."""
    x, y = _x(b, 4, 6), f"v{len(b.nodes)}"
    codes = b.constant(b.rng.integers(-99, 99, (6, 5)).astype(np.int8))
    inputs = (x, codes, b.constant(np.full(scales, 0.01, np.float32)))
    b.nodes.append(Node("DynamicQuantizeMatMul", inputs, (y,), {}, "product", "com.microsoft", origin=("product",)))
    b.types[y] = type_of(F32, (4, 5))
    return y


def _scaled(b: Build, *shape: int) -> str:
    return b.opaque("Scaler", _x(b, *shape), "ai.onnx.ml", offset=(0.5,), scale=(2.0,))


def _joined(b: Build, *order: int) -> str:
    parts = b.node("Split", _x(b), b.ints(3, 3), count=2, axis=1)
    return _neg(b, str(b.node("Concat", *(parts[k] for k in order), axis=1)))


def _nested(b: Build, reader: str) -> str:
    """Channels joined twice; something else reads what is joined first."""
    x, y, z = (b.input(name, 2, 3, 4) for name in "xyz")
    inner = b.node("Concat", x, y, axis=1)
    other = b.node(reader, inner, **({"axis": -1} if reader == "Softmax" else {}))
    return str(b.node("Add", b.node("Concat", inner, z, axis=1), b.node("Concat", other, z, axis=1)))


def _limited(b: Build, zero: int) -> str:
    x = b.node("Relu", b.node("Mul", _x(b), b.constant(4.0)))
    return str(b.node("QuantizeLinear", x, *parameters(b, 6 / 255, zero)))


def _zeroed(b: Build, zero: int) -> str:
    x = b.input("x", 4, 6, dtype=U8)
    return str(
        b.node(
            "DequantizeLinear",
            x,
            b.constant(np.full(6, 0.05, np.float32)),
            b.constant(np.full(6, zero, np.uint8)),
            axis=1,
        )
    )


def _masked(b: Build, op: str) -> str:
    places = b.constant(np.arange(6))
    return str(b.node("And", b.node(op, places, b.constant(np.asarray(0))), b.input("m", 4, 6, dtype=BOOL)))


def _clipped(b: Build, x: str, low: float, high: float) -> str:
    return str(b.node("Clip", x, b.constant(low), b.constant(high)))


def _padded(b: Build, fill: float) -> str:
    y = b.node("Pad", _x(b, 1, 2, 5, 5), b.ints(0, 0, 1, 1, 0, 0, 1, 1), b.constant(fill))
    return str(b.node("Conv", y, b.weights(3, 2, 2, 2)))


def _dilated(b: Build, dilation: int) -> str:
    w = b.weights(3, 2, 3, 3)
    return str(b.node("Conv", _x(b, 1, 2, 5, 5), w, dilations=(dilation,) * 2, pads=(dilation,) * 4))


def _scattered(b: Build, width: int) -> str:
    """Rows of `width` of five elements, each written at one place."""
    places = b.node("Unsqueeze", b.input("i", 3, dtype=I64), b.ints(1))
    places = b.node("Expand", places, b.ints(3, width))
    return b.node("ScatterElements", b.input("z", 7, 5), places, b.input("u", 3, width), axis=0)


def _assigned(b: Build, *rows: int) -> str:
    """Rows that are written at these places."""
    places = b.constant(np.asarray(rows, np.int64)[:, None])
    return str(b.node("ScatterND", _x(b, 7, 2000), places, b.input("u", len(rows), 2000)))


def _grouped(b: Build, groups: int) -> str:
    """Normalization of 4 channels in `groups` groups; with 8, the halves of a channel are normalized apart."""
    grouped = b.node("Reshape", _x(b, 2, 4, 6, 6), b.ints(0, groups, -1))
    normal = b.node("InstanceNormalization", grouped, b.weights(groups), b.weights(groups), epsilon=1e-3)
    return str(b.node("Reshape", normal, b.ints(2, 4, 6, 6)))


def _in_parts(b: Build, count: int) -> str:
    """Normalization of 2 channels of 15 rows in several parts, or in one, behind which the image has another shape."""
    parts = b.node("Reshape", _x(b, 2, 2, 15, 99), b.ints(2, 2 * count, 15 // count, 99))
    statistics = (b.constant(b.rng.uniform(0.5, 2.0, 2 * count).astype(np.float32)) for _ in range(4))
    normal = b.node("BatchNormalization", parts, *statistics)
    return str(b.node("Reshape", normal, b.ints(2, 2, 15, 99) if count > 1 else b.ints(2, 2, 99, 15)))


def _image(b: Build, other: str, pads: int = 0) -> str:
    x = _x(b, 2, 4, 7, 7)
    return str(b.node("Conv", b.node(other, x, b.weights(4, 1, 1)), b.weights(6, 4, 3, 3), pads=(pads,) * 4))


def _pooled(b: Build, mode: str) -> str:
    return str(b.node(mode, b.pointwise(_x(b, 2, 8, 6, 6), 8), kernel_shape=(2, 2), strides=(2, 2)))


def _side_by_side(b: Build, z: str) -> str:
    x = _x(b, 3, 8)
    other = x if z == "x" else b.input("z", 3, 8)
    return str(b.node("Concat", b.node("Exp", b.dense(x, 4)), b.node("Exp", b.dense(other, 4)), axis=1))


def _branches(b: Build, z: str) -> str:
    x = _x(b, 1, 4, 6, 5)
    wide = b.node("Conv", x, b.weights(4, 4, 3, 3), pads=(1,) * 4)
    return str(b.node("Add", wide, b.pointwise(x if z == "x" else b.input("z", 1, 4, 6, 5), 4)))


GRAPHS: dict[str, tuple[Make, Make]] = {
    "identity": (
        lambda b: _neg(b, b.node("Identity", _x(b))),
        lambda b: _neg(b, _transposed(b, _x(b, 3, 3))),
    ),
    "fold": (
        lambda b: b.node("Mul", _x(b), b.node("Add", b.weights(6), b.weights(6))),
        lambda b: b.node("Mul", b.weights(6), b.node("Add", _x(b), b.weights(6))),
    ),
    "unused-outputs": (
        lambda b: _neg(b, _with_statistics(b)[0]),
        lambda b: (lambda made: b.node("Add", b.node("Add", made[0], made[1]), made[2]))(_with_statistics(b)),
    ),
    "common-subexpressions": (
        lambda b: (lambda x: b.node("Sub", b.node("Exp", x), _neg(b, b.node("Exp", x))))(_x(b)),
        lambda b: b.node("Sub", b.node("Exp", _x(b)), _neg(b, b.node("Exp", b.input("z", 4, 6)))),
    ),
    "constant-reshape": (lambda b: _reshaped(b, "here"), lambda b: _reshaped(b, "elsewhere")),
    "frames-as-convolution": (lambda b: _framed(b, "constant"), lambda b: _framed(b, "computed")),
    "transform-as-product": (
        lambda b: b.node("DFT", _x(b, 1, 16, 1), axis=1),
        lambda b: b.node("DFT", _x(b, 1, LONGEST + 1, 1), axis=1),
    ),
    "movement-chain": (
        lambda b: _neg(b, _transposed(b, _transposed(b, _x(b, 2, 3, 4), (1, 2, 0)), (1, 2, 0))),
        lambda b: _neg(b, _transposed(b, _neg(b, _transposed(b, _x(b, 2, 3, 4), (1, 2, 0))), (1, 2, 0))),
    ),
    "squeeze-last": (
        lambda b: b.node("Add", b.node("Squeeze", _x(b, "n", 1, "s")), b.constant(1.0)),
        lambda b: b.node("Add", b.node("Squeeze", _x(b, "n", 1, "s")), b.constant(np.ones(1, np.float32))),
    ),
    "concat-of-parts": (lambda b: _joined(b, 0, 1), lambda b: _joined(b, 1, 0)),
    "nested-concat": (lambda b: _nested(b, "Relu"), lambda b: _nested(b, "Softmax")),
    "inverse-movement": (
        lambda b: _neg(b, _transposed(b, b.node("Relu", _transposed(b, _x(b))))),
        lambda b: _neg(b, _transposed(b, b.node("Softmax", _transposed(b, _x(b)), axis=-1))),
    ),
    "normalization-between": (lambda b: _in_parts(b, 5), lambda b: _in_parts(b, 1)),
    "selection-first": (
        lambda b: _first_rows(b, b.node("Exp", _x(b, 120, 128))),
        lambda b: _first_rows(b, b.node("Softmax", _x(b, 120, 128), axis=0)),
    ),
    "one-hot-product": (lambda b: embedded(b, one_hot(b, 70)), lambda b: embedded(b, one_hot(b, 70, first=1))),
    "lookup-last": (
        lambda b: b.node("Exp", looked_up(b, b.input("i", 7, 9, dtype=I64), 6)),
        lambda b: b.node("Softmax", looked_up(b, b.input("i", 7, 9, dtype=I64), 6), axis=-1),
    ),
    "scatter-of-slices": (lambda b: _scattered(b, 5), lambda b: _scattered(b, 3)),
    "slice-assignment": (lambda b: _assigned(b, 2, 3, 4), lambda b: _assigned(b, 2, 4, 5)),
    "quantized-movement": (
        lambda b: chain(b, move=_transposed),
        lambda b: chain(b, move=_transposed, scales=(0.5, 0.25)),
    ),
    "clip-before-quantize": (lambda b: _limited(b, 0), lambda b: _limited(b, 3)),
    "dynamic-product": (lambda b: _dynamic(b, 5), lambda b: _dynamic(b, 4)),
    "zero-points-of-zero": (lambda b: _zeroed(b, 0), lambda b: _zeroed(b, 7)),
    "qlinear-operators": (
        lambda b: coded(b, b.node("Add", decoded(b, "x", 4, 6), decoded(b, "y", 6))),
        lambda b: coded(b, b.node("Add", decoded(b, "x", 4, 6), b.input("y", 4, 6))),
    ),
    "and-true": (lambda b: _masked(b, "GreaterOrEqual"), lambda b: _masked(b, "Greater")),
    "expand-before-broadcast": (
        lambda b: b.node("Add", b.node("Expand", _x(b, 1, 6), b.ints(4, 6)), b.input("z", 4, 6)),
        lambda b: b.node("Add", b.node("Expand", _x(b, 1, 6), b.ints(4, 6)), b.input("z", 1, 6)),
    ),
    "grouped-normalization": (lambda b: _grouped(b, 2), lambda b: _grouped(b, 8)),
    "pad-into-conv": (lambda b: _padded(b, 0.0), lambda b: _padded(b, 1.0)),
    "taps-in-the-image": (lambda b: _dilated(b, 5), lambda b: _dilated(b, 4)),
    "affine-after": (
        lambda b: b.node("Mul", b.dense(_x(b), 6), b.weights(6)),
        lambda b: b.node("Mul", b.dense(_x(b), 6), b.input("z", 6)),
    ),
    "affine-before": (lambda b: _image(b, "Add"), lambda b: _image(b, "Add", pads=1)),
    "scale-into-weights": (
        lambda b: b.node("Mul", _transposed(b, b.dense(_x(b), 6)), b.constant(2.0)),
        lambda b: b.node("Mul", b.node("Relu", b.dense(_x(b), 6)), b.constant(2.0)),
    ),
    "conv-before-resize": (
        lambda b: b.pointwise(resize(b, _x(b, 2, 64, 4, 5), 1, 1, 2, 2), 17),
        lambda b: b.node("Conv", resize(b, _x(b, 2, 64, 4, 5), 1, 1, 2, 2), b.weights(17, 64, 3, 3)),
    ),
    "pool-before-conv": (lambda b: _pooled(b, "AveragePool"), lambda b: _pooled(b, "MaxPool")),
    "linear-of-linear": (
        lambda b: b.dense(b.dense(_x(b, 5, 9), 8), 7),
        lambda b: b.dense(b.node("Relu", b.dense(_x(b, 5, 9), 8)), 7),
    ),
    "redundant-clip": (
        lambda b: _clipped(b, b.node("Sigmoid", _x(b)), 0.0, 1.0),
        lambda b: _clipped(b, b.node("Sigmoid", _x(b)), 0.0, 0.9),
    ),
    "clip-of-clip": (
        lambda b: _clipped(b, _clipped(b, _x(b), 0.0, 6.0), 1.0, 4.0),
        lambda b: _clipped(b, _neg(b, _clipped(b, _x(b), 0.0, 6.0)), -4.0, -1.0),
    ),
    "merged-products": (lambda b: _side_by_side(b, "x"), lambda b: _side_by_side(b, "z")),
    "features-as-arithmetic": (lambda b: _scaled(b, 4, 6), lambda b: _scaled(b, 4, 5, 6)),
    "added-convolutions": (lambda b: _branches(b, "x"), lambda b: _branches(b, "z")),
}
SYMBOLS = {"n": 2, "s": 3, "k": 2}
# What these start from has no row by which values could be compared. test_fourier.py compares transforms with NumPy's,
# test_features.py models of ai.onnx.ml with the runtime, and exports/test_saved.py models that it saved; and a Squeeze
# without axes has the rank that symbols give it.
WITHOUT_ROWS = {
    "frames-as-convolution",
    "transform-as-product",
    "squeeze-last",
    "features-as-arithmetic",
    "dynamic-product",
}


def test_every_structural_rule_is_here() -> None:
    assert set(GRAPHS) == {s.name for s in STEPS} - {rule.name for rule in RULES}


@pytest.mark.parametrize("rule", GRAPHS)
def test_it_fires_on_its_graph_and_keeps_what_is_computed(rule: str) -> None:
    b = Build()
    before = b.graph(GRAPHS[rule][0](b))
    after, fired = rewritten(before, only(rule))
    assert fired.get(rule, 0) >= 1
    if rule not in WITHOUT_ROWS:
        same(before, after, SYMBOLS, terms=64)


@pytest.mark.parametrize("rule", GRAPHS)
def test_it_does_not_fire_on_what_only_looks_like_it(rule: str) -> None:
    b = Build()
    graph = b.graph(GRAPHS[rule][1](b))
    assert rewritten(graph, only(rule))[1] == {}
