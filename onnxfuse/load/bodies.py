"""The bodies of If, Loop and Scan as graphs of their own, typed from what is known around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import onnx

from onnxfuse.errors import ModelError
from onnxfuse.ir.dtype import BOOL, I64
from onnxfuse.ir.graph import Graph, Node, TensorType
from onnxfuse.ir.index import ONE
from onnxfuse.load.convert import Parts, convert
from onnxfuse.load.dims import Names, declared_dims
from onnxfuse.load.infer import NodeInference, inferred
from onnxfuse.load.inline import defined
from onnxfuse.load.legal import marked
from onnxfuse.load.shapes import Setting, Shapes, propagate
from onnxfuse.load.simplify import alive
from onnxfuse.load.source import Body, Source
from onnxfuse.load.tensors import Payloads
from onnxfuse.load.typed import declared, typed

Types = Mapping[str, TensorType | None]
_ROUNDS = 4  # in which types of carried values may become more general; after them they are unknown
_SMALL = 64  # elements of constants from outside whose values ONNX inference is told
_SCAN_WITHOUT_BATCH = 9  # the opset from which on Scan has no batch axis


@dataclass(frozen=True, slots=True)
class _Place:
    """A body, and what holds it. `around` are the names that it must not define."""

    outer: Graph
    node: Node
    proto: onnx.GraphProto
    path: str
    around: frozenset[str]
    names: Names
    payloads: Payloads


@dataclass(frozen=True, slots=True)
class _Formal:
    """The inputs of a body that its node fills, with their types, and the output that gives each its next value."""

    types: dict[str, TensorType | None]
    next: dict[str, str]


def bodies_of(graph: Graph, names: Names, payloads: Payloads, around: frozenset[str] = frozenset()) -> tuple[Body, ...]:
    """The bodies in a loaded graph that can be understood, bodies inside them with their own graphs.

    Left out are bodies that hide an outer name, and those of nodes that nothing needs. `around` are names of the graphs
    that hold this one.
    """
    around = around | defined(graph.source.graph)
    found = []
    for node in alive(graph.nodes, graph.outputs)[0] if graph.opset else ():
        if node.raw is None or not node.standard or node.op not in _FORMAL:
            continue
        for a in node.raw.attribute:
            if a.type == onnx.AttributeProto.GRAPH:
                path = f"{node.name}/{a.name}/"
                place = _Place(graph, node, a.g, path, around, replace(names, same=dict(names.same)), payloads)
                with suppress(ModelError):  # what is wrong with it, the runtime says when it gets there
                    made = _body(place)
                    found += [Body(node.name, a.name, made)] if made is not None else []
    return tuple(found)


def _body(place: _Place) -> Graph | None:
    listed = [v.name for v in place.proto.input]
    own = defined(place.proto)
    overridable = set(listed) & {t.name for t in place.proto.initializer}
    formal = _FORMAL[place.node.op](place, listed)
    if formal is None or own & place.around or overridable or len(set(listed)) < len(listed):
        return None
    source: Source = place.outer.source
    parts = convert(place.proto, source.proto.ir_version, place.payloads, place.outer.constants, place.path)
    marked(parts, place.outer.opset)
    given: dict[str, TensorType | None] = {name: place.outer.types.get(name) for name in parts.inputs[len(listed) :]}
    shapes = _settled(place, parts, formal, given)
    captured = {name: c for name, c in parts.constants.items() if place.outer.constants.get(name) is c}
    handle = replace(
        source,
        graph=place.proto,
        nodes=parts.raw,
        overridable=(),
        facts=shapes.facts,
        unproven=shapes.unproven,
        captured=captured,
        bodies=(),
        warnings=(),
    )
    graph = typed(parts, place.proto.output, shapes, place.outer.opset, handle)
    inner = bodies_of(graph, place.names, place.payloads, place.around)
    return replace(graph, source=replace(handle, bodies=inner))


# Types of what a node fills -------------------------------------------------------------------------------------------


def _of_if(place: _Place, listed: Sequence[str]) -> _Formal | None:
    return None if listed else _Formal({}, {})


def _of_loop(place: _Place, listed: Sequence[str]) -> _Formal | None:
    """The number of the iteration, the condition, and what is carried on."""
    given, outputs = place.node.inputs[2:], [o.name for o in place.proto.output]
    if len(listed) != len(given) + 2 or len(outputs) < len(given) + 1:
        return None
    types = {name: place.outer.types.get(v) for name, v in zip(listed[2:], given, strict=True)}
    for info, dtype in zip(place.proto.input[:2], (I64, BOOL), strict=True):
        dims = declared_dims(info.type)[1]  # the runtime gives it the rank that it has here
        types[info.name] = TensorType(dtype, (ONE,) * len(dims)) if dims is not None else None
    return _Formal(types, dict(zip(listed[2:], outputs[1:], strict=False)))


def _of_scan(place: _Place, listed: Sequence[str]) -> _Formal | None:
    """States, and then one slice of each sequence."""
    node, outputs = place.node, [o.name for o in place.proto.output]
    count, axes = node.attrs.get("num_scan_inputs"), node.attrs.get("scan_input_axes", ())
    if not isinstance(count, int) or not isinstance(axes, tuple) or place.outer.opset < _SCAN_WITHOUT_BATCH:
        return None
    states = len(node.inputs) - count
    if len(listed) != len(node.inputs) or not 0 <= states <= len(outputs):
        return None
    types = {name: place.outer.types.get(v) for name, v in zip(listed, node.inputs, strict=True)}
    for k, name in enumerate(listed[states:]):
        t, axis = types[name], axes[k] if k < len(axes) else 0
        if t is None or not isinstance(axis, int) or not -len(t.shape) <= axis < len(t.shape):
            types[name] = None
        else:
            at = axis % len(t.shape)
            types[name] = TensorType(t.dtype, (*t.shape[:at], *t.shape[at + 1 :]))
    return _Formal(types, dict(zip(listed[:states], outputs, strict=False)))


_FORMAL = {"If": _of_if, "Loop": _of_loop, "Scan": _of_scan}


def _settled(place: _Place, parts: Parts, formal: _Formal, given: Types) -> Shapes:
    """Types that hold in every iteration, by induction.

    A carried value has at first the type of its initial value. Where the body gives it another extent, that extent may
    be anything; where it gives another type, or one that nobody proves, nothing is known.
    """
    types = dict(formal.types)
    for _ in range(_ROUNDS):
        shapes = _propagated(place, parts, {**types, **given})
        sure = {o: shapes.types.get(o) for o in formal.next.values() if o not in shapes.unproven}
        met = {name: _met(place.names, name, types[name], sure.get(o)) for name, o in formal.next.items()}
        if all(met[name] == types[name] for name in met):
            return shapes
        types |= met
    return _propagated(place, parts, {**types, **dict.fromkeys(formal.next), **given})


def _met(names: Names, name: str, have: TensorType | None, made: TensorType | None) -> TensorType | None:
    """The type of what has one type first and another then."""
    if have is None or made is None or have.dtype != made.dtype or len(have.shape) != len(made.shape):
        return None
    pairs = enumerate(zip(have.shape, made.shape, strict=True))
    return TensorType(have.dtype, tuple(e if e == f else names.symbol(f"?{name}_{i}") for i, (e, f) in pairs))


def _propagated(place: _Place, parts: Parts, types: Types) -> Shapes:
    outer, source = place.outer, place.outer.source
    once = place.node.op == "If"  # a name stands for one extent: it cannot differ from iteration to iteration
    alone = _alone(place, parts)
    others = {name: outer.types.get(name) for name in (v.name for v in alone.graph.input) if name not in types}
    setting = Setting(
        nodes=parts.nodes,
        live={n.name for n in alive(parts.nodes, [o.name for o in place.proto.output])[0]},
        inputs=types,
        constants=parts.constants,
        opset=outer.opset,
        claimed=inferred(alone, {**others, **types}),
        declared=dict(declared((*place.proto.value_info, *place.proto.output), named=once)),
        inference=NodeInference(outer.opset, parts.raw),
        names=place.names,
        known={name: outer.known[name] for name in types if name in outer.known},
    )
    shapes = propagate(setting)
    unproven = tuple(name for name in types if name in source.unproven)
    return replace(shapes, facts=(*source.facts, *shapes.facts), unproven=(*unproven, *shapes.unproven))


def _alone(place: _Place, parts: Parts) -> onnx.ModelProto:
    """The body as a model that declares no shape of its inputs; small constants from outside are its initializers."""
    source: Source = place.outer.source
    proto = onnx.ModelProto(ir_version=source.proto.ir_version, opset_import=source.proto.opset_import)
    proto.functions.extend(source.proto.functions)
    proto.graph.CopyFrom(place.proto)
    for info in (v for v in proto.graph.input if v.type.HasField("tensor_type")):
        info.type.tensor_type.ClearField("shape")
    own = defined(place.proto)
    for name in (*parts.inputs, *parts.constants):
        constant = parts.constants.get(name)
        if name in own:
            continue
        if constant is not None and constant.size <= _SMALL and constant.dtype.kind in "iub":
            proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(constant.load()), name))
        else:
            proto.graph.input.add(name=name)
    return proto
