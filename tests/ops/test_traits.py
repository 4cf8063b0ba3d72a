"""Traits derived from rows agree with hand-written lists."""

from __future__ import annotations

from itertools import islice

import onnx
import pytest

from onnxfuse.config import Options
from onnxfuse.ir.compose import indices_of
from onnxfuse.ir.index import Loaded, atoms
from onnxfuse.ir.scalar import Load
from onnxfuse.load import load
from onnxfuse.measure import lifetimes
from onnxfuse.ops.rows import ROWS
from onnxfuse.ops.spec import Definition
from onnxfuse.ops.traits import is_view, keeps_order, small_calls, takes_a_part
from onnxfuse.rewrite.mutable_graph import Miss, MutableGraph
from onnxfuse.rewrite.proofs.conditions import nonnegative
from onnxfuse.runtime.feed_limits import INDICES, PASSED, SIZES

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


def work(expression: str, shape: str = "4, 6") -> MutableGraph:
    """A model in which a is not negative, x and z may be, and y is made by the expression."""
    made = "bool" if "Less" in expression else "float"
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[{shape}] x, float[{shape}] z) => ({made}[] y)
    <int64[2] shape = {{8, 3}}, int64[1] one = {{1}}, int64[1] three = {{3}}, int64[2] ones = {{4, 6}},
     float zero = {{0}}, float two = {{2}}>
    {{ a = Abs(x) y = {expression} }}"""
    proto = onnx.parser.parse_model(text)
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    return MutableGraph(load(proto.SerializeToString(), Options()))


def holds(w: MutableGraph) -> bool:
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
    assert VIEWS - {"Dropout"} == {op for op in ROWS.rows if lifetimes.shares_memory(op)}


def _first_calls(op: str) -> list[Definition]:
    """What the first small calls of an operator define; inputs behind the first are of all types there are in them."""
    return [d for row in ROWS.rows[op] for made, _ in islice(small_calls(row), 8) for d in made]


def test_values_of_inputs_are_followed_through_whatever_moves_them():
    made = {_plain(op): _first_calls(op) for op in ROWS.rows}
    moving = {op for op, found in made.items() if found and all(isinstance(d.value, Load) for d in found)}
    assert moving <= PASSED.keys()
    assert {"CastLike", "Clip", "Pad", "Where", "Max", "Min"} == PASSED.keys() - moving


def test_inputs_that_are_indices_are_known():
    """ReverseSequence reads how long its lines are; of EmbedLayerNormalization and Scatter there is no row of ours."""
    loaded = {_plain(op): {x for d in _first_calls(op) for x in _looked_up(d)} for op in ROWS.rows}
    found = {op for op, sources in loaded.items() if sources}
    assert found - INDICES.keys() == {"ReverseSequence"}
    assert all(loaded[op] == {f"x{i}" for i in INDICES[op]} for op in found & INDICES.keys())


def _plain(op: str) -> str:
    """An operator's name without its domain, as the tables about feeds have it."""
    return op.rpartition("::")[2]


def _looked_up(d: Definition) -> set[str]:
    """Inputs, those that an operator makes for itself aside."""
    found = {a.source for e in indices_of(d.value) for a in atoms(e) if isinstance(a, Loaded)}
    return {source for source in found if source.startswith("x")}


def test_inputs_that_are_sizes_are_known():
    """Of inputs that decide about shapes the others are axes, scales and sums that cannot be guessed."""
    shaping = {op: {i for row in rows for i in row.shape_inputs} for op, rows in ROWS.rows.items()}
    others = {op for op, inputs in shaping.items() if inputs and op not in SIZES}
    assert {op for op in others if not op.startswith("Reduce")} == {
        "Squeeze", "Unsqueeze", "Split", "Trilu", "Upsample", "CumSum", "CumProd", "Col2Im",
    }  # fmt: skip
    assert all(set(SIZES[op]) <= inputs for op, inputs in shaping.items() if op in SIZES and inputs)


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
