"""ONNX's own shape inference of models and nodes, in a process of its own.

It is C++ code that crashes, loops or takes all memory on models that the runtime runs well. What it does not answer
within the limits is not known, which costs types and nothing else.
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

_SECONDS = 10.0  # that a request may take, and all those that fail while a model is loaded
_BYTES = 10**9  # that the process may take, beside what follows from the size of the request
_TIMES = 20  # memory of inference by the size of the request, with much to spare
_CHILD = str(Path(__file__).with_name("inference_child.py"))


@dataclass(slots=True)
class Losses:
    """What inference did not answer: sentences, and the seconds that are left for requests that fail."""

    seconds: float = _SECONDS
    said: list[str] = field(default_factory=list)


_losses: ContextVar[Losses | None] = ContextVar("losses", default=None)


@contextmanager
def watched(seconds: float | None = None) -> Iterator[Losses]:
    """Requests within share the `seconds` (at most 10) that failing ones may take, and note why they failed."""
    losses = Losses(_SECONDS if seconds is None else min(_SECONDS, seconds))
    token = _losses.set(losses)
    try:
        yield losses
    finally:
        _losses.reset(token)


def of_model(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """The model with types of all values that can be inferred, and integers followed; None where that fails."""
    try:
        done = _PROGRAM.ask("model", model.SerializeToString())
        return None if done is None else onnx.ModelProto.FromString(done)
    except ValueError:  # protobuf writes no more than 2 GB
        return None


def of_node(
    node: onnx.NodeProto,
    opset: int,
    types: Mapping[str, onnx.TypeProto],
    data: Mapping[str, onnx.TensorProto],
) -> dict[str, onnx.TypeProto]:
    """Types of the outputs of a node of the default domain whose input types are known; none where that fails."""
    given = ({name: each.SerializeToString() for name, each in some.items()} for some in (types, data))
    done = _PROGRAM.ask("node", node.op_type, opset, node.SerializeToString(), *given, onnx.IR_VERSION)
    return {name: onnx.TypeProto.FromString(t) for name, t in (done or {}).items()}


class _Program:
    """The process, started when it is first asked, again after it died, and once in each process that asks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: tuple[int, Companion] | None = None

    def ask(self, *request: Any) -> Any:
        """The answer to a request; None where there is none."""
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
        return found if well else None  # a model that inference does not understand is still a model

    def _companion(self) -> Companion:
        if self._running is None or self._running[0] != os.getpid() or self._running[1].ended:
            command = (sys.executable, "-I", "-S", _CHILD, onnx_cpp2py_export.__file__)
            self._running = (os.getpid(), Companion(command, stage="shape inference"))
        return self._running[1]

    def end(self) -> None:
        """End the process, if there is one and it is this process's."""
        if self._running is not None and self._running[0] == os.getpid():
            self._running[1].end()


_PROGRAM = _Program()
atexit.register(_PROGRAM.end)
