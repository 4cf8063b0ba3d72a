"""Products by cuBLASLt from end to end: planned by price, built as users do it, run by ONNX Runtime over stand-ins."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.build.nvrtc import libraries
from tests.kernels.pool_host import compiler
from tests.threads import driver_mock
from tests.threads.driver_mock import ON_HOST

pytestmark = [
    pytest.mark.skipif(not libraries(), reason="the package nvidia-cuda-nvrtc is not installed"),
    pytest.mark.skipif(compiler() is None, reason="no C++ compiler"),
    pytest.mark.skipif(sys.platform != "linux", reason="the library is found by the loader of Linux"),
]
ROWS, WIDTH, HIDDEN = 24, 512, 640


def feed_forward(dtype: Any) -> onnx.ModelProto:
    """x + gelu(x w1 + b1) w2 + b2, GELU by tanh: two products, each with all that follows it."""
    rng = np.random.default_rng(0)
    weights = {"w1": (WIDTH, HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN, WIDTH), "b2": (WIDTH,)}
    held = [
        numpy_helper.from_array((rng.normal(size=s) * s[0] ** -0.5).astype(dtype), name) for name, s in weights.items()
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["p1"]),
        helper.make_node("Add", ["p1", "b1"], ["s1"]),
        helper.make_node("Gelu", ["s1"], ["g"], approximate="tanh"),
        helper.make_node("MatMul", ["g", "w2"], ["p2"]),
        helper.make_node("Add", ["b2", "p2"], ["s2"]),
        helper.make_node("Add", ["x", "s2"], ["y"]),
    ]
    kind = TensorProto.FLOAT16 if dtype == np.float16 else TensorProto.FLOAT
    ends = [helper.make_tensor_value_info(n, kind, (2, ROWS, WIDTH)) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "feed_forward", ends[:1], ends[1:], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


@dataclass(frozen=True)
class Layer:
    """A built layer, inputs for it, what it makes of them, and how far that may be off."""

    made: driver_mock.Built
    inputs: Path
    wanted: np.ndarray[Any, Any]
    limit: float


@pytest.fixture(scope="module", params=[np.float32, np.float16], ids=["float32", "float16"])
def layer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Layer:
    folder = tmp_path_factory.mktemp("library")
    onnx.save(feed_forward(request.param), folder / "ffn.onnx")
    made = driver_mock.built_for_gpus(folder / "ffn.onnx", folder, ("sm_90",))
    x = np.random.default_rng(1).normal(size=(2, ROWS, WIDTH)).astype(request.param)
    np.savez(folder / "inputs.npz", x=x)
    session = onnxruntime.InferenceSession(folder / "ffn.onnx", providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, {"x": x})
    return Layer(made, folder / "inputs.npz", wanted, 1e-5 if request.param == np.float32 else 5e-3)


def ran(layer: Layer, folder: Path, **how: Any) -> list[str]:
    """Two runs in a process of its own, which have to be right; what was asked for."""
    made = driver_mock.ran(layer.made, layer.inputs, folder, **how, **ON_HOST)
    assert made.status == "kernels for sm_90"
    for got in made.outputs:
        np.testing.assert_allclose(got.astype(np.float32), layer.wanted.astype(np.float32), rtol=0, atol=layer.limit)
    assert not [c for c in made.calls if c.startswith("refused")]
    return [c for c in made.calls if c.startswith(("matmul", "launch"))]


def test_both_products_of_a_layer_take_in_what_follows_them(layer: Layer) -> None:
    """Six nodes of the model are two kernels, none of them the runtime's."""
    assert [sorted(g.ops) for g in layer.made.result.groups] == [["Add", "Gelu", "MatMul"], ["Add", "Add", "MatMul"]]


def test_the_library_computes_both(layer: Layer, tmp_path: Path) -> None:
    calls = ran(layer, tmp_path, library=True)
    first = f"matmul {2 * ROWS} {HIDDEN} {WIDTH} epilogue 36 beta 0"
    assert calls == [first, f"matmul {2 * ROWS} {WIDTH} {HIDDEN} epilogue 4 beta 1"] * 2


def test_without_the_library_kernels_do(layer: Layer, tmp_path: Path) -> None:
    calls = ran(layer, tmp_path)
    assert [c.split()[0] for c in calls] == ["launch"] * 4
