"""Writing: weights inside or in aligned data beside the model, one at a time; nothing half-written is ever seen."""

import io
import itertools
import threading
import tracemalloc
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxfuse.emit.model import copied
from onnxfuse.emit.staged import Staged
from onnxfuse.emit.write import data_path, outside, write, write_data, write_stream
from onnxfuse.errors import OutputError, UsageError
from onnxfuse.ir.layout import Layout, panels
from tests.emit import plans
from tests.emit.plans import model, random

writing = import_module("onnxfuse.emit.write")  # `onnxfuse.emit.write` itself is the function
PANELS = Layout(panels(150, 150, 16))
TEXT = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,150] x) => (float[N,150] y) {
  m = MatMul(x, w)
  n = Add(m, b)
  o = Mul(n, s)
  p = Relu(o)
  q = MatMul(p, v)
  y = Add(q, r)
}"""


def plain() -> onnx.ModelProto:
    weights = {"w": random(150, 150), "b": random(150), "s": random(400)[:300:2], "v": random(150, 150, seed=2)}
    return model(TEXT, {**weights, "r": random(500)[:150]})


def emitted(source: onnx.ModelProto | Path | None = None):
    return plans.fused(source or plain(), ["m n o p"], {"w": PANELS})


def places(path: Path) -> dict[str, dict[str, str]]:
    """Where each external initializer of a model says it is."""
    proto = onnx.load(path, load_external_data=False)
    return {t.name: {e.key: e.value for e in t.external_data} for t in proto.graph.initializer if t.external_data}


def test_external_data_is_aligned(tmp_path):
    path = tmp_path / "m.onnx"
    plans.written(emitted(), path, external=True)
    found = places(path)
    big = {name: int(p["offset"]) for name, p in found.items() if int(p["length"]) >= 64 << 10}
    small = {name: int(p["offset"]) for name, p in found.items() if name not in big}
    assert set(big) == {"w.packed", "v"} and not any(offset % 4096 for offset in big.values())
    assert not any(offset % 64 for offset in small.values())
    assert {p["location"] for p in found.values()} == {"m.data"}
    ends = sorted((int(p["offset"]), int(p["offset"]) + int(p["length"])) for p in found.values())
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(ends))
    assert data_path(path).stat().st_size == ends[-1][1]
    plans.assert_same(plain(), path, {"x": random(3, 150)})


def test_small_tensors_stay_in_the_file(tmp_path):
    """What shape inference reads must not lie outside; 1 KB is the limit."""
    path = tmp_path / "m.onnx"
    plans.written(emitted(), path, external=True)
    inside = [t.name for t in onnx.load(path, load_external_data=False).graph.initializer if not t.external_data]
    assert sorted(inside) == ["b", "r", "s"]


def test_large_weights_go_outside_by_themselves(tmp_path, monkeypatch):
    made = emitted()
    assert not outside(made) and outside(made, asked=True)
    monkeypatch.setattr(writing, "LARGE", made.weight_bytes)
    assert outside(made)
    monkeypatch.setattr(writing, "LARGE", made.weight_bytes + 1)
    assert not outside(made)


def test_weights_stay_outside_where_they_were(tmp_path):
    """An original with external data, its branches' initializers too, gives a model that needs none of its files."""
    source = tmp_path / "in" / "m.onnx"
    source.parent.mkdir()
    proto = model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[N,150] x, bool c) => (float[N,150] y) {
          m = MatMul(x, w)
          n = Relu(m)
          y = If(c)<then_branch = t () => (float[N,150] a) { a = MatMul(n, u) },
                    else_branch = e () => (float[N,150] b) { b = MatMul(n, w) }>
        }""",
        {"w": random(150, 150)},
    )
    branch = proto.graph.node[2].attribute[0].g
    branch.initializer.append(numpy_helper.from_array(random(150, 150, seed=5), "u"))
    whole = onnx.ModelProto()
    whole.CopyFrom(proto)
    onnx.save(proto, source, save_as_external_data=True, location="weights.bin", size_threshold=100)
    made = plans.fused(source, ["m n"], {"w": PANELS})
    path = tmp_path / "out" / "m.onnx"
    path.parent.mkdir()
    with Staged() as staged:
        files = write(made, path, staged)
        staged.commit()
    assert files == (path.parent / "m.data", path)
    (tmp_path / "in" / "weights.bin").unlink()
    for chosen in (True, False):
        plans.assert_same(whole, path, {"x": random(3, 150), "c": np.array(chosen)})


@pytest.mark.parametrize("same_folder", [True, False])
def test_a_copy_takes_its_data_along(same_folder, tmp_path):
    source = tmp_path / "m.onnx"
    onnx.save(plain(), source, save_as_external_data=True, location="m.data", size_threshold=100)
    made = copied(plans.graph_of(source).source)
    path = (tmp_path if same_folder else tmp_path / "other") / "m.onnx"
    path.parent.mkdir(exist_ok=True)
    plans.written(made, path, overwrite=True)
    plans.assert_same(plain(), path, {"x": random(3, 150)})


def test_written_twice_is_the_same(tmp_path):
    for external in (False, True):
        files = []
        for name in ("one", "two"):
            folder = tmp_path / f"{name}{external}"
            folder.mkdir()
            plans.written(emitted(), folder / "m.onnx", external=external)
            files.append({p.name: p.read_bytes() for p in folder.iterdir()})
        assert files[0] == files[1] and len(files[0]) == 1 + external


def test_data_may_be_written_ahead_of_the_model(tmp_path):
    for folder in ("at once", "ahead"):
        (tmp_path / folder).mkdir()
    plans.written(emitted(), tmp_path / "at once" / "m.onnx", external=True)
    data = tmp_path / "ahead" / "m.data"
    write_data(emitted(), data, data)
    plans.written(emitted(), tmp_path / "ahead" / "m.onnx", external=True, data_there=True)
    for name in ("m.onnx", "m.data"):
        assert (tmp_path / "ahead" / name).read_bytes() == (tmp_path / "at once" / name).read_bytes()


def test_writing_data_ends_where_it_is_told_to(tmp_path):
    made, stop, data = emitted(), threading.Event(), tmp_path / "m.data"
    first, second, *_ = made.weights

    def payload() -> Any:
        stop.set()
        return first_payload()

    first_payload = first.payload
    object.__setattr__(first, "payload", payload)
    object.__setattr__(second, "payload", None)  # would fail
    write_data(made, data, data, stop)
    assert data.stat().st_size == first.bytes


def test_the_file_is_what_protobuf_would_write(tmp_path):
    plans.written(emitted(), tmp_path / "m.onnx")
    data = (tmp_path / "m.onnx").read_bytes()
    proto = onnx.ModelProto.FromString(data)
    assert len(proto.SerializeToString()) == len(data)
    assert {t.name: t.dims for t in proto.graph.initializer}["w.packed"] == [10, 150, 16]


def test_a_stream_gets_the_model_in_one_piece(tmp_path):
    plans.written(emitted(), tmp_path / "m.onnx")
    stream = io.BytesIO()
    write_stream(emitted(), stream)
    assert stream.getvalue() == (tmp_path / "m.onnx").read_bytes()


def test_a_stream_cannot_take_more_than_one_message(monkeypatch):
    monkeypatch.setattr(writing, "_MOST", emitted().weight_bytes)
    with pytest.raises(OutputError, match="more than one file can hold"):
        write_stream(emitted(), io.BytesIO())


@pytest.mark.parametrize("external", [True, False])
def test_weights_are_packed_one_at_a_time(external, tmp_path):
    """8 tensors of 4 MB, all packed: at no time is more than one of them in memory, in the file or beside it."""
    count, side = 8, 1024
    nodes, held = [], []
    for i in range(count):
        nodes.append(helper.make_node("MatMul", [f"h{i}", f"w{i}"], [f"h{i + 1}"]))
        held.append(numpy_helper.from_array(random(side, side, seed=i), f"w{i}"))
    infos = [helper.make_tensor_value_info(v, 1, ["N", side]) for v in ("h0", f"h{count}")]
    proto = helper.make_model(
        helper.make_graph(nodes, "g", infos[:1], infos[1:], held),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    source = tmp_path / "in.onnx"
    onnx.save(proto, source)
    del proto, held
    layout = Layout(panels(side, side, 16))
    tracemalloc.start()
    try:
        made = plans.fused(source, [f"h{i + 1}" for i in range(count)], {f"w{i}": layout for i in range(count)})
        with Staged() as staged:
            write(made, tmp_path / "m.onnx", staged, external=external)
            staged.commit()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert made.weight_bytes == count << 22
    assert peak < 6 << 20, f"{peak / 2**20:.1f} MB at the peak"


class DiskFull(Exception):
    pass


@pytest.mark.parametrize("external", [False, True])
def test_a_failure_on_the_way_leaves_the_old_files_whole(external, tmp_path, monkeypatch):
    path = tmp_path / "m.onnx"
    plans.written(emitted(), path, external=external)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    made = emitted()

    def fail():
        raise DiskFull

    object.__setattr__(made.weights[-1], "payload", fail)
    with pytest.raises(DiskFull), Staged(overwrite=True) as staged:
        write(made, path, staged, external=external)
        staged.commit()
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_full_disk_is_one_line(tmp_path, monkeypatch):
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    for external in (False, True):
        staged = Staged()
        monkeypatch.setattr(staged, "stage", lambda path: full)
        with pytest.raises(OutputError, match=r"No space left on device"):
            write(emitted(), tmp_path / "m.onnx", staged, external=external)


def test_an_input_may_be_replaced_by_its_output(tmp_path):
    """The model is read from a mapping while its successor takes its name."""
    path = tmp_path / "m.onnx"
    onnx.save(plain(), path)
    plans.written(emitted(path), path, overwrite=True)
    plans.assert_same(plain(), path, {"x": random(3, 150)})


def test_outputs_are_not_replaced_unasked(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(b"precious")
    with pytest.raises(UsageError, match="exists"):
        plans.written(emitted(), path)
    assert path.read_bytes() == b"precious" and list(tmp_path.iterdir()) == [path]
