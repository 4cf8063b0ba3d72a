"""Assignments to slices as exporters write them: scatters by grids of indices become Concats, at any batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxfuse import optimize
from onnxfuse.runtime.engine import open_session, options
from tests.emit import plans
from tests.load.models import parse
from tests.models.fused import CACHE
from tests.models.test_networks import needs_compiler
from tests.rules.build import ops, rewritten

RULE = "slice-assignment"
Array = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
RNG = np.random.default_rng(6)
# x[:, 1:4, 2:] = u of an open batch; the indices of all three axes are spread when the model runs.
OPEN = """g (float[N, 6, 5, 2] x, float[N, 3, 3, 2] u) => (float[N, 6, 5, 2] y) {
  all = Shape(u) grid = Slice(all, i0, i3) n0 = Gather(all, zero) r0 = Range(zero, n0, one)
  r = Reshape(r0, down) e0 = Expand(r, grid) e1 = Expand(rows, grid) e2 = Expand(columns, grid)
  p0 = Unsqueeze(e0, last) p1 = Unsqueeze(e1, last) p2 = Unsqueeze(e2, last)
  places = Concat<axis = -1>(p0, p1, p2)
  z = ScatterND(x, places, u) y = Sigmoid(z)
}"""
CONSTANT = "g (float[6, 5, 3000] x, float[3, 3, 3000] u) => (float[6, 5, 3000] y) { y = ScatterND%s(x, places, u) }"


def model(text: str, **constants: Array) -> onnx.ModelProto:
    made = parse(text, opset=17)
    made.graph.initializer.extend(numpy_helper.from_array(v, name) for name, v in constants.items())
    return made


def grid(*axes: Array) -> Array:
    return np.stack(np.meshgrid(*axes, indexing="ij"), -1)


def spread(rows: Array) -> onnx.ModelProto:
    whole = {"zero": np.array(0), "one": np.array(1), "i0": np.array([0]), "i3": np.array([3]), "last": np.array([-1])}
    return model(OPEN, **whole, down=np.array([-1, 1, 1]), rows=rows.reshape(3, 1), columns=np.arange(2, 5))


@pytest.mark.parametrize(
    ("rows", "columns"), [((1, 4), (2, 5)), ((0, 3), (0, 3)), ((3, 6), (1, 4)), ((0, 6), (1, 3)), ((2, 6), (3, 5))]
)
def test_a_constant_grid(rows: tuple[int, int], columns: tuple[int, int]) -> None:
    text = CONSTANT.replace("[3, 3, 3000] u", f"[{rows[1] - rows[0]}, {columns[1] - columns[0]}, 3000] u") % ""
    before = plans.graph_of(model(text, places=grid(np.arange(*rows), np.arange(*columns), np.arange(3000))))
    after, fired = rewritten(before)
    assert fired[RULE] == 1 and "ScatterND" not in ops(after)
    assert ops(after).count("Concat") == (rows != (0, 6)) + (columns != (0, 5))


@pytest.mark.parametrize(
    ("how", "places"),
    [
        ("", grid(np.array([1, 2, 4]), np.arange(3))),  # not side by side
        ("", grid(np.array([3, 2, 1]), np.arange(3))),  # backwards
        ("", grid(np.arange(-3, 0), np.arange(3))),  # from the end
        ("", grid(np.arange(1, 4), np.arange(3)).transpose(1, 0, 2).copy()),  # updates are turned
        ('<reduction = "add">', grid(np.arange(1, 4), np.arange(3))),
    ],
)
def test_what_is_no_slice_stays_a_scatter(how: str, places: Array) -> None:
    before = plans.graph_of(model(CONSTANT % how, places=places))
    assert RULE not in rewritten(before)[1]


def test_other_rows_than_a_slice_stay_a_scatter_where_they_are_spread() -> None:
    assert RULE not in rewritten(plans.graph_of(spread(np.array([1, 3, 4]))))[1]


@needs_compiler
def test_an_open_batch(tmp_path: Path) -> None:
    onnx.save(spread(np.arange(1, 4)), tmp_path / "m.onnx")
    assert rewritten(plans.graph_of(onnx.load(tmp_path / "m.onnx")))[1][RULE] == 1
    made = optimize(tmp_path / "m.onnx", tmp_path / "f.onnx", gain=False, cache_dir=str(CACHE), jobs=1)
    assert made.verify is not None and made.verify.ok
    library = str(made.output.library)
    for n in (0, 1, 2, 7):
        feeds = {"x": RNG.standard_normal((n, 6, 5, 2), np.float32), "u": RNG.standard_normal((n, 3, 3, 2), np.float32)}
        want = feeds["x"].copy()
        want[:, 1:4, 2:] = feeds["u"]
        for libraries in ([library], []):
            (got,) = open_session(tmp_path / "f.onnx", options(libraries=libraries)).run(None, feeds)
            np.testing.assert_allclose(got, 1 / (1 + np.exp(-want)), rtol=1e-6)
