"""`python -m models`: it writes valid files, skips what is there, and says what is wrong in one line."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from models.__main__ import main
from models.networks import NETWORKS

pytest.importorskip("onnxruntime")


def test_writes_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tiny-resnet", "--out", str(tmp_path)]) == 0
    path = tmp_path / "tiny-resnet.onnx"
    facts = json.loads((tmp_path / "tiny-resnet.json").read_text())
    assert facts["nodes"] == len(onnx.load(path).graph.node) == sum(facts["operators"].values())
    written = path.stat().st_mtime_ns
    assert main(["tiny-resnet", "--out", str(tmp_path)]) == 0
    assert path.stat().st_mtime_ns == written
    assert "already there" in capsys.readouterr().out
    assert {file.name for file in tmp_path.iterdir()} == {"tiny-resnet.onnx", "tiny-resnet.json"}


def test_writes_a_network_whose_products_are_all_in_branches(tmp_path: Path) -> None:
    """Such a network has none to count in its own graph."""
    assert main(["tiny-voice-activity.dynamic", "--out", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "tiny-voice-activity.dynamic.json").read_text())["gflop"] == 0


def test_builds_again_when_the_builder_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tiny-resnet", "--out", str(tmp_path)]) == 0
    facts = tmp_path / "tiny-resnet.json"
    facts.write_text(json.dumps(json.loads(facts.read_text()) | {"builder": "another"}))
    assert main(["tiny-resnet", "--out", str(tmp_path)]) == 0
    assert "already there" not in capsys.readouterr().out
    assert json.loads(facts.read_text())["builder"] != "another"


def test_lists_every_network(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [row.name for row in NETWORKS]


def test_unknown_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        main(["no-such-network"])
    assert exit.value.code == 2
    assert "no-such-network" in capsys.readouterr().err


def test_names_are_unique() -> None:
    assert len({row.name for row in NETWORKS}) == len(NETWORKS)
