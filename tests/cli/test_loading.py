"""The cost of loading result and original (bytes, seconds, memory) in the manifest and the JSON document."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxfuse.runtime.memory import Watch
from tests.caches import own_cache
from tests.cli.conftest import Onnxfuse

WEIGHTS = 48 << 20  # bytes: more than a session takes without any


@pytest.fixture
def heavy(here: Path) -> Path:
    """Two products of large weights: as kernels they read them where they lie in the file."""
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        m (float[4, 1024] x) => (float[4, 1024] y) { a = MatMul (x, w) b = Relu (a) y = MatMul (b, v) }""")
    for seed, (name, shape) in enumerate({"w": (1024, 6144), "v": (6144, 1024)}.items()):
        values = np.random.default_rng(seed).standard_normal(shape, np.float32) / np.float32(64.0)
        proto.graph.initializer.append(numpy_helper.from_array(values, name))
    onnx.save(proto, "heavy.onnx")
    return Path("heavy.onnx")


def bytes_of(*names: str) -> int:
    return sum(Path(name).stat().st_size for name in names)


def told(said: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The figures of the manifest and of the document."""
    assert said.code == 0, said.err
    manifest = json.loads(Path("o.fuse.json").read_text())["loading"]
    assert said.json["loading"].keys() == manifest.keys() == {"original", "with_library", "without_library"}
    return manifest, said.json["loading"]


def test_the_manifest_says_what_loading_takes(onnxfuse: Onnxfuse, heavy: Path, tmp_path: Path):
    build = ("optimize", heavy, "o.onnx", "--save-as-external-data", "--overwrite", "--json")
    build += ("--cache-dir", own_cache(tmp_path / "cache"), "--gain")
    manifest, document = told(onnxfuse(*build))
    original, inside, outside = (manifest[way] for way in ("original", "with_library", "without_library"))
    assert manifest == document
    assert original["bytes"] == bytes_of("heavy.onnx")
    assert outside["bytes"] == bytes_of("o.onnx", "o.data")
    assert inside["bytes"] == outside["bytes"] + bytes_of("libo.so")
    assert inside["bytes"] <= 1.1 * original["bytes"]
    assert all(each["seconds"] > 0 for each in manifest.values())
    assert original["peak_bytes"] > WEIGHTS and outside["peak_bytes"] > WEIGHTS
    assert inside["peak_bytes"] < WEIGHTS / 2, "kernels read weights where they lie"
    again, _ = told(onnxfuse(*build, "--verify"))
    assert again == manifest, "the same build of the same cache is the same again"


def test_a_build_for_every_machine_says_only_what_is_the_same_everywhere(onnxfuse: Onnxfuse, heavy: Path):
    manifest, document = told(onnxfuse("optimize", heavy, "o.onnx", "--no-gain", "--json"))
    assert [each["bytes"] for each in manifest.values()] == [each["bytes"] for each in document.values()]
    assert all(each["seconds"] is None and each["peak_bytes"] is None for each in manifest.values())
    assert document["original"]["peak_bytes"] > WEIGHTS


def test_a_short_peak_is_seen():
    with Watch() as watch:
        large: Any = np.ones(64 << 20, np.uint8)
        watch.opened()
        del large
    load = watch.load("here")
    assert 64 << 20 <= load.peak_bytes < 96 << 20 and load.way == "here"
    assert 0.0 < load.seconds < 10.0
