"""The half of verification that runs whole models, one session at a time: the program that `verify.py` starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onnx import ModelProto, TensorProto
from onnxruntime import InferenceSession

from onnxfuse import compare, engine, feed_limits, feeds, process, trial, verify_nodes, verify_shares
from onnxfuse.compare import Results
from onnxfuse.errors import DeviceError, OnnxFuseError
from onnxfuse.trial import Values
from onnxfuse.verify import WITH_LIBRARY

Note = Callable[[str], None]  # says what is about to be run, in case this process dies of it


def main(request: dict[str, Any]) -> Any:
    """Answer one request of `verify.py`: `do` names the function, the rest are its arguments."""
    notes = Path(request.pop("notes"))

    def note(text: str) -> None:
        notes.write_text(text, encoding="utf-8")

    table: dict[str, Callable[..., Any]] = {
        "models": measure,
        "groups": verify_nodes.measure,
        "shares": verify_shares.measure,
    }
    return table[request.pop("do")](note, **request)


def measure(
    note: Note,
    a: str,
    b: str,
    library: str | None,
    isas: Sequence[str],
    custom: Sequence[str],
    inputs: str | None,
    seed: int,
    dims: Mapping[str, int],
    rounding: float = 0.0,
) -> dict[str, Any]:
    """Run model `a` in three ways, model `b` in two for each of `isas` and in two without library.

    With a `rounding`, relative, `a` also runs on inputs that are moved by so much. Numbers only: `verify.judged`
    makes a verdict of them.

    Raises DeviceError when `a` does not run.
    """
    bare = feed_limits.skeleton(Path(a))
    note("the original, no optimizations")
    names, sets, expected, plain = _reference(a, bare, custom, inputs, seed, dims)
    note("the original, all optimizations")
    own, moved = _own_distances(a, custom, sets, expected, seed, rounding)
    runs = []
    for way in _ways(library, isas, plain):
        note(way.name)
        runs.append({"name": way.name, **_compared(b, way, custom, names, sets, expected)})
    exact = [not compare.is_float(each.dtype) for each in expected[0]]
    facts = {"outputs": names, "exact": exact, "own": own, "moved": moved, "coded": makes_codes(bare)}
    return facts | {"floor": floor(bare), "sets": len(sets), "runs": runs}


@dataclass(frozen=True, slots=True)
class _Way:
    """One way to run the model under test; `isa` is what its library may use, which chooses where that is empty."""

    name: str
    libraries: tuple[str, ...]
    isa: str
    optimize: bool


def _ways(library: str | None, isas: Sequence[str], plain: bool) -> Iterator[_Way]:
    """With the library, for each of `isas`, and without; with all optimizations and, if the original runs so, none."""
    used = [(f"{WITH_LIBRARY} ({isa})" if len(isas) > 1 else WITH_LIBRARY, (library,), isa) for isa in isas if library]
    for name, libraries, isa in (*used, ("without library", (), "")):
        for optimize in (True, False) if plain else (True,):
            yield _Way(f"{name}, {'all' if optimize else 'no'} optimizations", libraries, isa, optimize)


def _reference(
    path: str, bare: ModelProto, custom: Sequence[str], inputs: str | None, seed: int, dims: Mapping[str, int]
) -> tuple[list[str], list[Values], Results, bool]:
    """Names of the outputs, the sets of inputs, what the original makes of them, and whether without optimizations."""
    wanted = feeds.inputs_of(bare)
    plain = True
    try:
        session = _opened(path, custom, optimize=False)
        sets, expected = trial.input_sets(session, wanted, inputs, seed, dims)
    except DeviceError:  # some models run only when the optimizer has removed what has no kernel
        plain = False
        session = _opened(path, custom)
        sets, expected = trial.input_sets(session, wanted, inputs, seed, dims)
    return engine.output_names(session), sets, expected, plain


def _own_distances(
    path: str, custom: Sequence[str], sets: list[Values], expected: Results, seed: int, rounding: float
) -> tuple[list[list[float]], list[float]]:
    """By output: optimized against not optimized, and nudged inputs against the inputs, both optimized.

    And how far inputs that are moved by `rounding` move it, 0 where that is 0.
    """
    nudged = [feeds.nudged(each, seed) for each in sets]
    far = [feeds.nudged(each, seed, rounding) for each in sets] if rounding else []
    try:
        session = _opened(path, custom)
        found = [engine.run(session, each) for each in (*sets, *nudged, *far)]
    except DeviceError:  # the reference ran: what is left is the floor
        return [[] for _ in expected[0]], [0.0 for _ in expected[0]]
    plain, near, moved = (found[at * len(sets) : (at + 1) * len(sets)] for at in range(3))
    pairs = ((expected, plain), (plain, near))
    rows = [compare.distances(x, y) for x, y in pairs]
    own = [[each.error for each in column] for column in zip(*rows, strict=True)]
    return own, [each.error for each in compare.distances(plain, moved or plain)]


def _opened(
    path: str, libraries: Sequence[str], *, optimize: bool = True, arena: bool = False, isa: str = ""
) -> InferenceSession:
    settings = engine.options(libraries=libraries, optimize=optimize, lean=True, arena=arena, isa=isa)
    return engine.open_session(path, settings)


def _compared(
    path: str, way: _Way, custom: Sequence[str], names: Sequence[str], sets: list[Values], expected: Results
) -> dict[str, Any]:
    """One way to run the other model: by output its distance from the original, or the message of what went wrong.

    Kernels get memory from the arena, which was used before, so that they cannot count on zeros.
    """
    try:
        libraries = (*way.libraries, *custom)
        session = _opened(path, libraries, optimize=way.optimize, arena=bool(way.libraries), isa=way.isa)
        own = engine.output_names(session)
        if len(own) != len(names):
            raise DeviceError(f"verify: outputs {', '.join(own)} instead of {', '.join(names)}")
        matched = names if set(own) == set(names) else own
        found = [engine.run(session, each, matched) for each in sets]
    except OnnxFuseError as problem:
        return {"message": problem.message, "distances": []}
    return {"message": "", "distances": [asdict(each) for each in compare.distances(expected, found)]}


def floor(bare: ModelProto) -> float:
    """The floor of the coarsest float type that the model computes with."""
    names = {_floor_name(kind) for kind in _element_types(bare)} - {""}
    if makes_codes(bare):
        names.add("quantized")
    return max((compare.FLOORS[name] for name in names), default=0.0)


def makes_codes(bare: ModelProto) -> bool:
    """Whether numbers are rounded to integer codes on the way, not only read from them."""
    ops = {node.op_type for node in _nodes(bare)}
    return any(op.startswith(("QLinear", "Quantize", "DynamicQuantize", "QGemm")) for op in ops)


def _nodes(bare: ModelProto) -> Iterator[Any]:
    yield from bare.graph.node
    for function in bare.functions:
        yield from function.node


def _element_types(bare: ModelProto) -> Iterator[int]:
    yield from (tensor.data_type for tensor in bare.graph.initializer)
    for value in (*bare.graph.input, *bare.graph.output, *bare.graph.value_info):
        yield value.type.tensor_type.elem_type
    for node in _nodes(bare):
        yield from (each.i for each in node.attribute if node.op_type == "Cast" and each.name == "to")


def _floor_name(kind: int) -> str:
    """The key of `compare.FLOORS` for an ONNX element type; empty for what is no float."""
    name = TensorProto.DataType.Name(kind).lower()
    known = {"float": "float32", "double": "float64", "float16": "float16", "bfloat16": "bfloat16"}
    return "float8" if name.startswith("float8") else known.get(name, "")


if __name__ == "__main__":
    process.serve(main)
