"""A crash, loop or memory exhaustion of ONNX's shape inference costs only its result."""

import itertools
import signal
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, shape_inference

from onnxfuse import optimize
from onnxfuse.config import Options
from onnxfuse.errors import ModelError
from onnxfuse.load import load
from onnxfuse.runtime import inference, process
from tests.build.test_process import gone
from tests.caches import own_cache
from tests.load.models import parse

GOOD = parse("g (float[N, 4] x) => (float[N, 4] y) <float[4] w = {1, 2, 3, 4}> { t = Mul(x, w)\n y = Relu(t) }")


def model_of(nodes: list[onnx.NodeProto], y: str, constants: dict[str, np.ndarray], dims: tuple[int, ...]):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    out = helper.make_tensor_value_info(y, TensorProto.FLOAT, dims)
    graph = helper.make_graph(nodes, "g", [x], [out], [numpy_helper.from_array(v, k) for k, v in constants.items()])
    opsets = [helper.make_opsetid(*pair) for pair in (("", 17), ("ai.onnx.ml", 4), ("com.microsoft", 1))]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def crashing() -> onnx.ModelProto:
    """Inference reads the type of the encoder's input without asking whether it is known."""
    nodes = [
        helper.make_node("QuickGelu", ["x"], ["q"], domain="com.microsoft"),
        helper.make_node("LabelEncoder", ["q"], ["label"], domain="ai.onnx.ml", keys_floats=[0.0], values_int64s=[7]),
        helper.make_node("Cast", ["label"], ["c"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["x", "x"], ["m"]),
        helper.make_node("Exp", ["m"], ["e"]),
        helper.make_node("Add", ["e", "c"], ["y"]),
    ]
    return model_of(nodes, "y", {}, (2, 3))


def doubling(times: int) -> onnx.ModelProto:
    """Inference holds all elements of what is joined."""
    names = ["c", *(f"t{k}" for k in range(times))]
    nodes = [helper.make_node("Concat", [a, a], [b], axis=0) for a, b in itertools.pairwise(names)]
    nodes += [helper.make_node("ReduceMax", [names[-1]], ["v"]), helper.make_node("Add", ["x", "v"], ["y"])]
    return model_of(nodes, "y", {"c": np.ones(1, np.float32)}, (2, 3))


def test_inference_in_process_would_kill_it():
    """Else the tests below show nothing."""
    program = f"import onnx; onnx.shape_inference.infer_shapes({crashing().SerializeToString()!r}, data_prop=True)"
    assert process.run((sys.executable, "-c", program), time_limit=60).code == -signal.SIGSEGV


def test_answers_are_those_of_onnx():
    for model in (GOOD, doubling(3)):
        mine = inference.of_model(model)
        assert mine is not None
        assert mine == shape_inference.infer_shapes(model, data_prop=True)


def test_a_model_that_crashes_it_is_optimized_all_the_same(tmp_path: Path):
    source = tmp_path / "m.onnx"
    source.write_bytes(crashing().SerializeToString())
    result = optimize(source, tmp_path / "out.onnx", cache_dir=own_cache(tmp_path / "cache"))
    assert result.kernels == 1
    assert result.verify is not None and result.verify.ok
    assert any("SIGSEGV" in note for note in result.notes)


def test_memory_is_limited_and_rows_know_the_types():
    start = time.monotonic()
    graph = load(doubling(32).SerializeToString(), Options())
    assert time.monotonic() - start < 30
    assert any("MB allowed" in said for said in graph.source.warnings)
    t = graph.types["t31"]
    assert t is not None and t.static_shape == (2**32,)
    y = graph.types["y"]
    assert y is not None and y.static_shape == (2, 3)


def test_a_value_larger_than_the_machine_ends_before_anything_is_compiled(tmp_path: Path):
    source = tmp_path / "m.onnx"
    source.write_bytes(doubling(50).SerializeToString())
    with pytest.raises(ModelError, match="alone takes .* cannot be verified"):
        optimize(source, tmp_path / "out.onnx")


def test_a_node_that_crashes_it_costs_that_node():
    types = {
        "x": helper.make_tensor_type_proto(TensorProto.FLOAT, [2, 3]),
        "i": helper.make_tensor_type_proto(TensorProto.INT64, [2, 1]),
    }
    bad = helper.make_node("GatherND", ["x", "i"], ["y"], batch_dims=-1_000_000)
    good = helper.make_node("GatherND", ["x", "i"], ["y"])
    with inference.watched() as losses:
        assert inference.of_node(bad, 17, types, {}) == {}
        assert inference.of_node(good, 17, types, {})["y"] == helper.make_tensor_type_proto(TensorProto.FLOAT, [2, 3])
    assert [said.rpartition(" ")[2] for said in losses.said] == ["SIGSEGV"]


def test_what_fails_shares_its_seconds():
    start = time.monotonic()
    with inference.watched(0.3) as losses:
        for _ in range(20):
            assert inference.of_model(doubling(36)) is None
        assert inference.of_model(GOOD) is None, "there is no time left"
    assert time.monotonic() - start < 5
    assert len(losses.said) == 1
    assert "longer than the 0.3 s" in losses.said[0]
    assert inference.of_model(GOOD) is not None


@pytest.mark.parametrize("ending", ["pass", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_the_process_ends_with_the_one_that_asks(ending: str):
    program = (
        "import os, signal, onnx\nfrom onnxfuse.runtime import inference\n"
        "inference.of_model(onnx.ModelProto(ir_version=8))\n"
        f"print(inference._PROGRAM._running[1]._child.pid, flush=True)\n{ending}"
    )
    done = process.run((sys.executable, "-c", program), time_limit=60)
    assert gone(int(done.out))
