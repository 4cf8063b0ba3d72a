"""Small elementwise work in bodies of loops, where calls are all that counts: original and fused in turns.

    python -m benchmarks.loops [--threads 1 2] [--elements 1 16 256 4096] [--seconds 1.0]

Every body is a chain of two operators and a few more; a run of it is as long as its calls.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import onnx
from onnx import parser

from benchmarks.networks import optimize
from onnxfuse.measure.profile import profile_models

ROUNDS = 200
_SCALARS = "float k = {0.5}, float z = {0.999}"
# By name: the element type, the body from h to h_next, its constants.
BODIES: dict[str, tuple[str, str, str]] = {
    "multiply-add": ("float", "t = Mul(h, z) h_next = Add(t, k)", _SCALARS),
    "double": ("double", "t = Mul(h, z) h_next = Add(t, k)", "double k = {0.5}, double z = {0.999}"),
    "integers": ("int64", "t = Mul(h, z) h_next = Sub(t, k)", "int64 k = {5}, int64 z = {3}"),
    "division": ("int64", "t = Div(h, z) h_next = Sub(t, k)", "int64 k = {5}, int64 z = {3}"),
    "tanh": ("float", "t = Tanh(h) h_next = Add(t, k)", _SCALARS),
    "mask": ("float", "g = Greater(h, k) d = Cast<to = 1>(g) h_next = Mul(d, h)", _SCALARS),
    "mean": ("float", "t = ReduceSum(h, last) h_next = Sub(h, t)", "int64[1] last = {1}"),
    "softmax": ("float", "t = Softmax(h) h_next = Add(t, k)", _SCALARS),
}


def model(name: str, elements: int) -> onnx.ModelProto:
    """A loop of ROUNDS over one body."""
    dtype, body, constants = BODIES[name]
    shape = f"{dtype}[1, {elements}]"
    return parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 17]>
        g ({shape} x) => ({shape} y) <int64 rounds = {{{ROUNDS}}}, bool go = {{1}}>
        {{ y = Loop(rounds, go, x) <body = b (int64 i, bool on, {shape} h) => (bool on_next, {shape} h_next)
          <{constants}> {{ on_next = Identity(on) {body} }}> }}"""
    )


def main(arguments: Sequence[str]) -> None:
    """A line for each body, size and number of threads."""
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    flags.add_argument("--elements", nargs="*", type=int, default=[1, 16, 256, 4096])
    flags.add_argument("--seconds", type=float, default=1.0)
    asked = flags.parse_args(arguments)
    with tempfile.TemporaryDirectory() as top:
        for name in BODIES:
            for elements in asked.elements:
                path = Path(top, f"{name}-{elements}.onnx")
                onnx.save(model(name, elements), path)
                built = optimize(path, path.with_suffix(".fused.onnx"), Path(top, "cache"))
                for threads in asked.threads:
                    found = profile_models(
                        [path, built.model], libraries=[None, built.library], duration=asked.seconds, threads=threads
                    )
                    before, after = (each.latency_ms.min * 1e3 for each in found.models)
                    line = f"{name:14} {elements:6} {threads} threads: {before:8.1f} us, {after:8.1f} us"
                    sys.stdout.write(f"{line}, {before / after:.2f}x (A/A {found.spread:.3f})\n")


if __name__ == "__main__":
    main(sys.argv[1:])
