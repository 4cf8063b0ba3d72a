"""`load`: reads a model from a path or bytes into an immutable `Graph` with inferred types."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import onnx

from onnxfuse.config import Options
from onnxfuse.errors import counted
from onnxfuse.ir.extents import expanded
from onnxfuse.ir.graph import Graph
from onnxfuse.ir.index import symbols_of
from onnxfuse.ir.unsupported import OLDEST
from onnxfuse.load.assemble import declared, typed
from onnxfuse.load.bodies import Typer, bodies_of
from onnxfuse.load.branches import opened
from onnxfuse.load.convert import ConvertedGraph, convert
from onnxfuse.load.dims import declared_type, names_of
from onnxfuse.load.functions import Inside
from onnxfuse.load.infer import NodeInference, inferred
from onnxfuse.load.inline import inlined
from onnxfuse.load.legal import marked
from onnxfuse.load.loops import multiplied_before, uncarried
from onnxfuse.load.names import defined_once, respelled, unhidden
from onnxfuse.load.read import ModelFile, read
from onnxfuse.load.saved import relaid
from onnxfuse.load.setting import Setting, Shapes
from onnxfuse.load.shapes import propagate
from onnxfuse.load.simplify import alive, settled
from onnxfuse.load.source import ModelSource, opsets_of, source_of
from onnxfuse.load.tensors import Payloads
from onnxfuse.runtime import inference
from onnxfuse.runtime.graphs import bounded, graphs, written_nodes

UNSTATED = 21  # the newest opset of ONNX Runtime 1.18, the oldest supported one
FUSED_DOMAIN = "onnxfuse."  # of the kernels that emit writes


def load(source: str | os.PathLike[str] | bytes, options: Options) -> Graph:
    """Read a model. Raises UsageError (no such file, wrong dimension) and ModelError (invalid model, missing data).

    Large tensors stay in the memory-mapped file. Models of unsupported opsets (below 7, or newer than the onnx
    package) load with opset 0, for which no operator has a row; those that state none, with one that suits all their
    operators. `source.opsets` has the stated ones.
    """
    file = read(source)
    warnings: list[str] = []
    proto = file.proto
    already_fused = any(o.domain.startswith(FUSED_DOMAIN) for o in (*proto.functions, *written_nodes(proto)))
    if proto.functions and not already_fused:
        proto = _inline(proto, warnings)
    defined_once(proto)
    if options.constant_initializers:
        _take_as_constants(proto.graph)
    spelled = {} if already_fused else respelled(proto)
    if not already_fused:
        relaid(proto, Payloads(file.data, file.path), opsets_of(proto).get("", UNSTATED))
        unhidden(proto)
        uncarried(proto, opsets_of(proto).get("", UNSTATED))
        multiplied_before(proto)
    make = partial(_graph, file, options, spelled, tuple(warnings), already_fused=already_fused)
    with inference.watched(options.time_budget) as losses:
        graph = opened(make(proto), make)
    notes = (f"{said}; types were found without it" for said in dict.fromkeys(losses.said))
    return replace(graph, source=replace(source_of(graph), warnings=(*source_of(graph).warnings, *notes)))


def _graph(
    file: ModelFile,
    options: Options,
    spelled: Mapping[str, str],
    notes: tuple[str, ...],
    proto: onnx.ModelProto,
    *,
    already_fused: bool,
) -> Graph:
    """The graph of a model whose functions are inlined. `notes` are earlier warnings."""
    warnings = list(notes)
    payloads = Payloads(file.data, file.path)
    parts = convert(proto.graph, proto.ir_version, payloads)
    listed = {v.name: v for v in proto.graph.input}
    infos = {name: listed[name] for name in parts.inputs}
    names = names_of(_as_loaded(options, spelled), infos, (*proto.graph.output, *proto.graph.value_info))
    opset = _opset(proto, warnings)
    marked(parts, opset)
    settled(parts, opset, [o.name for o in proto.graph.output])
    typer = Typer(proto, payloads, names)
    shapes = _shapes(proto, parts, infos, typer, opset)
    _check_subgraph_data(proto, payloads)
    if parts.overridable:
        warnings.append(
            f"inputs are also {counted(len(parts.overridable), 'initializer')} ({parts.overridable[0]}, ...): "
            "callers may change their values, so nothing is computed from them ahead of time "
            "(unless --constant-initializers says that none does)"
        )
    handle = ModelSource(
        proto=proto,
        graph=proto.graph,
        data=file.data,
        path=file.path,
        sha256=file.digest,
        nodes=parts.raw,
        external=tuple(payloads.files),
        dims=names.values,
        overridable=tuple(parts.overridable),
        facts=shapes.facts,
        unproven=shapes.unproven,
        read=frozenset(s for known in shapes.known.values() for e in known for s in symbols_of(expanded(e))),
        spelled=spelled,
        already_fused=already_fused,
        warnings=(*warnings, *shapes.warnings),
    )
    graph = typed(parts, proto.graph.output, shapes, opset, handle)
    bodies, closed = ((), ()) if already_fused else bodies_of(graph, shapes.items, typer)
    return replace(graph, source=replace(handle, bodies=bodies, closed=closed))


def _inline(proto: onnx.ModelProto, warnings: list[str]) -> onnx.ModelProto:
    bounded(proto, "load")
    done = inlined(proto)
    left = proto.functions if done is None else done.functions
    if left:
        first = f"{left[0].domain}::{left[0].name}"
        warnings.append(f"not inlined: {counted(len(left), 'function')} of the model ({first}, ...)")
    return proto if done is None else done


def _take_as_constants(graph: onnx.GraphProto) -> None:
    """Remove initializers from the inputs of a graph, in place."""
    stored = {t.name for t in graph.initializer}
    inputs = [v for v in graph.input if v.name not in stored]
    del graph.input[:]
    graph.input.extend(inputs)


def _as_loaded(options: Options, spelled: Mapping[str, str]) -> Options:
    """The options with the internal names of inputs."""
    ours = {name: plain for plain, name in spelled.items()}
    texts = [text.rpartition(":") for text in options.input_shape]
    return replace(options, input_shape=tuple(f"{ours.get(name, name)}{by}{dims}" for name, by, dims in texts))


def _opset(proto: onnx.ModelProto, warnings: list[str]) -> int:
    """The opset of the default domain; 0 if it is not supported."""
    newest = onnx.defs.onnx_opset_version()
    version = opsets_of(proto).get("")
    if version is None:
        return _unstated_opset(proto, newest, warnings)
    if version < OLDEST and any(n.domain in ("", "ai.onnx") for n in proto.graph.node):
        warnings.append(f"opset {version} is older than {OLDEST}: nothing is fused (convert the model to fuse it)")
    if version > newest:
        warnings.append(
            f"opset {version} is newer than {newest}, the newest that the installed onnx knows: nothing is fused"
        )
    return version if OLDEST <= version <= newest else 0


def _unstated_opset(proto: onnx.ModelProto, newest: int, warnings: list[str]) -> int:
    """An opset for a model that does not import the default domain, for which the runtime uses its newest one.

    That is at least `UNSTATED`, which is equivalent if the model's operators have not changed since; otherwise 0.
    """
    nodes = (n for g in graphs(proto.graph) for n in g.node)
    for op in sorted({n.op_type for n in nodes if n.domain in ("", "ai.onnx")}):
        versions = [_version(op, opset) for opset in (UNSTATED, newest)]
        if None in versions or versions[0] != versions[1]:
            warnings.append(f"no opset of the default domain is stated, and {op} changed since {UNSTATED}")
            return 0
    return UNSTATED


def _version(op: str, opset: int) -> int | None:
    """The opset since which an operator has its definition of `opset`; None if it does not exist yet."""
    try:
        return int(onnx.defs.get_schema(op, opset, "").since_version)
    except onnx.defs.SchemaError:
        return None


def _shapes(
    proto: onnx.ModelProto, parts: ConvertedGraph, infos: dict[str, onnx.ValueInfoProto], typer: Typer, opset: int
) -> Shapes:
    found = propagate(_setting(proto, parts, infos, typer, opset))
    if not (found.contradicted and typer.names.computed):
        return found
    typer.names.literal = True  # the runtime does not read "2*n" and "n + 1" either
    typer.names.same.clear()
    return propagate(_setting(proto, parts, infos, typer, opset))


def _setting(
    proto: onnx.ModelProto, parts: ConvertedGraph, infos: dict[str, onnx.ValueInfoProto], typer: Typer, opset: int
) -> Setting:
    inputs = {name: declared_type(name, infos[name].type, typer.names) for name in parts.inputs}
    return Setting(
        nodes=parts.nodes,
        live={n.name for n in alive(parts.nodes, [o.name for o in proto.graph.output])[0]},
        inputs=inputs,
        constants=parts.constants,
        opset=opset,
        claimed=inferred(proto, inputs),
        declared=dict(declared((*proto.graph.value_info, *proto.graph.output))),
        inference=NodeInference(opset, parts.raw),
        names=typer.names,
        through=partial(typer.results, ()),
        inside=Inside(parts.raw),
    )


def _check_subgraph_data(proto: onnx.ModelProto, payloads: Payloads) -> None:
    """Check that the external data of subgraphs exists, too. Raises ModelError."""
    for inner in graphs(proto.graph):
        for tensor in inner.initializer if inner is not proto.graph else ():
            payloads.of(tensor)
