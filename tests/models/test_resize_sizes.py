"""Resize of sizes that are only known when the model runs: the elements that ONNX Runtime takes, for every ratio."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxfuse.runtime.engine import open_session, options
from tests.models.sizes import built
from tests.models.test_networks import needs_compiler

pytestmark = needs_compiler

ALL = list(range(1, 71))
SOME = [*range(1, 13), 19, 37, 64, 70]
PLACES = ("asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners")
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
NEAREST = [f'mode = "nearest", nearest_mode = "{r}", coordinate_transformation_mode = "{p}"'
           for p, r in product((*PLACES, "tf_half_pixel_for_nn"), ROUNDINGS)]  # fmt: skip
LINEAR = [f'mode = "linear", coordinate_transformation_mode = "{p}"' for p in PLACES]
CUBIC = [f'mode = "cubic", coordinate_transformation_mode = "{p}", exclude_outside = {e}, cubic_coeff_a = {a}'
         for p in PLACES for e, a in ((0, -0.75), (1, -0.5))]  # fmt: skip


def _model(manners: list[str]) -> onnx.ModelProto:
    """Of opset 12, which has all coordinates: each manner from h to i elements."""
    outputs = ", ".join(f"float[n, i] y{k}" for k in range(len(manners)))
    nodes = "  ".join(
        f"m{k} = Resize <{manner}> (r, none, none, s)  y{k} = Neg (m{k})" for k, manner in enumerate(manners)
    )
    text = f"""<ir_version: 8, opset_import: ["" : 12]>
        g (float[n, h] x, float[n, i] z) => ({outputs}) <float[0] none = {{}}> {{
        r = Relu (x)  s = Shape (z)  {nodes} }}"""
    return parser.parse_model(text)


@pytest.mark.parametrize(
    ("manners", "limit", "sizes"),
    [(NEAREST, 0.0, ALL), (LINEAR, 5e-5, ALL), (CUBIC, 1e-4, SOME)],
    ids=["nearest", "linear", "cubic"],
)
def test_resizes_of_every_ratio(manners: list[str], limit: float, sizes: list[int], tmp_path: Path) -> None:
    result = built(_model(manners), tmp_path, strict=True)
    made = onnx.load(tmp_path / "fused.onnx")
    assert "Resize" not in {node.op_type for node in made.graph.node}
    assert result.output.library is not None
    plain = open_session(str(tmp_path / "m.onnx"), options(optimize=False, threads=1))
    ways = [
        open_session(str(tmp_path / "fused.onnx"), options(libraries=found, threads=1))
        for found in ([str(result.output.library)], [])
    ]
    for h, i in product(sizes, repeat=2):
        feeds = {"x": np.arange(2.0 * h, dtype=np.float32).reshape(2, h), "z": np.zeros((2, i), np.float32)}
        wanted = plain.run(None, feeds)
        for way in ways:
            found = way.run(None, feeds)
            wrong = [
                m for m, a, b in zip(manners, wanted, found, strict=True)
                if a.shape != b.shape or np.abs(a - b).max() > limit
            ]  # fmt: skip
            assert not wrong, (h, i)


PARTS = (3, 40, 60)  # whose reciprocals are more than 1/n when they are rounded
BY_PARTS = [m for m in (*NEAREST, *LINEAR) if "align_corners" not in m]


@pytest.mark.parametrize("parts", PARTS)
def test_resizes_by_rounded_reciprocals(parts: int, tmp_path: Path) -> None:
    outputs = ", ".join(f"float[n, i] y{k}" for k in range(len(BY_PARTS)))
    nodes = "  ".join(
        f"m{k} = Resize <{manner}> (r, none, scales)  y{k} = Neg (m{k})" for k, manner in enumerate(BY_PARTS)
    )
    text = f"""<ir_version: 8, opset_import: ["" : 12]>
        g (float[n, h] x) => ({outputs}) <float[0] none = {{}}, float[2] scales = {{1, {1 / parts}}}> {{
        r = Relu (x)  {nodes} }}"""
    result = built(parser.parse_model(text), tmp_path, strict=True)
    assert "Resize" not in {node.op_type for node in onnx.load(tmp_path / "fused.onnx").graph.node}
    plain = open_session(str(tmp_path / "m.onnx"), options(optimize=False, threads=1))
    found = open_session(str(tmp_path / "fused.onnx"), options(libraries=[str(result.output.library)], threads=1))
    for h in (parts, parts + 1, 2 * parts - 1, 2 * parts, 7 * parts, 7 * parts + 2, 300 * parts):
        feeds = {"x": np.arange(2.0 * h, dtype=np.float32).reshape(2, h) / h}
        for manner, a, b in zip(BY_PARTS, plain.run(None, feeds), found.run(None, feeds), strict=True):
            assert a.shape == b.shape, (h, manner)
            np.testing.assert_allclose(b, a, rtol=0, atol=5e-5 if "linear" in manner else 0, err_msg=f"{h} {manner}")
