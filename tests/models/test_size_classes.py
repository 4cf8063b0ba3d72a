"""Symbols that are 1 or equal at run time: every class in a small graph, with the library and without."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onnxfuse.verify.compare import FLOORS
from tests.models.cases.amounts import AMOUNTS
from tests.models.cases.derived import DERIVED, LEFT_DERIVED
from tests.models.cases.shifted import SHIFTED
from tests.models.size_cases import CASES, FAILS, LEFT, UNFUSED, Case
from tests.models.sizes import built, left, wrong
from tests.models.test_networks import needs_compiler

pytestmark = needs_compiler
ALL = (*CASES, *AMOUNTS, *DERIVED, *SHIFTED)
LEFT_OVER = {**LEFT, **LEFT_DERIVED}


def _marked(case: Case) -> object:
    why = FAILS.get(case.name)
    return pytest.param(case, id=case.name, marks=pytest.mark.xfail(strict=True, reason=why) if why else ())


@pytest.mark.parametrize("case", [_marked(case) for case in ALL])
def test_a_class_of_sizes(case: Case, tmp_path: Path) -> None:
    """One build computes what the original does at every size, and refuses what that refuses."""
    result = built(case.model(), tmp_path, strict=True)
    assert (result.kernels == 0) == (case.name in UNFUSED)
    assert left(tmp_path)[0] <= LEFT_OVER.get(case.name, 0)
    assert wrong(tmp_path, result, case.feeds(), FLOORS["float32"]) == {}


EMPTY = (
    Case("last-row", "float[n, 8] x", "float[q, 8] y", "e = Exp (x)  g_ = Gather (e, minus)  y = Tanh (g_)"),
    Case("running-sums", "float[n, 8] x", "float[n, 8] y",
         "i = MatMul (x, w)  r = Relu (i)  s = CumSum (r, none)  e = Exp (s)  y = Tanh (e)"),
    Case("rows-by-indices", "float[n, 8] x, int64[m] i", "float[m, 8] y",
         "a = Abs (x)  g_ = Gather (a, i)  y = Sqrt (g_)"),
)  # fmt: skip


@pytest.mark.parametrize("case", EMPTY, ids=lambda case: case.name)
def test_an_axis_without_elements_is_not_read(case: Case, tmp_path: Path) -> None:
    """The kernel makes what there is to make of nothing, and refuses what the runtime refuses."""
    result = built(case.model(), tmp_path, strict=True)
    assert result.kernels > 0
    shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in case.model().graph.input}
    feeds = [
        {name: np.zeros([n or each for n in shape], np.int64 if name == "i" else np.float32)
         for (name, shape), each in zip(shapes.items(), sizes, strict=False)}
        for sizes in ((0, 0), (0, 3), (5, 0), (5, 3))
    ]  # fmt: skip
    assert wrong(tmp_path, result, feeds, FLOORS["float32"]) == {}


def test_names_of_sizes_that_contradict_each_other(tmp_path: Path) -> None:
    """2*n and n + 1 are equal at one n; the runtime, to which these are names, takes all sizes that it can add."""
    model = Case("names", "float[n, 4] x, float[m, 4] y", "float[n, 4] z", "s = Add (x, y)  z = Relu (s)").model()
    for info, name in zip(model.graph.input, ("2*n", "n + 1"), strict=True):
        info.type.tensor_type.shape.dim[0].dim_param = name
    result = built(model, tmp_path, strict=True)
    assert result.kernels == 1
    random = np.random.default_rng(3)
    sizes = ((4, 4), (2, 2), (5, 5), (64, 64), (1, 3), (4, 3))
    feeds = [
        {name: random.standard_normal((rows, 4), np.float32) for name, rows in zip("xy", each, strict=True)}
        for each in sizes
    ]
    assert wrong(tmp_path, result, feeds, FLOORS["float32"]) == {}


def test_tables_are_of_cases_that_are_there() -> None:
    names = [case.name for case in ALL]
    assert len(set(names)) == len(names)
    assert set(FAILS) | UNFUSED | set(LEFT_OVER) <= set(names)
