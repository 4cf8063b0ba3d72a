"""`bisect` finds faulty and slow kernels, bodies and rewrites, and the models that it writes show the fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

from tests.calls import on_cpu
from tests.cli.conftest import Onnxfuse, files
from tests.models.fused import built, model_bytes
from tests.models.planted import Planted, Slow

NETWORK = "tiny-bert.decomposed"
PLAN: dict[str, Any] = {"arch": ("x86-64-v3",)}  # one, whatever processor this is


@pytest.fixture
def there(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that has the original."""
    (here / "m.onnx").write_bytes(model_bytes(NETWORK))
    return here


def test_nothing_is_at_fault(onnxfuse: Onnxfuse, there: Path):
    built(NETWORK, there, **PLAN)
    said = onnxfuse("bisect", "m.onnx", "fused.onnx", "--json")
    assert said.code == 0, said.err
    assert said.json["written"] == [] and said.json["pieces"] > 8
    assert not [row for row in said.json["found"] if row["at_fault"]]
    assert not [name for name in files(there) if name.startswith("bisect")]


@pytest.mark.parametrize("number", [1, 3])
def test_a_wrong_kernel_is_found_and_shown_alone(onnxfuse: Onnxfuse, there: Path, number: int):
    """A kernel whose first output is 1 % too much: it is named, and two models of its nodes alone differ as well."""
    planted = Planted(number)
    library = built(NETWORK, there, **PLAN, calls=on_cpu(render=planted)).library
    said = onnxfuse("bisect", "m.onnx", "fused.onnx", "--json-file", "b.json")
    assert said.code == 1 and "its function body agrees with the original" in said.last, said.err
    kernel = planted.name.removeprefix("onnxfuse_")
    assert f"the kernel {kernel} of node" in said.out
    assert {"bisect.a.onnx", "bisect.b.onnx", "bisect.inputs.npz"} <= files(there)
    least = onnx.load(there / "bisect.b.onnx")
    assert [n.op_type for n in least.graph.node if n.domain.startswith("onnxfuse.")][-1] == kernel
    assert len(onnx.load(there / "bisect.a.onnx").graph.node) < 30
    inputs = ("--inputs", "bisect.inputs.npz")
    assert onnxfuse("verify", "bisect.a.onnx", "bisect.b.onnx", *inputs, "--library", library).code == 1
    assert onnxfuse("verify", "bisect.a.onnx", "bisect.b.onnx", *inputs).code == 0
    again = onnxfuse("bisect", "m.onnx", "fused.onnx")
    assert again.code == 2 and "exists" in again.last


def test_a_wrong_body_is_a_rewrite_at_fault(onnxfuse: Onnxfuse, there: Path):
    """A function in which a sum became a difference is wrong with its kernel and without: rules there are named."""
    built(NETWORK, there, **PLAN)
    proto = onnx.load(there / "fused.onnx")
    function = next(f for f in proto.functions if [n for n in f.node if n.op_type == "Erf"])
    next(n for n in function.node if n.op_type == "Add").op_type = "Sub"
    del proto.metadata_props[:]
    onnx.save(proto, there / "wrong.onnx")
    said = onnxfuse("bisect", "m.onnx", "wrong.onnx", "--json", "--output", "found")
    assert said.code == 1, said.err
    worst = said.json["found"][0]
    assert worst["at_fault"] == "rewrite" and worst["operators"] == [function.name]
    assert "node_erf_68" in worst["origin"] or "node_erf_132" in worst["origin"]
    assert {"found.a.onnx", "found.b.onnx"} <= files(there)


def test_a_node_that_shares_its_maker_is_shown_with_it(onnxfuse: Onnxfuse, here: Path):
    """The maker alone is a smaller piece, which is right."""
    head = '<ir_version: 8, opset_import: ["" : 17]> g (float[2, 4] x) => (float[1, 4] h, float[1, 4] y) {'
    for name, text in (
        ("a.onnx", "h, r = Split<axis = 0>(x)\n y = Neg(r)"),
        ("b.onnx", "h, q = Split<axis = 0>(x)\n y = Abs(q)"),
    ):
        onnx.save(parser.parse_model(f"{head} {text} }}"), here / name)
    said = onnxfuse("bisect", "a.onnx", "b.onnx")
    assert said.code == 1, said.err
    assert [[o.name for o in onnx.load(here / f"bisect.{one}.onnx").graph.output] for one in "ab"] == [["y"]] * 2
    assert onnxfuse("verify", "bisect.a.onnx", "bisect.b.onnx", "--inputs", "bisect.inputs.npz").code == 1


@pytest.mark.parametrize("wrong", [False, True])
def test_values_in_other_layouts(onnxfuse: Onnxfuse, here: Path, wrong: bool):
    """A convolutional network, whose values the kernels hold channels last under the names that they had."""
    (here / "m.onnx").write_bytes(model_bytes("tiny-resnet"))
    planted = Planted(1)
    library = built("tiny-resnet", here, **({"calls": on_cpu(render=planted)} if wrong else {})).library
    said = onnxfuse("bisect", "m.onnx", "fused.onnx", "--json")
    assert said.code == wrong, said.err
    assert said.json["pieces"] > 3
    if wrong:
        worst = said.json["found"][0]
        assert worst["at_fault"] == "kernel" and worst["operators"][-1] == planted.name.removeprefix("onnxfuse_")
        inputs = ("--inputs", "bisect.inputs.npz")
        assert onnxfuse("verify", "bisect.a.onnx", "bisect.b.onnx", *inputs, "--library", library).code == 1
        assert onnxfuse("verify", "bisect.a.onnx", "bisect.b.onnx", *inputs).code == 0


def test_a_slow_kernel_is_found(onnxfuse: Onnxfuse, there: Path):
    built(NETWORK, there, **PLAN, calls=on_cpu(render=Slow("Gather_Gemm_Tanh", turns=400_000)))
    said = onnxfuse("bisect", "m.onnx", "fused.onnx", "--metric", "latency", "--duration", "0.2s", "--threads", "1",
                    "--json")  # fmt: skip
    assert said.code == 1, said.err
    worst: dict[str, Any] = said.json["found"][0]
    assert worst["operators"][0].startswith("Gather_Gemm_Tanh") and worst["after_ms"] > worst["before_ms"]
    assert np.load(there / "bisect.inputs.npz").files
    run = onnxfuse("profile", "bisect.a.onnx", "bisect.b.onnx", "--inputs", "bisect.inputs.npz", "--duration", "0.1s",
                   "--library", there / "libfused.so", "--json")  # fmt: skip
    assert run.code == 0 and run.json["speedup"] < 1.0, run.err


def test_models_of_other_tools_have_pieces_too(onnxfuse: Onnxfuse, there: Path):
    """Without a library or a manifest: a node that another tool changed."""
    proto = onnx.load(there / "m.onnx")
    next(n for n in proto.graph.node if n.op_type == "Tanh").op_type = "Sigmoid"
    onnx.save(proto, there / "other.onnx")
    said = onnxfuse("bisect", "m.onnx", "other.onnx", "--json")
    assert said.code == 1 and said.json["found"][0]["operators"] == ["Sigmoid"]
    assert len(onnx.load(there / "bisect.b.onnx").graph.node) == 1
