"""Each verb that answers with JSON has a published schema, and answers as it says, in all its forms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnxfuse_cli.verbs import onnxfuse as program

from tests.cli.conftest import Onnxfuse, lonely
from tests.cli.contract.schema import problems
from tests.craft.sources import ROOT

FOLDER = ROOT / "docs" / "schema"
RUNS: dict[str, tuple[tuple[str, ...], ...]] = {
    "optimize": (("m.onnx", "--no-verify"), ("l.onnx",), ("m.onnx", "--dry-run"), ("m.onnx", "a.onnx", "--gain")),
    "explain": (("m.onnx",), ("l.onnx",), ("m.onnx", "--node", "Add_1")),
    "profile": (
        ("m.onnx", "--duration", "0.05s"),
        ("m.onnx", "f.onnx", "--duration", "0.05s", "--level", "op", "--fail-if-slower", "9900%"),
        ("l.onnx", "--duration", "0.05s", "--dim", "N=2,3", "--level", "kernel"),
    ),
    "verify": (("m.onnx", "f.onnx"), ("m.onnx", "f.onnx", "--groups")),
    "inspect": (("m.onnx",), ("l.onnx",), ("f.onnx",), ("libf.so",)),
    "diff": (("m.onnx", "f.onnx"), ("m.onnx", "m.onnx")),
    "bisect": (
        ("m.onnx", "f.onnx"),
        ("m.onnx", "f.onnx", "--metric", "latency", "--duration", "0.05s"),
        ("m.onnx", "w.onnx"),
    ),
    "tune": (("m.onnx", "--budget", "3", "--threads", "1", "--cache-dir", "own"),),
    "package": (("folder", "--overwrite"),),
    "doctor": ((),),  # test_effects.py calibrates
    "config": ((), ("--fast-math",)),
    "cache": (("info",), ("gc",)),
}


def schema(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return found


def test_each_verb_with_json_has_a_schema():
    verbs = {name for name, verb in program.commands.items() if any("--json" in p.opts for p in verb.params)}
    assert verbs == {path.stem for path in FOLDER.glob("*.json")} == set(RUNS)
    for name in verbs:
        found = schema(name)
        assert found["properties"]["command"] == {"const": name} and name in found["title"]
        assert found["properties"]["schema_version"]["const"] == 2


@pytest.fixture
def there(onnxfuse: Onnxfuse, model: Path, here: Path) -> Path:
    """A model, what became of it, one with symbols, one that differs, and a folder with a build."""
    onnx.save(lonely(), "l.onnx")
    proto = onnx.load(model)
    next(n for n in proto.graph.node if n.op_type == "Relu").op_type = "Abs"
    onnx.save(proto, "w.onnx")
    (here / "folder").mkdir()
    for out in ("f.onnx", "folder/f.onnx"):
        assert onnxfuse("optimize", model, out, "--no-verify", "--no-gain").code == 0
    return here


@pytest.mark.parametrize("verb", sorted(RUNS))
def test_answers_fit(onnxfuse: Onnxfuse, there: Path, verb: str):
    for number, arguments in enumerate(RUNS[verb]):
        said = onnxfuse(verb, *arguments, "--json", "--json-file", f"{number}.json", "--overwrite")
        assert said.code in (0, 1), said.err
        for document in (said.json, json.loads(Path(f"{number}.json").read_text())):
            assert list(problems(document, schema(verb))) == []


def test_a_wrong_answer_does_not_fit(onnxfuse: Onnxfuse, there: Path):
    found = onnxfuse("diff", "m.onnx", "f.onnx", "--json").json
    for change in ({"equal": 1}, {"differences": None}, {"command": "verify"}, {"more": 1}, {"models": [{}]}):
        assert list(problems(found | change, schema("diff"))) != [], change
