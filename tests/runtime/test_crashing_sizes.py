"""Input sizes at which the original crashes are avoided; others are verified and measured."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from onnxfuse.errors import DeviceError
from onnxfuse.measure.profile import profile_models
from onnxfuse.runtime import process
from onnxfuse.runtime.attempts import attempt
from onnxfuse.verify import verify_models

# A Scan over no element brings the runtime's process down; there are elements from a length of 7 on.
DEADLY = """<ir_version: 8, opset_import: ["": 17]>
g (float[B, N] x) => (float[B, M] y)
<float[1] state = {0.0}, int64[1] start = {6}, int64[1] end = {1000000}, int64[1] axis = {1}>
{ rest = Slice(x, start, end, axis)
  last, rows = Scan<num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1], body = body
    (float[1] before, float[B] each) => (float[1] after, float[B] out) { after = Identity(before)\n out = Neg(each) }>
    (state, rest)
  z = Neg(rows)
  y = Relu(z) }"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "deadly.onnx"
    onnx.save(onnx.parser.parse_model(DEADLY), path)
    return path


def test_verification_avoids_sizes_that_crash_the_runtime(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    usual = process.python_child
    monkeypatch.setattr(process, "python_child", lambda m, *a, **k: started.append(m) or usual(m, *a, **k))
    verdict = verify_models(model, model)
    assert verdict.ok, verdict.message
    assert len(started) > 1, "no size was deadly"


def test_profiling_avoids_sizes_that_crash_the_runtime(model: Path) -> None:
    assert profile_models([model], duration=0.05).models[0].latency_ms.min > 0


def test_an_attempt_that_killed_a_process_is_refused_in_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "attempts"
    monkeypatch.setenv("ONNXFUSE_ATTEMPTS", str(file))
    file.write_text("x 2x5\n")  # as a process leaves it that died then
    with pytest.raises(DeviceError, match="died when it ran the model on x 2x5"), attempt("x 2x5"):
        raise AssertionError("it was tried again")
    with attempt("x 3x7"):
        assert file.read_text() == "x 2x5\nx 3x7\n"
    assert file.read_text() == "x 2x5\n"
