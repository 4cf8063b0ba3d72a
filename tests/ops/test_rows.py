"""Every row agrees with ONNX's reference evaluator and with ONNX Runtime, symbolic sizes included."""

from __future__ import annotations

from collections import Counter

import pytest

from onnxfuse.ir.graph import Decision
from onnxfuse.ops.rows import ROWS
from onnxfuse.verify.codes import saturates
from tests.ops import (
    cases_attention,
    cases_coded,
    cases_contraction,
    cases_contrib,
    cases_elementwise,
    cases_movement,
    cases_normalization,
    cases_qlinear,
    cases_quantized,
    cases_recurrent,
    cases_reduction,
    cases_resize,
    cases_sample,
    cases_scatter,
)
from tests.ops.case import Case, by_operator, check, hold, model, onnx_says, ours, ours_symbolic, runtime_says

CASES: tuple[Case, ...] = (
    *cases_coded.CASES,
    *cases_elementwise.CASES,
    *cases_movement.CASES,
    *cases_reduction.CASES,
    *cases_recurrent.CASES,
    *cases_normalization.CASES,
    *cases_contrib.CASES,
    *cases_attention.CASES,
    *cases_qlinear.CASES,
    *cases_quantized.CASES,
    *cases_contraction.CASES,
    *cases_resize.CASES,
    *cases_sample.CASES,
    *cases_scatter.CASES,
)
OPERATORS = by_operator(CASES)
# With symbols for all sizes: how many cases of each operator may be refused, by code. Fewer are better.
MAY_NEED_SIZES = {
    ("E-SHAPE-UNKNOWN", "Resize"): 75,
    ("E-SHAPE-UNKNOWN", "ConvTranspose"): 29,
    ("E-SHAPE-UNKNOWN", "Slice"): 22,
    ("E-SHAPE-UNKNOWN", "Conv"): 20,
    ("E-SHAPE-UNKNOWN", "com.microsoft::MultiHeadAttention"): 11,
    ("E-SHAPE-UNKNOWN", "GroupNormalization"): 10,
    ("E-SHAPE-UNKNOWN", "Reshape"): 9,
    ("E-SHAPE-UNKNOWN", "ScatterND"): 9,
    ("E-SHAPE-UNKNOWN", "CenterCropPad"): 6,
    ("E-SHAPE-UNKNOWN", "Split"): 6,
    ("E-SHAPE-UNKNOWN", "Squeeze"): 4,
    ("E-SHAPE-UNKNOWN", "Upsample"): 4,
    ("E-SHAPE-UNKNOWN", "com.microsoft::FusedConv"): 4,
    ("E-SHAPE-UNKNOWN", "GatherND"): 3,
    ("E-SHAPE-UNKNOWN", "QLinearConv"): 2,
    ("E-SHAPE-UNKNOWN", "ConvInteger"): 1,
    ("E-BROADCAST", "DequantizeLinear"): 1,
    ("E-BROADCAST", "QuantizeLinear"): 1,
}


def test_every_row_has_a_case_in_every_range_of_opsets() -> None:
    for op, rows in ROWS.rows.items():
        for row in rows:
            served = [c for c in CASES if c.op == op and row.since <= c.opset <= row.until]
            assert served, f"{op} from opset {row.since} has no case"


@pytest.mark.parametrize("op", OPERATORS)
def test_a_row_means_what_onnx_means(op: str) -> None:
    hold(assert_means_what_onnx_means, OPERATORS[op])


def assert_means_what_onnx_means(case: Case) -> None:
    got = ours(case)
    proto = model(case, [y.dtype for y in got])
    asked = 0
    if case.wanted:
        check(case, got, case.wanted, "NumPy")
        asked += 1
    if "onnx" not in case.wrong:
        check(case, got, onnx_says(case, proto), "onnx")
        asked += 1
    saturated = saturates(proto.graph)  # by the runtime, on this machine
    runtime = runtime_says(case, proto) if "runtime" not in case.wrong and not saturated else None
    if runtime is not None:
        check(case, got, runtime, "runtime")
        asked += 1
    assert asked or saturated, "nothing to compare with"


def test_few_cases_are_refused_with_symbols() -> None:
    """What is refused is compared with nothing: it is counted, and says what would unlock it."""
    made = [(case.op, found) for case in CASES if isinstance(found := ours_symbolic(case), Decision)]
    found = Counter((told.code, op) for op, told in made)
    assert {key: count for key, count in found.items() if count > MAY_NEED_SIZES.get(key, 0)} == {}
    assert {told.reason for _, told in made if told.code == "E-SHAPE-UNKNOWN" and not told.unlock} == set()


@pytest.mark.parametrize("op", OPERATORS)
def test_a_row_means_the_same_with_symbols(op: str) -> None:
    hold(assert_means_the_same_with_symbols, OPERATORS[op])


def assert_means_the_same_with_symbols(case: Case) -> None:
    got = ours_symbolic(case)
    if isinstance(got, Decision):
        assert (got.code, case.op) in MAY_NEED_SIZES, got
    else:
        check(case, got, ours(case), "static")
