"""The child process that runs samples, started by `samples.py`.

All runs read and write the same activations, so these are in the caches, as between neighbouring nodes of a model; each
copy has weights of its own. With one thread, its processor time is measured, not wall time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

from onnxfuse.errors import DeviceError
from onnxfuse.measure import interleaving
from onnxfuse.measure.samples import SampleTime, Task
from onnxfuse.runtime import engine, process
from onnxfuse.runtime.attempts import attempt
from onnxfuse.runtime.memory import trim

AT_ONCE, BYTES = 12, 1 << 30  # sessions open at once, and the bytes of their weights
FEWEST = 8  # runs of each
REPEATED, REPEATED_WITHIN = 3, 0.03  # the least time counts when so many more runs come within this share of it
PATIENCE = 4  # until then, measure up to so many times as long
_DISABLED_OPTIMIZERS = ["CommonSubexpressionElimination"]  # it would merge the copies


@dataclass(slots=True)
class _Open:
    """A session ready to run, with its bound inputs and outputs and the seconds of its runs."""

    task: Task
    session: ort.InferenceSession
    binding: Any
    own: bool  # processor time is measured, as in `interleaving.times`
    times: list[float] = field(default_factory=list)

    def run(self) -> None:
        self.session.run_with_iobinding(self.binding)

    def least(self) -> float:
        """Seconds of the shorter of two runs, after one that brings its caches back."""
        return min(interleaving.times(self.run, 2, own=self.own)) * 1e-3


def main(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Answer a request of `samples.py`."""
    tasks = [Task(**each) for each in request["tasks"]]
    found: list[SampleTime] = []
    for batch in _batches(tasks):
        found += _timed(batch, request)
    return [asdict(each) for each in found]


def _batches(tasks: Sequence[Task]) -> Iterator[list[Task]]:
    """The tasks in order, in batches limited by AT_ONCE and BYTES."""
    batch: list[Task] = []
    for task in tasks:
        if batch and (len(batch) == AT_ONCE or sum(t.weights for t in (*batch, task)) > BYTES):
            yield batch
            batch = []
        batch.append(task)
    if batch:
        yield batch


def _timed(batch: Sequence[Task], request: dict[str, Any]) -> list[SampleTime]:
    """The times of the tasks of a batch, measured in turns."""
    empty = _opened(Task("", 1, 0), _trivial_model(), [], request["threads"])
    opened: list[_Open | DeviceError] = []
    for task in batch:
        try:
            with attempt(task.model):
                one = _opened(task, task.model, request["libraries"], request["threads"])
                one.run()
        except DeviceError as problem:
            opened.append(problem)
        except Exception as problem:  # of the runtime
            opened.append(DeviceError(engine.reason(problem)))
        else:
            opened.append(one)
    ready = [empty, *(each for each in opened if isinstance(each, _Open))]
    begin, seconds = time.perf_counter(), request["seconds"] * len(ready)
    while len(empty.times) < FEWEST or not _converged(ready, time.perf_counter() - begin, seconds):
        for each in ready:
            each.times.append(each.least())
    overhead = min(empty.times)
    return [_result(each, overhead) if isinstance(each, _Open) else SampleTime(problem=each.message) for each in opened]


def _converged(ready: Sequence[_Open], spent: float, seconds: float) -> bool:
    """Whether they were run long enough: on a busy machine, until the least time of each was reached repeatedly."""
    met = all(sorted(each.times)[REPEATED] < min(each.times) * (1 + REPEATED_WITHIN) for each in ready)
    return spent > (seconds if met else seconds * PATIENCE)


def _result(each: _Open, overhead: float) -> SampleTime:
    """The time of one copy; `overhead` is the seconds of a run of a trivial model."""
    least = min(each.times)
    seconds = max(least - overhead, 1e-9) / each.task.copies
    return SampleTime(seconds, statistics.median(each.times) / least - 1.0, 2 * len(each.times))


def _opened(task: Task, model: str | bytes, libraries: Sequence[str], threads: int) -> _Open:
    """A session for a model, with random inputs bound once. Raises DeviceError."""
    options = engine.options(libraries=libraries, threads=threads)
    options.add_session_config_entry("session.force_spinning_stop", "1")
    trim()
    try:
        session = ort.InferenceSession(
            model, options, providers=["CPUExecutionProvider"], disabled_optimizers=_DISABLED_OPTIMIZERS
        )
        binding = session.io_binding()
        for each in session.get_inputs():
            binding.bind_ortvalue_input(each.name, _random_input(each.type, each.shape))
        places: dict[tuple[object, ...], Any] = {}
        for each in session.get_outputs():
            kind = (each.name.rpartition(".")[0], each.type, *each.shape)
            if kind not in places:
                places[kind] = ort.OrtValue.ortvalue_from_shape_and_type(each.shape, _number(each.type), "cpu")
            binding.bind_ortvalue_output(each.name, places[kind])
    except Exception as problem:
        raise DeviceError(f"tune: a sample cannot be run: {engine.reason(problem)}") from None
    return _Open(task, session, binding, own=threads == 1)


def _number(kind: str) -> int:
    """The ONNX number of an element type as the runtime names it."""
    name = kind.removeprefix("tensor(").removesuffix(")")
    known = {"double": "DOUBLE", "float": "FLOAT", "float16": "FLOAT16", "bfloat16": "BFLOAT16"}
    return int(TensorProto.DataType.Value(known.get(name, name.upper())))


def _random_input(kind: str, shape: Sequence[int]) -> Any:
    """Random numbers in [0, 1) of an element type; integers are 0 or 1."""
    draw = np.random.default_rng(0)
    number = _number(kind)
    if number == TensorProto.BFLOAT16:
        bits = (draw.random(shape, np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, number)
    dtype = helper.tensor_dtype_to_np_dtype(number)
    values = draw.random(shape) if dtype.kind == "f" else draw.integers(0, 2, shape)
    return ort.OrtValue.ortvalue_from_numpy(np.asarray(values).astype(dtype))


def _trivial_model() -> bytes:
    """A model whose run costs nothing but the call."""
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y.0"])], "g", [info("x", 1, [1])], [info("y.0", 1, [1])]
    )
    opset = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString())


if __name__ == "__main__":
    process.serve(main)
