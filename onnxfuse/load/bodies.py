"""The bodies of If, Loop and Scan as graphs of their own, typed from what is known around them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
import onnx

from onnxfuse.errors import ModelError
from onnxfuse.ir.graph import Graph, Node, TensorType
from onnxfuse.ir.index import Index, Symbol, symbols_of
from onnxfuse.ir.unsupported import INVALID, OLDEST
from onnxfuse.load.assemble import declared, typed
from onnxfuse.load.control import FORMAL, GIVEN, BodySite, NotUnderstood, Typed
from onnxfuse.load.convert import ConvertedGraph, convert, names_in
from onnxfuse.load.dims import Names
from onnxfuse.load.functions import Inside
from onnxfuse.load.infer import NodeInference, inferred
from onnxfuse.load.inline import defined
from onnxfuse.load.legal import marked
from onnxfuse.load.sequences import Around, Item, Items, Results, item_of, met, typed_by
from onnxfuse.load.setting import Setting, Shapes
from onnxfuse.load.shapes import propagate
from onnxfuse.load.simplify import alive, settled
from onnxfuse.load.source import Closed, LoadedSubgraph, ModelSource, source_of
from onnxfuse.load.tensors import Payloads

Types = Mapping[str, TensorType | None]
_ROUNDS = 4  # in which types of carried values may become more general; after them they are unknown
_SMALL = 64  # elements of constants from outside whose values ONNX inference is told
_DEEPEST = 3  # bodies in bodies whose results are asked for


@dataclass(eq=False, slots=True)
class Typer:
    """Types the bodies of a model, for the graphs that hold them. What results is remembered for equal surroundings."""

    model: onnx.ModelProto
    payloads: Payloads
    names: Names
    _parts: dict[tuple[str, ...], ConvertedGraph] = field(default_factory=dict)
    _results: dict[tuple[object, ...], Results] = field(default_factory=dict)

    def results(self, key: tuple[str, ...], node: Node, around: Around) -> Results:
        """What is known of the results of a control flow node in the graph at `key`."""
        if node.op not in FORMAL or not node.standard or node.raw is None or len(key) >= 2 * _DEEPEST:
            return Results()
        seen = ((around.types.get(v), around.items.get(v), around.known.get(v)) for v in node.reads)
        about = (*key, node.name, *seen)
        if about not in self._results:
            bodies = {a.name: self._place(key, node, a, around) for a in _graphs(node)}
            try:
                made = {name: self.settled(place) for name, place in bodies.items()}
                self._results[about] = GIVEN[node.op](node, around, made)
            except (ModelError, NotUnderstood):
                self._results[about] = Results()
        return self._results[about]

    def _place(self, key: tuple[str, ...], node: Node, a: onnx.AttributeProto, around: Around) -> BodySite:
        return BodySite(around, node, a.g, (*key, node.name, a.name))

    def settled(self, place: BodySite) -> Typed:
        """A body with types that hold in every iteration, by induction.

        A carried value has at first the type of its initial value. Where the body gives it another extent, that extent
        may be anything; where it gives another type, or one that nobody proves, nothing is known.
        """
        listed, outer = [v.name for v in place.proto.input], place.outer
        formal = FORMAL[place.node.op](place, listed)
        if {*listed} & {t.name for t in place.proto.initializer} or len({*listed}) < len(listed):
            raise NotUnderstood("an input of it is an initializer too", "take it out of the initializers of the body")
        parts = self._converted(place)
        captured = parts.inputs[len(listed) :]
        given: dict[str, TensorType | None] = {name: outer.types.get(name) for name in captured}
        held = {name: outer.items.get(name) for name in captured}
        symbols = _symbols(outer, (*place.node.inputs, *captured))
        names = replace(self.names, same=dict(self.names.same))
        types, items = dict(formal.types), dict(formal.items)
        for _ in range(_ROUNDS):
            shapes = self._propagated(place, parts, names, {**types, **given}, {**items, **held})
            made = Typed(place.proto, parts, shapes, symbols)
            sure = {o: shapes.types.get(o) for o in formal.next.values() if o not in shapes.unproven}
            tensors = {name: _met(names, name, types[name], sure.get(o)) for name, o in formal.next.items()}
            others = {name: met(items.get(name), made.item(o)) for name, o in formal.next.items()}
            if all(tensors[name] == types[name] and others[name] == items.get(name) for name in formal.next):
                return made
            types |= tensors
            items |= others
        unknown: dict[str, None] = dict.fromkeys(formal.next)
        shapes = self._propagated(place, parts, names, {**types, **unknown, **given}, {**items, **unknown, **held})
        return Typed(place.proto, parts, shapes, symbols)

    def _converted(self, place: BodySite) -> ConvertedGraph:
        if place.key not in self._parts:
            version, constants = self.model.ir_version, place.outer.constants
            parts = self._parts[place.key] = convert(place.proto, version, self.payloads, constants, place.path)
            marked(parts, place.outer.opset)
            settled(parts, place.outer.opset, [o.name for o in place.proto.output])
        return self._parts[place.key]

    def _propagated(
        self, place: BodySite, parts: ConvertedGraph, names: Names, types: Types, items: Mapping[str, Item | None]
    ) -> Shapes:
        outer = place.outer
        once = place.node.op == "If"  # a name stands for one extent: it cannot differ from iteration to iteration
        alone = self._alone(place, parts)
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
            names=names,
            known={name: outer.known[name] for name in types if name in outer.known},
            items={name: item for name, item in items.items() if item is not None},
            through=lambda node, around: self.results(place.key, node, around),
            inside=Inside(parts.raw),
        )
        shapes = propagate(setting)
        unproven = tuple(name for name in types if name in outer.unproven)
        return replace(shapes, facts=(*outer.facts, *shapes.facts), unproven=(*unproven, *shapes.unproven))

    def _alone(self, place: BodySite, parts: ConvertedGraph) -> onnx.ModelProto:
        """The body as a model that declares no shape of its inputs; small constants from outside are initializers."""
        proto = onnx.ModelProto(ir_version=self.model.ir_version, opset_import=self.model.opset_import)
        proto.functions.extend(self.model.functions)
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


def bodies_of(
    graph: Graph, items: Items, typer: Typer, key: tuple[str, ...] = ()
) -> tuple[tuple[LoadedSubgraph, ...], tuple[Closed, ...]]:
    """The bodies in a loaded graph that can be understood, bodies inside them with their own graphs; and the others.

    Left out are those of nodes that nothing needs. `items` are what the sequences of the graph hold.
    """
    source = source_of(graph)
    around = Around(graph.types, items, graph.known, graph.constants, graph.opset, source.facts, source.unproven)
    found: list[LoadedSubgraph] = []
    closed: list[Closed] = []
    for node in alive(graph.nodes, graph.outputs)[0]:
        raw = source.nodes.get(node.name)
        for a in raw.attribute if raw is not None and node.raw is not None else ():
            for number, proto in enumerate(_held(a)):
                place = BodySite(around, node, proto, (*key, node.name, a.name))
                try:
                    found.append(LoadedSubgraph(node.name, a.name, _body(place, typer, graph)))
                except NotUnderstood as why:
                    reason, unlock = f"the body {a.name} of {node.key} stays as it is: {why.reason}", why.unlock
                except ModelError as problem:  # which the runtime tells when it gets there
                    reason, unlock = f"the body {a.name} of {node.key} is not valid: {problem}", INVALID
                else:
                    continue
                path = place.path if a.type == onnx.AttributeProto.GRAPH else f"{place.path}{number}/"
                closed.append(Closed(node.name, a.name, tuple(names_in(proto, path)), reason, unlock))
    return tuple(found), tuple(closed)


def _body(place: BodySite, typer: Typer, graph: Graph) -> Graph:
    """A body as a graph."""
    if not graph.opset:
        raise NotUnderstood("operators of the model's opset have no definitions", f"an opset of {OLDEST} or newer")
    if not place.node.standard or place.node.op not in FORMAL:
        raise NotUnderstood("what it is given is not known", "none: only those of If, Loop and Scan are fused")
    made = typer.settled(place)
    parts, shapes, source = made.parts, made.shapes, source_of(graph)
    captured = {name: c for name, c in parts.constants.items() if graph.constants.get(name) is c}
    handle: ModelSource = replace(
        source,
        graph=place.proto,
        nodes=parts.raw,
        overridable=(),
        facts=shapes.facts,
        unproven=shapes.unproven,
        captured=captured,
        bodies=(),
        closed=(),
        warnings=(),
    )
    done = typed(parts, place.proto.output, shapes, graph.opset, handle)
    bodies, closed = bodies_of(done, shapes.items, typer, place.key)
    return replace(done, source=replace(handle, bodies=bodies, closed=closed))


def _graphs(node: Node) -> Iterator[onnx.AttributeProto]:
    return (a for a in node.raw.attribute if a.type == onnx.AttributeProto.GRAPH)


def _held(a: onnx.AttributeProto) -> Sequence[onnx.GraphProto]:
    return (a.g,) if a.type == onnx.AttributeProto.GRAPH else tuple(a.graphs)


def _symbols(outer: Around, values: Sequence[str]) -> frozenset[Symbol]:
    """The symbols in what is known of some values."""
    extents: list[Index] = []
    for v in values:
        t, item = outer.types.get(v), outer.items.get(v)
        extents += t.shape if t is not None else ()
        extents += [e for e in (item.shape or () if item is not None else ()) if e is not None]
        extents += outer.known.get(v, ())
    return frozenset(chain.from_iterable(map(symbols_of, extents)))


def _met(names: Names, name: str, have: TensorType | None, made: TensorType | None) -> TensorType | None:
    """The type of what has one type first and another then."""
    both = met(item_of(have), item_of(made))
    return typed_by(Results({name: both}), {}, names.symbol).get(name) if both is not None else None
