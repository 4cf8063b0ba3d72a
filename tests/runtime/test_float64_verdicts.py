"""Results beyond the limit are judged by a float64 evaluation, which still rejects an error of a percent."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.errors import DeviceError
from onnxfuse.runtime import engine
from onnxfuse.verify import compare, truth, verify_models

FLOAT = TensorProto.FLOAT


def model(nodes: list[onnx.NodeProto], x: list[Any], **constants: Any) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    values = [helper.make_tensor_value_info(n, FLOAT, d) for n, d in (("x", x), ("y", None))]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def random(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def both(proto: onnx.ModelProto, x: Any) -> tuple[str, Any, Any]:
    name, ((true,),) = truth.truth(proto, [{"x": x}], ["y"])
    return name, true, engine.run(engine.open_session(proto.SerializeToString(), engine.options()), {"x": x})[0]


def test_the_runtime_has_kernels_for_doubles():
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Softmax", ["p"], ["y"])]
    name, true, found = both(model(nodes, [5, 64], w=random(64, 9)), random(5, 64))
    assert (name, true.dtype) == (truth.RUNTIME, np.float64)
    assert 0 < compare.distance(true, found.astype(np.float64)).error < 1e-6


@pytest.mark.parametrize(
    "attributes",
    [
        {"pads": [1, 2, 0, 1], "strides": [2, 1], "dilations": [1, 2], "group": 2},
        {"auto_pad": "SAME_LOWER", "strides": [2, 2], "group": 2},
        {"auto_pad": "SAME_UPPER", "group": 2},
        {"auto_pad": "VALID", "group": 2},
    ],
)
def test_what_the_runtime_has_not_is_evaluated_node_by_node(attributes: dict[str, Any]):
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], **attributes),
        helper.make_node("Erf", ["c"], ["e"]),
        helper.make_node("GlobalAveragePool", ["e"], ["m"]),
        helper.make_node("Add", ["e", "m"], ["y"]),
    ]
    name, true, found = both(model(nodes, [2, 4, 11, 13], w=random(6, 2, 3, 3), b=random(6)), random(2, 4, 11, 13))
    assert name == truth.REFERENCE
    assert 0 < compare.distance(true, found.astype(np.float64)).error < 1e-6


def test_the_runtime_suppresses_boxes_of_float64_too():
    """It takes them as float32; the reference evaluator is a loop in Python, a minute for some hundreds of classes."""
    nodes = [
        helper.make_node("Abs", ["x"], ["boxes"]),
        helper.make_node("NonMaxSuppression", ["boxes", "scores", "most", "overlap", "least"], ["chosen"]),
        helper.make_node("Cast", ["chosen"], ["y"], to=FLOAT),
    ]
    limits = {"most": np.int64(20), "overlap": np.float32(0.5), "least": np.float32(0.1)}
    name, true, found = both(model(nodes, [1, 300, 4], scores=random(1, 3, 300), **limits), random(1, 300, 4))
    assert name == truth.RUNTIME
    assert true.shape == found.shape == (60, 3) and (true == found).all()


def test_only_its_own_work_counts(monkeypatch: pytest.MonkeyPatch):
    """While others work, or it waits, the evaluation takes longer, not more."""
    monkeypatch.setattr(truth, "SECONDS", 0.5)
    with truth._limited():
        time.sleep(1.0)
    with pytest.raises(DeviceError, match="too long"), truth._limited():
        begin = time.process_time()
        while time.process_time() < begin + 5.0:
            pass


@pytest.mark.parametrize("op", ["MatMulInteger", "ConvInteger"])
def test_sums_of_products_of_codes_do_not_saturate(op: str):
    """Where the runtime does without optimizations; `test_amplified` has such nodes among others."""
    shape = (8, 8) if op == "MatMulInteger" else (1, 8, 1, 1)
    left, right = np.full(shape, 255, np.uint8), np.full(shape, 127, np.int8)
    kinds = {"a": TensorProto.UINT8, "b": TensorProto.INT8, "y": TensorProto.INT32}
    a, _, y = (helper.make_tensor_value_info(name, kind, None) for name, kind in kinds.items())
    node = helper.make_node(op, ["a", "b"], ["y"])
    graph = helper.make_graph([node], "g", [a], [y], [numpy_helper.from_array(right, "b")])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    _, ((found,),) = truth.truth(proto, [{"a": left}], ["y"])
    assert (found == 8 * 255 * 127).all()


def test_casts_constants_and_branches_are_widened():
    def branch(value: float) -> onnx.GraphProto:
        out = helper.make_tensor_value_info("b", FLOAT, None)
        nodes = [helper.make_node("Constant", [], ["k"], value_float=value), helper.make_node("Mul", ["x", "k"], ["b"])]
        return helper.make_graph(nodes, "b", [], [out])

    nodes = [
        helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
        helper.make_node("Cast", ["s"], ["yes"], to=TensorProto.BOOL),
        helper.make_node("If", ["yes"], ["f"], then_branch=branch(0.1), else_branch=branch(0.2)),
        helper.make_node("Cast", ["f"], ["y"], to=FLOAT),
    ]
    _, true, found = both(model(nodes, [40]), random(40))
    np.testing.assert_allclose(true, np.float64(np.float32(0.1)) * random(40).astype(np.float64), rtol=1e-12)
    assert found.dtype == np.float32


def test_unknown_operators():
    proto = model([helper.make_node("Strange", ["x"], ["y"], domain="nobody")], [4])
    proto.opset_import.append(helper.make_opsetid("nobody", 1))
    with pytest.raises(DeviceError, match="no evaluation of Strange"):
        truth.truth(proto, [{"x": random(4)}], ["y"])


# ---- the judgement ----


@pytest.mark.parametrize(
    ("pairs", "others", "ok"),
    [
        ([(4e-5, 3e-5)], False, True),  # twice the original's own
        ([(7e-5, 3e-5)], False, False),
        ([(1.5e-5, 0.0)], False, True),  # the limit that is there
        ([(3e-3, 2e-3)], False, False),  # a percent of one kernel may be as little
        ([(3e-3, 2e-3)], True, True),  # which other inputs tell
        ([(1e-2, 1e-5), (3e-3, 2e-3)], False, False),
        ([(5.0, 3.0)], True, True),  # where the original makes noise, nothing is said
        ([(5.0, 3.0)], False, False),
    ],
)
def test_a_float64_evaluation_decides(pairs: list[tuple[float, float]], others: bool, ok: bool):
    error, limit = compare.by_truth(pairs, others, 2e-5)
    assert (error <= limit) is ok


def scaled(path: Path, *, exact: bool, wrong: float = 1.0) -> Path:
    """x times weights, of which the digits behind a large number were lost on the way, or not."""
    nodes = [helper.make_node("Add", ["k", "far"], ["big"]), helper.make_node("Sub", ["big", "far"], ["w"])]
    nodes = [helper.make_node("Identity", ["k"], ["w"])] if exact else nodes
    nodes += [helper.make_node("Mul", ["x", "w"], ["v"]), helper.make_node("Mul", ["v", "gain"], ["y"])]
    onnx.save(model(nodes, [30, 500], k=random(500), far=np.float32(3000.0), gain=np.float32(wrong)), path)
    return path


def test_a_model_that_is_nearer_to_the_truth_passes_and_a_percent_does_not(tmp_path: Path):
    original = scaled(tmp_path / "a.onnx", exact=False)
    better = verify_models(original, scaled(tmp_path / "b.onnx", exact=True))
    assert better.ok is True
    assert {run.evaluator for run in better.runs} == {truth.RUNTIME}
    assert better.tolerance is not None and better.tolerance > compare.FLOORS["float32"]
    assert verify_models(original, scaled(tmp_path / "c.onnx", exact=True, wrong=1.01)).ok is False


def test_constant_of_shape_without_a_value():
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("ConstantOfShape", ["s"], ["z"]),
        helper.make_node("MatMul", ["x", "z"], ["p"]),
        helper.make_node("Sigmoid", ["p"], ["y"]),
    ]
    _, true, found = both(model(nodes, [4, 4]), random(4, 4))
    assert true.dtype == np.float64
    np.testing.assert_array_equal(true, found)


def saturated(path: Path, *, exact: bool, wrong: float = 1.0) -> Path:
    """An 8-bit product and a Sigmoid of one element far below zero, where the runtime's own is off by percents."""
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["codes", "scale", "zero"]),
        helper.make_node("MatMulInteger", ["codes", "w", "zero"], ["sums"]),
        helper.make_node("Cast", ["sums"], ["numbers"], to=FLOAT),
        helper.make_node("Mul", ["scale", "small"], ["step"]),
        helper.make_node("Mul", ["numbers", "step"], ["product"]),
        helper.make_node("Add", ["product", "bias"], ["v"]),
    ]
    if exact:
        nodes += [
            helper.make_node("Exp", ["v"], ["e"]),
            helper.make_node("Add", ["e", "one"], ["below"]),
            helper.make_node("Div", ["e", "below"], ["s"]),
        ]
    else:
        nodes.append(helper.make_node("Sigmoid", ["v"], ["s"]))
    nodes.append(helper.make_node("Mul", ["s", "gain"], ["y"]))
    w = np.random.default_rng(0).integers(-3, 4, (64, 1)).astype(np.int8)
    numbers = {name: np.float32(n) for name, n in (("bias", -16.2), ("small", 0.02), ("one", 1), ("gain", wrong))}
    onnx.save(model(nodes, [1, 64], w=w, **numbers), path)
    return path


def test_a_model_of_codes_that_is_nearer_to_the_truth_passes_and_a_percent_does_not(tmp_path: Path):
    original = saturated(tmp_path / "a.onnx", exact=False)
    better = verify_models(original, saturated(tmp_path / "b.onnx", exact=True))
    assert better.informational and better.ok is True
    assert better.runs[-1].evaluator == truth.REFERENCE  # the closest run; others are within what steps of codes allow
    assert verify_models(original, saturated(tmp_path / "c.onnx", exact=True, wrong=1.01)).ok is False
