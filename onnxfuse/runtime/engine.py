"""Opens ONNX Runtime sessions for verification and profiling, and runs them on NumPy arrays of any element type."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnxruntime as ort
from onnx import ModelProto, TensorProto, helper

from onnxfuse.errors import DeviceError
from onnxfuse.runtime import entries
from onnxfuse.runtime.binding import Bound
from onnxfuse.runtime.memory import trim
from onnxfuse.runtime.provider import CPU, Provider, preload
from onnxfuse.runtime.shared_codes import lacks_zero_points, with_codes_apart
from onnxfuse.target import ISA

Array: TypeAlias = npt.NDArray[Any]
Feeds: TypeAlias = Mapping[str, Array]

# Element types that NumPy lacks: the runtime's name, the ONNX number, the integer type of its bits, and its NumPy type.
_FOREIGN: dict[str, tuple[int, type[np.generic], Any]] = {
    "tensor(bfloat16)": (16, np.uint16, ml_dtypes.bfloat16),
    "tensor(float8e4m3fn)": (17, np.uint8, ml_dtypes.float8_e4m3fn),
    "tensor(float8e4m3fnuz)": (18, np.uint8, ml_dtypes.float8_e4m3fnuz),
    "tensor(float8e5m2)": (19, np.uint8, ml_dtypes.float8_e5m2),
    "tensor(float8e5m2fnuz)": (20, np.uint8, ml_dtypes.float8_e5m2fnuz),
}


EXACT_CODES = "session.x64quantprecision"  # of pairs of 8-bit products; a matter of the runtime's optimizations
# What these say of a weight or zero point that two products share; and of a product of which they convert only one of
# the two, since the other is computed from constants.
_HALF_DONE = ("Attempt to replace the existing tensor", "the types are incompatible")


def options(
    *,
    libraries: Sequence[str] = (),
    disabled: Sequence[str] = (),
    optimize: bool = True,
    threads: int = 0,
    lean: bool = False,
    arena: bool = True,
    isa: str = "",
) -> ort.SessionOptions:
    """Session options that write nothing to the terminal; `threads` 0 leaves the number to the runtime.

    The function bodies of kernels named in `disabled` run instead. `isa` restricts libraries of onnxfuse to one
    instruction set; without it they choose the best.

    A `lean` session is for few runs: the runtime does not prepack weights and keeps them out of its arena, and its
    threads do not spin between operators, which takes cores from the compiler and from sessions beside it. Its results
    are compared, so its optimizations make 8-bit products exact where the runtime saturates them, on processors where
    it does: of some models these optimizations make what cannot be opened or run. Without
    `arena`, freed memory is returned to the system; kernels under test should get recycled memory instead, which holds
    arbitrary values.
    Raises DeviceError when a library cannot be registered.
    """
    made = ort.SessionOptions()
    made.log_severity_level = 4
    made.intra_op_num_threads = threads
    made.enable_cpu_mem_arena = arena
    for entry in ("session.disable_prepacking", "session.use_device_allocator_for_initializers"):
        made.add_session_config_entry(entry, "1" if lean else "0")
    made.add_session_config_entry(EXACT_CODES, "1" if lean and saturates() else "0")
    if lean:
        made.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if disabled:
        made.add_session_config_entry(entries.DISABLE, ",".join(disabled))
    levels = ort.GraphOptimizationLevel
    made.graph_optimization_level = levels.ORT_ENABLE_ALL if optimize else levels.ORT_DISABLE_ALL
    with _only(isa):
        for library in libraries:
            try:
                made.register_custom_ops_library(os.path.abspath(library))
            except Exception as problem:
                raise DeviceError(f"runtime: {library} cannot be registered: {reason(problem)}") from None
    return made


@cache
def saturates() -> bool:
    """Whether the runtime saturates sums of two products of unsigned by signed bytes, as it does on x86-64 processors
    without instructions for sums of four (decision 0202)."""
    types = {"a": TensorProto.UINT8, "b": TensorProto.INT8, "y": TensorProto.INT32}
    a, b, y = (helper.make_tensor_value_info(name, kind, (8, 8)) for name, kind in types.items())
    graph = helper.make_graph([helper.make_node("MatMulInteger", ["a", "b"], ["y"])], "products", [a, b], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    left, right = np.full((8, 8), 255, np.uint8), np.full((8, 8), 127, np.int8)
    (found,) = run(open_session(model.SerializeToString(), options(threads=1)), {"a": left, "b": right})
    return bool((found != 8 * 255 * 127).any())


def status(session_options: ort.SessionOptions, domain: str) -> str:
    """The status that the library of a domain reported on registration; empty without one."""
    try:
        return str(session_options.get_session_config_entry(domain + entries.STATUS))
    except Exception:  # the runtime's error for an entry that does not exist
        return ""


def why_bodies_run(proto: ModelProto, session_options: ort.SessionOptions) -> str:
    """Why kernels of a model do not run, though libraries were given; empty where they run."""
    domains = [each.domain for each in proto.opset_import if each.domain.startswith(entries.DOMAIN)]
    found = [status(session_options, each) for each in domains]
    if found and not any(found):
        return f"function bodies run: no library has kernels of {domains[0]}"
    return next((said for said in found if said and not said.startswith(entries.REGISTERED)), "")


@contextmanager
def _only(isa: str) -> Iterator[None]:
    """Sets the environment variable that libraries read when they are registered, and restores the user's value."""
    before = os.environ.get(ISA)
    if isa:
        os.environ[ISA] = isa
    try:
        yield
    finally:
        if isa and before is None:
            del os.environ[ISA]
        elif before is not None:
            os.environ[ISA] = before


def open_session(
    model: str | bytes, session_options: ort.SessionOptions, provider: Provider = CPU
) -> ort.InferenceSession:
    """A session of a model file or of a serialized model. Raises DeviceError with the runtime's message.

    Freed heap memory of earlier sessions is returned to the system first, since malloc would keep it.
    """
    trim()
    if provider.bound:
        preload()
    what = Path(model).name if isinstance(model, str) else "the model"
    try:
        session = _opened(model, session_options, provider)
    except Exception as problem:
        raise DeviceError(f"runtime: {what} cannot be opened: {reason(problem)}") from None
    if session.get_providers()[0] != provider.name:  # the runtime falls back to the CPU
        raise DeviceError(f"runtime: {what} cannot be opened: {provider.name} could not be loaded")
    return session


def _opened(model: str | bytes, session_options: ort.SessionOptions, provider: Provider) -> ort.InferenceSession:
    """A session. Where optimizations that make products of codes exact fail, each product gets constants of its own.

    Where that is not possible either, products are as without these optimizations.
    """

    def opened(of: str | bytes) -> ort.InferenceSession:
        return ort.InferenceSession(of, session_options, providers=provider.listed)

    if session_options.get_session_config_entry(EXACT_CODES) == "1" and lacks_zero_points(model):
        session_options.add_session_config_entry(EXACT_CODES, "0")
    try:
        return opened(model)
    except Exception as problem:
        if not any(each in str(problem) for each in _HALF_DONE):
            raise
    with suppress(Exception):
        return opened(with_codes_apart(model, lambda domain: bool(status(session_options, domain))))
    session_options.add_session_config_entry(EXACT_CODES, "0")
    return opened(model)


def run(
    session: ort.InferenceSession, feeds: Feeds, names: Sequence[str] | None = None, provider: Provider = CPU
) -> list[Array]:
    """The outputs `names` (`output_names` by default). Entries of `feeds` that the model has no input for are left out.

    `provider` is that of the session. With CUDA graphs they are those of a replay, into outputs that were cleared.
    Sequences and maps are flattened to one array of their elements. Raises DeviceError with the runtime's message.
    """
    inputs = {each.name: each.type for each in session.get_inputs()}
    outputs = {each.name: each.type for each in session.get_outputs()}
    wanted = output_names(session) if names is None else list(names)
    if not wanted:
        return []  # the runtime takes an empty list for "all"
    given = {name: value for name, value in feeds.items() if name in inputs}
    try:
        if provider.bound:
            return _replayed(_bound(session, given, wanted, provider), provider)
        if not _FOREIGN.keys() & {*inputs.values(), *(outputs[name] for name in wanted)}:
            return [_flat(value) for value in session.run(wanted, given)]
        values = {name: _to_value(value, inputs[name]) for name, value in given.items()}
        return [_to_array(value) for value in session.run_with_ort_values(wanted, values)]
    except Exception as problem:
        raise DeviceError(f"runtime: the model cannot be run: {reason(problem)}") from None


def prepared(
    session: ort.InferenceSession, feeds: Feeds, provider: Provider = CPU, number: int = 0
) -> Callable[[], object]:
    """A function to be timed, which runs the model on `feeds`; by IO binding where the provider is bound.

    Functions of one session with CUDA graphs have a `number` each. Its exceptions are the runtime's.
    """
    if provider.bound:
        return _bound(session, feeds, output_names(session), provider, number)
    inputs = {each.name: each.type for each in session.get_inputs()}
    given = {name: value for name, value in feeds.items() if name in inputs}
    if not _FOREIGN.keys() & {*inputs.values(), *(each.type for each in session.get_outputs())}:
        return partial(session.run, None, given)
    return partial(session.run_with_ort_values, None, {n: _to_value(value, inputs[n]) for n, value in given.items()})


def output_names(session: ort.InferenceSession) -> list[str]:
    """The outputs in order, without duplicates, which models may have."""
    return list(dict.fromkeys(each.name for each in session.get_outputs()))


def _flat(value: Any) -> Array:
    """A tensor as it is; the elements of a sequence or a map as one row, an absent optional as an empty one."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, dict):
        return np.array(list(value.values()))
    parts = [_flat(each).ravel() for each in value or ()] if isinstance(value, list | None) else [np.array([value])]
    return np.concatenate(parts) if parts else np.zeros(0)


def _bound(
    session: ort.InferenceSession, feeds: Feeds, names: Sequence[str], provider: Provider, number: int = 0
) -> Bound:
    """A run with its tensors in the provider's memory; those of types that NumPy lacks, and strings, in the host's."""
    inputs = {each.name: each.type for each in session.get_inputs()}
    outputs = {each.name: each.type for each in session.get_outputs()}
    held = [name for name in names if _held(outputs[name])]
    values = {
        name: _to_value(value, inputs[name])
        if _held(inputs[name])
        else ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value), provider.memory, 0)
        for name, value in feeds.items()
        if name in inputs
    }
    return Bound(session, values, names, provider, held, number)


def _held(kind: str) -> bool:
    """Whether tensors of a type stay in the host's memory."""
    return kind in _FOREIGN or kind == "tensor(string)"


def _replayed(bound: Bound, provider: Provider) -> list[Array]:
    """The outputs of a run; of a graph those that one more replay writes, after they were cleared."""
    if provider.graph:
        for value in bound.outputs:
            if not _held(value.data_type()):
                value.update_inplace(np.zeros_like(value.numpy()))
        bound()
    return [np.array(_to_array(value)) for value in bound.outputs]


def _to_value(array: Array, kind: str) -> ort.OrtValue:
    if kind not in _FOREIGN:
        return ort.OrtValue.ortvalue_from_numpy(array)
    number, bits, _ = _FOREIGN[kind]
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.ascontiguousarray(array).view(bits), number)


def _to_array(value: ort.OrtValue) -> Array:
    kind = value.data_type()
    if kind not in _FOREIGN:
        made: Array = value.numpy()
        return made
    dtype, shape = np.dtype(_FOREIGN[kind][2]), value.shape()
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return np.frombuffer(ctypes.string_at(value.data_ptr(), size), dtype).reshape(shape)


def reason(problem: BaseException) -> str:
    """An exception's message in one line: the runtime's have several, and start with a name in brackets."""
    text = " ".join(str(problem).split())
    return text.removeprefix("[ONNXRuntimeError] : ")[:400] or type(problem).__name__
