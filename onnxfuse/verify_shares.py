"""Which kernels move the outputs of a whole model: one operator type at a time has kernels, all others their bodies."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, helper

from onnxfuse import compare, engine, feed_limits, feeds, trial
from onnxfuse.compare import Results
from onnxfuse.verify_nodes import DOMAIN

_BODIES = "bodies."  # before a domain: the same functions, for which no library has kernels


def measure(
    note: Callable[[str], None],
    model: str,
    library: str,
    isas: Sequence[str],
    custom: Sequence[str],
    inputs: str | None,
    seed: int,
    dims: Mapping[str, int],
) -> dict[str, dict[str, float]]:
    """By operator type of fused nodes and by output, the distance from what the bodies alone compute.

    Raises DeviceError when the model does not run so.
    """
    path = Path(model).absolute()
    os.chdir(path.parent)  # where a model given as bytes looks for its external data
    proto = feed_limits.load_proto(path)
    domains = {n.op_type: n.domain for n in _nodes(proto.graph) if n.domain.startswith(DOMAIN)}
    _add_bodies(proto, set(domains.values()))
    session = engine.open_session(_only(proto, "", ""), engine.options(libraries=custom, optimize=False, lean=True))
    sets, expected = trial.input_sets(session, feeds.inputs_of(feed_limits.skeleton(path)), inputs, seed, dims)
    names = engine.output_names(session)
    del session  # with its weights
    shares = {}
    for op_type, domain in domains.items():
        note(f"only {op_type}")
        only = _only(proto, op_type, domain)
        rows = [_errors(only, (library, *custom), isa, names, sets, expected) for isa in isas]
        shares[op_type] = {name: max(errors) for name, *errors in zip(names, *rows, strict=True)}
    return shares


def _errors(
    model: bytes, libraries: Sequence[str], isa: str, names: list[str], sets: list[trial.Values], expected: Results
) -> list[float]:
    """By output, how far the model is from what is expected when the library may use `isa` alone."""
    session = engine.open_session(model, engine.options(libraries=libraries, optimize=False, lean=True, isa=isa))
    found = compare.distances(expected, [engine.run(session, each, names) for each in sets])
    return [each.error for each in found]


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """The nodes of a graph and of all graphs inside them."""
    for each in feed_limits.graphs(graph):
        yield from each.node


def _add_bodies(proto: ModelProto, domains: set[str]) -> None:
    """Give the functions of these domains a second domain."""
    for function in [each for each in proto.functions if each.domain in domains]:
        twin = FunctionProto()
        twin.CopyFrom(function)
        twin.domain = _BODIES + function.domain
        proto.functions.append(twin)
    proto.opset_import.extend(helper.make_opsetid(_BODIES + each, 1) for each in sorted(domains))


def _only(proto: ModelProto, op_type: str, domain: str) -> bytes:
    """The model with fused nodes of this type alone in the domain that has kernels."""
    for node in _nodes(proto.graph):
        plain = node.domain.removeprefix(_BODIES)
        if plain.startswith(DOMAIN):
            node.domain = plain if (node.op_type, plain) == (op_type, domain) else _BODIES + plain
    return bytes(proto.SerializeToString())
