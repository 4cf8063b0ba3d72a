"""The hand-written reference kernels are correct, and the race reports them; their speed is not tested."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.rendered.kernels import planned
from benchmarks.rendered.models import TWINS
from benchmarks.twins.cases import CASES
from benchmarks.twins.run import HERE, compare, error, library
from tests.kernels.pool_host import Pool, compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


@pytest.mark.parametrize("name", [pytest.param(c, marks=() if c == "softmax_128" else pytest.mark.slow) for c in CASES])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_twin_is_within_its_bound(name: str, threads: int) -> None:
    case = CASES[name](np.random.default_rng(5))
    with Pool(threads) as pool:
        twin = pool.load(library(HERE / case.source), case.symbol)
        assert error(twin.run(*case.inputs), [case.reference]) <= case.bound


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_that_is_raced_computes_what_its_twin_does(name: str) -> None:
    twin = TWINS[name](CASES[name](np.random.default_rng(5)))
    graph, _, kernel = planned(twin)
    assert {p.value for p in kernel.inputs} <= {*graph.constants, *twin.feeds}
    assert [p.value for p in kernel.outputs] == [twin.group]


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 13, 14, 77, 300])
def test_the_dynamic_gemm_takes_any_number_of_rows(rows: int) -> None:
    case = CASES["gemm_gelu_dynamic"](np.random.default_rng(5))
    x = np.resize(case.inputs[0], (rows, case.inputs[0].shape[1]))
    with Pool(2) as pool:
        (y,) = pool.load(library(HERE / case.source), case.symbol).run(x, *case.inputs[1:])
    assert error([y], [np.resize(case.reference, (rows, case.reference.shape[1]))]) <= case.bound


def test_a_comparison_sees_a_wrong_kernel() -> None:
    case = CASES["softmax_128"](np.random.default_rng(5))
    source = (HERE / case.source).read_text()
    wrong = source.replace("store(factor, 1.0f", "store(factor, 1.001f")
    assert wrong != source
    shapes = [case.reference.shape]
    result = compare(
        source, case.symbol, wrong, case.symbol, case.inputs, shapes, threads=1, repeats=0.01, expected=[case.reference]
    )
    assert result["shapes_match"]
    assert result["error_a"] <= case.bound < 1e-4 < result["error_b"]
    assert result["ratio"] > 0
