"""Runs each fused node against its function body, as a model of one node, on inputs captured from the whole model."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime as ort
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from onnxfuse import compare, engine, feed_limits, feeds, trial
from onnxfuse.errors import DeviceError
from onnxfuse.trial import Values

Spread = list[list[compare.Distance]]  # how far runs of a function body are from each other, per pair and output

DOMAIN = "onnxfuse."  # fused nodes are of a domain that begins so
_CAPTURED_BYTES = 256 << 20  # how much of the values between nodes is held at a time
_SHORT_FLOATS = {np.dtype(ml_dtypes.bfloat16): TensorProto.BFLOAT16}


@dataclass(frozen=True, slots=True)
class Job:
    """What stays the same for all nodes of one model."""

    proto: ModelProto
    weights: Mapping[str, TensorProto]
    library: str
    custom: Sequence[str]
    reductions: Mapping[str, int]  # operator type to the longest sum that its kernel makes
    seed: int


def measure(
    note: Callable[[str], None],
    model: str,
    library: str,
    custom: Sequence[str],
    inputs: str | None,
    seed: int,
    dims: Mapping[str, int],
    reductions: Mapping[str, int],
    skip: Sequence[str],
) -> list[dict[str, Any]]:
    """One result for each fused node of the main graph, but those named in `skip`; fields as `verify.GroupResult`.

    Raises DeviceError when the model without its library does not run.
    """
    path = Path(model).absolute()
    os.chdir(path.parent)  # where a model given as bytes looks for its external data
    proto = feed_limits.load_proto(path)
    job = Job(proto, {each.name: each for each in proto.graph.initializer}, library, custom, reductions, seed)
    nodes = [each for each in proto.graph.node if each.domain.startswith(DOMAIN) and key_of(each) not in skip]
    note("the function bodies of all nodes")
    results = []
    spreads: dict[str, Spread] = {}
    for node, captured, expected in _captured(job, path, nodes, inputs, dims):
        note(f"node {node.op_type} {key_of(node)}")
        checked = _checked(job, node, captured, expected, spreads)
        results.append({"name": key_of(node), "op_type": node.op_type, **checked})
    return results


def key_of(node: NodeProto) -> str:
    """The node's name, else that of its first output."""
    return str(node.name or node.output[0])


def _captured(
    job: Job, path: Path, nodes: Sequence[NodeProto], inputs: str | None, dims: Mapping[str, int]
) -> Iterator[tuple[NodeProto, list[Values], compare.Results]]:
    """Each node with the values of its inputs that are no weights and of its outputs, for every set of model inputs.

    The whole model runs once per batch of nodes; batches grow until what they capture reaches `_CAPTURED_BYTES`.
    """
    wanted = {id(node): [n for n in dict.fromkeys(node.input) if n and n not in job.weights] for node in nodes}
    made = {id(node): [n for n in node.output if n] for node in nodes}
    session = _tapped(path, [name for part in (wanted, made) for names in part.values() for name in names], job)
    sets, _ = trial.input_sets(session, feeds.inputs_of(feed_limits.skeleton(path)), inputs, job.seed, dims)
    fed = set(sets[0])
    batch, rest = 1, list(nodes)
    while rest:
        now, rest = rest[:batch], rest[batch:]
        touched = (n for node in now for n in (*wanted[id(node)], *made[id(node)]))
        names = list(dict.fromkeys(n for n in touched if n not in fed))
        runs = [dict(zip(names, engine.run(session, each, names), strict=True)) | each for each in sets]
        for node in now:
            captured = [{name: values[name] for name in wanted[id(node)]} for values in runs]
            yield node, captured, [[values[name] for name in made[id(node)]] for values in runs]
        each_bytes = max(1, sum(values[n].nbytes for values in runs for n in names) // len(now))
        batch = max(1, min(_CAPTURED_BYTES // each_bytes, 2 * batch))


def _tapped(path: Path, names: Sequence[str], job: Job) -> ort.InferenceSession:
    """A session of the model, bodies only, that also gives the values `names`.

    Serialized messages that follow each other are merged, so the outputs are appended to the bytes of the file.
    """
    known = {each.name for each in (*job.proto.graph.input, *job.proto.graph.output)}
    extra = [ValueInfoProto(name=name) for name in dict.fromkeys(names) if name not in known]
    tail = ModelProto(graph=GraphProto(output=extra)).SerializeToString()
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        model = b"".join((mapped, tail))
    return engine.open_session(model, engine.options(libraries=job.custom, optimize=False, prepack=False))


def _checked(
    job: Job, node: NodeProto, captured: list[Values], expected: compare.Results, spreads: dict[str, Spread]
) -> dict[str, Any]:
    """Error and limit of the output that is nearest its limit, or over it by most.

    `spreads` remembers how far runs of a body differ from each other: the first node of an operator type tells.
    """
    model = _single(job, node, captured[0]).SerializeToString()
    try:
        own = spreads.setdefault(node.op_type, []) or _spread(job, model, captured, expected)
    except DeviceError as problem:
        return {"ok": None, "error": None, "limit": None, "message": f"the body does not run: {problem.message}"}
    spreads[node.op_type] = own
    try:
        found = compare.distances(expected, _run(model, (job.library, *job.custom), False, captured))
    except DeviceError as problem:
        return {"ok": False, "error": None, "limit": None, "message": problem.message}
    bound = compare.group_bound(_coarsest(job, node, captured[0]), _reduction(job, node, captured))
    limits = [
        compare.limit([each[i].error for each in own], bound, exact=not compare.is_float(out.dtype))
        for i, out in enumerate(expected[0])
    ]
    at = max(range(len(found)), key=lambda i: compare.excess(found[i].error, limits[i]))
    ok = found[at].error <= limits[at]
    return {"ok": ok, "error": found[at].error, "limit": limits[at], "message": _words(node, at, found[at], ok)}


def _spread(job: Job, model: bytes, captured: list[Values], expected: compare.Results) -> Spread:
    """Distances among the body's own runs: without optimizations, with them, and with inputs nudged by one rounding."""
    both = [*captured, *(feeds.nudged(each, job.seed) for each in captured)]
    runs = _run(model, job.custom, True, both)
    optimized, nudged = runs[: len(captured)], runs[len(captured) :]
    return [compare.distances(expected, optimized), compare.distances(optimized, nudged)]


def _words(node: NodeProto, at: int, found: compare.Distance, ok: bool) -> str:
    return "" if ok else f"output {node.output[at]}: {found.reason or f'largest difference {found.max_abs:.3g}'}"


def _run(model: bytes, libraries: Sequence[str], optimize: bool, sets: list[Values]) -> compare.Results:
    session = engine.open_session(model, engine.options(libraries=libraries, optimize=optimize, prepack=False))
    return [engine.run(session, each) for each in sets]


def _single(job: Job, node: NodeProto, captured: Values) -> ModelProto:
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


def _coarsest(job: Job, node: NodeProto, captured: Values) -> np.dtype[Any]:
    """The float type among the node's inputs that rounds most; float32 when there is none."""
    stored = [helper.tensor_dtype_to_np_dtype(job.weights[n].data_type) for n in node.input if n in job.weights]
    types = [each for each in (*stored, *(v.dtype for v in captured.values())) if compare.is_float(each)]
    return max(types, key=lambda each: compare.EPSILONS[compare.type_name(each)], default=np.dtype(np.float32))


def _reduction(job: Job, node: NodeProto, captured: list[Values]) -> int:
    """The longest sum: as stated for the operator type, else the largest extent of any input."""
    extents = [dim for n in node.input if n in job.weights for dim in job.weights[n].dims]
    extents += [dim for values in captured for value in values.values() for dim in value.shape]
    return job.reductions.get(node.op_type, max(extents, default=1))
