"""What is derived from rows about operators, against what people would list; and of images what rows say."""

from __future__ import annotations

import onnx
import pytest

from onnxfuse.config import Options
from onnxfuse.load import load
from onnxfuse.measure import lifetimes
from onnxfuse.ops.rows import ROWS
from onnxfuse.ops.traits import is_view, keeps_order, takes_a_part
from onnxfuse.rewrite.proofs.conditions import nonnegative
from onnxfuse.rewrite.work import Miss, Work

# Of these, the last ones move elements only in calls that do nothing: a Sum of one tensor, a Cast to the type it is of.
KEEP_ORDER = {"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Dropout"} | {
    "Cast", "CastLike", "Clip", "Max", "Min", "Sum",
}  # fmt: skip
VIEWS = {"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Dropout"}
PARTS = VIEWS | {"Slice", "Split", "Crop"}
IMAGES = {
    "convolution": {"Conv", "ConvTranspose", "ConvInteger", "QLinearConv"},
    "pool": {"MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"}
    | {f"com.microsoft::{op}" for op in ("QLinearAveragePool", "QLinearGlobalAveragePool")},
}
ALWAYS = (
    "Exp(x)", "Sigmoid(x)", "Softmax(x)", "Softplus(x)", "Relu(x)", "Abs(x)", "Sqrt(x)", "Mul(x, x)", "Pow(x, two)",
    "ReduceL1(x)", "ReduceL2(x)", "ReduceSumSquare(x)", "Clip(x, zero)", "Clip(x, zero, two)", "Max(x, a)",
    "Concat <axis = 0> (a, a)", "Less(x, z)",
)  # fmt: skip
WHERE_INPUTS_ARE = (
    "Reshape({0}, shape)", "Transpose({0})", "Squeeze({0})", "Unsqueeze({0}, one)", "Flatten({0})", "Identity({0})",
    "Slice({0}, one, three)", "Expand({0}, ones)", "Gather({0}, one)", "ReduceMean <axes = [1]> ({0})",
    "ReduceSum({0}, one)", "ReduceMax <axes = [1]> ({0})", "ReduceMin <axes = [1]> ({0})", "Add({0}, a)",
    "Mul({0}, a)", "Div({0}, a)", "Min({0}, a)", "Concat <axis = 0> ({0}, a)", "Sum({0}, a)", "Mean({0}, a)",
)  # fmt: skip
IMAGE_POOLS = ("GlobalAveragePool({0})", "GlobalMaxPool({0})", "MaxPool <kernel_shape = [2]> ({0})")
NEVER = ("Neg(a)", "Sub(a, a)", "Tanh(x)", "Add(a, x)", "Mul(a, x)", "Log(a)", "Max(x, z)", "Min(a, x)")


def work(expression: str, shape: str = "4, 6") -> Work:
    """A model in which a is not negative, x and z may be, and y is made by the expression."""
    made = "bool" if "Less" in expression else "float"
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[{shape}] x, float[{shape}] z) => ({made}[] y)
    <int64[2] shape = {{8, 3}}, int64[1] one = {{1}}, int64[1] three = {{3}}, int64[2] ones = {{4, 6}},
     float zero = {{0}}, float two = {{2}}>
    {{ a = Abs(x) y = {expression} }}"""
    proto = onnx.parser.parse_model(text)
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    return Work(load(proto.SerializeToString(), Options()))


def holds(w: Work) -> bool:
    try:
        nonnegative(w, "y")
    except Miss:
        return False
    return True


def test_what_keeps_the_order_of_elements():
    assert {op for op, rows in ROWS.rows.items() if any(map(keeps_order, rows))} == KEEP_ORDER


def test_what_gives_another_shape_alone_and_what_takes_a_part():
    assert {op for op, rows in ROWS.rows.items() if any(map(is_view, rows))} == VIEWS
    assert {op for op, rows in ROWS.rows.items() if any(map(takes_a_part, rows))} == PARTS


def test_what_the_runtime_gives_no_memory_is_a_view():
    """It copies what a Dropout reads."""
    assert VIEWS - {"Dropout"} == lifetimes.VIEWS


def test_operators_of_images():
    for images, ops in IMAGES.items():
        assert {op for op, rows in ROWS.rows.items() if any(row.images == images for row in rows)} == ops


@pytest.mark.parametrize("expression", ALWAYS)
def test_never_negative(expression: str):
    assert holds(work(expression))


@pytest.mark.parametrize("expression", WHERE_INPUTS_ARE)
def test_not_negative_where_inputs_are_not(expression: str):
    assert holds(work(expression.format("a")))
    assert not holds(work(expression.format("x")))


@pytest.mark.parametrize("expression", IMAGE_POOLS)
def test_pools_of_what_is_not_negative(expression: str):
    assert holds(work(expression.format("a"), "1, 3, 8"))
    assert not holds(work(expression.format("x"), "1, 3, 8"))


@pytest.mark.parametrize("expression", NEVER)
def test_what_may_be_negative(expression: str):
    assert not holds(work(expression))


def test_symbols_prove_no_less():
    assert holds(work("ReduceMean <axes = [1]> (a)", "N, M"))
