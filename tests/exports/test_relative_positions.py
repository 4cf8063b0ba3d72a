"""Scores by relative position are read where they lie, at sizes that are not known when the model is built."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import onnxfuse
from onnxfuse.verify.compare import FLOORS
from tests.models.cases.shifted import SHIFTED
from tests.models.size_cases import Case
from tests.models.sizes import built, wrong
from tests.models.test_networks import needs_compiler

pytestmark = needs_compiler
BY_NAME = [pytest.param(case, id=case.name) for case in SHIFTED]


@pytest.mark.parametrize("case", BY_NAME)
def test_no_index_is_divided_by_a_length(case: Case) -> None:
    shown: list[str] = []
    last = {"stop_after": "lower", "print_step": "lower"}
    onnxfuse.optimize(case.model().SerializeToString(), show=shown.append, min_group=1, strict=True, **last)
    assert "//" not in shown[0] and ")%" not in shown[0]


@pytest.mark.parametrize("case", BY_NAME)
def test_without_elements_there_is_nothing_to_read(case: Case, tmp_path: Path) -> None:
    result = built(case.model(), tmp_path, strict=True)
    feeds = [{"x": np.zeros((*sizes, 8), np.float32)} for sizes in ((0, 5), (0, 1), (3, 5))]
    assert result.kernels > 0 and wrong(tmp_path, result, feeds, FLOORS["float32"]) == {}


def test_a_build_as_users_make_it(tmp_path: Path) -> None:
    """Nothing is replaced: verified, loaded and run by the runtime."""
    onnx.save(SHIFTED[0].model(), tmp_path / "m.onnx")
    result = onnxfuse.optimize(tmp_path / "m.onnx", tmp_path / "o.onnx", gain=False)
    assert result.verify is not None and result.verify.ok and result.nodes_left == 0
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(result.output.library)
    sessions = [onnxruntime.InferenceSession(tmp_path / name, options) for name in ("m.onnx", "o.onnx")]
    random = np.random.default_rng(0)
    for n, t in ((1, 1), (2, 2), (3, 7), (2, 64), (1, 33)):
        x = random.standard_normal((n, t, 8), np.float32)
        want, got = (s.run(None, {"x": x})[0] for s in sessions)
        np.testing.assert_allclose(got, want, 1e-5, 1e-6)
