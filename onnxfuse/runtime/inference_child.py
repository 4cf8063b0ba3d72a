"""The child process of `inference.py`, which runs ONNX's C++ code and answers requests until its input ends.

It is started as a script and imports neither onnxfuse nor the package onnx, only the latter's extension module, which
takes a tenth of the time. Messages are framed as in `process.Companion`.
"""

import marshal
import os
import sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any


def main(path: str) -> None:
    """Answer requests with (success, result); `path` is that of ONNX's extension module."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    native = _loaded(path)
    while head := sys.stdin.buffer.read(8):
        what, *given = marshal.loads(sys.stdin.buffer.read(int.from_bytes(head, "little")))
        try:
            answer = (True, _ANSWERS[what](native, *given))
        except Exception as problem:  # C++ errors of many kinds
            answer = (False, f"{type(problem).__name__} {problem}")
        data = marshal.dumps(answer)
        answers.write(len(data).to_bytes(8, "little") + data)
        answers.flush()


def _loaded(path: str) -> Any:
    name = "onnx_cpp2py_export"  # the extension's init function is named after it
    loader = ExtensionFileLoader(name, path)
    spec = spec_from_file_location(name, path, loader=loader)
    assert spec is not None, path
    native = module_from_spec(spec)
    loader.exec_module(native)
    return native


def _of_model(native: Any, model: bytes) -> bytes:
    done: bytes = native.shape_inference.infer_shapes(model, False, False, True)
    return done


def _of_node(
    native: Any, op: str, opset: int, node: bytes, types: dict[str, bytes], data: dict[str, bytes], ir_version: int
) -> dict[str, bytes]:
    schema = native.defs.get_schema(op, opset, "")
    done: dict[str, bytes] = schema._infer_node_outputs(node, types, data, {}, {"": opset}, ir_version)
    return done


_ANSWERS: dict[str, Any] = {"model": _of_model, "node": _of_node}

if __name__ == "__main__":
    main(sys.argv[1])
