"""The half of timing samples that runs them: the program that `samples.py` starts.

Every run reads inputs that lie where they lay before, and writes its results to one place: both are in the caches, as
what neighbours in a model hand to each other. Weights are another copy's each time. Where one thread works, only the
time in which it ran counts, and not what else runs on the machine.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

from onnxfuse.errors import DeviceError
from onnxfuse.measure.samples import Task, Timed
from onnxfuse.runtime import engine, process
from onnxfuse.runtime.attempts import attempt
from onnxfuse.runtime.memory import trim

AT_ONCE, BYTES = 12, 1 << 30  # sessions that are open at once, and the bytes of their weights
FEWEST = 8  # runs of each
AGAIN, ALIKE = 3, 0.03  # so many more runs are to be so near to the least one
PATIENCE = 4  # times as long as asked, while they are not
_KEPT_APART = ["CommonSubexpressionElimination"]  # equal copies are to stay copies


@dataclass(slots=True)
class _Open:
    """A session ready to run, with what it reads and writes, and the seconds of its runs."""

    task: Task
    session: ort.InferenceSession
    binding: Any
    clock: Callable[[], float]
    times: list[float] = field(default_factory=list)

    def run(self) -> float:
        """Seconds of one run."""
        begin = self.clock()
        self.session.run_with_iobinding(self.binding)
        return self.clock() - begin


def main(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Answer a request of `samples.py`."""
    tasks = [Task(**each) for each in request["tasks"]]
    found: list[Timed] = []
    for batch in _batches(tasks):
        found += _timed(batch, request)
    return [asdict(each) for each in found]


def _batches(tasks: Sequence[Task]) -> Iterator[list[Task]]:
    """A few tasks at a time, in order, whose weights fit together."""
    batch: list[Task] = []
    for task in tasks:
        if batch and (len(batch) == AT_ONCE or sum(t.weights for t in (*batch, task)) > BYTES):
            yield batch
            batch = []
        batch.append(task)
    if batch:
        yield batch


def _timed(batch: Sequence[Task], request: dict[str, Any]) -> list[Timed]:
    """The tasks of a batch, run by run in turns."""
    empty = _opened(Task("", 1, 0), _nothing(), [], request["threads"])
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
    while len(empty.times) < FEWEST or not _known(ready, time.perf_counter() - begin, seconds):
        for each in ready:
            each.run()  # brings its caches back
            each.times.append(min(each.run(), each.run()))
    around = min(empty.times)
    return [_result(each, around) if isinstance(each, _Open) else Timed(problem=each.message) for each in opened]


def _known(ready: Sequence[_Open], spent: float, seconds: float) -> bool:
    """Whether they were run long enough: on a busy machine, until the least times of each were met again."""
    met = all(sorted(each.times)[AGAIN] < min(each.times) * (1 + ALIKE) for each in ready)
    return spent > (seconds if met else seconds * PATIENCE)


def _result(each: _Open, around: float) -> Timed:
    """What one copy takes; `around` are the seconds of a run of nothing."""
    least = min(each.times)
    seconds = max(least - around, 1e-9) / each.task.copies
    return Timed(seconds, statistics.median(each.times) / least - 1.0, 2 * len(each.times))


def _opened(task: Task, model: str | bytes, libraries: Sequence[str], threads: int) -> _Open:
    """A session that runs a model; its inputs are drawn once. Raises DeviceError."""
    options = engine.options(libraries=libraries, threads=threads)
    options.add_session_config_entry("session.force_spinning_stop", "1")
    trim()
    try:
        session = ort.InferenceSession(
            model, options, providers=["CPUExecutionProvider"], disabled_optimizers=_KEPT_APART
        )
        binding = session.io_binding()
        for each in session.get_inputs():
            binding.bind_ortvalue_input(each.name, _drawn(each.type, each.shape))
        places: dict[tuple[Any, ...], Any] = {}
        for each in session.get_outputs():
            kind = (each.name.rpartition(".")[0], each.type, *each.shape)
            if kind not in places:
                places[kind] = ort.OrtValue.ortvalue_from_shape_and_type(each.shape, _number(each.type), "cpu")
            binding.bind_ortvalue_output(each.name, places[kind])
    except Exception as problem:
        raise DeviceError(f"tune: a sample cannot be run: {engine.reason(problem)}") from None
    return _Open(task, session, binding, time.thread_time if threads == 1 else time.perf_counter)


def _number(kind: str) -> int:
    """The ONNX number of an element type as the runtime names it."""
    name = kind.removeprefix("tensor(").removesuffix(")")
    known = {"double": "DOUBLE", "float": "FLOAT", "float16": "FLOAT16", "bfloat16": "BFLOAT16"}
    return int(TensorProto.DataType.Value(known.get(name, name.upper())))


def _drawn(kind: str, shape: Sequence[int]) -> Any:
    """Numbers between 0 and 1 of an element type; whole ones are 0 and 1."""
    draw = np.random.default_rng(0)
    number = _number(kind)
    if number == TensorProto.BFLOAT16:
        bits = (draw.random(shape, np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, number)
    dtype = helper.tensor_dtype_to_np_dtype(number)
    values = draw.random(shape) if dtype.kind == "f" else draw.integers(0, 2, shape)
    return ort.OrtValue.ortvalue_from_numpy(np.asarray(values).astype(dtype))


def _nothing() -> bytes:
    """A model that does nothing but be called."""
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y.0"])], "g", [info("x", 1, [1])], [info("y.0", 1, [1])]
    )
    opset = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString())


if __name__ == "__main__":
    process.serve(main)
