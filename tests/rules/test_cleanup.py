"""Constant folding, identities, common subexpressions and unused outputs."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from onnxfuse.ir.dtype import BOOL, F16, F32, I64
from onnxfuse.ir.graph import Constant, Graph
from onnxfuse.rewrite.folding import EAGER_BYTES, LARGEST_BYTES
from tests.rules.build import Build, only, ops, rewritten, run, same


def check(b: Build, out: str, rules: tuple[str, ...], expected: list[str]) -> Graph:
    before = b.graph(out)
    after, _ = rewritten(before, only(*rules))
    assert ops(after) == expected
    same(before, after)
    return after


# Folding --------------------------------------------------------------------------------------------------------------


def test_nodes_of_constants_become_constants_under_the_same_name() -> None:
    b = Build()
    c = b.node("Add", b.constant([1.0, 2.0]), b.constant([3.0, 4.0]), out="c")
    b.node("Mul", b.input("x", 2), c, out="y")
    after = check(b, "y", ("fold",), ["Mul"])
    np.testing.assert_array_equal(after.constants["c"].load(), np.array([4, 6], np.float32))
    assert set(after.constants) == {"c"}


def test_scalars_stay_scalars() -> None:
    b = Build()
    c = b.node("Neg", b.constant(2.0))
    after = check(b, b.node("Mul", b.input("x", 2), c, out="y"), ("fold",), ["Mul"])
    assert [k.shape for k in after.constants.values()] == [()]


def test_a_graph_output_is_made_by_a_node() -> None:
    b = Build()
    b.input("x", 2)
    after, fired = rewritten(b.graph(b.node("Neg", b.constant([1.0]), out="y")))
    assert ops(after) == ["Neg"] and not fired


def test_known_integers_become_constants() -> None:
    b = Build()
    shape = b.node("Shape", b.input("x", 2, 3))
    y = b.node("Reshape", "x", b.node("Concat", b.ints(1), shape, axis=0), out="y")
    after = check(b, y, ("fold",), ["Reshape"])
    assert after.constants[after.nodes[0].inputs[1]].load().tolist() == [1, 2, 3]


def test_gathers_of_constants_fold_unless_the_runtime_would_refuse_them() -> None:
    for index, expected in ((2, ["Add"]), (3, ["Gather", "Add"])):
        b = Build()
        table, places = b.weights(3, 4), b.constant(np.array([0, index], np.int64))
        before = b.graph(b.node("Add", b.input("x", 2, 4), b.node("Gather", table, places)))
        assert ops(rewritten(before)[0]) == expected


@pytest.mark.parametrize(("op", "shape"), [("Expand", (1024, 1024)), ("ConstantOfShape", (600, 600))])
def test_blow_ups_are_not_folded(op: str, shape: tuple[int, int]) -> None:
    b = Build()
    target = b.ints(*shape)
    big = b.node(op, b.constant([[1.0]]), target) if op == "Expand" else b.node(op, target)
    before = b.graph(b.node("Add", b.input("x", *shape), big, out="y"))
    assert rewritten(before, only("fold"))[0].nodes == before.nodes


@pytest.mark.parametrize("reduction", ["none", "add"])
def test_masks_of_windows_are_folded(reduction: str) -> None:
    """As torch exports what writes a number into a part of an image: by tables of positions, of 16 bytes for each."""
    b, sides = Build(), (100, 90)
    whole = b.node("ConstantOfShape", b.ints(120, 120))
    places = []
    for at, n in enumerate(sides):
        line = b.constant(np.arange(n).reshape((n, 1) if at == 0 else (1, n)))
        places.append(b.node("Unsqueeze", b.node("Expand", line, b.ints(*sides)), b.ints(2)))
    assert sides[0] * sides[1] * 8 > EAGER_BYTES
    updates = b.node("Expand", b.constant(np.float32(3)), b.ints(*sides))
    mask = b.node("ScatterND", whole, b.node("Concat", *places, axis=-1), updates, reduction=reduction)
    before = b.graph(b.node("Add", b.input("x", 120, 120), mask, out="y"))
    after, _ = rewritten(before, only("fold"))
    assert (ops(after) == ["Add"]) == (reduction == "none")
    same(before, after)


def test_of_several_updates_the_last_one_is_folded() -> None:
    b = Build()
    places = b.constant(np.array([[1], [2], [1], [-1]]))
    mask = b.node("ScatterND", b.node("ConstantOfShape", b.ints(3, 2)), places, b.weights(4, 2))
    before = b.graph(b.node("Add", b.input("x", 3, 2), mask, out="y"))
    after, _ = rewritten(before, only("fold"))
    assert ops(after) == ["Add"]
    same(before, after)


@pytest.mark.parametrize("case", ["folds", "lookup", "two readers", "16 bits", "grows", "large"])
def test_weights_of_products_are_folded_from_eight_bits(case: str) -> None:
    b, folds = Build(), case == "folds"
    shape = (512, 1025 if case != "large" else 1 + (1 << 14))
    stored = b.rng.integers(-128, 128, shape).astype(np.float16 if case == "16 bits" else np.int8)
    codes = b.constant(stored)
    factor = b.constant(b.rng.random((3, 1, 1) if case == "grows" else (1, shape[1])).astype(np.float32))
    w = b.node("Mul", b.node("Cast", codes, to=1), factor)
    assert shape[0] * shape[1] * 4 > LARGEST_BYTES
    y = [b.node("Gather" if case == "lookup" else "MatMul", *reads(b, w, case))]
    if case == "two readers":
        y.append(b.node("Gather", codes, b.input("i", 3, dtype=I64)))
    before = b.graph(*y)
    after, _ = rewritten(before, only("fold"))
    assert ops(after) == (["MatMul"] if folds else ops(before))
    if folds:
        same(before, after)


def reads(b: Build, w: str, case: str) -> tuple[str, str]:
    """What the reader of the weights reads."""
    return (w, b.input("i", 3, dtype=I64)) if case == "lookup" else (b.input("x", 3, 512), w)


def test_folding_may_grow_what_is_small() -> None:
    b = Build()
    y = b.node("Add", b.input("x", 64, 64), b.node("Expand", b.weights(1, 64), b.ints(64, 64)))
    assert 64 * 64 * 4 <= EAGER_BYTES < LARGEST_BYTES
    check(b, y, ("fold",), ["Add"])


def test_tables_of_positions_are_computed_once() -> None:
    """However many nodes make them, and whoever reads them: proofs do so again and again."""
    b = Build()
    table = b.constant(np.arange(20_000), name="table")
    loads: list[str] = []
    array = b.constants["table"].load()
    b.constants["table"] = Constant(I64, array.shape, lambda: loads.append("table") or array)  # type: ignore[func-returns-value]
    for _ in range(5):
        table = b.node("Add", table, b.constant(np.array(-1)))
    after, _ = rewritten(b.graph(b.node("Add", b.input("x", 20_000, dtype=I64), table, out="y")), only("fold"))
    read = len(loads)
    (held,) = (after.constants[i] for n in after.nodes for i in n.inputs if i in after.constants)
    assert 8 * held.size > EAGER_BYTES
    for _ in range(3):
        assert (held.load() == array - 5).all()
    assert len(loads) == read


def large(op: str, b: Build) -> str:
    w = b.weights(400, 300, name="w")
    if op == "Transpose":
        return str(b.node(op, w, perm=(1, 0)))
    if op == "Reshape":
        return str(b.node(op, w, b.ints(300, 400)))
    return str(b.node("Cast", b.node("Cast", w, to=F16.onnx), to=F32.onnx))


@pytest.mark.parametrize("op", ["Transpose", "Reshape", "Cast"])
def test_large_weights_are_moved_when_loaded_not_before(op: str) -> None:
    b = Build()
    loads: list[str] = []
    w = large(op, b)
    y = b.node("MatMul", b.input("x", 2, 300 if op != "Cast" else 400), w, out="y")
    array = b.constants["w"].load()
    b.constants["w"] = Constant(F32, array.shape, lambda: loads.append("w") or array)  # type: ignore[func-returns-value]
    before = b.graph(y)
    after, _ = rewritten(before, only("fold"))
    assert ops(after) == ["MatMul"] and not loads
    same(before, after, terms=400)
    assert loads


def test_lazy_weights_are_not_kept() -> None:
    b = Build()
    rows = 1 << 20
    b.input("w", rows, 8)
    b.inputs.remove("w")
    b.constants["w"] = Constant(F32, (rows, 8), lambda: np.ones((rows, 8), np.float32))
    y = b.node("MatMul", b.input("x", 2, 8), b.node("Transpose", "w", perm=(1, 0)))
    before = b.graph(y)
    tracemalloc.start()
    after, _ = rewritten(before)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert ops(after) == ["MatMul"] and peak < 8 << 20


def test_equal_small_constants_become_one() -> None:
    b = Build()
    x = b.input("x", 3)
    y = b.node("Add", b.node("Mul", x, b.constant([1.0, 2.0, 3.0], name="a")), b.constant([1.0, 2.0, 3.0], name="b"))
    z = b.node("Add", y, b.constant([1.0, 2.0, 4.0], name="c"))
    after = check(b, z, (), ["Mul", "Add", "Add"])
    assert set(after.constants) == {"a", "c"}


# Identities -----------------------------------------------------------------------------------------------------------


def no_ops(b: Build, x: str) -> dict[str, str]:
    return {
        "Identity": b.node("Identity", x),
        "Cast": b.node("Cast", x, to=F32.onnx),
        "Reshape": b.node("Reshape", x, b.ints(4, -1)),
        "Transpose": b.node("Transpose", x, perm=(0, 1)),
        "Slice": b.node("Slice", x, b.ints(0), b.ints(6), b.ints(1), b.ints(1)),
        "Expand": b.node("Expand", x, b.ints(1, 6)),
        "Dropout": b.node("Dropout", x),
        "Pad": b.node("Pad", x, b.ints(0, 0, 0, 0)),
        "Concat": b.node("Concat", x, axis=1),
        "Split": b.node("Split", x, b.ints(6), axis=1),
        "Sum": b.node("Sum", x),
        "Max": b.node("Max", x),
        "Tile": b.node("Tile", x, b.ints(1, 1)),
        "Flatten": b.node("Flatten", x),
        "Unsqueeze": b.node("Unsqueeze", x, b.constant(np.zeros(0, np.int64))),
    }


NO_OPS = list(no_ops(_b := Build(), _b.input("x", 4, 6)))


@pytest.mark.parametrize("op", NO_OPS)
def test_no_op_vanishes_whatever_it_is_called(op: str) -> None:
    b = Build()
    value = no_ops(b, b.input("x", 4, 6))[op]
    b.nodes = [n for n in b.nodes if n.outputs[0] == value]
    check(b, b.node("Neg", value, out="y"), ("identity",), ["Neg"])


def test_what_is_no_identity_stays() -> None:
    b = Build()
    x = b.input("x", 4, 4)
    for y in (b.node("Transpose", x), b.node("Slice", x, b.ints(0), b.ints(3)), b.node("Cast", x, to=F16.onnx)):
        b.node("Neg", y)
    before = b.graph("v1", "v3", "v5")
    assert rewritten(before, only("identity"))[1] == {}


def test_outputs_keep_their_names() -> None:
    b = Build()
    x = b.input("x", 3)
    b.node("Identity", b.node("Neg", x), out="y")
    after = check(b, "y", ("identity",), ["Neg"])
    assert after.nodes[0].outputs == ("y",)


def test_an_identity_from_input_to_output_stays() -> None:
    b = Build()
    b.node("Identity", b.input("x", 3), out="y")
    check(b, "y", ("identity",), ["Identity"])
    b = Build()
    b.node("Transpose", b.input("x", 3), perm=(0,), out="y")
    check(b, "y", ("identity",), ["Identity"])


def test_two_outputs_of_one_value_need_an_identity() -> None:
    b = Build()
    b.node("Neg", b.input("x", 3), out="y")
    b.node("Identity", "y", out="z")
    before = b.graph("y", "z")
    after, fired = rewritten(before)
    assert ops(after) == ["Neg", "Identity"] and not fired
    b.node("Dropout", "y", out="w")
    before = b.graph("y", "z", "w")
    after, _ = rewritten(before)
    assert sorted(ops(after)) == ["Dropout", "Identity", "Neg"]  # another name for the same costs as much
    same(before, after)


# Equal nodes ----------------------------------------------------------------------------------------------------------


def test_equal_nodes_become_one_operands_in_any_order() -> None:
    b = Build()
    x, y = b.input("x", 3), b.input("y", 3)
    z = b.node("Mul", b.node("Add", x, y), b.node("Exp", b.node("Add", y, x)), out="z")
    check(b, z, ("common-subexpressions",), ["Add", "Exp", "Mul"])


def test_nodes_that_differ_stay() -> None:
    b = Build()
    x, y = b.input("x", 3), b.input("y", 3)
    z = b.node("Mul", b.node("Sub", x, y), b.node("Sub", y, x))
    w = b.node("Add", b.node("LeakyRelu", z, alpha=0.1), b.node("LeakyRelu", z, alpha=0.2))
    v = b.node("Clip", x, b.constant(0.0), b.constant(1.0))
    u = b.node("Clip", x, b.constant(1.0), b.constant(0.0))
    before = b.graph(w, v, u)
    assert rewritten(before, only("common-subexpressions"))[1] == {}


def test_random_and_opaque_nodes_are_never_equal() -> None:
    b = Build()
    x = b.input("x", 3)
    made = [
        b.opaque(op, x, domain)
        for op, domain in (("RandomNormalLike", ""), ("Add", "com.example"), ("Dropout", ""))
        for _ in range(2)
    ]
    before = b.graph(*made)
    after, fired = rewritten(before, only("common-subexpressions"))
    assert len(after.nodes) == 6 and not fired


def test_equal_outputs_keep_both_names() -> None:
    b = Build()
    x = b.input("x", 1000)
    b.node("Exp", x, out="y")
    b.node("Exp", x, out="z")
    before = b.graph("y", "z")
    after, _ = rewritten(before)
    assert ops(after) == ["Exp", "Identity"]
    same(before, after)


# Outputs and targets --------------------------------------------------------------------------------------------------


def test_unread_optional_outputs_are_not_asked_for() -> None:
    b = Build()
    x = b.input("x", 1, 2, 4, 4)
    z = b.node("Neg", b.opaque("MaxPool", x, outputs=("p", "places"), kernel_shape=(1, 1)), out="z")
    after, fired = rewritten(b.graph(z))
    assert fired == {"unused-outputs": 1} and [len(n.outputs) for n in after.nodes] == [1, 1]


def test_read_outputs_and_pieces_stay() -> None:
    b = Build()
    x = b.input("x", 1, 2, 4, 4)
    b.opaque("MaxPool", x, outputs=("p", "places"), kernel_shape=(1, 1))
    piece, _ = b.node("Split", x, b.ints(1, 1), axis=1, count=2)
    before = b.graph("p", "places", piece)
    assert rewritten(before, only("unused-outputs"))[1] == {}


def test_dead_nodes_are_removed_with_their_last_reader() -> None:
    b = Build()
    x = b.input("x", "n", 6)
    b.node("Neg", b.node("Reshape", x, b.node("Shape", x)), out="y")
    b.node("Exp", b.node("Exp", x))
    before = b.graph("y")
    after, _ = rewritten(before)
    assert ops(after) == ["Neg"]
    same(before, after, {"n": 3})


def test_bool_constants_fold() -> None:
    b = Build()
    x = b.input("x", 3, dtype=BOOL)
    c = b.node("Not", b.constant(np.array([True, False, True])))
    y = b.node("And", x, c)
    check(b, y, ("fold",), ["And"])


def test_types_that_follow_from_folding_are_found() -> None:
    b = Build()
    x = b.input("x", 1, 2, 5, 5)
    pads = b.node("Reshape", b.node("Concat", b.ints(0, 0, 1, 1), b.ints(0, 0, 1, 1), axis=0), b.ints(-1))
    y = b.node("Pad", x, pads)
    assert b.types[y] is None  # the pads are computed
    z = b.node("Conv", y, b.weights(3, 2, 3, 3), out="z")
    after, _ = rewritten(b.graph(z))
    assert ops(after) == ["Conv"] and after.nodes[0].attrs["pads"] == (1, 1, 1, 1)
    assert run(after, {"x": np.ones((1, 2, 5, 5), np.float32)})["z"].shape == (1, 3, 5, 5)


def test_what_a_model_computes_of_small_constants_folds_once() -> None:
    b = Build()
    places = b.node("Add", b.weights(600, 1), b.weights(1, 500))
    for _ in range(24):  # without a kept result each reader would evaluate everything before it again
        places = b.node("Mul", b.node("Sin", places), places)
    y = b.node("Add", b.input("x", 600, 500), places)
    check(b, y, ("fold",), ["Add"])
