"""Profiles by node and by original node; failures are one line. No test depends on a time."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxfuse.errors import BudgetError, DeviceError, ModelError
from onnxfuse.measure import interleaving, profile_child
from onnxfuse.measure.profile import profile_models
from onnxfuse.measure.profile_child import node_origins
from onnxfuse.runtime import feed_limits
from tests.runtime import twice


def test_two_models_and_the_first_against_itself(files: Path, good: Path):
    plain, fused = files / "plain.onnx", files / "fused.onnx"
    found = profile_models(
        [plain, fused], libraries=[None, good], threads=1, repeats=7, per_op=True, dims={"batch": 3, "features": 50}
    )
    assert [each.path for each in found.models] == [str(plain), str(fused)]
    assert [each.library for each in found.models] == [None, str(good)]
    for each in found.models:
        assert each.runs == 7
        assert 0 < each.latency_ms.min <= each.latency_ms.median <= each.latency_ms.p90 <= each.latency_ms.p99
        assert each.load_ms > 0
        assert sum(op.share for op in each.ops) == pytest.approx(1.0)
    assert found.ratio is not None and found.ratio.low <= (found.speedup or 0.0) <= found.ratio.high
    assert found.spread is not None
    assert (found.threads, found.inputs) == (1, {"x": (3, 50)})
    assert {"cpu", "cores", "onnxruntime"} <= found.host.keys()

    origins = {op.name: op.origin for op in found.models[1].ops}
    assert origins["fused1"] == ("part1_mul", "part1_add")
    assert origins["neg"] == ("neg",)
    assert {op.name for op in found.models[0].ops} == {f"part{i}_{op}" for i in range(3) for op in ("mul", "add")} | {
        "neg"
    }

    document = json.loads(json.dumps(found.to_json()))
    assert document["models"][1]["latency_ms"]["min"] == found.models[1].latency_ms.min
    assert document["speedup"] == found.speedup
    assert document["models"][1]["ops"][0]["origin"]


def test_one_model_alone_for_a_time(files: Path):
    found = profile_models([files / "plain.onnx"], duration=0.02, a_a=False)
    assert (found.speedup, found.spread) == (None, None)
    assert found.models[0].runs >= 1
    assert found.inputs == {"x": (1, 128)}
    assert found.models[0].ops == ()


def test_inputs_from_a_file(files: Path, tmp_path: Path):
    np.savez(tmp_path / "in.npz", x=np.ones((4, 9), np.float32))
    assert profile_models([files / "plain.onnx"], repeats=1, inputs=tmp_path / "in.npz", a_a=False).inputs == {
        "x": (4, 9)
    }


def test_what_cannot_run_says_so_in_one_line(files: Path, tmp_path: Path, crashing: Path):
    broken = onnx.load(files / "plain.onnx")
    broken.graph.node[-1].op_type = "NoSuchOperator"
    onnx.save(broken, tmp_path / "broken.onnx")
    for path, library in ((tmp_path / "broken.onnx", None), (files / "fused.onnx", crashing)):
        with pytest.raises(DeviceError) as caught:
            profile_models([files / "plain.onnx", path], libraries=[None, library], repeats=3)
        assert "\n" not in str(caught.value)
    (tmp_path / "text.onnx").write_text("text", encoding="utf-8")
    with pytest.raises((ModelError, DeviceError), match=r"text\.onnx"):
        profile_models([tmp_path / "text.onnx"], repeats=1)
    with pytest.raises(BudgetError):
        profile_models([files / "plain.onnx"], repeats=1, time_limit=0.01)


def test_origins_of_functions_and_nodes(tmp_path: Path):
    model = twice.model(nodes=2)
    model.graph.node[1].ClearField("metadata_props")
    function = model.functions[0]
    function.metadata_props.add(key="onnxfuse.origin", value='["from", "function"]')
    onnx.save(model, tmp_path / "m.onnx")
    found = node_origins(feed_limits.load_proto(tmp_path / "m.onnx"))
    assert found == {"fused0": ("part0_mul", "part0_add"), "fused1": ("from", "function"), "neg": ("neg",)}


def test_a_library_that_does_not_run_is_noted(files: Path, good: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def note(library: Path) -> str:
        found = profile_models([files / "fused.onnx"], libraries=[library], repeats=1, duration=0.1, a_a=False)
        return found.models[0].note

    other = twice.built(tmp_path, twice.glue(domain="onnxfuse.another"))
    assert note(good) == ""
    assert note(other) == f"function bodies run: no library has kernels of {twice.DOMAIN}"
    monkeypatch.setenv("ONNXFUSE_ISA", "none")
    assert "ONNXFUSE_ISA allows none alone" in note(good)


def test_what_is_no_model_is_an_error_of_either_side(files: Path, tmp_path: Path):
    (tmp_path / "text.onnx").write_text("text", encoding="utf-8")
    for pair in (("text", "plain"), ("plain", "text")):
        paths = [tmp_path / "text.onnx" if name == "text" else files / f"{name}.onnx" for name in pair]
        with pytest.raises(ModelError, match="not an ONNX model"):
            profile_models(paths, repeats=1)


def test_an_engine_that_dies_in_the_race_says_why(files: Path, monkeypatch: pytest.MonkeyPatch):
    """Even where it is gone when it is asked for its next turn."""
    asked = interleaving._Running.times
    count = 0

    def killed(engine: interleaving._Running, runs: int) -> list[float]:
        nonlocal count
        count += 1
        if count == 4:
            os.kill(engine.pid, signal.SIGKILL)
            time.sleep(0.5)
        return asked(engine, runs)

    monkeypatch.setattr(interleaving._Running, "times", killed)
    with pytest.raises(DeviceError, match="SIGKILL"):
        profile_models([files / "plain.onnx", files / "plain.onnx"], repeats=50)


NORMALIZED = """<ir_version: 8, opset_import: ["" : 17]>
normalized (float[B, 4, 32] x, float[32, 32] w, float[32] c, float[32] s, float[32] t) => (float[B, 4, 32] y)
{
    two = Constant <value = float {2.0}> ()
    small = Constant <value = float {0.00001}> ()
    m = MatMul (x, w)
    a = Add (m, c)
    mean = ReduceMean <axes = [-1]> (a)
    d = Sub (a, mean)
    p = Pow (d, two)
    v = ReduceMean <axes = [-1]> (p)
    e = Add (v, small)
    q = Sqrt (e)
    n = Div (d, q)
    r = Mul (n, s)
    y = Add (r, t)
}"""


def test_nodes_that_the_runtime_fused_have_the_users_names(tmp_path: Path):
    """The runtime makes one normalization of nine nodes, and a product with its bias: both have their names."""
    proto = onnx.parser.parse_model(NORMALIZED)
    for node in proto.graph.node:
        node.name = f"my_{node.output[0]}"
    for info in list(proto.graph.input)[1:]:
        proto.graph.input.remove(info)
        shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(shape, np.float32), info.name))
    onnx.save(proto, tmp_path / "m.onnx")
    found = profile_models([tmp_path / "m.onnx"], repeats=2, a_a=False, per_op=True, threads=1, dims={"B": 2})
    ops = {op.op_type: op for op in found.models[0].ops}
    assert "LayerNormalization" in ops, list(ops)
    assert set(ops["LayerNormalization"].origin) == {
        f"my_{n}" for n in ("mean", "d", "p", "v", "e", "q", "n", "r", "y")
    }
    named = [name for op in found.models[0].ops for name in op.origin]
    assert set(named) == {f"my_{n}" for n in ("m", "a", "mean", "d", "p", "v", "e", "q", "n", "r", "y")}
    flops = sum(op.flops or 0 for op in found.models[0].ops)
    assert 2 * 8 * 32 * 32 <= flops <= 2 * 8 * 32 * 32 + 8 * 32 * 12
    norm = ops["LayerNormalization"]
    assert norm.bytes == 4 * (2 * 2 * 4 * 32 + 2 * 32)


def test_warming_up_ends_by_its_time_or_by_what_the_profiler_has_to_write():
    calls: list[int] = []
    assert profile_child._warm_up(lambda: calls.append(1), 3) == len(calls) == profile_child.WARM_RUNS
    assert profile_child._warm_up(lambda: None, profile_child.WARM_RUNS + 5) == profile_child.WARM_RUNS + 5
    assert 1 <= profile_child._warm_up(lambda: time.sleep(profile_child.WARM_S / 2), 1) <= 3


def test_memory_of_a_run(files: Path, good: Path):
    """Values of 4 x 50 floats: two at once at most in a chain, whatever the runtime does with them."""
    found = profile_models(
        [files / "plain.onnx", files / "fused.onnx"], libraries=[None, good], threads=1, repeats=2, per_op=True,
        dims={"batch": 4, "features": 50},
    )  # fmt: skip
    for each in found.models:
        assert each.memory is not None and each.peak_bytes >= 0
        assert 4 * 4 * 50 < each.memory.value_peak_bytes <= 3 * 4 * 4 * 50
        assert [step.name for step in each.memory.steps] == [event.name for event in each.events]
        assert max(step.bytes for step in each.memory.steps) == each.memory.value_peak_bytes
    assert "steps" not in json.dumps(found.to_json())
