"""ONNX's shape inference of models and nodes, sandboxed in a child process.

It is C++ code that crashes, loops or exhausts memory on some models that the runtime accepts. Where it gives no answer
within the limits, types stay unknown; nothing else is lost.
"""

from __future__ import annotations

import atexit
import marshal
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
from onnx import onnx_cpp2py_export

from onnxfuse.errors import OnnxFuseError
from onnxfuse.runtime.process import Companion

_SECONDS = 10.0  # limit of a request, and of all failing requests while a model is loaded
_BYTES = 10**9  # memory limit of the process, plus _TIMES the size of the request
_TIMES = 20  # generous estimate of memory needed per byte of a request
_CHILD = str(Path(__file__).with_name("inference_child.py"))


@dataclass(slots=True)
class Losses:
    """Failures of inference: messages, and the remaining seconds for failing requests."""

    seconds: float = _SECONDS
    said: list[str] = field(default_factory=list)


_losses: ContextVar[Losses | None] = ContextVar("losses", default=None)


@contextmanager
def watched(seconds: float | None = None) -> Iterator[Losses]:
    """A context whose failing requests share a budget of `seconds` (at most 10) and record why they failed."""
    losses = Losses(_SECONDS if seconds is None else min(_SECONDS, seconds))
    token = _losses.set(losses)
    try:
        yield losses
    finally:
        _losses.reset(token)


def of_model(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """The model with inferred types, including shapes propagated through integer values; None on failure."""
    try:
        done = _PROGRAM.ask("model", model.SerializeToString())
        return None if done is None else onnx.ModelProto.FromString(done)
    except ValueError:  # protobuf's limit of 2 GB
        return None


def of_node(
    node: onnx.NodeProto,
    opset: int,
    types: Mapping[str, onnx.TypeProto],
    data: Mapping[str, onnx.TensorProto],
) -> dict[str, onnx.TypeProto]:
    """Output types of a node of the default domain with known input types; empty on failure."""
    given = ({name: each.SerializeToString() for name, each in some.items()} for some in (types, data))
    done = _PROGRAM.ask("node", node.op_type, opset, node.SerializeToString(), *given, onnx.IR_VERSION)
    return {name: onnx.TypeProto.FromString(t) for name, t in (done or {}).items()}


class _Program:
    """The child process: started lazily, restarted after it died; forked processes start their own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: tuple[int, Companion] | None = None

    def ask(self, *request: Any) -> Any:
        """The answer to a request; None on failure."""
        losses = _losses.get() or Losses()
        if losses.seconds <= 0:
            return None
        data, start = marshal.dumps(request), time.monotonic()
        try:
            with self._lock:
                limit = _BYTES + _TIMES * len(data)
                answer = self._companion().ask(data, time_limit=losses.seconds, memory_limit=limit)
        except OnnxFuseError as problem:
            losses.seconds -= time.monotonic() - start
            losses.said.append(problem.message)
            return None
        well, found = marshal.loads(answer)
        return found if well else None  # a model that inference rejects may still be valid

    def _companion(self) -> Companion:
        if self._running is None or self._running[0] != os.getpid() or self._running[1].ended:
            command = (sys.executable, "-I", "-S", _CHILD, onnx_cpp2py_export.__file__)
            self._running = (os.getpid(), Companion(command, stage="shape inference"))
        return self._running[1]

    def end(self) -> None:
        """Kill this process's child, if there is one."""
        if self._running is not None and self._running[0] == os.getpid():
            self._running[1].end()


_PROGRAM = _Program()
atexit.register(_PROGRAM.end)
