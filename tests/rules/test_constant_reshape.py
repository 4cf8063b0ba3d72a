"""Targets of Reshape that are computed from shapes become constants, where a constant says the same."""

from __future__ import annotations

import pytest

from onnxfuse.rewrite.cleanup import spelled
from tests.rules.build import Build, only, ops, rewritten, same


def test_a_computed_target_becomes_constant() -> None:
    b = Build()
    x = b.input("x", "n", "s", 6)
    front = b.node("Shape", b.node("ReduceMax", x, axes=(2,), keepdims=0))
    b.node("Neg", b.node("Reshape", x, b.node("Concat", front, b.ints(2, 3), axis=0)), out="z")
    before = b.graph("z")
    after, fired = rewritten(before, only("constant-reshape"))
    assert fired == {"constant-reshape": 1} and ops(after) == ["Reshape", "Neg"]
    same(before, after, {"n": 2, "s": 5})
    assert after.constants[after.nodes[0].inputs[1]].load().tolist() == [0, 0, 2, 3]


@pytest.mark.parametrize("allowzero", [0, 1])
def test_minus_one_beside_an_extent_that_may_be_zero(allowzero: int) -> None:
    """With allowzero the runtime infers -1 beside an extent of 0; beside a copied one, without it, it refuses."""
    b = Build()
    x = b.input("x", "n", "s", 6)
    front = b.node("Shape", b.node("ReduceMax", x, axes=(1, 2), keepdims=0))
    target = b.node("Concat", front, b.ints(1, -1), axis=0)
    b.node("Neg", b.node("Reshape", x, target, allowzero=allowzero), out="z")
    before = b.graph("z")
    after, fired = rewritten(before, only("constant-reshape"))
    assert fired == ({} if allowzero else {"constant-reshape": 1})
    same(before, after, {"n": 2, "s": 5})


def test_targets_that_no_constant_says() -> None:
    b = Build()
    n, s, one = (b.types[b.input(k, k)].shape[0] for k in ("n", "s", "o"))  # type: ignore[union-attr]
    assert spelled((n, s, one), (n, s * one)) is None  # a copied symbol and an inferred one: breaks where n is 0
    assert spelled((n, s), (s, n)) is None
    assert spelled((n * 2, s * 0 + 3), (n, s * 0 + 6)) == (-1, 6)
    assert spelled((s * 0 + 4,), (s * 0 + 2, s * 0 + 2)) == (2, 2)
    assert spelled((n, s * 0), (n, s * 0)) is None
