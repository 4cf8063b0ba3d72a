"""Sizes that a model leaves open and that are worth measuring: a batch of 1, and 128 of all else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxfuse.measure.profile_child import typical_inputs
from onnxfuse.runtime import engine
from onnxfuse.runtime.feeds import TYPICAL, Input, sizes_of
from tests.runtime.test_sizes import saved


def shaped(*shapes: tuple[int | str, ...]) -> tuple[Input, ...]:
    """Inputs of integers with these shapes."""
    return tuple(Input(f"x{i}", np.dtype(np.int64), shape, "int") for i, shape in enumerate(shapes))


@pytest.mark.parametrize(
    ("shapes", "given", "wanted"),
    [
        ((("batch", "tokens"),), {}, {"batch": 1, "tokens": 128}),
        ((("batch", "tokens"),), {"batch": 4}, {"batch": 4, "tokens": 128}),
        ((("batch", "tokens"),), {"tokens": 7}, {"batch": 1, "tokens": 7}),
        (((1, "tokens"),), {}, {"tokens": 128}),
        ((("batch", "tokens"), ("boxes", 4)), {}, {"batch": 1, "tokens": 128, "boxes": 128}),
        ((("batch", "tokens"), ("boxes", 4)), {"batch": 2}, {"batch": 2, "tokens": 128, "boxes": 128}),
        (((), ("n",)), {}, {"n": 1}),
    ],
)
def test_only_a_batch_is_one(
    shapes: tuple[tuple[int | str, ...], ...], given: dict[str, int], wanted: dict[str, int]
) -> None:
    assert sizes_of(shaped(*shapes), TYPICAL, 0, given) == wanted


# ---- sizes that are sought ----

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def drawn(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def typical(path: Path) -> dict[str, Any]:
    session = engine.open_session(str(path), engine.options(optimize=False))
    return typical_inputs(session, str(path), inputs=None, seed=0, dims={})


def streaming(folder: Path, axes: list[Any], layers: int = 1) -> Path:
    """A detector in a stream of sound: a window that needs 100 samples, and a recurrent layer with states."""
    nodes = [
        helper.make_node("Unsqueeze", ["x", "one"], ["signal"], name="signal"),
        helper.make_node("Conv", ["signal", "window"], ["frames"], strides=[50], name="frames"),
        helper.make_node("Transpose", ["frames"], ["steps"], perm=[2, 0, 1], name="steps"),
        helper.make_node("Slice", ["h", "zero", "one"], ["state"], name="state"),
        helper.make_node("GRU", ["steps", "w", "r", "", "", "state"], ["y", "yh"], hidden_size=8, name="recurrent"),
    ]
    inputs = {"x": (FLOAT, axes), "h": (FLOAT, [layers, *axes[:1], 8])}
    held = {"one": [1], "zero": [0], "window": drawn(6, 1, 100), "w": drawn(1, 24, 6), "r": drawn(1, 24, 8)}
    return saved(folder, nodes, inputs, ["y", "yh"], **held)


@pytest.mark.parametrize("axes", [[None, None], ["batch", "samples"]], ids=["without names", "named"])
def test_the_batch_that_is_found_is_one(tmp_path: Path, axes: list[Any]):
    found = typical(streaming(tmp_path, axes))
    assert (found["x"].shape[0], found["h"].shape) == (1, (1, 1, 8)) and found["x"].shape[1] >= 100


def test_a_batch_that_has_to_be_larger_is_kept(tmp_path: Path):
    """Two halves of a batch, neither of which may be empty, behind a window that has to be sought."""
    nodes = [
        helper.make_node("Unsqueeze", ["x", "one"], ["signal"], name="signal"),
        helper.make_node("Conv", ["signal", "window"], ["frames"], name="frames"),
        helper.make_node("Reshape", ["frames", "pairs"], ["y"], name="pairs"),
    ]
    path = saved(tmp_path, nodes, {"x": (FLOAT, [None, None])}, ["y"], one=[1],
                 window=drawn(1, 1, 250), pairs=[2, -1, 7])  # fmt: skip
    found = typical(path)["x"].shape
    assert found[0] * (found[1] - 249) % 14 == 0


def branch(*nodes: Any) -> onnx.GraphProto:
    """A branch of an If: its result is that of its last node."""
    out = nodes[-1].output[0]
    return helper.make_graph(list(nodes), out, [], [helper.make_tensor_value_info(out, FLOAT, None)])


def test_one_decision_is_enough_for_one_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With another value than the model knows it never runs: inputs to measure with are those of the first value."""
    never = branch(helper.make_node("Reshape", ["x", "wrong"], ["b"]))
    known = branch(helper.make_node("Abs", ["x"], ["a"]))
    nodes = [
        helper.make_node("Equal", ["rate", "usual"], ["same"]),
        helper.make_node("If", ["same"], ["y"], then_branch=known, else_branch=never),
    ]
    inputs = {"x": (FLOAT, ["n"]), "rate": (INT64, [])}
    path = saved(tmp_path, nodes, inputs, ["y"], usual=np.array(16000), wrong=[11, -1, 13, 17])
    runs = []
    run = engine.run
    monkeypatch.setattr(engine, "run", lambda *given: runs.append(given) or run(*given))
    assert int(typical(path)["rate"]) == 16000
    assert len(runs) == 1
