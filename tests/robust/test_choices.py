"""Models that choose by value: a rounding that changes the choice is no fault of a kernel, a wrong kernel is one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxfuse import optimize
from onnxfuse.verify import compare, verify_models

PLACES, BEST = 4096, 2000
BOXES = f"""<ir_version: 8, opset_import: ["" : 17]>
    m (float[{PLACES}] x) => (float[a, 4] boxes, float[a] scores, int64[c, d] seen)
    <int64[1] most = {{{BEST}}}, float limit = {{1.0}}>
    {{ all = Mul (x, scale)
       scores, places = TopK (all, most)
       moved = Mul (corners, factor)
       boxes = Gather (moved, places)
       good = Greater (scores, limit)
       seen = NonZero (good) }}"""
SUMS = """<ir_version: 8, opset_import: ["" : 17]>
    m (float[64] x) => (int64[100] places)
    <int64[1] most = {100}>
    { rows = Gather (x, orders)
      squares = Mul (rows, rows)
      sums = ReduceSum <keepdims = 0> (squares, axis)
      best, places = TopK (sums, most) }"""


def boxes(path: Path, error: float = 0.0, wrong: float = 1.0) -> Path:
    """The places of the best of nearly equal scores, which have a relative error; corners are `wrong` times theirs."""
    rng = np.random.default_rng(3)
    model = onnx.parser.parse_model(BOXES)
    scale = rng.uniform(0.9, 1.1, PLACES) * (1 + error * np.random.default_rng(4).standard_normal(PLACES))
    corners, factor = rng.standard_normal((PLACES, 4)), np.full(4, wrong)
    for name, values in {"scale": scale, "corners": corners, "factor": factor}.items():
        model.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))
    onnx.save(model, path)
    return path


def test_other_choices_by_a_rounding_pass(tmp_path: Path):
    one = boxes(tmp_path / "a.onnx")
    found = verify_models(one, boxes(tmp_path / "b.onnx", error=5e-6))
    assert (found.ok, found.chosen) == (True, True), found.message
    assert found.max_error is not None
    assert 0 < found.max_error < compare.FLOORS["float32"]
    same = verify_models(one, one)
    assert (same.ok, same.chosen) == (True, False)


@pytest.mark.parametrize("changes", [{"error": 1e-2}, {"wrong": 1.01}, {"error": 5e-6, "wrong": 1.01}])
def test_one_percent_before_or_beside_a_choice_is_found(tmp_path: Path, changes: dict[str, float]):
    found = verify_models(boxes(tmp_path / "a.onnx"), boxes(tmp_path / "b.onnx", **changes))
    assert found.ok is False
    assert found.chosen
    assert "error" in found.message


def test_a_mask_that_chooses_nothing_is_exact(tmp_path: Path):
    """One boolean of 4096: where no node chooses by it, it is wrong."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
        m (float[4096] x) => (bool[4096] y) { p = Mul (x, w) y = Greater (v, p) }"""
    paths = [tmp_path / "a.onnx", tmp_path / "b.onnx"]
    for path, last in zip(paths, (1.0, 0.0), strict=True):
        model = onnx.parser.parse_model(text)
        model.graph.initializer.append(numpy_helper.from_array(np.zeros(4096, np.float32), "w"))
        over = np.append(np.ones(4095), last).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(over, "v"))
        onnx.save(model, path)
    assert verify_models(*paths).ok is False
    assert compare.distance(np.ones(4096, bool), np.append(np.ones(4095, bool), False)).error > 0


def test_a_tolerance_is_taken_as_it_is_given(tmp_path: Path):
    found = verify_models(boxes(tmp_path / "a.onnx"), boxes(tmp_path / "b.onnx", error=5e-6), rtol=1e-3)
    assert (found.ok, found.chosen) == (False, False)


def test_kernels_before_a_choice_among_equals_stay(tmp_path: Path):
    """Sums of the same numbers in other orders differ by roundings alone: no two ways to sum agree on the best."""
    model = onnx.parser.parse_model(SUMS)
    orders = np.stack([np.random.default_rng(row).permutation(64) for row in range(512)])
    model.graph.initializer.append(numpy_helper.from_array(orders.astype(np.int64), "orders"))
    model.graph.initializer.append(numpy_helper.from_array(np.array([1], np.int64), "axis"))
    onnx.save(model, tmp_path / "a.onnx")
    made = optimize(tmp_path / "a.onnx", tmp_path / "out.onnx", gain=False)
    assert (made.kernels, made.nodes_left) == (1, 1)
    library = made.output.library
    assert library is not None
    given = (tmp_path / "a.onnx", tmp_path / "out.onnx")
    verdict = verify_models(*given, library=library)
    assert (verdict.ok, verdict.chosen) == (True, True), verdict.message
