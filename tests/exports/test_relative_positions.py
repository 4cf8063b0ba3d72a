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
from tests.models.fused import Feeds
from tests.models.size_cases import Case
from tests.models.sizes import built, wrong
from tests.models.test_networks import needs_compiler

pytestmark = needs_compiler
BY_NAME = [pytest.param(case, id=case.name) for case in SHIFTED]


def lowered(case: Case) -> str:
    shown: list[str] = []
    last = {"stop_after": "lower", "print_step": "lower"}
    onnxfuse.optimize(case.model().SerializeToString(), show=shown.append, min_group=1, strict=True, **last)
    return shown[0]


@pytest.mark.parametrize("case", [case for case in SHIFTED if case.name != "shift-by-sizes-of-the-scores"])
def test_no_index_is_divided_by_a_length(case: Case) -> None:
    assert "//" not in lowered(case) and ")%" not in lowered(case)


@pytest.mark.parametrize("case", BY_NAME)
def test_without_elements_there_is_nothing_to_read(case: Case, tmp_path: Path) -> None:
    result = built(case.model(), tmp_path, strict=True)
    assert result.kernels > 0 and wrong(tmp_path, result, feeds(case, (0, 5), (0, 1), (3, 5)), FLOORS["float32"]) == {}


def feeds(case: Case, *sizes: tuple[int, int]) -> list[Feeds]:
    """Inputs of n and t elements."""
    random = np.random.default_rng(0)
    both = "z" in (i.name for i in case.model().graph.input)
    made = ({"x": random.standard_normal((n, t, 8), np.float32)} for n, t in sizes)
    return [
        each | ({"z": random.standard_normal((n, t, t), np.float32)} if both else {})
        for each, (n, t) in zip(made, sizes, strict=True)
    ]


def test_behind_the_end_of_the_table_it_is_as_it_was(tmp_path: Path) -> None:
    """Sixty-six rows find the last place of 130 alone, whose scores are added to all; more rows find too many."""
    case = next(case for case in SHIFTED if case.name == "shift-by-sizes-of-the-scores")
    result = built(case.model(), tmp_path, strict=True)
    sets = feeds(case, (2, 65), (2, 66), (1, 67), (1, 129), (1, 131), (2, 7))
    assert wrong(tmp_path, result, sets, FLOORS["float32"]) == {}
    original = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    assert original.run(None, sets[1])[0].shape == (2, 66, 66)


def test_what_divides_for_each_element_is_stored_for_several_readers() -> None:
    """The columns of a row are as many as places were found: no proof says that these are 2*t - 1."""
    case = next(case for case in SHIFTED if case.name == "shift-by-sizes-of-the-scores")
    (line,) = (line for line in lowered(case).splitlines() if ")%" in line)
    assert line.startswith("  e[")


def test_digits_of_an_axis_are_no_divisions() -> None:
    """The places of an open image that is turned and flattened: a loop over rows and one over columns."""
    nodes = """n_ = Shape <end = 1> (x)  a = Transpose <perm = [0, 2, 1]> (x)  s = Concat <axis = 0> (n_, minus)
        e = Reshape (a, s)  y = Softmax <axis = -1> (e)"""
    shown = lowered(Case("turned", "float[n, h, w_] x", "float[n, q] y", nodes))
    assert "  e[" not in shown and shown.count("//h") == 2


def test_a_build_as_users_make_it(tmp_path: Path) -> None:
    """Nothing is replaced: verified, loaded and run by the runtime."""
    onnx.save(SHIFTED[0].model(), tmp_path / "m.onnx")
    result = onnxfuse.optimize(tmp_path / "m.onnx", tmp_path / "o.onnx", gain=False)
    assert result.verify is not None and result.verify.ok and result.nodes_left == 0
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(result.output.library)
    sessions = [onnxruntime.InferenceSession(tmp_path / name, options) for name in ("m.onnx", "o.onnx")]
    for each in feeds(SHIFTED[0], (1, 1), (2, 2), (3, 7), (2, 64), (1, 33)):
        want, got = (s.run(None, each)[0] for s in sessions)
        np.testing.assert_allclose(got, want, 1e-5, 1e-6)
