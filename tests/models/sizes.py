"""Models with symbolic sizes, optimized once and run at many sizes: differences, and nodes left to the runtime."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnxfuse.errors import OnnxFuseError
from onnxfuse.ops.rows import ROWS
from onnxfuse.pipeline import optimize
from onnxfuse.report.result import Result
from onnxfuse.runtime import process
from tests.calls import on_cpu
from tests.models.bodies import graphs_of
from tests.models.fused import CACHE, Feeds, in_one_unit

CHILD = "tests.models.sizes_child"
SECONDS = 300  # a child has: some seconds are usual
UNCOUNTED = {"Constant", "Identity"}  # neither work nor a call


def built(model: onnx.ModelProto, folder: Path, **changes: Any) -> Result:
    """The model optimized as it is, without values for its symbols, as `fused.onnx`."""
    onnx.save(model, folder / "m.onnx")
    usual = {"verify": False, "gain": False, "cache_dir": str(CACHE), "jobs": 1, "overwrite": True}
    usual |= {"calls": on_cpu(build_library=in_one_unit)}
    return optimize(folder / "m.onnx", folder / "fused.onnx", **usual | changes)


def wrong(folder: Path, result: Result, sets: Sequence[Feeds], limit: float) -> dict[str, str]:
    """What is wrong, by way and size, and why; a process that ended says so at the size where it did."""
    feeds = folder / "feeds"
    feeds.mkdir()
    for number, each in enumerate(sets):
        np.savez(feeds / f"{number}.npz", allow_pickle=False, **each)
    said = folder / "said"
    asked = {"original": str(folder / "m.onnx"), "fused": str(folder / "fused.onnx"), "feeds": str(feeds)}
    asked |= {"library": result.output.library or "", "limit": limit, "said": str(said)}
    ended = ""
    try:
        process.python_child(CHILD, asked, stage="test", time_limit=SECONDS)
    except OnnxFuseError as problem:
        ended = str(problem)
    lines = [json.loads(line) for line in said.read_text(encoding="utf-8").splitlines()] if said.exists() else []
    found = {f"{line['way']} {line['wrong']}": line["why"] for line in lines if "wrong" in line}
    if ended:
        last = next((line for line in reversed(lines) if "at" in line), {"way": "original", "at": "load"})
        found[f"{last['way']} {last['at']}"] = ended
    return found


def left(folder: Path) -> tuple[int, int]:
    """Nodes of `fused.onnx` that the runtime runs although their operator has a row, and nodes that had one before.

    Recurrent operators, control flow and other operators without a row are not counted; bodies of control flow are.
    """
    return _defined(folder / "fused.onnx"), _defined(folder / "m.onnx")


def _defined(path: Path) -> int:
    nodes = [node for graph in graphs_of(onnx.load(path).graph) for node in graph.node]
    return sum(not node.domain and node.op_type in ROWS.rows and node.op_type not in UNCOUNTED for node in nodes)
