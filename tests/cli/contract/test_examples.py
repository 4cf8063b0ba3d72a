"""The examples that the help of each verb shows run, in their order, in a folder that has the files they name."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnxfuse_cli.program import VerbCommand
from onnxfuse_cli.verbs import onnxfuse as program

from tests.caches import own_cache
from tests.cli import programs
from tests.cli.conftest import Onnxfuse
from tests.cli.shipping.test_recipes import env
from tests.cli.shipping.test_wants import sized

__all__ = ["env"]  # a fixture: `onnxfuse` on the path, with the cache of the tests

CODES = {"diff": (1,), "bisect": (0, 1)}  # a model and what it became differ; whether one is slower is not the question
QUICKER = {"optimize": "--no-verify --no-gain", "profile": "--duration 0.05s", "bisect": "--duration 0.05s"}
NOT_HERE = ("--cluster",)  # a scheduler elsewhere: tests/cli/test_cluster.py has one
EXAMPLES = [
    (verb, example)
    for verb, command in program.commands.items()
    if isinstance(command, VerbCommand)
    for example in command.examples
    if not any(word in example for word in NOT_HERE)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models that the examples name; m.onnx has a node for the pattern of `explain`, and a set of test data."""
    folder = tmp_path_factory.mktemp("examples")
    model = sized()
    model.graph.node[0].name = "layer.0/attention/Softmax"
    for name in ("resnet", "bert", "m"):
        onnx.save(model, folder / f"{name}.onnx")
    data = folder / "test_data_set_0"
    data.mkdir()
    tensor = numpy_helper.from_array(np.ones((3, 64), np.float32), "x")
    (data / "input_0.pb").write_bytes(tensor.SerializeToString())
    return folder


def test_every_verb_has_examples() -> None:
    assert {verb for verb, _ in EXAMPLES} == set(program.commands)
    assert not any("\n" in example for _, example in EXAMPLES)


@pytest.mark.parametrize("verb", dict.fromkeys(verb for verb, _ in EXAMPLES))
def test_examples_run(verb: str, folder: Path, here: Path, env: dict[str, str], onnxfuse: Onnxfuse) -> None:
    shutil.copytree(folder, here, dirs_exist_ok=True)
    (here / "out").mkdir()
    made = ("optimize", "m.onnx", "--no-verify", "--no-gain", "-q")
    assert onnxfuse(*made, "--json-file", "result.json").code == 0
    assert onnxfuse(*made, "-o", "out/m.fused.onnx").code == 0
    if verb == "optimize":
        for path in (*here.glob("*fused*"), *(here / "out").iterdir()):
            path.unlink()
    own = {"ONNXFUSE_CACHE_DIR": own_cache(here / "cache")} if verb in ("tune", "doctor", "cache") else {}
    (here / ".local/share/bash-completion/completions").mkdir(parents=True)
    for example in [example for each, example in EXAMPLES if each == verb]:
        command, files = re.fullmatch(r"(.*?)((?: (?:<|>).*)?)", example).groups()  # type: ignore[union-attr]
        line = f"onnxfuse {verb} {command} {QUICKER.get(verb, '')}{files}".replace("slower 3%", "slower 9999%")
        done = programs.line(line, {**env, **own, "HOME": str(here)})
        assert done.code in CODES.get(verb, (0,)), f"{line}: {done.err}"
