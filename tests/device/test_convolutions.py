"""Convolutions by cuDNN from end to end: planned by price, built as users do it, run by ONNX Runtime over stand-ins."""

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
CHANNELS, SIZE = 64, 13
LIMIT = 2e-2
CALLS = ("convolution", "launch", "refused")


def block() -> onnx.ModelProto:
    """A block of a residual network behind a convolution, whose image is turned on the way in and out."""
    rng = np.random.default_rng(0)
    held = []

    def conv(name: str, x: str, filters: int, deep: int, window: int, **attrs: Any) -> Any:
        shapes = {f"{name}_w": (filters, deep, window, window), f"{name}_b": (filters,)}
        for at, shape in shapes.items():
            values = rng.normal(size=shape) * (np.prod(shape[1:]) ** -0.5 if len(shape) > 1 else 0.1)
            held.append(numpy_helper.from_array(values.astype(np.float16), at))
        return helper.make_node("Conv", [x, *shapes], [name], pads=[window // 2] * 4, **attrs)

    nodes = [
        conv("stem", "x", CHANNELS, 3, 7, strides=[2, 2]),
        helper.make_node("Relu", ["stem"], ["p"]),
        conv("a", "p", CHANNELS, CHANNELS, 3),
        helper.make_node("Relu", ["a"], ["a_r"]),
        conv("b", "a_r", 2 * CHANNELS, CHANNELS, 3),
        conv("side", "p", 2 * CHANNELS, CHANNELS, 1),
        helper.make_node("Add", ["b", "side"], ["s"]),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    kind = TensorProto.FLOAT16
    x = helper.make_tensor_value_info("x", kind, (2, 3, 2 * SIZE, 2 * SIZE))
    y = helper.make_tensor_value_info("y", kind, (2, 2 * CHANNELS, SIZE, SIZE))
    graph = helper.make_graph(nodes, "block", [x], [y], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


@dataclass(frozen=True)
class Block:
    """The built block, inputs for it, and what it makes of them."""

    made: driver_mock.Built
    inputs: Path
    wanted: np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Block:
    folder = tmp_path_factory.mktemp("convolutions")
    onnx.save(block(), folder / "block.onnx")
    made = driver_mock.built_for_gpus(folder / "block.onnx", folder, ("sm_90",))
    x = np.random.default_rng(1).normal(size=(2, 3, 2 * SIZE, 2 * SIZE)).astype(np.float16)
    np.savez(folder / "inputs.npz", x=x)
    session = onnxruntime.InferenceSession(folder / "block.onnx", providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, {"x": x})
    return Block(made, folder / "inputs.npz", wanted)


def ran(b: Block, folder: Path, **how: Any) -> list[str]:
    """Two runs in a process of its own, which have to be right; what was asked for."""
    made = driver_mock.ran(b.made, b.inputs, folder, **how, **ON_HOST)
    assert made.status == "kernels for sm_90"
    for got in made.outputs:
        np.testing.assert_allclose(got.astype(np.float32), b.wanted.astype(np.float32), rtol=0, atol=LIMIT)
    return [c for c in made.calls if c.startswith(CALLS)]


def test_images_are_turned_once_and_no_node_is_left(built: Block) -> None:
    """Each convolution has what follows it; the first one turns its image, the last one its result."""
    groups = [(g.ops, g.phases) for g in built.made.result.groups]
    both = [(("Conv", "Add", "Relu"), 2), (("Conv", "Add", "Relu"), 1)]
    assert groups == [*both, (("Conv", "Add"), 1), (("Conv", "Add", "Add", "Relu"), 2)]
    made = onnx.load(built.made.folder / "made.onnx")
    assert all(n.domain.startswith("onnxfuse") for n in made.graph.node)
    held = {t.name: tuple(t.dims) for t in made.graph.initializer}
    assert (CHANNELS, 3, 3, CHANNELS) in held.values() and (CHANNELS, 7, 7, 3) in held.values(), "filters channels last"


def test_the_library_computes_all_convolutions(built: Block, tmp_path: Path) -> None:
    calls = ran(built, tmp_path, library=True)
    assert not [c for c in calls if c.startswith("refused")]
    assert len([c for c in calls if c.startswith("convolution")]) == 2 * 4
    assert len([c for c in calls if "beta 1" in c]) == 2


@pytest.mark.parametrize("without", [{}, {"library": True, "ONNXFUSE_CUDNN": "0"}], ids=["missing", "left out"])
def test_without_the_library_kernels_do(built: Block, without: dict[str, Any], tmp_path: Path) -> None:
    assert not [c for c in ran(built, tmp_path, **without) if not c.startswith("launch")]


def test_without_a_device_the_bodies_are_right(built: Block, tmp_path: Path) -> None:
    """They turn filters and images back."""
    made = driver_mock.ran(built.made, built.inputs, tmp_path, driver=False)
    assert made.status.startswith("function bodies run")
    for got in made.outputs:
        np.testing.assert_allclose(got.astype(np.float32), built.wanted.astype(np.float32), rtol=0, atol=LIMIT)


def test_float32_is_by_the_library_too(tmp_path: Path) -> None:
    """Not rounded, as a provider of host memory does not say that it rounds."""
    model = block()
    for each in (*model.graph.input, *model.graph.output):
        each.type.tensor_type.elem_type = TensorProto.FLOAT
    for t in model.graph.initializer:
        t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(t).astype(np.float32), t.name))
    onnx.save(model, tmp_path / "single.onnx")
    made = driver_mock.built_for_gpus(tmp_path / "single.onnx", tmp_path, ("sm_90",))
    x = np.random.default_rng(1).normal(size=(2, 3, 2 * SIZE, 2 * SIZE)).astype(np.float32)
    np.savez(tmp_path / "inputs.npz", x=x)
    session = onnxruntime.InferenceSession(tmp_path / "single.onnx", providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, {"x": x})
    found = driver_mock.ran(made, tmp_path / "inputs.npz", tmp_path, library=True, **ON_HOST)
    for got in found.outputs:
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-4)
    calls = [c for c in found.calls if c.startswith(CALLS)]
    assert [c.split()[-1] for c in calls if c.startswith("convolution")] == ["3"] * 8
