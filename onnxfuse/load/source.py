"""The original of a loaded model, from which it is written again: its proto, payloads and warnings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from onnxfuse.ir.graph import Constant, Graph
from onnxfuse.ir.index import Index, Symbol
from onnxfuse.runtime.wire import slice_of


@dataclass(frozen=True, slots=True, eq=False)
class LoadedSubgraph:
    """A subgraph of an If, Loop or Scan, as a `Graph`.

    Its inputs are the formal ones followed by captured values; captured constants are its constants. Its nodes are
    named NODE/ATTRIBUTE/NAME.
    """

    node: str  # that holds it
    attribute: str
    graph: Graph


@dataclass(frozen=True, slots=True)
class Closed:
    """A body that is not understood.

    Its place, the names of its nodes and of those inside them, the reason, and what would change that.
    """

    node: str
    attribute: str
    nodes: tuple[str, ...]
    reason: str
    unlock: str


@dataclass(frozen=True, slots=True, eq=False)
class ModelSource:
    """A loaded model. `proto` is the whole ModelProto, functions inlined; its large payloads are stubs (see `wire`).

    `proto` is shared: copy it before changing it. `graph` is the part of it that the `Graph` was made of, the main
    graph or a body; `nodes` are its nodes under the names that they have there (unnamed nodes got one).
    Inputs, outputs, opsets, metadata and doc strings are those of `proto`.
    """

    proto: onnx.ModelProto
    graph: onnx.GraphProto
    data: memoryview  # the file, mapped; what stubs of `proto` point into
    path: Path | None  # None: the model came as bytes
    sha256: str  # of the file alone, without external data
    nodes: Mapping[str, onnx.NodeProto]
    external: tuple[Path, ...] = ()  # files that hold external data
    dims: Mapping[str, int] = field(default_factory=dict)  # symbolic dimensions that the user gave a value
    overridable: tuple[str, ...] = ()  # initializers that are inputs too: their values may change
    facts: tuple[Index, ...] = ()  # >= 0 in every successful run of the model; types rely on them
    unproven: tuple[str, ...] = ()  # values whose type is only declared by the model, which the runtime does not check
    read: frozenset[Symbol] = frozenset()  # symbols that the model computes with, as by Shape
    spelled: Mapping[str, str] = field(default_factory=dict)  # original names of values that were renamed
    already_fused: bool = False  # the model has generated kernels already: it is copied unchanged
    captured: Mapping[str, Constant] = field(default_factory=dict)  # constants of outer graphs that a body reads
    bodies: tuple[LoadedSubgraph, ...] = ()  # subgraphs of its nodes; nested ones are in the source of their graph
    closed: tuple[Closed, ...] = ()  # bodies of its nodes that are not understood
    warnings: tuple[str, ...] = ()  # sentences about oddities of the model

    @property
    def bytes(self) -> int:
        """Size of the file."""
        return len(self.data)

    @property
    def ir_version(self) -> int:
        """Version of the ONNX IR that the file is written in."""
        return self.proto.ir_version

    @property
    def opsets(self) -> dict[str, int]:
        """Versions of the operator sets, by domain; the default domain is ""."""
        return opsets_of(self.proto)

    @property
    def metadata(self) -> dict[str, str]:
        """The model's metadata."""
        return {p.key: p.value for p in self.proto.metadata_props}

    def blob(self, key: str) -> memoryview:
        """The payload of a stub of `proto`: what `wire.expand` asks for."""
        return slice_of(key, self.data)


def opsets_of(proto: onnx.ModelProto) -> dict[str, int]:
    """Versions of the operator sets, by domain; "ai.onnx" is an alias of ""."""
    found = {o.domain: o.version for o in proto.opset_import}
    if "ai.onnx" in found:
        found.setdefault("", found.pop("ai.onnx"))
    return found


def source_of(graph: Graph) -> ModelSource:
    """The model, or the body in it, that a graph was loaded from."""
    assert isinstance(graph.source, ModelSource), "load: the graph was not loaded from a model"
    return graph.source


def everywhere(graph: Graph) -> Iterator[Graph]:
    """A loaded graph, and the graphs of the bodies in it."""
    yield graph
    for body in source_of(graph).bodies:
        yield from everywhere(body.graph)
