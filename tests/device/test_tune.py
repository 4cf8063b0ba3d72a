"""`tune --target cuda` over a mock of the driver: tiles are enumerated, run and timed; a lock takes the faster ones."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.build.nvrtc import libraries
from onnxfuse.config import Options
from onnxfuse.measure.gpu import symbol_of
from onnxfuse.pipeline.calls import Calls
from onnxfuse.pipeline.candidate_tuning import TunedContraction, contractions
from onnxfuse.pipeline.run import opened, run
from onnxfuse.render.cuda import device_text
from onnxfuse.report.lock import FasterSchedule, Lock, deciding, lock_text
from tests.cli.programs import onnxfuse_as_program
from tests.craft.sources import ROOT
from tests.kernels.isa import CACHE
from tests.kernels.pool_host import compile_library, compiler
from tests.threads.driver_mock import HERE, ON_HOST, optimized, stand_in
from tests.threads.emulator import library_of

pytestmark = [
    pytest.mark.skipif(not libraries(), reason="the package nvidia-cuda-nvrtc is not installed"),
    pytest.mark.skipif(compiler() is None, reason="no C++ compiler"),
    pytest.mark.skipif(sys.platform != "linux", reason="the driver is found by the loader of Linux"),
]
ROWS, WIDTH = 48, 64


def model() -> onnx.ModelProto:
    """Normalized rows times weights in float16, with a bias and the rows added."""
    rng = np.random.default_rng(0)
    arrays = {"w": rng.normal(size=(WIDTH, WIDTH)) / 8, "b": rng.normal(size=WIDTH), "one": np.ones(WIDTH)}
    nodes = [
        helper.make_node("LayerNormalization", ["x", "one", "b"], ["n"]),
        helper.make_node("MatMul", ["n", "w"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["q"]),
        helper.make_node("Add", ["q", "x"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, [1, ROWS, WIDTH]) for name in ("x", "y")]
    weights = [numpy_helper.from_array(a.astype(np.float16), name) for name, a in arrays.items()]
    graph = helper.make_graph(nodes, "product", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


TIMED = """
import sys
from pathlib import Path
from onnxfuse.measure import gpu
from onnxfuse.target import GPUS
from tests.device.test_tune import found_in
gpu.TURNS = 1  # what the stand-in takes tells nothing
(product,) = found_in(Path(sys.argv[1]), "sm_90a")
with gpu.GpuTimer(GPUS["sm_90a"]) as timer:
    print(min(timer.seconds(s.kernel) for s in product.samples))
"""


def found_in(path: Path, arch: str = "sm_90") -> list[TunedContraction]:
    """The products of the model, with all tiles that would be measured."""
    options = Options(target="cuda", arch=(arch,), verify=False, cache_dir=str(CACHE))
    with opened(path, options, Calls(), lambda what, facts: None) as context:
        b = run(context, Calls(), "schedule", lambda step, b: None)
        return list(contractions(context, b, {}))


def tuned(path: Path, folder: Path, *given: str, **environment: str) -> tuple[int, dict[str, Any], str, list[str]]:
    """Exit code, document, messages, and what the driver was asked for."""
    log = folder / "calls"
    words = ["tune", str(path), "--target", "cuda", "--json", *given, "--cache-dir", str(CACHE), "--overwrite"]
    env = {"DRIVER_LOG": str(log), **ON_HOST, **environment}
    loaded = [stand_in("driver")] if "DRIVER_KERNELS" in environment else []
    done = onnxfuse_as_program(words, env, loaded=loaded)
    calls = log.read_text().splitlines() if log.exists() else []
    return done.code, json.loads(done.out) if done.out else {}, done.err, calls


@pytest.fixture
def path(tmp_path: Path) -> Path:
    onnx.save(model(), tmp_path / "product.onnx")
    return tmp_path / "product.onnx"


def test_tiles_are_measured_and_the_fastest_is_taken(path: Path, tmp_path: Path) -> None:
    (product,) = found_in(path)
    assert len(product.samples) == len(product.candidates) > 3
    texts = {name: device_text(s.kernel, name) for s in product.samples if (name := symbol_of(s.kernel))}
    kernels = library_of("".join(texts.values()), "tuned")
    code, found, err, calls = tuned(path, tmp_path, "--budget", "60s", DRIVER_KERNELS=str(kernels))
    assert code == 0, err
    assert not [c for c in calls if c.startswith("refused")]
    launched = {c.split()[1].rpartition("_")[0] for c in calls if c.startswith("launch")}
    assert launched == set(texts), "each candidate ran"
    assert found["problems"] == [] and len(found["samples"]) == len(texts)
    assert all(s["measured_us"] > 0 and s["predicted_us"] > 0 for s in found["samples"])
    times = {s["what"].partition(": ")[2]: s["measured_us"] for s in found["samples"]}
    usual = next(iter(times))
    best = min(times, key=lambda name: times[name])
    faster = times[best] <= 0.97 * times[usual]
    assert [(f["instead_of"], f["schedule"]) for f in found["faster_schedules"]] == [(usual, best)] * faster
    assert (tmp_path / "product.onnx").exists() and Path(found["lock"]).exists()


def test_tiles_to_which_boxes_come_are_given_tensor_maps(tmp_path: Path) -> None:
    """Many rows that nothing normalizes before, for sm_90a."""
    w = np.random.default_rng(0).normal(size=(768, 512)).astype(np.float16)
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT16, s) for n, s in (("x", [130, 768]), ("y", [130, 512]))]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"])]
    graph = helper.make_graph(nodes, "product", ends[:1], ends[1:], [numpy_helper.from_array(w, "w")])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(made, tmp_path / "product.onnx")
    (product,) = found_in(tmp_path / "product.onnx", "sm_90a")
    texts = {name: device_text(s.kernel, name) for s in product.samples if (name := symbol_of(s.kernel))}
    assert any("copy_box" in text for text in texts.values())
    kernels = library_of("".join(texts.values()), "tuned")
    (tmp_path / "libcuda.so.1").symlink_to(compile_library([HERE / "driver.cpp"], CACHE / "threads", ("-O1",)))
    log = tmp_path / "calls"
    env = {**os.environ, "DRIVER_LOG": str(log), "LD_LIBRARY_PATH": str(tmp_path), "DRIVER_KERNELS": str(kernels)}
    done = subprocess.run([sys.executable, "-c", TIMED, str(tmp_path / "product.onnx")], env=env, cwd=ROOT, check=True,
                          capture_output=True, text=True, timeout=300)  # fmt: skip
    assert float(done.stdout) > 0
    calls = log.read_text().splitlines()
    assert not [c for c in calls if c.startswith("refused")]
    assert [c for c in calls if c.startswith("map")]
    assert {c.split()[1].rpartition("_")[0] for c in calls if c.startswith("launch")} == set(texts)


def test_a_lock_makes_the_kernel_with_its_tile(path: Path, tmp_path: Path) -> None:
    (product,) = found_in(path)
    first, *_, last = product.candidates
    faster = FasterSchedule(product.part.op, 1, first, last, 2.0, 1.0, taken=True)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    lock = Lock(digest, deciding(Options()), "sm_90, compute_90", None, (), faster_schedules=(faster,))
    (tmp_path / "lock").write_text(lock_text(lock, {}))
    plain, chosen = (
        optimized(path, tmp_path / f"{name}.onnx", ("sm_90",), lock=given)[1]
        for name, given in (("plain", None), ("chosen", str(tmp_path / "lock")))
    )
    body = device_text(product.samples[-1].kernel, "k").partition("{")[2]
    assert body in chosen and body not in plain


def test_without_a_gpu_it_says_so(path: Path, tmp_path: Path) -> None:
    """Tiles are those predicted best then."""
    code, found, err, _ = tuned(path, tmp_path)
    assert (code, found) == (5, {}) and "there is no GPU here" in err
