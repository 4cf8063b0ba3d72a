"""Weights: views of the file whatever their type and place, and the same bytes again when the model is written."""

import hashlib
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.config import Options
from onnxfuse.ir.dtype import BF16, F32
from onnxfuse.load import expand, key_of, load, make_stub
from onnxfuse.load.tensors import forget_pages
from onnxfuse.runtime import wire
from onnxfuse.runtime.wire import THRESHOLD, slim
from tests.load.models import graph_of, parse

BIG = 4 * THRESHOLD  # elements of a weight that is surely cut out
TYPES = (
    "float32",
    "float64",
    "float16",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "bool",
)


def model_with(*tensors: onnx.TensorProto) -> onnx.ModelProto:
    """A model with some initializers, each read by an Identity."""
    nodes = [helper.make_node("Identity", [t.name], [f"{t.name}_out"]) for t in tensors]
    outputs = [helper.make_tensor_value_info(f"{t.name}_out", t.data_type, list(t.dims)) for t in tensors]
    return helper.make_model(helper.make_graph(nodes, "g", [], outputs, list(tensors)))


def numbers(dtype: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype)


@pytest.mark.parametrize("shape", [(), (3,), (BIG // 2, 2), (0, 5)])
@pytest.mark.parametrize("dtype", TYPES)
def test_raw_data_of_every_type(dtype: str, shape: tuple[int, ...], tmp_path: Path):
    array = numbers(dtype, shape)
    (tmp_path / "m.onnx").write_bytes(model_with(numpy_helper.from_array(array, "w")).SerializeToString())
    constant = load(tmp_path / "m.onnx", Options()).constants["w"]
    found = constant.load()
    assert (constant.dtype.name, constant.shape) == (dtype, shape)
    assert found.dtype == array.dtype and found.shape == shape and (found == array).all()
    if array.nbytes > THRESHOLD:
        assert key_of(constant.raw) is not None and found.base is not None and not found.flags.writeable


@pytest.mark.parametrize("count", [3, BIG])
@pytest.mark.parametrize("dtype", [t for t in TYPES if t != "bool"])
def test_typed_fields_of_every_type(dtype: str, count: int):
    array = numbers(dtype, (count,))
    number = helper.np_dtype_to_tensor_dtype(array.dtype)
    tensor = helper.make_tensor("w", number, [count], array)
    assert not tensor.HasField("raw_data")
    found = graph_of(model_with(tensor)).constants["w"].load()
    assert found.dtype == array.dtype and (found == array).all()


def test_bfloat16_is_widened():
    array = np.array([1.0, -2.5, 3.140625, 1e30], ml_dtypes.bfloat16)
    for values in (array, np.tile(array, BIG)):
        constant = graph_of(model_with(numpy_helper.from_array(values, "w"))).constants["w"]
        assert constant.dtype == BF16
        assert constant.load().dtype == np.float32 and (constant.load() == values.astype(np.float32)).all()


@pytest.mark.parametrize("kind", [TensorProto.FLOAT8E4M3FN, TensorProto.INT4, TensorProto.STRING])
@pytest.mark.parametrize("count", [2, 4 * BIG])
def test_types_without_a_row_are_carried_along(kind: int, count: int):
    values = [b"ab"] * count if kind == TensorProto.STRING else np.ones(count)
    tensor = helper.make_tensor("w", kind, [count], values)
    graph = graph_of(model_with(tensor))
    constant = graph.constants["w"]
    assert constant.dtype.kind == "x" and constant.dtype.onnx == kind and graph.types["w"] is None
    assert constant.load().shape == (count,)
    assert (constant.load() == numpy_helper.to_array(tensor)).all()


def test_a_sparse_initializer_is_carried_along():
    values = numpy_helper.from_array(np.array([5.0, 7.0], np.float32), "s")
    model = parse("g (float[3] x) => (float[3] y) { y = Add(x, s) }")
    places = numpy_helper.from_array(np.array([0, 2]))
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [3]))
    graph = graph_of(model)
    assert graph.types["s"] is None and graph.constants["s"].load().tolist() == [5.0, 0.0, 7.0]


def test_the_weights_are_not_read_into_memory(tmp_path: Path):
    array = np.ones((16 << 20) // 4, np.float32)
    (tmp_path / "m.onnx").write_bytes(model_with(numpy_helper.from_array(array, "w")).SerializeToString())
    tracemalloc.start()
    graph = load(tmp_path / "m.onnx", Options())
    found = graph.constants["w"].load()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20, f"{peak >> 20} MB were held to load a model of 16 MB"
    assert found.sum() == array.size
    assert len(graph.source.proto.SerializeToString()) < 1000


def test_the_source_describes_the_file_that_was_read(tmp_path: Path):
    model = model_with(numpy_helper.from_array(np.ones(BIG, np.float32), "w"))
    model.metadata_props.add(key="author", value="me")
    data = model.SerializeToString()
    (tmp_path / "m.onnx").write_bytes(data)
    for source in (load(tmp_path / "m.onnx", Options()).source, load(data, Options()).source):
        assert source.sha256 == hashlib.sha256(data).hexdigest()
        assert (source.bytes, source.metadata, source.ir_version) == (len(data), {"author": "me"}, model.ir_version)
        assert source.opsets == {"": model.opset_import[0].version}
        assert source.external == () and not source.already_fused and source.warnings == ()


def saved_externally(tmp_path: Path, array: np.ndarray[Any, Any]) -> Path:
    model = model_with(numpy_helper.from_array(array, "w"), numpy_helper.from_array(2 * array, "v"))
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="m.data", size_threshold=0)
    return path


def test_external_data_is_mapped(tmp_path: Path):
    array = numbers("float32", (BIG,))
    graph = load(saved_externally(tmp_path, array), Options())
    assert (graph.constants["w"].load() == array).all() and (graph.constants["v"].load() == 2 * array).all()
    assert graph.source.external == (tmp_path / "m.data",)
    assert not graph.constants["w"].load().flags.owndata


def test_external_data_behind_links(tmp_path: Path):
    """As download caches lay models out: the files are links into a store."""
    store, shown = tmp_path / "store", tmp_path / "shown"
    store.mkdir()
    shown.mkdir()
    saved_externally(store, numbers("float32", (BIG,)))
    for name in ("m.onnx", "m.data"):
        (store / name).rename(store / f"blob-{name}")
        (shown / name).symlink_to(store / f"blob-{name}")
    assert load(shown / "m.onnx", Options()).constants["w"].load().shape == (BIG,)


# The wire -------------------------------------------------------------------------------------------------------------


def everywhere() -> onnx.ModelProto:
    """Large tensors in initializers, Constant nodes, branches and functions, and small ones beside them."""
    array = numbers("float32", (BIG,))
    model = model_with(numpy_helper.from_array(array, "w"), helper.make_tensor("f", TensorProto.FLOAT, [BIG], array))
    branch = helper.make_graph(
        [helper.make_node("Constant", [], ["o"], value=numpy_helper.from_array(array + 1))],
        "branch",
        [],
        [helper.make_tensor_value_info("o", TensorProto.FLOAT, [BIG])],
        [numpy_helper.from_array(array + 2, "inner"), numpy_helper.from_array(np.arange(3), "small")],
    )
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    model.graph.node.append(helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch))
    model.graph.node.append(helper.make_node("F", [], ["z"], domain="mine"))
    body = [helper.make_node("Constant", [], ["o"], value=numpy_helper.from_array(array + 3))]
    model.functions.append(helper.make_function("mine", "F", [], ["o"], body, [helper.make_opsetid("", 20)]))
    return model


def test_cutting_out_and_putting_back_give_the_same_model():
    model = everywhere()
    data = model.SerializeToString()
    small = slim(memoryview(data))
    assert len(small) < 4000 < len(data)
    source = load(data, Options()).source
    again = onnx.ModelProto.FromString(b"".join(expand(small, source.blob)))
    for t in (model.graph.initializer[1], again.graph.initializer[1]):  # typed fields come back as raw data
        t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(t), t.name))
    assert again == model


def test_lists_of_numbers_are_not_walked_through(monkeypatch: pytest.MonkeyPatch):
    """The trees of a forest are attributes of millions of numbers, each a field of its own."""
    steps = 0

    def counted(data: memoryview, at: int) -> tuple[int, int]:
        nonlocal steps
        steps += 1
        return varint(data, at)

    varint = wire._varint
    monkeypatch.setattr(wire, "_varint", counted)
    lists = {"splits": [0.5] * BIG, "nodes": list(range(BIG)), "names": [b"tree"] * BIG}
    node = helper.make_node("Forest", ["x"], ["y"], domain="trees", **lists)
    model = helper.make_model(helper.make_graph([node], "g", [], []))
    assert slim(memoryview(model.SerializeToString())) == model.SerializeToString()
    assert steps < BIG


def test_a_model_without_large_tensors_is_left_alone():
    data = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }").SerializeToString()
    assert slim(memoryview(data)) == data
    assert b"".join(expand(data, lambda key: b"")) == data


def test_stubs_of_others_are_filled_in():
    model = model_with(numpy_helper.from_array(np.zeros(3, np.float32), "w"))
    make_stub(model.graph.initializer[0], "mine")
    assert key_of(model.graph.initializer[0]) == "mine"
    filled = np.array([1, 2, 3], np.float32)
    data = b"".join(expand(model.SerializeToString(), {"mine": memoryview(filled)}.__getitem__))
    assert (numpy_helper.to_array(onnx.ModelProto.FromString(data).graph.initializer[0]) == filled).all()


def test_a_constant_node_is_a_constant():
    text = "g (float[2] x) => (float[2] y) { c = Constant<value_floats: floats = [1.5, 2.0]>()\n y = Add(x, c) }"
    graph = graph_of(text)
    assert [n.op for n in graph.nodes] == ["Add"]
    constant = graph.constants["c"]
    assert constant.dtype == F32 and constant.load().tolist() == [1.5, 2.0]


def test_mapped_pages_are_released_after_reading(tmp_path: Path):
    """They count as memory of the process until then, though any of them can be read again."""
    array = np.ones((64 << 20) // 4, np.float32)
    path = tmp_path / "m.onnx"
    onnx.save(model_with(numpy_helper.from_array(array, "w")), path, save_as_external_data=True, location="m.data")
    found = load(path, Options()).constants["w"].load()
    assert found.sum() == array.size
    before = file_pages()
    forget_pages()
    assert before - file_pages() > 60 << 20
    assert found.sum() == array.size, "read again"


def file_pages() -> int:
    """Bytes of files that are in this process's memory."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssFile:"))
