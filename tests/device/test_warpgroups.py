"""A library with code for sm_90a beside others, as a user builds it: devices of 9.0 multiply by warpgroups."""

from __future__ import annotations

import sys
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
from tests.threads.driver_mock import ON_HOST, Built

pytestmark = [
    pytest.mark.skipif(not libraries(), reason="the package nvidia-cuda-nvrtc is not installed"),
    pytest.mark.skipif(compiler() is None, reason="no C++ compiler"),
    pytest.mark.skipif(sys.platform != "linux", reason="the driver is found by the loader of Linux"),
]
ROWS, WIDTH, HIDDEN = 130, 768, 768


def feed_forward() -> onnx.ModelProto:
    """x + gelu(x w1 + b1) w2 + b2 in float16, GELU by erf: the library has no such epilogue."""
    rng = np.random.default_rng(0)
    weights = {"w1": (WIDTH, HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN, WIDTH), "b2": (WIDTH,)}
    held = [
        numpy_helper.from_array((rng.normal(size=s) * s[0] ** -0.5).astype(np.float16), n) for n, s in weights.items()
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["p1"]),
        helper.make_node("Add", ["p1", "b1"], ["s1"]),
        helper.make_node("Gelu", ["s1"], ["g"]),
        helper.make_node("MatMul", ["g", "w2"], ["p2"]),
        helper.make_node("Add", ["b2", "p2"], ["s2"]),
        helper.make_node("Add", ["x", "s2"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT16, (ROWS, WIDTH)) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "feed_forward", ends[:1], ends[1:], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Built, Path, np.ndarray[Any, Any]]:
    """The built layer, inputs, and what the runtime makes of them."""
    folder = tmp_path_factory.mktemp("warpgroups")
    onnx.save(feed_forward(), folder / "ffn.onnx")
    made = driver_mock.built_for_gpus(folder / "ffn.onnx", folder, ("sm_90a", "sm_80"))
    x = np.random.default_rng(1).normal(size=(ROWS, WIDTH)).astype(np.float16)
    np.savez(folder / "inputs.npz", x=x)
    session = onnxruntime.InferenceSession(folder / "ffn.onnx", providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, {"x": x})
    return made, folder / "inputs.npz", wanted


@pytest.mark.parametrize(("capability", "status"), [(90, "sm_90a"), (86, "sm_80"), (100, "compute_80")])
def test_each_device_runs_its_own_way_to_multiply(
    layer: tuple[Built, Path, np.ndarray[Any, Any]], tmp_path: Path, capability: int, status: str
) -> None:
    made, inputs, wanted = layer
    found = driver_mock.ran(made, inputs, tmp_path, DRIVER_CAPABILITY=str(capability), **ON_HOST)
    assert found.status == f"kernels for {status}"
    for got in found.outputs:
        np.testing.assert_allclose(got.astype(np.float32), wanted.astype(np.float32), rtol=0, atol=5e-3)
    assert not [c for c in found.calls if c.startswith("refused")]
    maps = [c for c in found.calls if c.startswith("map")]
    assert bool(maps) == (capability == 90)


def test_products_of_many_rows_take_in_what_follows(layer: tuple[Built, Path, np.ndarray[Any, Any]]) -> None:
    made, _, _ = layer
    assert [sorted(g.ops) for g in made.result.groups] == [["Add", "Gelu", "MatMul"], ["Add", "Add", "MatMul"]]
