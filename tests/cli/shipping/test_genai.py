"""A decoder with a cache, served by onnxruntime-genai as the page says: the same tokens, made by our kernels."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from onnxfuse.runtime import process
from tests.cli.conftest import Onnxfuse
from tests.craft.sources import ROOT
from tests.models.fused import model_bytes

pytestmark = pytest.mark.skipif(importlib.util.find_spec("onnxruntime_genai") is None, reason="no onnxruntime-genai")
CHILD = Path(__file__).with_name("genai_child.py")
MODEL: dict[str, Any] = {
    "type": "llama",
    "bos_token_id": 1,
    "eos_token_id": 99,
    "pad_token_id": 0,
    "context_length": 128,
    "vocab_size": 100,
    "decoder": {
        "head_size": 16,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "inputs": {
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
            **{name: name for name in ("input_ids", "attention_mask", "position_ids")},
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
    },
}


def said_by_the_page() -> dict[str, Any]:
    """The decoder's fields that the page shows."""
    (text,) = re.findall(r"```json\n(.*?)```", (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8"), re.DOTALL)
    found: dict[str, Any] = json.loads(text)["model"]["decoder"]
    return found


def tokens(folder: Path, decoder: dict[str, Any]) -> process.Finished:
    """What is generated in a folder with these fields of the decoder."""
    model = {**MODEL, "decoder": {**MODEL["decoder"], **decoder}}
    search = {"max_length": 40, "do_sample": False, "past_present_share_buffer": False}
    (folder / "genai_config.json").write_text(json.dumps({"model": model, "search": search}), encoding="utf-8")
    return process.run((sys.executable, str(CHILD), str(folder), "[5, 17, 33, 8]"), time_limit=120)


def test_the_same_tokens_by_our_kernels(onnxfuse: Onnxfuse, here: Path):
    Path("model.onnx").write_bytes(model_bytes("tiny-llama.dynamic"))
    assert onnxfuse("optimize", "model.onnx", "model.fused.onnx", "--no-gain").code == 0
    fields = said_by_the_page()
    assert fields["filename"] == "model.fused.onnx"
    library = here / Path(fields["session_options"]["custom_ops_library"]).name
    assert library.is_file()
    options = {"custom_ops_library": str(library), "enable_profiling": str(here / "run")}
    before = tokens(here, {"filename": "model.onnx"})
    after = tokens(here, {"filename": fields["filename"], "session_options": options})
    assert before.code == 0 and len(json.loads(before.out)) > 10, before.err
    assert (after.code, after.out) == (0, before.out), after.err
    (profile,) = here.glob("run*.json")
    nodes = [event["args"] for event in json.loads(profile.read_text()) if event.get("cat") == "Node"]
    assert sum(re.search(r"_[0-9a-f]{8}$", n.get("op_name", "")) is not None for n in nodes) > len(nodes) / 2


def test_a_missing_library_is_reported(onnxfuse: Onnxfuse, here: Path):
    Path("model.onnx").write_bytes(model_bytes("tiny-llama.dynamic"))
    done = tokens(here, {"filename": "model.onnx", "session_options": {"custom_ops_library": str(here / "libno.so")}})
    assert done.code != 0 and "libno.so" in done.err
