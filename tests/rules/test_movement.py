"""Chains of movement become one operator, with symbolic extents too."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.ir.dtype import I64
from onnxfuse.ir.graph import Graph, TensorType
from tests.rules.build import Build, only, ops, rewritten, same


def check(b: Build, out: str, expected: list[str], *more: str) -> Graph:
    before = b.graph(out)
    after, _ = rewritten(before, only("movement-chain", "identity", *more))
    assert ops(after) == expected
    for n, s in ((2, 5), (1, 1)):
        same(before, after, {"n": n, "s": s})
    return after


def test_two_transposes_are_one_or_none() -> None:
    b = Build()
    x = b.input("x", "n", 3, "s")
    y = b.node("Transpose", b.node("Transpose", x, perm=(1, 2, 0)), perm=(1, 2, 0))
    after = check(b, b.node("Neg", y), ["Transpose", "Neg"])
    assert after.nodes[0].attrs["perm"] == (2, 0, 1)
    b = Build()
    y = b.node("Transpose", b.node("Transpose", b.input("x", "n", 3, "s"), perm=(1, 2, 0)), perm=(2, 0, 1))
    check(b, b.node("Neg", y), ["Neg"])


def test_two_reshapes_are_one() -> None:
    b = Build()
    y = b.node("Reshape", b.node("Reshape", b.input("x", "n", 4, 6), b.ints(-1, 6)), b.ints(-1, 2, 12))
    after = check(b, b.node("Neg", y), ["Reshape", "Neg"])
    assert after.constants[after.nodes[0].inputs[1]].load().tolist() == [0, 2, 12]


@pytest.mark.parametrize("opset", [12, 17])
def test_squeezes_unsqueezes_and_flattens_are_reshapes(opset: int) -> None:
    b = Build(opset)
    x = b.input("x", 4, 1, 6)

    def axes(op: str, v: str, *at: int) -> str:
        return str(b.node(op, v, b.ints(*at)) if opset >= 13 else b.node(op, v, axes=at))

    y = axes("Unsqueeze", axes("Unsqueeze", axes("Squeeze", x, 1), 0), 3)
    check(b, b.node("Neg", b.node("Flatten", y, axis=2)), ["Reshape", "Neg"])


@pytest.mark.parametrize("opset", [12, 17])
def test_shapes_that_no_constant_says_use_unsqueeze(opset: int) -> None:
    b = Build(opset)
    x = b.input("x", "n", "s")

    def axes(v: str, at: int) -> str:
        return str(b.node("Unsqueeze", v, b.ints(at)) if opset >= 13 else b.node("Unsqueeze", v, axes=(at,)))

    after = check(b, b.node("Neg", axes(axes(x, 1), 1)), ["Unsqueeze", "Neg"])
    assert opset >= 13 or after.nodes[0].attrs["axes"] == (1, 2)


def test_moving_axes_of_one_element_is_a_reshape() -> None:
    b = Build()
    y = b.node("Transpose", b.input("x", 4, 1, 6), perm=(1, 0, 2))
    check(b, b.node("Neg", y), ["Reshape", "Neg"])


def test_an_expand_that_adds_axes_is_a_reshape() -> None:
    b = Build()
    check(b, b.node("Neg", b.node("Expand", b.input("x", 4, 6), b.ints(1, 1, 4, 6))), ["Reshape", "Neg"])
    b = Build()
    y = b.node("Expand", b.input("x", 4, 6), b.ints(2, 4, 6))
    assert rewritten(b.graph(b.node("Neg", y)), only("movement-chain"))[1] == {}


def test_a_depth_to_space_of_one_pixel_is_a_reshape_and_a_gather_of_all_is_nothing() -> None:
    b = Build()
    y = b.node("Transpose", b.node("DepthToSpace", b.input("x", 1, 4, 1, 1), blocksize=2), perm=(0, 1, 3, 2))
    y = b.node("Gather", y, b.ints(0, 1), axis=2)
    check(b, b.node("Neg", y), ["Reshape", "Transpose", "Neg"])


def test_moving_other_axes_is_not() -> None:
    b = Build()
    y = b.node("Transpose", b.input("x", 4, 2, 6), perm=(1, 0, 2))
    assert rewritten(b.graph(y), only("movement-chain"))[1] == {}
    b = Build()
    y = b.node("Reshape", b.node("Transpose", b.input("x", 4, 6)), b.ints(4, 6))
    assert rewritten(b.graph(b.node("Neg", y)), only("movement-chain"))[1] == {}


def keys_as_exported(b: Build, k: str, flat: str, apart: str) -> str:
    k = b.node("Transpose", k, perm=(0, 2, 1, 3))
    k = b.node("Transpose", b.node("Reshape", k, flat), perm=(0, 2, 1))
    return str(b.node("Neg", b.node("Reshape", k, apart)))


def test_transposed_keys_are_one_transpose() -> None:
    b = Build(20)
    k = b.input("k", 2, 5, 3, 4)
    after = check(b, keys_as_exported(b, k, b.ints(-1, 5, 4), b.ints(2, 3, 4, 5)), ["Transpose", "Neg"])
    assert after.nodes[0].attrs["perm"] == (0, 2, 3, 1)


def test_transposed_keys_of_symbolic_extents_are_one_transpose() -> None:
    b = Build(20)
    k = b.input("k", "n", "s", 3, 4)
    n, s, heads, head = (b.types[k] or TensorType(I64, ())).shape
    flat, apart = b.input("flat", 3, dtype=I64), b.input("apart", 4, dtype=I64)
    b.known[flat], b.known[apart] = (n * heads, s, head), (n, heads, head, s)
    before = b.graph(keys_as_exported(b, k, flat, apart))
    after, _ = rewritten(before)
    assert ops(after) == ["Transpose", "Neg"]
    assert after.nodes[0].attrs["perm"] == (0, 2, 3, 1)
    same(before, after, {"n": 2, "s": 5})


def test_splitting_and_merging_heads_cancels() -> None:
    b = Build()
    x = b.input("x", "n", "s", 12)
    split = b.node("Transpose", b.node("Reshape", x, b.ints(0, 0, 3, 4)), perm=(0, 2, 1, 3))
    merged = b.node("Reshape", b.node("Transpose", split, perm=(0, 2, 1, 3)), b.ints(0, 0, 12))
    check(b, b.node("Neg", merged), ["Neg"])


def test_a_chain_that_is_also_read_in_between_gets_shorter() -> None:
    b = Build()
    first = b.node("Transpose", b.input("x", 4, 6, 2), perm=(1, 0, 2))
    y = b.node("Transpose", first, perm=(2, 0, 1))
    before = b.graph(b.node("Neg", first), b.node("Exp", y))
    after, fired = rewritten(before, only("movement-chain"))
    assert fired == {"movement-chain": 1}
    assert [n.inputs for n in after.nodes if n.op == "Transpose"] == [("x",), ("x",)]
    same(before, after)


def test_random_chains_mean_the_same() -> None:
    rng = np.random.default_rng(5)
    shorter = 0
    for _ in range(150):
        b = Build()
        x = b.input("x", 2, 3, 4)
        for _ in range(int(rng.integers(2, 6))):
            have = b.types[x]
            assert have is not None
            shape = [e.constant or 0 for e in have.shape]
            kind = rng.integers(0, 4)
            if kind == 0:
                x = b.node("Transpose", x, perm=tuple(int(i) for i in rng.permutation(len(shape))))
            elif kind == 1:
                x = b.node("Reshape", x, b.ints(*[(4, 6), (2, 3, 4), (24,), (3, 1, 8), (2, 2, 6)][rng.integers(0, 5)]))
            elif kind == 2 and len(shape) < 5:
                x = b.node("Unsqueeze", x, b.ints(int(rng.integers(0, len(shape) + 1))))
            else:
                x = b.node("Flatten", x, axis=int(rng.integers(0, len(shape) + 1)))
        before = b.graph(b.node("Neg", x, out="y"))
        after, _ = rewritten(before)
        same(before, after)
        shorter += len(after.nodes) < len(before.nodes)
        assert len(after.nodes) <= len(before.nodes)
    assert shorter > 100


def test_elementwise_work_comes_before_a_squeeze_that_may_change_the_rank() -> None:
    b = Build()
    half, one = b.constant(0.5), b.constant(1.0)
    y = b.node("Squeeze", b.input("x", "n", 1, "s"))
    y = b.node("Add", b.node("Mul", b.node("Sigmoid", y), half), one, out="y")
    before = b.graph(y)
    after, _ = rewritten(before, only("squeeze-last"))
    assert ops(after) == ["Sigmoid", "Mul", "Add", "Squeeze"]
    assert after.types[after.nodes[2].outputs[0]] == b.types["x"]


@pytest.mark.parametrize("other", [(1,), (3,)])
def test_squeezes_with_broadcasting_or_other_readers_stay(other: tuple[int, ...]) -> None:
    b = Build()
    y = b.node("Squeeze", b.input("x", "n", 1, "s"))
    y = b.node("Add", y, b.constant(np.ones(other, np.float32)))
    assert ops(rewritten(b.graph(y), only("squeeze-last"))[0]) == ["Squeeze", "Add"]
    b = Build()
    y = b.node("Squeeze", b.input("x", "n", 1, "s"))
    b.node("Softmax", y)
    assert ops(rewritten(b.graph(b.node("ReduceMax", y, b.ints(0))), only("squeeze-last"))[0]) == [
        "Squeeze",
        "ReduceMax",
    ]
