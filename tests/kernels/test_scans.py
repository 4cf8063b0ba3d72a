"""Scans compute each element from the previous one, in the runtime's order of additions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import onnxfuse
from models.borders import BORDERS
from onnxfuse.cost import cost_of
from onnxfuse.ir.kernel import Kernel
from onnxfuse.target import CPUS
from tests.kernels.cases.scan import scan
from tests.kernels.compiled import Case, kernel_of
from tests.kernels.pool_host import compiler

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("before", ["", "Sigmoid", "Softmax"])
@pytest.mark.parametrize("behind", ["", "Neg", "Tanh"])
def test_twice_as_many_elements_take_twice_as_long(axis: int, before: str, behind: str) -> None:
    """Nothing is added up from the start for each element."""

    def seconds(count: int) -> float:
        shape = [32, 32, 32]
        shape[axis] = count
        kernel = kernel_of(Case("scan", scan(tuple(shape), axis, before, behind)), CPUS["x86-64-v4"])
        assert isinstance(kernel, Kernel), kernel
        cost = cost_of(kernel, CPUS["x86-64-v4"])
        assert cost is not None
        return sum(phase.compute for phase in cost.phases)

    assert seconds(2048) < 2.5 * seconds(1024)


@needs_compiler
@pytest.mark.parametrize("sizes", [(5, 7, 11), (1, 13, 1), (3, 1, 37), (2, 67, 3)], ids=str)
@pytest.mark.parametrize("name", [name for name in BORDERS if name.startswith("running")])
def test_scans_of_nan_and_infinity_equal_the_runtime(name: str, sizes: tuple[int, ...], tmp_path: Path) -> None:
    model = BORDERS[name].build(sizes)
    onnx.save(model, tmp_path / "m.onnx")
    made = onnxfuse.optimize(tmp_path / "m.onnx", tmp_path / "o.onnx", min_group=1, verify=True, gain=False)
    assert made.kernels
    x = np.random.default_rng(0).standard_normal((1, *sizes)).astype(np.float32)
    x.reshape(-1)[[x.size // 3, x.size // 2]] = np.nan, np.inf
    fused = onnxfuse.session(tmp_path / "o.onnx")
    runtime = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    (there,), (here,) = runtime.run(None, {"x": x}), fused.run(None, {"x": x})
    assert np.allclose(there, here, rtol=1e-5, atol=1e-6, equal_nan=True)


@needs_compiler
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("attributes", [{}, {"reverse": 1}, {"exclusive": 1}], ids=str)
def test_sums_are_those_of_the_runtime_bit_by_bit(axis: int, attributes: dict[str, int], tmp_path: Path) -> None:
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (5, 37, 41)) for name in "xy")
    node = onnx.helper.make_node("CumSum", ["x", "axis"], ["y"], **attributes)
    graph = onnx.helper.make_graph([node], "g", [x], [y], [onnx.numpy_helper.from_array(np.array(axis), "axis")])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, tmp_path / "m.onnx")
    made = onnxfuse.optimize(tmp_path / "m.onnx", tmp_path / "o.onnx", min_group=1, verify=False, gain=False)
    assert made.kernels == 1
    values = {"x": np.random.default_rng(0).standard_normal((5, 37, 41)).astype(np.float32) * 100}
    runtime = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    (there,), (here,) = runtime.run(None, values), onnxfuse.session(tmp_path / "o.onnx").run(None, values)
    assert np.array_equal(there, here)
