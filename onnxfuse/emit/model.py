"""The rewritten model: fused groups as nodes of a domain of their own, each with a function body as fallback."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx

from onnxfuse.emit.calls import emission_of, fill, fix_extents
from onnxfuse.emit.checks import check
from onnxfuse.emit.fallback import imports
from onnxfuse.emit.planned import Fused, Planned
from onnxfuse.emit.proto import node_proto, set_metadata, tensors_in, without
from onnxfuse.emit.standalone import standalone
from onnxfuse.emit.weights import Weight, Weights
from onnxfuse.ir.graph import Graph
from onnxfuse.ir.group import Plan
from onnxfuse.load.names import rename
from onnxfuse.load.source import ModelSource
from onnxfuse.runtime.graphs import graphs
from onnxfuse.runtime.wire import Buffer, key_of, slim

_IR_WITH_FUNCTIONS = 8


@dataclass(frozen=True, slots=True)
class LibraryEntry:
    """The kernel library as the model's metadata describes it; `path` and `manifest` are relative to the model."""

    domain: str
    path: str
    manifest: str
    targets: tuple[str, ...]  # machine classes with kernels, best first; required extensions follow a +


@dataclass(frozen=True, slots=True, eq=False)
class Emitted:
    """A model to be written: `proto` with stubs in place of payloads, which `blob` gives by key.

    `weights` may be stored outside the model file; `exact` are the model's bytes when it is an unchanged copy.
    """

    proto: onnx.ModelProto
    weights: tuple[Weight, ...]
    blob: Callable[[str], Buffer]
    was_external: bool
    exact: memoryview | None = None
    names: Mapping[str, str] = field(default_factory=dict)  # names of fused nodes, by that of the group's first node
    bodies: tuple[Emitted, ...] = ()  # subgraphs with kernels, each as a model of its own
    decoding: int = 0  # nodes that make weights of codes when the model is loaded, and never run

    @property
    def weight_bytes(self) -> int:
        """The size of all weights in bytes."""
        return sum(w.bytes for w in self.weights)


def emit(plan: Plan, fused: Sequence[Fused], library: LibraryEntry, inner: tuple[Planned, ...] = ()) -> Emitted:
    """The model in which every group of `fused` is one node; other groups of the plan stay unfused.

    `inner` are the planned subgraphs of its nodes. The model does not depend on what the library contains:
    `state_library` adds its hash.
    """
    main = Planned(plan, fused, inner)
    source = main.source
    proto = _frame(source, plan.graph)
    emission = emission_of(main, library.domain)
    weights = Weights(source, emission.taken, shared=bool(inner))
    fill(proto.graph, main, weights, emission)
    for function in proto.functions:
        weights.take(function)
    _add_functions(proto, emission.used, library.domain)
    if emission.used:
        proto.ir_version = max(proto.ir_version, _IR_WITH_FUNCTIONS)
        proto.opset_import.add(domain=library.domain, version=1)
        if "" not in source.opsets:  # what is used of it means the same in this opset
            proto.opset_import.add(domain="", version=plan.graph.opset)
        about = {"library": library.path, "library_sha256": "", "manifest": library.manifest}
        set_metadata(proto, **about, targets=" ".join(library.targets))
    _import_domains(proto)
    check(proto)
    inside = (standalone(proto, each, weights.decoding) for each in emission.subgraphs)
    bodies = tuple(_of(made, weights) for made in inside if made is not None)
    rename(proto.graph, source.spelled)
    return Emitted(
        proto, weights.large, weights.blob, bool(source.external),
        names=emission.names, bodies=bodies, decoding=len(weights.decoding),
    )  # fmt: skip


def state_library(emitted: Emitted, sha256: str) -> Emitted:
    """The model with the hash of its library, if it has kernels of one."""
    proto = onnx.ModelProto()
    proto.CopyFrom(emitted.proto)
    if any(p.key == "onnxfuse.library_sha256" for p in proto.metadata_props):
        set_metadata(proto, library_sha256=sha256)
    return replace(emitted, proto=proto)


def _import_domains(proto: onnx.ModelProto) -> None:
    """Import every domain of the runtime's own operators that rewrites introduced."""
    nodes = [n for part in (*graphs(proto.graph), *proto.functions) for n in part.node]
    known = {o.domain for o in proto.opset_import} | {"", "ai.onnx"} | {f.domain for f in proto.functions}
    for domain in sorted({n.domain for n in nodes} - known):
        proto.opset_import.add(domain=domain, version=1)


def _of(body: onnx.ModelProto, weights: Weights) -> Emitted:
    """A standalone model of a subgraph, with the weights that it reads."""
    stubs = {key_of(tensor) for tensor in (*body.graph.initializer, *tensors_in(body.graph))}
    return Emitted(body, tuple(w for w in weights.large if w.key in stubs), weights.blob, was_external=False)


def copied(source: ModelSource) -> Emitted:
    """The loaded model unchanged, where there is nothing to optimize."""
    proto = onnx.ModelProto.FromString(slim(source.data))
    weights = Weights(source, set())
    for part in (proto.graph, *proto.functions):
        weights.take(part)
    return Emitted(proto, weights.large, weights.blob, weights.moved, None if weights.moved else source.data)


def _add_functions(proto: onnx.ModelProto, used: Iterable[Fused], domain: str) -> None:
    """One function per fused operator; its metadata names all groups that share it."""
    versions = {o.domain: o.version for o in proto.opset_import}
    users: dict[str, list[Fused]] = {}
    for f in used:
        users.setdefault(f.op, []).append(f)
    for op, sharing in users.items():
        body = sharing[0].body
        assert all(f.body.text == body.text for f in sharing), f"emit: {op} names two functions"
        function = proto.functions.add(name=op, domain=domain, input=body.inputs, output=body.outputs)
        function.opset_import.extend(imports(body, versions))
        function.node.extend(node_proto(n, body.opset) for n in body.nodes)
        set_metadata(function, origin=json.dumps([o for f in sharing for o in f.group.origin]))


# The rest of the model ------------------------------------------------------------------------------------------------


def _frame(source: ModelSource, graph: Graph) -> onnx.ModelProto:
    """The loaded model without nodes, types and initializers, except initializers that are inputs too."""
    proto = onnx.ModelProto()
    proto.CopyFrom(source.proto)
    without(proto.graph, "node", "initializer", "sparse_initializer", "value_info", "input")
    kept = set(source.overridable)
    proto.graph.initializer.extend(t for t in source.proto.graph.initializer if t.name in kept)
    inputs = {v.name: v for v in source.proto.graph.input}
    proto.graph.input.extend(inputs[name] for name in graph.inputs)
    for info in (*proto.graph.input, *proto.graph.output):
        fix_extents(info, graph, source)
    return proto
