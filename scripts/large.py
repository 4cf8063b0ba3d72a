"""Optimize a decoder whose weights lie in a file of several gigabytes, and say what that took.

    python scripts/large.py [--gigabytes 3] [--memory-budget 8GB] [--time-budget 10m] [--folder DIR]

The model has as many decoder layers (width 2,048, 16 heads, 16 tokens) as have that many bytes of float32 weights, all
of them external data. It is optimized with an empty cache, verification included; budgets are enforced by onnxfuse
itself, which ends with code 6 where one is exceeded. Printed are seconds, the peak memory of all processes, and the
longest time without a line of progress. The exit code is that of `onnxfuse optimize`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH, HEADS, TOKENS = 2048, 16, 16
LAYER_BYTES = 12 * WIDTH * WIDTH * 4


class Weights:
    """A file of external data, written one tensor after the other."""

    def __init__(self, path: Path) -> None:
        self.path, self.tensors = path, list[onnx.TensorProto]()
        self._file = path.open("wb")
        self._random = np.random.default_rng(0)

    def matrix(self, name: str, rows: int, columns: int) -> str:
        """A random matrix (rows, columns) whose products keep the deviation of what they are multiplied with."""
        content = (
            (self._random.standard_normal((rows, columns), np.float32) / np.sqrt(rows)).astype(np.float32).tobytes()
        )
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=(rows, columns))
        tensor.data_location = TensorProto.EXTERNAL
        place = {"location": self.path.name, "offset": self._file.tell(), "length": len(content)}
        for key, value in place.items():
            tensor.external_data.add(key=key, value=str(value))
        self._file.write(content)
        self.tensors.append(tensor)
        return name

    def close(self) -> None:
        """No more tensors."""
        self._file.close()


def layer(number: int, x: str, weights: Weights) -> tuple[list[onnx.NodeProto], str]:
    """Attention and a feed-forward network of four times the width, each with its normalization and residual."""
    nodes: list[onnx.NodeProto] = []

    def node(op: str, *inputs: str, **attributes: object) -> str:
        name = f"layer.{number}/{op}_{len(nodes)}"
        nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def product(y: str, part: str, rows: int, columns: int) -> str:
        return node("MatMul", y, weights.matrix(f"layer.{number}.{part}", rows, columns))

    y = node("LayerNormalization", x, "gamma", "beta")
    query, key, value = (
        node("Transpose", node("Reshape", product(y, part, WIDTH, WIDTH), "by_head"), perm=turned)
        for part, turned in (("query", (0, 2, 1, 3)), ("key", (0, 2, 3, 1)), ("value", (0, 2, 1, 3)))
    )
    scores = node("Softmax", node("Mul", node("MatMul", query, key), "scale"), axis=-1)
    mixed = node("Transpose", node("MatMul", scores, value), perm=(0, 2, 1, 3))
    x = node("Add", x, product(node("Reshape", mixed, "by_row"), "out", WIDTH, WIDTH))
    y = node("LayerNormalization", x, "gamma", "beta")
    y = node("Gelu", product(y, "up", WIDTH, 4 * WIDTH))
    return nodes, node("Add", x, product(y, "down", 4 * WIDTH, WIDTH))


def write(folder: Path, size: float) -> Path:
    """model.onnx and its external data of `size` bytes at least."""
    weights, nodes, x = Weights(folder / "model.data"), list[onnx.NodeProto](), "x"
    for number in range(int(-(-size // LAYER_BYTES))):
        made, x = layer(number, x, weights)
        nodes += made
    weights.close()
    small = {
        "gamma": np.ones(WIDTH, np.float32),
        "beta": np.zeros(WIDTH, np.float32),
        "scale": np.array((HEADS / WIDTH) ** 0.5, np.float32),
        "by_head": np.array((1, TOKENS, HEADS, WIDTH // HEADS)),
        "by_row": np.array((1, TOKENS, WIDTH)),
    }
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, TOKENS, WIDTH)) for name in ("x", x)]
    constants = [numpy_helper.from_array(array, name) for name, array in small.items()]
    graph = helper.make_graph(nodes, "decoder", values[:1], values[1:], [*constants, *weights.tensors])
    path = folder / "model.onnx"
    path.write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString()
    )
    return path


def main(argv: Sequence[str] | None = None) -> int:
    """Write, optimize, and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=3.0, metavar="N", help="of weights (default: 3)")
    parser.add_argument("--memory-budget", default="8GB", metavar="SIZE", help="of all processes (default: 8GB)")
    parser.add_argument("--time-budget", default="10m", metavar="TIME", help="of the command (default: 10m)")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="where to write (default: a temporary folder)")
    asked = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(dir=asked.folder) as name:
        folder = Path(name)
        model = write(folder, asked.gigabytes * 1e9)
        command = [sys.executable, "-m", "onnxfuse_cli", "optimize", model.name, "fused.onnx", "--progress", "plain"]
        command += ["--memory-budget", asked.memory_budget, "--time-budget", asked.time_budget]
        command += ["--cache-dir", "cache", "--json-file", "result.json"]
        begin = last = time.monotonic()
        silence = 0.0
        with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as run:
            assert run.stderr is not None
            for line in run.stderr:
                now = time.monotonic()
                silence, last = max(silence, now - last), now
                sys.stderr.write(line)
        seconds = time.monotonic() - begin
        if run.returncode == 0:
            result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
            size = sum(path.stat().st_size for path in (model, model.with_name("model.data")))
            print(
                f"{size / 1e9:.2f} GB, {result['nodes_before']} nodes, {result['kernels']} kernels: "
                f"{seconds:.0f} s, {result['peak_memory_bytes'] / 2**30:.2f} GiB at most, "
                f"{silence:.1f} s at most without a line of progress; verified: {result['verify']['ok']}"
            )
        return run.returncode


if __name__ == "__main__":
    sys.exit(main())
