"""A generated kernel inside ONNX Runtime's CUDA provider, with and without CUDA graphs.

    python -m benchmarks.gpu.custom_op OUT.json

Needs onnxruntime-gpu and g++. The operator is custom_op.cc; its kernel is that of rows.cu.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnx import TensorProto, helper, numpy_helper

from benchmarks.gpu.driver import Compiler
from benchmarks.gpu.rows import SOURCE, Choice, microseconds, reference

CHOICE = Choice(op=2, half=1, n=768, tpr=32, threads=128, rows=1)
ROWS, LAYERS = 1024, 24


def model(layers: int, fused: bool) -> onnx.ModelProto:
    """Layers of residual + LayerNormalization; `fused`: each is one custom node whose function is the two."""
    weights = np.random.default_rng(0).standard_normal((2, CHOICE.n)).astype(np.float16)
    nodes = [helper.make_node("Identity", ["x"], ["v0"])]
    for i in range(layers):
        if fused:
            nodes.append(helper.make_node("Row", [f"v{i}", "r", "g", "b"], [f"v{i + 1}"], domain="onnxfuse.probe"))
        else:
            nodes += [
                helper.make_node("Add", [f"v{i}", "r"], [f"s{i}"]),
                helper.make_node("LayerNormalization", [f"s{i}", "g", "b"], [f"v{i + 1}"], epsilon=1e-5),
            ]
    body = [
        helper.make_node("Add", ["x", "r"], ["s"]),
        helper.make_node("LayerNormalization", ["s", "g", "b"], ["y"], epsilon=1e-5),
    ]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("onnxfuse.probe", 1)]
    function = helper.make_function("onnxfuse.probe", "Row", ["x", "r", "g", "b"], ["y"], body, opsets[:1])
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT16, [ROWS, CHOICE.n]) for n in ("x", "r", f"v{layers}")]
    graph = helper.make_graph(
        nodes, "probe", values[:2], values[2:],
        [numpy_helper.from_array(w, name) for name, w in zip("gb", weights, strict=True)],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=10)


def session(proto: onnx.ModelProto, library: str | None, graphs: bool) -> ort.InferenceSession:
    """On the CUDA provider."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    if library:
        options.register_custom_ops_library(library)
    given = {"enable_cuda_graph": "1"} if graphs else {}
    return ort.InferenceSession(proto.SerializeToString(), options, [("CUDAExecutionProvider", given)])


def bound(made: ort.InferenceSession, feeds: dict[str, torch.Tensor], y: torch.Tensor) -> Any:
    """A call with fixed addresses."""
    binding = made.io_binding()
    for name, value in feeds.items():
        binding.bind_input(name, "cuda", 0, np.float16, list(value.shape), value.data_ptr())
    binding.bind_output(made.get_outputs()[0].name, "cuda", 0, np.float16, list(y.shape), y.data_ptr())
    return lambda: made.run_with_iobinding(binding)


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    asked = parser.parse_args()
    torch.zeros(1, device="cuda")
    result: dict[str, Any] = {"runtime": ort.__version__, "providers": ort.get_available_providers()}
    with tempfile.TemporaryDirectory() as folder:
        library = os.path.join(folder, "libcustom_op.so")
        source = str(Path(__file__).with_name("custom_op.cc"))
        subprocess.run(["g++", "-std=c++17", "-O2", "-fPIC", "-shared", source, "-o", library, "-ldl"], check=True)
        image = Path(folder, "image")
        facts = {"IMAGE": str(image), "THREADS": CHOICE.threads, "ROWS": CHOICE.threads // CHOICE.tpr * CHOICE.rows,
                 "SHARED": CHOICE.shared}  # fmt: skip
        os.environ |= {f"ONNXFUSE_PROBE_{name}": str(value) for name, value in facts.items()}
        for arch in ("sm_90", "compute_80"):
            image.write_bytes(Compiler().compile(SOURCE, arch, CHOICE.defines)[0])
            result[arch] = tried(library)
        result["bodies"] = compared(None, model(LAYERS, True))
        result["unfused"] = compared(None, model(LAYERS, False))
    asked.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    sys.stderr.writelines(f"{name}: {value}\n" for name, value in result.items())


def tried(library: str) -> dict[str, Any]:
    """With the library; how often the runtime called us, per run, with graphs and without."""
    counts = ctypes.CDLL(library)
    before = counts.probe_computes()
    facts = compared(library, model(LAYERS, True))
    return facts | {"creates": counts.probe_creates(), "computes": counts.probe_computes() - before}


def compared(library: str | None, proto: onnx.ModelProto) -> dict[str, Any]:
    """Errors and times of one model, with graphs and without."""
    facts: dict[str, Any] = {}
    weights = [torch.tensor(numpy_helper.to_array(each).copy(), device="cuda") for each in proto.graph.initializer]
    for graphs in (False, True):
        name = "graph" if graphs else "stream"
        try:
            made = session(proto, library, graphs)
            feeds = {each: torch.randn((ROWS, CHOICE.n), device="cuda").half() for each in ("x", "r")}
            y = torch.full_like(feeds["x"], float("nan"))
            run = bound(made, feeds, y)
            for _ in range(4):
                run()
            feeds["x"].copy_(torch.randn_like(feeds["x"]))  # new values at the same address, after a graph was captured
            y.fill_(float("nan"))
            torch.cuda.synchronize()
            run()
            torch.cuda.synchronize()
            facts[f"{name}_error"] = _error(feeds, weights, y)
            facts[f"{name}_us"] = wall(run)
        except Exception as problem:  # recorded as failing
            facts[f"{name}_failed"] = str(problem).splitlines()[0]
    return facts


def _error(feeds: dict[str, torch.Tensor], weights: list[torch.Tensor], y: torch.Tensor) -> float:
    wanted = feeds["x"]
    for _ in range(LAYERS):
        wanted = reference(2, wanted, feeds["r"], *weights)
    return float((y.double() - wanted).abs().max() / wanted.abs().max())


def wall(run: Any) -> float:
    """Microseconds of a run; the runtime waits for its stream at the end of each."""
    return microseconds(run, 50, 5)


if __name__ == "__main__":
    main()
