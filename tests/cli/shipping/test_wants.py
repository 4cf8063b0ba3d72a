"""The commands of docs/wants.md run, and end as the page says."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest

from tests.caches import own_cache
from tests.cli.conftest import Onnxfuse
from tests.craft.sources import ROOT

COMMANDS = list(dict.fromkeys(re.findall(r"`onnxfuse ([^`]+)`", (ROOT / "docs/wants.md").read_text(encoding="utf-8"))))
DIFFERS = ("diff A B",)  # exit code 1 where the models differ, as these do


def sized() -> onnx.ModelProto:
    """Three elementwise nodes over a batch of any size: one kernel."""
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        sized (float[batch, 64] x) => (float[batch, 64] y) { a = Abs (x)  b = Exp (a)  y = Neg (b) }"""
    )
    for number, node in enumerate(proto.graph.node):
        node.name = f"{node.op_type}_{number}"
    return proto


def arguments(command: str, here: Path) -> list[str]:
    """The words of a command of the page, with files of this folder in place of its capital letters."""
    (library,) = here.glob("*.so")
    names = {"MODEL": "m.onnx", "A": "m.onnx", "B": "f.onnx", "OUT": "o.onnx", "DIR": ".", "LIB": library.name}
    file = "f.lock" if "--lock" in command else "f.json"
    return [{**names, "F": file, "F.html": "f.html"}.get(word, word) for word in command.split()]


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_runs(command: str, onnxfuse: Onnxfuse, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(sized(), here / "m.onnx")
    if "--lock" in command:
        # What is tuned would be used by other tests.
        monkeypatch.setenv("ONNXFUSE_CACHE_DIR", own_cache(here / "cache"))
        assert onnxfuse("tune", "m.onnx", "--lock", "f.lock", "--budget", "1s").code == 0
    made = onnxfuse("optimize", "m.onnx", "f.onnx", "--no-gain", "-q")
    assert made.code == 0, made.err
    words = arguments(command, here)
    if words[0] == "profile":
        words += ["--duration", "0.1s"]
    said = onnxfuse(*words)
    verdicts = {0, 1} if "--fail-if-slower" in command else {int(command.startswith(DIFFERS))}
    assert said.code in verdicts, said.err
    for word in words[1:]:
        if word in ("o.onnx", "f.html", "f.json"):
            assert (here / word).stat().st_size > 0
