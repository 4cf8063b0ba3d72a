"""Products of one input become one product, sliced afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from onnxfuse.ir.graph import Graph
from tests.rules.build import Build, only, ops, rewritten, same

RULE, ADDED = "merged-products", "added-convolutions"


def check(b: Build, outputs: list[str], expected: list[str]) -> Graph:
    before = b.graph(*outputs)
    after, _ = rewritten(before, only(RULE))
    assert ops(after) == expected
    same(before, after, {"n": 2, "s": 3}, terms=16)
    return after


@pytest.mark.parametrize("opset", [9, 12, 17])
def test_queries_keys_and_values_are_one_product(opset: int) -> None:
    b = Build(opset)
    x = b.input("x", "n", "s", 8)
    parts = [b.dense(x, n) for n in (8, 8, 4)]
    found = [b.node("Exp", p, out=f"o{i}") for i, p in enumerate(parts)]
    after = check(b, found, ["MatMul", "Add", *["Slice"] * 3, *["Exp"] * 3])
    slices = after.nodes[2:5]
    assert [n.outputs[0] for n in slices] == parts
    assert all(len(n.inputs) == (4 if opset >= 10 else 1) for n in slices)
    assert [n.origin for n in after.nodes[:2]] == [("MatMul0", "MatMul2", "MatMul4"), ("Add1", "Add3", "Add5")]
    assert [n.origin for n in slices] == [()] * 3, "who reads a piece does not do the product's work"


def test_outputs_of_the_graph_are_pieces() -> None:
    b = Build()
    x = b.input("x", 3, 8)
    after = check(b, [b.dense(x, 4), b.dense(x, 4)], ["MatMul", "Add", "Slice", "Slice"])
    assert tuple(n.outputs[0] for n in after.nodes[-2:]) == after.outputs


def test_branches_without_bias_join() -> None:
    b = Build()
    x = b.input("x", 3, 8)
    check(b, [b.dense(x, 4), b.dense(x, 5, bias=False)], ["MatMul", "Add", "Slice", "Slice"])
    b = Build()
    x = b.input("x", 3, 8)
    check(b, [b.dense(x, 4, bias=False), b.dense(x, 5, bias=False)], ["MatMul", "Slice", "Slice"])


def test_a_bias_of_one_number_and_a_bias_on_the_left() -> None:
    b = Build()
    x = b.input("x", 3, 8)
    one = b.node("Add", b.constant(2.0), b.dense(x, 4, bias=False))
    check(b, [one, b.dense(x, 4)], ["MatMul", "Add", "Slice", "Slice"])


def test_a_bias_per_row_stays_after_its_slice() -> None:
    b = Build()
    x = b.input("x", 4, 8)
    row = b.node("Add", b.dense(x, 4, bias=False), b.weights(4, 1))
    check(b, [row, b.dense(x, 4)], ["MatMul", "Add", "Slice", "Slice", "Add"])


@pytest.mark.parametrize("trans", [0, 1])
def test_gemms_join(trans: int) -> None:
    b = Build()
    x = b.input("x", 3, 8)

    def gemm(columns: int, *c: str) -> str:
        return str(
            b.node("Gemm", x, b.weights(*((columns, 8) if trans else (8, columns))), *c, transB=trans, alpha=0.5)
        )

    check(b, [gemm(4, b.weights(4)), gemm(5), gemm(1, b.weights(1))], ["Gemm", *["Slice"] * 3])


def test_what_differs_stays_apart() -> None:
    b = Build()
    x, z = b.input("x", 3, 8), b.input("z", 3, 8)
    shared = b.weights(8, 4)
    outputs = [
        b.dense(x, 4),
        b.dense(z, 4),  # another input
        b.node("MatMul", x, shared),
        b.node("MatMul", z, shared),  # a weight with two readers
        b.node("MatMul", x, b.input("w", 8, 4)),  # a weight that varies
        b.node("MatMul", b.weights(5, 3), x),  # the input on the right
        b.node("Gemm", x, b.weights(8, 4), alpha=2.0),
        b.node("Gemm", x, b.weights(8, 4)),
    ]
    assert rewritten(b.graph(*outputs), only(RULE))[1] == {}


def test_scale_movement_and_merge_work_together() -> None:
    b = Build(20)
    x = b.input("x", "n", "s", 8)
    q, k, v = (b.node("Reshape", b.dense(x, 8), b.ints(0, 0, 2, 4)) for _ in range(3))
    q, v = (b.node("Transpose", i, perm=(0, 2, 1, 3)) for i in (q, v))
    k = b.node("Transpose", b.node("Transpose", k, perm=(0, 2, 1, 3)), perm=(0, 1, 3, 2))
    scale = b.constant(np.float32(4**-0.25))
    scores = b.node("MatMul", b.node("Mul", q, scale), b.node("Mul", k, scale))
    p = b.node("Softmax", scores, axis=-1)
    p = b.node("Where", b.node("IsNaN", p), b.constant(0.0), p)
    y = b.node("Transpose", b.node("MatMul", p, v), perm=(0, 2, 1, 3))
    before = b.graph(b.node("Reshape", y, b.ints(0, 0, 8)))
    after, fired = rewritten(before)
    front = ["MatMul", "Add", *["Slice"] * 3, *["Reshape"] * 3, *["Transpose"] * 3]
    back = ["MatMul", "Softmax", "IsNaN", "Where", "MatMul", "Transpose", "Reshape"]
    assert sorted(ops(after)) == sorted([*front, *back])
    assert fired == {"movement-chain": 1, "scale-into-weights": 2, RULE: 1}
    same(before, after, {"n": 2, "s": 3}, terms=64)


def test_a_gate_and_what_it_lets_through_stay_two_products() -> None:
    b = Build()
    x = b.input("x", 3, 8)
    gate, up, other, more = (b.dense(x, 4, bias=at > 1) for at in range(4))
    gated = b.node("Mul", b.node("Mul", gate, b.node("Sigmoid", gate)), up)
    before = b.graph(gated, b.node("Softmax", other), b.node("Softmax", more))
    after, _ = rewritten(before, only(RULE))
    assert [len(n.inputs) for n in after.nodes if n.op == "Slice"] == [4, 4]
    assert sum(n.op == "MatMul" for n in after.nodes) == 3
    same(before, after, {}, terms=16)


# Convolutions of one image, added together ----------------------------------------------------------------------------


def _branch(b: Build, x: str, taps: tuple[int, ...], group: int = 1, *, bias: bool = True, **how: Any) -> str:
    """A convolution of 6 to 6 channels."""
    own = (b.weights(6),) if bias else ()
    return str(b.node("Conv", x, b.weights(6, 6 // group, *taps), *own, group=group, **how))


def _normalized(b: Build, x: str) -> str:
    positive = b.constant(b.rng.uniform(0.5, 2.0, 6).astype(np.float32))
    return str(b.node("BatchNormalization", x, b.weights(6), b.weights(6), b.weights(6), positive))


# Two branches of an image, which become one convolution with the pads of the first.
ADDITIONS: dict[str, tuple[tuple[int | str, ...], Callable[[Build, str], tuple[str, str]]]] = {
    "1x1 in 3x3": ((2, 6, 7, 5), lambda b, x: (_branch(b, x, (3, 3), pads=(1,) * 4), _branch(b, x, (1, 1)))),
    "equal windows": (
        ("n", 6, 7, 5),
        lambda b, x: (_branch(b, x, (3, 3), pads=(1,) * 4), _branch(b, x, (3, 3), pads=(1,) * 4, bias=False)),
    ),
    "line in a square": (
        (2, 6, 7, 5),
        lambda b, x: (_branch(b, x, (3, 3), pads=(1,) * 4), _branch(b, x, (1, 3), pads=(0, 1, 0, 1))),
    ),
    "stride 2, any size": (
        (1, 6, "n", "s"),
        lambda b, x: (
            _branch(b, x, (3, 3), 6, pads=(1,) * 4, strides=(2, 2)),
            _branch(b, x, (1, 1), 6, strides=(2, 2)),
        ),
    ),
    "uneven pads, groups": (
        (2, 6, 9),
        lambda b, x: (_branch(b, x, (4,), 3, pads=(2, 1)), _branch(b, x, (2,), 3, pads=(0, 1))),
    ),
    "dilated": (
        (1, 6, 9, 9),
        lambda b, x: (
            _branch(b, x, (3, 3), dilations=(2, 3), pads=(2, 3, 2, 3)),
            _branch(b, x, (3, 1), dilations=(2, 1), pads=(2, 0, 2, 0)),
        ),
    ),
    "normalized": ((2, 6, 5, 4), lambda b, x: (_branch(b, x, (3, 3), 2, pads=(1,) * 4), _normalized(b, x))),
    "normalized, by channel": (
        (1, 6, 5),
        lambda b, x: (_branch(b, x, (5,), 6, pads=(2, 2), bias=False), _normalized(b, x)),
    ),
    "itself": ((1, 6, "n", 4), lambda b, x: (_branch(b, x, (1, 3), pads=(0, 1, 0, 1)), x)),
}


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("case", ADDITIONS)
def test_added_convolutions_of_an_image_are_one(case: str, *, first: bool) -> None:
    shape, make = ADDITIONS[case]
    b = Build()
    wide, other = make(b, b.input("x", *shape))
    out = str(b.node("Add", wide, other) if first else b.node("Add", other, wide))
    before = b.graph(out)
    after, _ = rewritten(before, only(ADDED))
    assert ops(after) == ["Conv"]
    expected = next(n for n in before.nodes if n.outputs[0] == wide)
    assert after.nodes[0].attrs == expected.attrs
    same(before, after, {"n": 5, "s": 6}, terms=128)


@pytest.mark.parametrize(
    "make",
    [
        lambda b, x: (_branch(b, x, (3, 3), pads=(1,) * 4), _branch(b, b.input("z", 2, 6, 7, 5), (1, 1))),
        lambda b, x: (_branch(b, x, (3, 1), pads=(1, 0, 1, 0)), _branch(b, x, (1, 3), pads=(0, 1, 0, 1))),
        lambda b, x: (_branch(b, x, (3, 3), pads=(1,) * 4), _branch(b, x, (1, 1), 2)),
        lambda b, x: (_branch(b, x, (2, 2), pads=(0, 0, 1, 1)), _branch(b, x, (2, 2), pads=(1, 1, 0, 0))),
        lambda b, x: (_branch(b, x, (2, 3), dilations=(2, 1), pads=(1,) * 4), _normalized(b, x)),
        lambda b, x: (_branch(b, x, (3, 3), pads=(1,) * 4), b.node("Relu", x)),
        lambda b, x: (_branch(b, x, (3, 3), pads=(1,) * 4), b.node("Mul", x, b.weights(7, 1))),
        lambda b, x: (_branch(b, x, (3, 3), pads=(1,) * 4),) * 2,
    ],
    ids=["images", "neither-inside", "groups", "beside", "between-taps", "nonlinear", "by-line", "twice"],
)
def test_other_sums_with_a_convolution_stay(make: Callable[[Build, str], tuple[str, str]]) -> None:
    b = Build()
    out = str(b.node("Add", *make(b, b.input("x", 2, 6, 7, 5))))
    assert rewritten(b.graph(out), only(ADDED))[1] == {}


def test_a_convolution_with_another_reader_stays() -> None:
    b = Build()
    x = b.input("x", 2, 6, 7, 5)
    wide, narrow = ADDITIONS["1x1 in 3x3"][1](b, x)
    graph = b.graph(str(b.node("Add", wide, narrow)), str(b.node("Exp", narrow)))
    assert rewritten(graph, only(ADDED))[1] == {}


def test_equal_weights_at_other_places_stay_apart() -> None:
    b = Build()
    x, w = b.input("x", 2, 6, 7), b.weights(6, 6, 3)
    sums = [str(b.node("Add", b.node("Conv", x, w, pads=pads), x, out=f"o{pads[0]}")) for pads in ((1, 1), (0, 2))]
    before = b.graph(*sums)
    after, _ = rewritten(before, only(ADDED))
    assert ops(after) == ["Conv", "Conv"]
    same(before, after, {}, terms=32)
