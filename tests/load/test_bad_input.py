"""Files that are no models give one line with a hint, and the exit code tells usage errors from invalid models."""

import os
import random
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.config import Options
from onnxfuse.errors import ModelError, OnnxFuseError, UsageError
from onnxfuse.load import load
from tests.load.models import graph_of, parse

GOOD = parse("g (float[N, 4] x) => (float[N, 4] y) <float[4] w = {1, 2, 3, 4}> { t = Mul(x, w)\n y = Relu(t) }")


def refusal(source: object, kind: type[OnnxFuseError] = ModelError) -> str:
    with pytest.raises(kind) as caught:
        load(source, Options())
    assert type(caught.value) is kind
    line = str(caught.value)
    assert line.startswith("load: ") and "\n" not in line and caught.value.hint
    return line


def test_a_path_that_is_not_there(tmp_path: Path):
    (tmp_path / "resnet.onnx").write_bytes(GOOD.SerializeToString())
    assert "resnet.onnx" in refusal(tmp_path / "resnt.onnx", UsageError)
    assert "no folder" in refusal(tmp_path / "nowhere" / "resnet.onnx", UsageError)
    assert "folder" in refusal(tmp_path, UsageError)


def test_a_path_as_text_works(tmp_path: Path):
    (tmp_path / "m.onnx").write_bytes(GOOD.SerializeToString())
    assert load(str(tmp_path / "m.onnx"), Options()).source.path == tmp_path / "m.onnx"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "git lfs pull"),
        (b"PK\x03\x04rest", "zip"),
        (b"\x80\x02}q\x00", "pickle"),
        (b"\x89HDF\r\n", "HDF5"),
        (b"\x1f\x8b\x08\x00", "gzip"),
        (b"<!DOCTYPE html><html></html>", "HTML"),
        (b'{"model": 1}', "JSON"),
        (b"\x20\x00\x00\x00ORTM\x00\x00", "own format"),
        (b"import onnx\n", "cannot be read"),
        (bytes(range(1, 200)), "cannot be read"),
        (b"\x08\x08", "has no graph"),
    ],
)
def test_what_is_not_onnx(content: bytes, said: str):
    assert said in refusal(content)


def test_a_file_cut_short():
    data = GOOD.SerializeToString()
    assert "truncated" in refusal(data[: len(data) // 2])
    for end in range(1, len(data)):
        try:
            load(data[:end], Options())
        except OnnxFuseError as e:
            assert type(e) is ModelError


def test_damaged_bytes_never_end_in_another_error():
    data, pick = GOOD.SerializeToString(), random.Random(0)
    for _ in range(400):
        damaged = bytearray(data)
        for _ in range(pick.choice((1, 2, 4))):
            damaged[pick.randrange(len(damaged))] = pick.randrange(256)
        try:
            load(bytes(damaged), Options()).verify()
        except OnnxFuseError as e:
            assert type(e) is ModelError


def test_a_name_that_is_not_text():
    data = GOOD.SerializeToString()
    assert data.count(b"Relu") == 1
    assert "UTF-8" in refusal(data.replace(b"Relu", b"R\xfflu"))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("g (float[2] x) => (float[2] y) { y = Add(x, weihgt) }", "weihgt"),
        ("g (float[2] x) => (float[2] z) { y = Relu(x) }", "output z"),
        ("g (float[2] x) => (float[2] y) { y = Relu(x)\n y = Neg(x) }", "defined twice"),
        ("g (float[2] x) => (float[2] y) { x = Relu(y)\n y = Neg(x) }", "defined twice"),
        (
            "g (float[2] x) => (float[2] y) { a = Add(x, b)\n b = Relu(a)\n y = Neg(b) }",
            "cycle: Add_0 -> Relu_0 -> Add_0",
        ),
    ],
)
def test_invalid_graphs_are_refused(body: str, said: str):
    assert said in refusal(parse(body).SerializeToString())


def test_a_near_name_is_offered():
    model = parse("g (float[2] weight) => (float[2] y) { y = Relu(weihgt) }")
    assert "near: weight" in refusal(model.SerializeToString())


def test_a_subgraph_that_reads_what_nothing_makes():
    inner = helper.make_graph([helper.make_node("Neg", ["gone"], ["o"])], "then", [], [info("o")])
    node = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
    graph = helper.make_graph([node], "g", [info("c", TensorProto.BOOL)], [info("y")])
    assert "gone" in refusal(helper.make_model(graph).SerializeToString())


def info(name: str, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, None)


def test_a_weight_shorter_than_its_shape():
    model = parse("g (float[2] x) => (float[2] y) { y = Add(x, w) }")
    tensor = numpy_helper.from_array(numpy_helper.to_array(GOOD.graph.initializer[0]), "w")
    tensor.raw_data = tensor.raw_data[:-4]
    model.graph.initializer.append(tensor)
    assert "12 bytes" in refusal(model.SerializeToString())
    tensor.dims[0] = -3
    model.graph.initializer[0].CopyFrom(tensor)
    assert "negative extent" in refusal(model.SerializeToString())
    model.graph.initializer[0].data_type = 99
    assert "unknown element type 99" in refusal(model.SerializeToString())


def external(location: str, offset: int = 0, length: int = 8) -> onnx.ModelProto:
    model = parse("g (float[2] x) => (float[2] y) { y = Add(x, w) }")
    tensor = model.graph.initializer.add(name="w", dims=[2], data_type=TensorProto.FLOAT)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)
    return model


def test_external_data_that_is_missing(tmp_path: Path):
    (tmp_path / "short.bin").write_bytes(bytes(8))
    for model, said in (
        (external("gone.bin"), "gone.bin"),
        (external("short.bin", offset=4), "is too short"),
        (external("short.bin", length=-8), "is too short"),
        (external("../short.bin"), "outside the model's folder"),
        (external(str(tmp_path / "short.bin")), "outside the model's folder"),
        (external(""), "outside the model's folder"),
    ):
        (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
        assert said in refusal(tmp_path / "m.onnx")
    assert "given as bytes" in refusal(external("short.bin").SerializeToString())


def test_external_data_behind_links(tmp_path: Path):
    """As the runtime has it: out of the folder of the model, or of the file that the model links to, none may lead."""
    folder, other = tmp_path / "here", tmp_path / "there"
    for each in (folder, other):
        each.mkdir()
    (other / "data").write_bytes(bytes(8))
    (folder / "m.onnx").write_bytes(external("w.bin").SerializeToString())
    (folder / "w.bin").symlink_to(other / "data")
    assert "leads out of the model's folder" in refusal(folder / "m.onnx")
    (other / "model").write_bytes((folder / "m.onnx").read_bytes())
    (folder / "linked.onnx").symlink_to(other / "model")
    load(folder / "linked.onnx", Options())
    (folder / "w.bin").unlink()
    (folder / "near").write_bytes(bytes(8))
    (folder / "w.bin").symlink_to("near")
    load(folder / "m.onnx", Options())


def test_pipes_and_devices_are_not_read(tmp_path: Path):
    os.mkfifo(tmp_path / "w.bin")
    assert "not a regular file" in refusal(tmp_path / "w.bin", UsageError)
    assert "not a regular file" in refusal(Path("/dev/zero"), UsageError)
    (tmp_path / "m.onnx").write_bytes(external("w.bin").SerializeToString())
    assert "not a regular file" in refusal(tmp_path / "m.onnx")


@pytest.mark.parametrize("n", ["100000000000000000000", "9" * 5000, "2147483648", "\u00b2", "-1"])
def test_invalid_extents_are_refused(n: str):
    for options in (Options(dim=(f"N={n}",)), Options(input_shape=(f"x:{n},4",))):
        with pytest.raises(UsageError, match="is not NAME"):
            load(GOOD.SerializeToString(), options)
    assert load(GOOD.SerializeToString(), Options(dim=("N=2147483647",))).types["y"] is not None


def test_external_data_of_a_subgraph_is_looked_for(tmp_path: Path):
    inner = external("gone.bin").graph
    del inner.input[:]
    inner.node[0].input[0] = "w"
    node = helper.make_node("If", ["c"], ["z"], then_branch=inner, else_branch=inner)
    graph = helper.make_graph([node], "g", [info("c", TensorProto.BOOL)], [info("z")])
    (tmp_path / "m.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    assert "gone.bin" in refusal(tmp_path / "m.onnx")


def test_the_good_model_loads():
    assert graph_of(GOOD).outputs == ("y",)
