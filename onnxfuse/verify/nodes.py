"""Runs each fused node against its function body, as a model of one node, on inputs captured from the whole model."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime as ort
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from onnxfuse.errors import DeviceError
from onnxfuse.runtime import engine, entries, feed_limits, feeds
from onnxfuse.runtime.provider import CPU, Provider
from onnxfuse.verify import codes, compare, trial, truth
from onnxfuse.verify.original import kept
from onnxfuse.verify.scales import scales_of
from onnxfuse.verify.trial import Values

Spread = list[list[compare.Distance]]  # how far runs of a function body are from each other, per pair and output

_CAPTURED_BYTES = 256 << 20  # an estimate of the captured values that are in memory at a time
_UNKNOWN_BYTES = 1 << 20
_WIDE = (TensorProto.DOUBLE, TensorProto.INT64)
_SHORT_FLOATS = {np.dtype(ml_dtypes.bfloat16): TensorProto.BFLOAT16}


@dataclass(frozen=True, slots=True)
class ComparisonSettings:
    """The settings that all nodes of one model share."""

    proto: ModelProto
    weights: Mapping[str, TensorProto]
    library: str
    isas: Sequence[str]  # instruction sets that the library may use, one after the other; "" lets it choose
    custom: Sequence[str]
    reductions: Mapping[str, int]  # operator type to the longest sum that its kernel makes
    roundings: Mapping[str, float]  # operator type to the relative error by which its kernel rounds operands or results
    narrowed: Collection[str]  # operator types whose values have a 16-bit storage dtype in place of float32
    seed: int
    provider: Provider = CPU  # where kernels run; function bodies run on the CPU
    optimize: bool = False  # whether function bodies run with the runtime's optimizations


def measure(
    note: Callable[[str], None],
    model: str,
    library: str,
    isas: Sequence[str],
    custom: Sequence[str],
    inputs: str | None,
    seed: int,
    dims: Mapping[str, int],
    reductions: Mapping[str, int],
    roundings: Mapping[str, float],
    narrowed: Collection[str],
    skip: Sequence[str],
    provider: Mapping[str, Any] | None = None,
    reference: str | None = None,
) -> list[dict[str, Any]]:
    """One result for each fused node of the main graph, but those named in `skip`; fields as `verify.GroupResult`.

    What told nothing of the original whose `reference` was written is not drawn: all values are captured in a run.
    Raises DeviceError when the model without its library does not run.
    """
    path = Path(model).absolute()
    os.chdir(path.parent)  # where a model given as bytes looks for its external data
    proto = feed_limits.load_proto(path)
    weights = {each.name: each for each in proto.graph.initializer}
    job = ComparisonSettings(
        proto, weights, library, isas, custom, reductions, roundings, narrowed, seed, Provider(**provider or {}),
        codes.needs_optimizations(proto),
    )  # fmt: skip
    nodes = [each for each in proto.graph.node if each.domain.startswith(entries.DOMAIN) and key_of(each) not in skip]
    note("the function bodies of all nodes")
    results = []
    spreads: dict[str, Spread] = {}
    skeleton = feed_limits.skeleton(path)
    useless = () if reference is None else kept(reference).useless
    wish = trial.InputRequest(skeleton, inputs, seed, dims, useless=useless)
    for node, captured, expected in _captured(job, path, nodes, wish):
        note(f"node {node.op_type} {key_of(node)}")
        checked = _checked(job, node, captured, expected, spreads)
        results.append({"name": key_of(node), "op_type": node.op_type, **checked})
    return results


def key_of(node: NodeProto) -> str:
    """The node's name, else that of its first output."""
    return str(node.name or node.output[0])


def _captured(
    job: ComparisonSettings, path: Path, nodes: Sequence[NodeProto], wish: trial.InputRequest
) -> Iterator[tuple[NodeProto, list[Values], compare.Results]]:
    """Each node with the values of its outputs and of its inputs other than weights, for every set of model inputs.

    The whole model runs once per set and per batch of nodes whose values fit into `_CAPTURED_BYTES`.
    """
    wanted = {id(node): [n for n in dict.fromkeys(node.input) if n and n not in job.weights] for node in nodes}
    made = {id(node): [n for n in node.output if n] for node in nodes}
    takes = feeds.inputs_of(wish.skeleton)
    known = {*(each.name for each in takes), *(each.name for each in job.proto.graph.output)}
    sets: list[Values] = []
    for batch in _batches(job.proto, nodes, feeds.sizes_of(takes, feeds.RECIPES[0], 0, wish.dims)):
        touched = dict.fromkeys(n for node in batch for n in (*wanted[id(node)], *made[id(node)]))
        taps = [name for name in touched if name not in known]
        session = _with_outputs(path, taps, job)
        names = [*(n for n in engine.output_names(session) if n not in taps), *taps]
        if sets:
            rows = [engine.run(session, each, names) for each in sets]
        else:
            found = trial.input_sets(session, replace(wish, also=taps))
            sets, rows = found.values, found.results
        del session  # with its weights
        runs = [dict(zip(names, row, strict=True)) | each for row, each in zip(rows, sets, strict=True)]
        for node in batch:
            captured = [{name: values[name] for name in wanted[id(node)]} for values in runs]
            yield node, captured, [[values[name] for name in made[id(node)]] for values in runs]


def _batches(proto: ModelProto, nodes: Sequence[NodeProto], sizes: Mapping[str, int]) -> Iterator[list[NodeProto]]:
    """Batches of consecutive nodes, sized by the stated shapes of their outputs; `sizes` are values of symbols."""
    stated = {each.name: _stated_bytes(each, sizes) for each in (*proto.graph.value_info, *proto.graph.output)}
    batch: list[NodeProto] = []
    captured_bytes = 0
    for node in nodes:
        size = sum(stated.get(name, _UNKNOWN_BYTES) for name in node.output if name)
        if batch and captured_bytes + size > _CAPTURED_BYTES:
            yield batch
            batch, captured_bytes = [], 0
        batch, captured_bytes = [*batch, node], captured_bytes + size
    if batch:
        yield batch


def _stated_bytes(value: ValueInfoProto, sizes: Mapping[str, int]) -> int:
    """Bytes of a value by its stated shape."""
    kind = value.type.tensor_type
    if not kind.HasField("shape"):
        return _UNKNOWN_BYTES
    extents = (d.dim_value or feeds.size_of(d.dim_param or 1, sizes) for d in kind.shape.dim)
    return math.prod(extents) * (8 if kind.elem_type in _WIDE else 4)


def _with_outputs(path: Path, taps: Sequence[str], job: ComparisonSettings) -> ort.InferenceSession:
    """A session of the model, function bodies only, that also outputs the values `taps`.

    Concatenated protobuf messages are merged, so the outputs are appended to the bytes of the file.
    """
    extra = [ValueInfoProto(name=name) for name in taps]
    tail = ModelProto(graph=GraphProto(output=extra)).SerializeToString()
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        model = b"".join((mapped, tail))
    return engine.open_session(
        model, engine.options(libraries=job.custom, optimize=job.optimize, lean=True, arena=False)
    )


def _checked(
    job: ComparisonSettings,
    node: NodeProto,
    captured: list[Values],
    expected: compare.Results,
    spreads: dict[str, Spread],
) -> dict[str, Any]:
    """Error and limit of the output with the largest ratio of the two.

    If the bound by dtype and length of sums is exceeded, the limit is ten times the spread of the body's own runs, if
    that is larger; `spreads` caches it by operator type.
    """
    single = _single(job, node, captured[0])
    model = single.SerializeToString()
    try:
        found = _distances(job, single, captured, expected)
    except DeviceError as problem:
        return {"error": None, "limit": None} | _kernel_at_fault(job, model, captured, problem)
    rounding = job.roundings.get(node.op_type, 0.0)
    narrowed = node.op_type in job.narrowed
    coarsest = np.dtype(np.float32) if narrowed else _coarsest(single, captured[0], expected[0])
    bound = compare.group_bound(coarsest, _reduction(job, node, captured), rounding)
    exact = [not compare.is_float(out.dtype) for out in expected[0]]
    limits = [compare.limit((), bound, each) for each in exact]
    if any(each.error > limit for each, limit in zip(found, limits, strict=True)):
        own = spreads.setdefault(node.op_type, []) or _spread(job, model, captured, expected, scales_of(single))
        spreads[node.op_type] = own
        limits = [compare.limit([each[i].error for each in own], bound, exact[i]) for i in range(len(exact))]
    for i in [i for i, each in enumerate(exact) if not each and limits[i] < found[i].error < np.inf]:
        with suppress(DeviceError):
            error, limits[i] = _by_float64(job, node, captured, expected, limits[i], i)
            found[i] = replace(found[i], error=error)
    at = max(range(len(found)), key=lambda i: compare.excess(found[i].error, limits[i]))
    ok = found[at].error <= limits[at]
    return {"ok": ok, "error": found[at].error, "limit": limits[at], "message": _message(node, at, found[at], ok)}


def _distances(
    job: ComparisonSettings, model: ModelProto, captured: list[Values], expected: compare.Results
) -> list[compare.Distance]:
    """By output, the distance of the kernel from the body, the largest over all instruction sets."""
    scales = scales_of(model)
    rows = [compare.distances(expected, _tested(job, model, captured, isa), scales) for isa in job.isas]
    return [max(column, key=lambda each: each.error) for column in zip(*rows, strict=True)]


def _by_float64(
    job: ComparisonSettings,
    node: NodeProto,
    captured: list[Values],
    expected: compare.Results,
    limit: float,
    output: int,
) -> tuple[float, float]:
    """Error and limit of an output against a float64 evaluation of the body, on the sets where the kernel fails.

    Raises DeviceError if the body cannot be evaluated in float64.
    """
    names = [name for name in node.output if name]
    model = _single(job, node, captured[0])
    scales = scales_of(model)
    kernels = [_tested(job, model, captured, isa) for isa in job.isas]
    pairs = []
    for at, (values, body) in enumerate(zip(captured, expected, strict=True)):
        found = [kernel[at] for kernel in kernels]
        if all(compare.distance(body[output], each[output], scales[output]).error <= limit for each in found):
            continue
        _, true = truth.truth(_single(job, node, values), [values], names)
        own = truth.errors(true, [body], scales)[output]
        pairs.append((max(truth.errors(true, [each], scales)[output] for each in found), own))
    return compare.by_truth(pairs, len(pairs) < len(captured), limit)


def _kernel_at_fault(
    job: ComparisonSettings, model: bytes, captured: list[Values], problem: DeviceError
) -> dict[str, Any]:
    """Whether the kernel is at fault when a node did not run: not if its body does not run either."""
    try:
        _run(model, job.custom, captured[:1])
    except DeviceError as other:
        return {"ok": None, "message": f"the body does not run: {other.message}"}
    return {"ok": False, "message": problem.message}


def _spread(
    job: ComparisonSettings,
    model: bytes,
    captured: list[Values],
    expected: compare.Results,
    scales: Sequence[float],
) -> Spread:
    """Distances among the body's own runs: with and without optimizations, and with inputs perturbed by one rounding.

    Empty if the body does not run alone.
    """
    both = [*captured, *(feeds.nudged(each, job.seed) for each in captured)]
    try:
        runs = _run(model, job.custom, both, optimize=True)
    except DeviceError:
        return []
    optimized, nudged = runs[: len(captured)], runs[len(captured) :]
    return [compare.distances(a, b, scales) for a, b in ((expected, optimized), (optimized, nudged))]


def _message(node: NodeProto, at: int, found: compare.Distance, ok: bool) -> str:
    return "" if ok else f"output {node.output[at]}: {found.reason or f'largest difference {found.max_abs:.3g}'}"


def _tested(job: ComparisonSettings, model: ModelProto, sets: list[Values], isa: str) -> compare.Results:
    """The outputs of the kernel of a model of one node, by set.

    Only the kernels that it calls are switched on: for each kernel of a session the runtime makes a schema, which takes
    longer than all else where there are a hundred.
    """
    called = {(f.domain, f.name) for f in model.functions}
    others = [f.name for f in job.proto.functions if (f.domain, f.name) not in called]
    return _run(
        model.SerializeToString(), (job.library, *job.custom), sets, others, tested=True, isa=isa, provider=job.provider
    )


def _run(
    model: bytes,
    libraries: Sequence[str],
    sets: list[Values],
    disabled: Sequence[str] = (),
    *,
    optimize: bool = False,
    tested: bool = False,
    isa: str = "",
    provider: Provider = CPU,
) -> compare.Results:
    """The outputs of a model. A kernel that is `tested` gets reused memory, so that it cannot rely on zeros."""
    options = engine.options(
        libraries=libraries, disabled=disabled, optimize=optimize, lean=True, arena=tested, isa=isa
    )
    session = engine.open_session(model, options, provider)
    return [engine.run(session, each, None, provider) for each in sets]


def _single(job: ComparisonSettings, node: NodeProto, captured: Values) -> ModelProto:
    """A model of this node alone: captured values are its inputs, weights stay initializers."""
    graph = GraphProto(name="one", node=[node], output=[ValueInfoProto(name=name) for name in node.output if name])
    for name, value in captured.items():
        kind = _SHORT_FLOATS.get(value.dtype) or helper.np_dtype_to_tensor_dtype(value.dtype)
        graph.input.append(helper.make_tensor_value_info(name, kind, [None] * value.ndim))
    graph.initializer.extend(job.weights[name] for name in dict.fromkeys(node.input) if name in job.weights)
    single = ModelProto(ir_version=job.proto.ir_version, graph=graph, opset_import=job.proto.opset_import)
    single.functions.extend(_needed(job.proto, node))
    return single


def _needed(proto: ModelProto, node: NodeProto) -> list[FunctionProto]:
    """The functions that the node calls, directly or through others."""
    known = {(each.domain, each.name): each for each in proto.functions}
    found: dict[tuple[str, str], FunctionProto] = {}
    front = [(node.domain, node.op_type)]
    while front:
        key = front.pop()
        if key in known and key not in found:
            found[key] = known[key]
            front += [(each.domain, each.op_type) for each in known[key].node]
    return list(found.values())


def _coarsest(model: ModelProto, captured: Values, made: Sequence[compare.Array]) -> np.dtype[Any]:
    """The coarsest float dtype of what a node reads, makes, or rounds to in between; float32 if it has no floats.

    Weights do not count: kernel and body read the same ones.
    """
    casts = (n for function in model.functions for n in function.node if n.op_type == "Cast")
    rounded = [helper.tensor_dtype_to_np_dtype(a.i) for n in casts for a in n.attribute if a.name == "to"]
    types = [t for t in (*(v.dtype for v in (*captured.values(), *made)), *rounded) if compare.is_float(t)]
    return max(types, key=lambda each: compare.EPSILONS[compare.type_name(each)], default=np.dtype(np.float32))


def _reduction(job: ComparisonSettings, node: NodeProto, captured: list[Values]) -> int:
    """The longest sum: as stated for the operator type, else the largest extent of any input."""
    extents = [dim for n in node.input if n in job.weights for dim in job.weights[n].dims]
    extents += [dim for values in captured for value in values.values() for dim in value.shape]
    return job.reductions.get(node.op_type, max(extents, default=1))
