"""Sizes of random inputs are derived from weights, constants and trial runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.runtime import engine, feed_limits, feeds
from onnxfuse.runtime.feed_sizes import fitting_sizes, fixed_sizes
from onnxfuse.verify import child, original, search, trial

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def saved(
    folder: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, tuple[int, Sequence[Any] | None]],
    outputs: Sequence[str],
    **constants: Any,
) -> Path:
    given = [helper.make_tensor_value_info(name, kind, dims) for name, (kind, dims) in inputs.items()]
    wanted = [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs]
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", given, wanted, tensors)
    path = folder / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time enough for every set, so that other work of the machine or of this process decides nothing."""
    monkeypatch.setattr(trial, "MORE_RUNS", 600.0)


def tried(path: Path) -> trial.InputSets:
    session = engine.open_session(str(path), engine.options(optimize=False))
    return trial.input_sets(session, trial.InputRequest(feed_limits.skeleton(path), None, 0, {}))


def weights(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def recurrent(folder: Path) -> Path:
    node = helper.make_node("LSTM", ["x", "w", "r", "", "", "h", "c"], ["y", "yh", "yc"], hidden_size=6)
    states = {name: (FLOAT, [None, None, None]) for name in ("x", "h", "c")}
    return saved(folder, [node], states, ["y", "yh", "yc"], w=weights(1, 24, 5), r=weights(1, 24, 6))


def test_no_values_are_run_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Recipes that draw the same values for a model are one: here all of them, but that of positive ones."""
    nodes = [helper.make_node("Neg", ["x"], ["n"]), helper.make_node("Log", ["n"], ["y"])]
    fixed = {"x": (FLOAT, [4, 8]), "s": (FLOAT, [])}
    path = saved(tmp_path, [helper.make_node("Mul", ["x", "s"], ["p"]), *nodes], fixed, ["y", "p"])
    ran: list[bytes] = []
    run = trial._Runner.run
    monkeypatch.setattr(trial._Runner, "run", lambda self, v: (ran.append(v["x"].tobytes()), run(self, v))[1])
    monkeypatch.setattr(trial.compare, "relevant", lambda out: False)
    found = tried(path)
    assert [v["x"].tobytes() for v in found.values] == ran[:2]  # the first ones, since none is better
    assert len(ran) == len(set(ran)) == 4


def test_what_told_nothing_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Sums of logarithms tell something of positive numbers only. Kernels are verified with all values captured."""
    nodes = [helper.make_node("Log", ["x"], ["p"]), helper.make_node("ReduceSum", ["p"], ["y"])]
    path = saved(tmp_path, nodes, {"x": (FLOAT, [4, 8])}, ["y"])
    ran: list[bytes] = []
    run = trial._Runner.run
    monkeypatch.setattr(trial._Runner, "run", lambda self, v: (ran.append(v["x"].tobytes()), run(self, v))[1])
    child.keep(lambda _: None, str(path), (), None, 0, {}, 0.0, str(tmp_path / "reference"))
    first, useless = list(ran), original.kept(str(tmp_path / "reference")).useless
    ran.clear()
    session = engine.open_session(str(path), engine.options(optimize=False))
    again = trial.input_sets(session, trial.InputRequest(feed_limits.skeleton(path), None, 0, {}, useless=useless))
    told = [v["x"].tobytes() for v in again.values]
    assert len(useless) > 0 and len(first) > len(told)
    assert ran == told == first[-len(told) :]


def test_a_digest_tells_words_apart():
    words = feeds.Input("w", np.dtype(object), (3,), "word", words=("ab", "c", "d"))
    sets = {feeds.digest_of_sets([words], seed=seed, recipe=feeds.RECIPES[0], dims={}) for seed in (0, 0, 1, 2)}
    assert len(sets) == 3


def test_widths_of_recurrent_weights(tmp_path: Path):
    path = recurrent(tmp_path)
    bare = feed_limits.skeleton(path)
    found = fixed_sizes(bare, feeds.inputs_of(bare), {})
    assert found == {"x.2": 5, "h.0": 1, "h.2": 6, "c.0": 1, "c.2": 6}
    assert all(each["x"].shape[1] == each["h"].shape[1] for each in tried(path).values)


def test_widths_after_other_operators(tmp_path: Path):
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
        helper.make_node("Conv", ["t", "w"], ["c"], group=2),
        helper.make_node("MatMul", ["z", "m"], ["p"]),
    ]
    path = saved(tmp_path, nodes, {"x": (FLOAT, ["n", "t", "f"]), "z": (FLOAT, [None, None])}, ["c", "p"],
                 w=weights(4, 3, 1), m=weights(9, 2))  # fmt: skip
    bare = feed_limits.skeleton(path)
    assert fixed_sizes(bare, feeds.inputs_of(bare), {}) == {"f": 6, "z.1": 9}
    assert {each["x"].shape[2] for each in tried(path).values} == {6}


def test_a_rank_that_is_not_stated(tmp_path: Path):
    path = saved(tmp_path, [helper.make_node("Conv", ["x", "w"], ["y"])], {"x": (FLOAT, None)}, ["y"],
                 w=weights(4, 3, 3, 3))  # fmt: skip
    assert all(each["x"].ndim == 4 for each in tried(path).values)


@pytest.mark.parametrize("length", [96, 576])
def test_a_valid_length_is_found_by_search(tmp_path: Path, length: int):
    """Only one length, or its multiples, goes through the Reshape; a window has to fit into it as well."""
    nodes = [
        helper.make_node("Pad", ["x", "pads"], ["p"], mode="reflect", name="pad"),
        helper.make_node("Reshape", ["x", "shape"], ["y"], name="cut"),
    ]
    path = saved(tmp_path, nodes, {"x": (FLOAT, [None, None])}, ["y", "p"], pads=np.array([0, 30, 0, 30]),
                 shape=np.array([-1, length]))  # fmt: skip
    assert all(each["x"].size % length == 0 for each in tried(path).values)


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("optimize", [False, True])
def test_two_sides_that_have_to_be_long(optimize: bool, tmp_path: Path):
    """Each has a window that no start fits: one is found after the other, though the runtime renames convolutions."""
    nodes = [
        helper.make_node("Unsqueeze", ["x", "axes"], ["image"], name="image"),
        helper.make_node("Conv", ["image", "tall"], ["a"], name="tall"),
        helper.make_node("Conv", ["a", "wide"], ["y"], name="wide"),
    ]
    path = saved(tmp_path, nodes, {"x": (FLOAT, ["n", "width"])}, ["y"], axes=np.array([0, 1]),
                 tall=weights(32, 1, 250, 1), wide=weights(32, 32, 1, 250))  # fmt: skip
    session = engine.open_session(str(path), engine.options(optimize=optimize))
    found = trial.input_sets(session, trial.InputRequest(feed_limits.skeleton(path), None, 0, {}))
    assert all(min(each["x"].shape) >= 250 for each in found.values)


def test_starts_before_searches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A signal of many lines as long as an image is sides: no more runs than there are starts besides the recipes."""
    nodes = [helper.make_node("Unsqueeze", ["x", "axes"], ["i"]), helper.make_node("Conv", ["i", "w"], ["y"])]
    inputs = {"x": (FLOAT, ["n", "width"])}
    path = saved(tmp_path, nodes, inputs, ["y"], axes=np.array([0, 1]), w=weights(4, 1, 50, 50))
    refused = []
    run = engine.run

    def counted(*given: Any) -> list[engine.Array]:
        refused.append(given)
        result = run(*given)
        refused.pop()
        return result

    monkeypatch.setattr(engine, "run", counted)
    assert {each["x"].shape for each in tried(path).values} >= {(64, 64)}
    assert len(refused) <= 2 * len(feeds.RECIPES) + len(search._STARTS)


def test_a_length_that_an_export_was_traced_with(tmp_path: Path):
    """The length stands as a number in a shape that is made at run time, beside the batch."""
    nodes = [
        helper.make_node("Shape", ["x"], ["all"]),
        helper.make_node("Gather", ["all", "first"], ["batch"]),
        helper.make_node("Concat", ["batch", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["y"], name="cut"),
    ]
    path = saved(tmp_path, nodes, {"x": (FLOAT, ["batch", "length"])}, ["y"], first=np.array([0]),
                 rest=np.array([1, 37]))  # fmt: skip
    assert {each["x"].shape[1] for each in tried(path).values} == {37}


def test_each_way_that_a_value_decides(tmp_path: Path):
    def branch(op: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(op, FLOAT, None)
        return helper.make_graph([helper.make_node(op, ["x"], [op])], op, [], [out])

    nodes = [
        helper.make_node("Equal", ["rate", "usual"], ["same"]),
        helper.make_node("If", ["same"], ["y"], then_branch=branch("Abs"), else_branch=branch("Neg")),
    ]
    path = saved(tmp_path, nodes, {"x": (FLOAT, ["n"]), "rate": (INT64, [])}, ["y"], usual=np.array(16000))
    found = tried(path)
    assert {int(each["rate"]) for each in found.values} == {16000, 16001}
    assert any((y < 0).any() for (y,) in found.results)


@pytest.mark.usefixtures("unhurried")
def test_sizes_of_one_and_two_and_larger_ones(tmp_path: Path):
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    path = saved(tmp_path, nodes, {"x": (FLOAT, ["batch", "seq", 8])}, ["y"], w=weights(8, 4))
    sizes = {each["x"].shape[:2] for each in tried(path).values}
    assert {(1, 1), (2, 2)} <= sizes
    assert any(batch == 1 < seq for batch, seq in sizes)
    assert any(seq >= 1024 for _, seq in sizes)


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("attends", [False, True])
def test_what_would_take_too_much_memory_is_not_run(tmp_path: Path, attends: bool, monkeypatch: pytest.MonkeyPatch):
    """Scores of attention grow with the square of a length: at 16000 they are 244 times those at 1024."""
    scores = [helper.make_node("MatMul", ["x", "xt"], ["s"]), helper.make_node("Softmax", ["s"], ["p"])]
    scores += [helper.make_node("MatMul", ["p", "x"], ["y"])]
    nodes = [helper.make_node("Transpose", ["x"], ["xt"], perm=[0, 2, 1]), *scores]
    nodes = nodes if attends else [helper.make_node("Softmax", ["x"], ["y"])]
    monkeypatch.setattr(trial, "MORE_BYTES", 1 << 28)
    found = tried(saved(tmp_path, nodes, {"x": (FLOAT, [2, "n", 4])}, ["y"]))
    lengths = [each["n"] for each in found.sizes]
    assert 1024 in lengths
    assert (16000 in lengths) == (not attends)


def test_memory_of_longer_runs_is_predicted_from_shorter_ones():
    """A batch of short ones says nothing of how scores of attention grow."""
    wanted = [feeds.Input("x", np.dtype(np.float32), ("b", "n"), "float")]
    base = trial.InputSets()
    for sizes, held in (((2, 5), 100), ((20, 16), 200), ((2, 50), 9_000)):
        base.add({}, [], dict(zip("bn", sizes, strict=True)), trial.RunCost(0.1, held))
    far = trial.predicted_bytes(base, wanted, {"b": 2, "n": 500})
    assert far == pytest.approx(9_000 * 9.911**2, rel=1e-3)
    assert trial.predicted_bytes(base, wanted, {"b": 2, "n": 2}) == 0


def test_what_the_original_refuses_is_left_out(tmp_path: Path):
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    path = saved(tmp_path, nodes, {"x": (FLOAT, ["n", 3])}, ["y"], shape=np.array([-1, 2, 3]))
    assert all(each["x"].shape[0] % 2 == 0 for each in tried(path).values)


def test_random_bounds_are_ordered(tmp_path: Path):
    """Random bounds may be the wrong way round, which gives NaN."""
    nodes = [
        helper.make_node("Sub", ["fmax", "fmin"], ["room"]),
        helper.make_node("Log", ["room"], ["l"]),
        helper.make_node("Mul", ["x", "l"], ["y"]),
    ]
    path = saved(tmp_path, nodes, {"x": (FLOAT, ["n"]), "fmin": (FLOAT, []), "fmax": (FLOAT, [])}, ["y"])
    assert all(np.isfinite(y).all() for (y,) in tried(path).results)


@pytest.mark.parametrize("flat", [[-1, 5 * 9], [0, 5 * 9]])
def test_a_width_that_is_flattened_after_windows(tmp_path: Path, flat: list[int]):
    """Two convolutions and a pool take 23 columns to 9, which a product wants beside 5 channels."""
    nodes = [
        helper.make_node("Unsqueeze", ["x", "axes"], ["image"]),
        helper.make_node("Conv", ["image", "w1"], ["a"]),
        helper.make_node("MaxPool", ["a"], ["b"], kernel_shape=[1, 2], strides=[1, 2]),
        helper.make_node("Conv", ["b", "w2"], ["c"], pads=[0, 1, 0, 0]),
        helper.make_node("Transpose", ["c"], ["rows"], perm=[0, 2, 1, 3]),
        helper.make_node("Squeeze", ["rows", "first"], ["frames"]),
        helper.make_node("Reshape", ["frames", "flat"], ["d"]),
        helper.make_node("MatMul", ["d", "w3"], ["y"]),
    ]
    constants = {"w1": weights(4, 1, 1, 4), "w2": weights(5, 4, 1, 3), "w3": weights(45, 3)}
    path = saved(tmp_path, nodes, {"x": (FLOAT, ["T", "F"])}, ["y"], **constants, axes=[0, 1], first=[0], flat=flat)
    bare = feed_limits.skeleton(path)
    inputs = feeds.inputs_of(bare)
    assert fixed_sizes(bare, inputs, {}) == {}
    assert fitting_sizes(bare, inputs, {})["F"] in (23, 24)
    assert all(each["x"].shape[1] in (23, 24) for each in tried(path).values)


@pytest.mark.usefixtures("unhurried")
def test_a_size_that_is_the_sum_of_two_others(tmp_path: Path):
    """A mask covers a cache and what is new; the product takes no other size, so no size can be left at one."""
    nodes = [
        helper.make_node("Concat", ["past", "new"], ["whole"], axis=1),
        helper.make_node("MatMul", ["mask", "whole"], ["y"]),
    ]
    inputs = {
        "new": (FLOAT, ["batch", "sequence", 4]),
        "mask": (FLOAT, ["batch", 1, "total"]),
        "past": (FLOAT, ["batch", "past", 4]),
    }
    path = saved(tmp_path, nodes, inputs, ["y"])
    sizes = {(each["past"].shape[1], each["new"].shape[1], each["mask"].shape[2]) for each in tried(path).values}
    assert all(past + new == total for past, new, total in sizes)
    assert {(1, 1, 2), (2, 2, 4)} <= sizes and len(sizes) > 3


def test_a_sum_of_two_others_for_a_single_sample(tmp_path: Path):
    """As in decoders whose tables of angles have one row: the runtime takes them with one sample only."""
    nodes = [
        helper.make_node("Concat", ["past", "new"], ["whole"], axis=1),
        helper.make_node("Reshape", ["whole", "one"], ["row"]),
        helper.make_node("MatMul", ["mask", "row"], ["y"]),
    ]
    inputs = {
        "new": (FLOAT, ["batch", "sequence", 4]),
        "mask": (FLOAT, ["batch", 1, "total"]),
        "past": (FLOAT, ["batch", "past", 4]),
    }
    found = tried(saved(tmp_path, nodes, inputs, ["y"], one=[1, -1, 4])).values
    assert len({each["past"].shape for each in found}) > 1
    assert all(len(each["past"]) == 1 for each in found)


def test_one_more_than_another_where_a_third_is_one(tmp_path: Path):
    """As in decoders that were traced with one new word, and take no more, though their inputs are of any length."""
    nodes = [
        helper.make_node("Squeeze", ["new", "one"], ["word"]),
        helper.make_node("Unsqueeze", ["word", "one"], ["row"]),
        helper.make_node("Concat", ["past", "row"], ["whole"], axis=1),
        helper.make_node("MatMul", ["mask", "whole"], ["y"]),
    ]
    inputs = {
        "new": (FLOAT, ["batch", "sequence", 4]),
        "mask": (FLOAT, ["batch", 1, "total"]),
        "past": (FLOAT, ["batch", "past", 4]),
    }
    found = tried(saved(tmp_path, nodes, inputs, ["y"], one=[1])).values
    sizes = {(each["past"].shape[1], each["new"].shape[1], each["mask"].shape[2]) for each in found}
    assert len(sizes) > 3 and all(new == 1 and past + 1 == total for past, new, total in sizes)


@pytest.mark.usefixtures("unhurried")
def test_a_second_search_finds_what_the_first_one_found(tmp_path: Path):
    """A model that does not run without optimizations is tried again with them: its symbols are still there."""
    nodes = [helper.make_node("Reshape", ["x", "rows"], ["r"]), helper.make_node("MatMul", ["r", "w"], ["y"])]
    inputs = {"x": (FLOAT, ["n", 4, "width"])}
    path = saved(tmp_path, nodes, inputs, ["y"], w=weights(28, 2), rows=np.array([0, -1]))
    skeleton = feed_limits.skeleton(path)
    wish, as_loaded = trial.InputRequest(skeleton, None, 0, {}), skeleton.SerializeToString(deterministic=True)
    first, second = (
        trial.input_sets(engine.open_session(str(path), engine.options(optimize=optimize)), wish).sizes
        for optimize in (False, True)
    )
    assert skeleton.SerializeToString(deterministic=True) == as_loaded
    assert first == second
    assert {each["width"] for each in first} == {7} and {1, 2} < {each["n"] for each in first}


# ---- how large other sizes may be ----


def test_a_run_is_predicted_from_others():
    linear, square = [(10, 1e-3), (100, 1e-2)], [(10, 1e-4), (100, 1e-2)]
    assert trial.predicted(linear, 50) == pytest.approx(5e-3)
    assert trial.predicted(linear, 1000) == pytest.approx(1e-2 * 10**1.5)
    assert trial.predicted(square, 1000) == pytest.approx(1.0)
    assert trial.predicted([(10, 1e-4), (100, 1e-1)], 1000) == pytest.approx(10.0)
    assert trial.predicted([(10, 0.0), (11, 0.0)], 1000) == 0.0


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize(("seconds", "again"), [(50.0, True), (70.0, False)])
def test_a_run_that_was_slow_once_is_timed_again(seconds: float, again: bool, tmp_path: Path):
    """Its time refuses larger sizes: where a second run is cheap enough, that one decides."""
    path = saved(tmp_path, [helper.make_node("Relu", ["x"], ["y"])], {"x": (FLOAT, ["n", 4])}, ["y"])
    skeleton = feed_limits.skeleton(path)
    session = engine.open_session(str(path), engine.options(optimize=False))
    runner = trial._Runner(session, ["y"], 1, trial.InputRequest(skeleton, None, 0, {}), {})
    base = trial.InputSets()
    for n, took in ((8, 1.0), (1024, seconds)):
        values = {"x": weights(n, 4)}
        base.add(values, runner.run(values), {"n": n}, trial.RunCost(took))
    until = time.process_time() + trial.MORE_RUNS
    assert trial._in_time(runner, feeds.inputs_of(skeleton), base, {"n": 16000}, until) == again
    assert (base.costs[1].seconds < seconds) == again


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("square", [False, True])
def test_long_inputs_where_they_are_cheap(square: bool, tmp_path: Path):
    """A length of 16,000 for what grows with it; not for what grows with its square, here to 8 GB."""
    scores = "t = Transpose <perm = [1, 0]> (x)  q = MatMul (p, t)  s = Softmax (q)"
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]> g (float[n, 1] x) => (float[8, n] y) <float[8, 1, 1] w>
        {{ p = Mul (w, x)  {scores if square else "s = Relu (p)"}  y = ReduceMean <axes = [2], keepdims = 0> (s) }}"""
    )
    model.graph.initializer.append(numpy_helper.from_array(weights(8, 1, 1), "w"))
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    largest = max(sizes["n"] for sizes in tried(path).sizes)
    assert (largest == 16000) == (not square)


def test_a_run_that_took_longer_than_predicted_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Each set is run ten times and more, as where inputs of n elements make n * n."""
    costed = trial._Runner.costed

    def slow_at_one(runner: trial._Runner, values: trial.Values) -> tuple[list[Any], trial.RunCost]:
        result, cost = costed(runner, values)
        return result, replace(cost, seconds=2 * trial.MORE_RUNS) if values["x"].size == 1 else cost

    path = saved(tmp_path, [helper.make_node("Relu", ["x"], ["y"])], {"x": (FLOAT, ["n"])}, ["y"])
    assert {1, 128} <= {sizes["n"] for sizes in tried(path).sizes[2:]}
    monkeypatch.setattr(trial._Runner, "costed", slow_at_one)
    assert 1 not in {sizes["n"] for sizes in tried(path).sizes[2:]}
