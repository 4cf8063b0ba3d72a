"""Time and size are linear in the model: shared expressions are not expanded."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfuse import optimize
from onnxfuse.errors import ModelError
from onnxfuse.ir.compose import folded, free_axes, inline, rebuild, size, walk
from onnxfuse.ir.dtype import F32
from onnxfuse.ir.index import Axis, Index
from onnxfuse.ir.scalar import Load, Scalar, apply, const
from onnxfuse.measure.profile import profile_models
from onnxfuse.pipeline.groups import costs_of
from onnxfuse.verify import verify_models
from tests.caches import own_cache
from tests.emit.plans import graph_of

SECONDS = 20.0  # for what takes less than one on an idle machine, and minutes or years where it grows fast


def doubled(times: int, number: float = 1.0) -> Scalar:
    """x + x, that added to itself, and so on: as long as 2 ** times when written out."""
    x: Scalar = apply("add", Load("x", (Index.of(Axis("i", Index.of(8))),), F32), const(number))
    for _ in range(times):
        x = apply("add", x, x)
    return x


def test_what_is_shared_is_seen_once() -> None:
    one, two = doubled(200), doubled(200)
    assert one == two
    assert one != doubled(200, 2.0)
    assert len(list(walk(one))) == 203
    assert len(free_axes(one)) == 1
    assert size(folded(rebuild(one, lambda n: None, lambda i: i))) > 2**200
    read = apply("mul", Load("y", (Index.of(3),), F32), Load("y", (Index.of(3),), F32))
    assert len(list(walk(inline(read, {"y": ((Axis("i", Index.of(8)),), one)})))) == 204


def _saved(nodes: list[onnx.NodeProto], folder: Path, shape: list[int | str], weights: dict[str, np.ndarray]) -> Path:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)
    held = [numpy_helper.from_array(a, name) for name, a in weights.items()]
    model = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y], held), opset_imports=[helper.make_opsetid("", 17)]
    )
    model.ir_version = 8
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


def _doubling(folder: Path) -> Path:
    nodes = [helper.make_node("Add", [f"t{k}" if k else "x"] * 2, [f"t{k + 1}"]) for k in range(30)]
    return _saved(nodes, folder, [4, 8], {})


def _behind_a_product(folder: Path) -> Path:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["t0"])]
    nodes += [helper.make_node("Mul", [f"t{k}"] * 2, [f"t{k + 1}"]) for k in range(30)]
    return _saved(nodes, folder, [4, 32], {"w": np.full((32, 64), 0.01, np.float32)})


def _reflections(folder: Path) -> Path:
    nodes = [helper.make_node("Pad", [f"t{k}" if k else "x", "p"], [f"t{k + 1}"], mode="reflect") for k in range(6)]
    nodes.append(helper.make_node("Relu", ["t6"], ["y"]))
    return _saved(nodes, folder, [4, 8], {"p": np.ones(4, np.int64)})


def _far_padding(folder: Path) -> Path:
    nodes = [helper.make_node("Conv", ["x", "w"], ["t"], pads=[1 << 40] * 4), helper.make_node("Relu", ["t"], ["y"])]
    return _saved(nodes, folder, [1, 2, 8, 8], {"w": np.ones((2, 2, 3, 3), np.float32)})


def _wide_padding(folder: Path) -> Path:
    nodes = [helper.make_node("Conv", ["x", "w"], ["t"], pads=[0, 999, 0, 999]), helper.make_node("Relu", ["t"], ["y"])]
    return _saved(nodes, folder, [1, 2, 8, 8], {"w": np.ones((2, 2, 3, 3), np.float32)})


def _far_resized(folder: Path) -> Path:
    """A table of positions would be as long as the axis."""
    nodes = [helper.make_node("Resize", ["x", "", "scales"], ["t"], mode="nearest")]
    nodes.append(helper.make_node("Relu", ["t"], ["y"]))
    return _saved(nodes, folder, [1, 2, 8, 1 << 30], {"scales": np.array([1, 1, 1, 2], np.float32)})


def _strided_any_length(folder: Path) -> Path:
    """Usual lengths are shorter than the window: then nothing would be computed, and nothing could be compared."""
    nodes = [
        helper.make_node("Unsqueeze", ["x", "axes"], ["u"]),
        helper.make_node("Conv", ["u", "w"], ["c"], kernel_shape=[512], strides=[160]),
        helper.make_node("Mul", ["c", "c"], ["p"]),
        helper.make_node("Transpose", ["p"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["t", "mel"], ["y"]),
    ]
    weights = {"axes": np.array([1]), "w": np.ones((257, 1, 512), np.float32), "mel": np.ones((257, 32), np.float32)}
    return _saved(nodes, folder, ["batch", "samples"], weights)


@pytest.mark.parametrize(
    "make",
    [_doubling, _behind_a_product, _reflections, _far_padding, _far_resized, _wide_padding, _strided_any_length],
)
def test_a_small_model_is_soon_scheduled(make: object, tmp_path: Path) -> None:
    path = make(tmp_path)  # type: ignore[operator]  # one of the functions above
    start = time.process_time()
    optimize(path, stop_after="render", strict=True)
    assert time.process_time() - start < SECONDS


def test_what_no_machine_can_count_is_refused(tmp_path: Path) -> None:
    result = optimize(_far_padding(tmp_path), stop_after="render", strict=True, min_group=1)
    assert result.kernels == 0 and {r.code for r in result.refusals} == {"E-RESOURCE"}


def test_a_symbol_beside_what_no_machine_can_count(tmp_path: Path) -> None:
    nodes = [helper.make_node("Exp", ["x"], ["t"]), helper.make_node("Softmax", ["t"], ["y"], axis=3)]
    path = _saved(nodes, tmp_path, [(1 << 31) - 1, 3, (1 << 31) - 1, "w"], {})
    result = optimize(path, stop_after="render", strict=True, min_group=1)
    assert result.kernels == 0 and {r.code for r in result.refusals} == {"E-RESOURCE"}


def test_what_is_stored_on_the_way_is_right(tmp_path: Path) -> None:
    path = _behind_a_product(tmp_path)
    result = optimize(path, tmp_path / "out.onnx", verify=True, min_group=1, cache_dir=own_cache(tmp_path / "cache"))
    assert result.verify is not None
    assert result.verify.ok
    assert result.kernels == 1


def functions_that_double() -> onnx.ModelProto:
    """A Relu behind 30 functions each of which calls the next one twice."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    functions = [helper.make_function("f", "F30", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], opsets)]
    for k in range(30):
        calls = [helper.make_node(f"F{k + 1}", [i], [o], domain="f") for i, o in (("a", "c"), ("c", "b"))]
        functions.append(helper.make_function("f", f"F{k}", ["a"], ["b"], calls, opsets))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy")
    graph = helper.make_graph([helper.make_node("F0", ["x"], ["y"], domain="f")], "g", [x], [y])
    return helper.make_model(graph, functions=functions, opset_imports=opsets, ir_version=8)


def test_functions_that_double_are_counted_before_they_are_written_out(tmp_path: Path) -> None:
    """By whoever would write them out, tools and runtime included: none of the verbs starts what never ends."""
    model, large = functions_that_double(), pytest.raises(ModelError, match=f"to {2**30} nodes")
    with large:
        optimize(model.SerializeToString(), stop_after="load")
    onnx.save(model, tmp_path / "bomb.onnx")
    good = _saved([helper.make_node("Relu", ["x"], ["y"])], tmp_path, [2, 3], {})
    for a, b in ((good, tmp_path / "bomb.onnx"), (tmp_path / "bomb.onnx", good)):
        with large:
            verify_models(a, b, time_limit=30.0)
        with large:
            profile_models([a, b], time_limit=30.0)


class _Forest:
    """An attribute as large as a model: nobody waits until it is written out."""

    def __repr__(self) -> str:
        raise AssertionError("an attribute of an operator without a definition was written out")


def test_attributes_of_what_is_left_to_the_runtime_are_not_read() -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 3]>
        m (float[N, 4] x) => (float[N, 1] y, float[N, 4] z)
        { y = ai.onnx.ml.TreeEnsembleRegressor <n_targets = 1> (x)
          z = Relu (x) }""")
    graph = graph_of(model)
    nodes = [replace(n, attrs={"nodes_values": _Forest()}) if n.domain else n for n in graph.nodes]
    found = costs_of(graph, nodes, {"N": 8})
    assert sorted((each is None, each) for each, _ in found.values()) == [(False, 32), (True, None)]
