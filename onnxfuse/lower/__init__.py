"""Lowers a group of nodes to a short list of definitions, by inlining producers into their consumers.

Data movement and cheap elementwise values are inlined: their index maps are composed with those of the consumer. What
is materialized are the group's outputs, reductions, expensive values with several uses, and integers that serve as
indices and are neither loaded nor computed from loop variables. A reduction is fused with its epilogue, the chain of
elementwise consumers, as far as all paths from it agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from onnxfuse.ir.affine import bijective, simplify, split_axes
from onnxfuse.ir.codes import recoded
from onnxfuse.ir.compose import EXPENSIVE, cost, index_size, indices_of, inline, loads, rebuild, size, sources, walk
from onnxfuse.ir.dtype import BF16, F16, F32, I32, I64, DType
from onnxfuse.ir.graph import LIMIT, Decision, Graph, TensorType
from onnxfuse.ir.group import Group, Plan
from onnxfuse.ir.index import Axis, Div, Index, Loaded, Mod, atoms, axes_of, never_below_zero
from onnxfuse.ir.indexing import substitute, transform
from onnxfuse.ir.scalar import Apply, FromIndex, Load, Reduce, Scalar, cast
from onnxfuse.lower.extents import with_shapes
from onnxfuse.lower.lowered import Lowered
from onnxfuse.lower.scans import scan_of
from onnxfuse.lower.scatters import scatter_of
from onnxfuse.lower.widened import roundings, widened
from onnxfuse.lower.widths import unheld
from onnxfuse.ops.spec import Definition, OperatorTable, defined, in_order
from onnxfuse.plan.dependences import data

__all__ = ["Lowered", "has_reduction", "lower"]

LARGEST = 1000  # nodes of an expression tree above which a value is materialized
LONGEST = 32  # atoms of an index above which a value is materialized


def lower(group: Group, plan: Plan, rows: OperatorTable) -> Lowered | Decision:
    """The definitions of a group, composed; a refusal where that is not possible (E-SHAPE-UNKNOWN, E-RESOURCE, ...)."""
    graph = plan.graph
    made: list[Definition] = []
    for node in group.nodes:
        found = defined(rows, graph, node)
        if isinstance(found, Decision):
            return found
        made.extend(found)
    for narrow in plan.widened:
        made = widened(made, group.outputs, roundings(graph, group.nodes, narrow), narrow)
    live = _live(_apart(made), group.outputs)
    demands = tuple(dict.fromkeys(demand for d in made for demand in d.demands))
    composed = tuple(_live(_compose(live, group.outputs), group.outputs))  # inlining removes uses
    names = {d.name for d in composed}
    read = dict.fromkeys(s for d in composed for s in sorted(sources(d.value)) if s not in names)
    read |= dict.fromkeys(_read_by_body(group, graph, rows))
    types: dict[str, TensorType] = {}
    for name in (*read, *group.outputs):
        known = graph.types.get(name)
        if known is None:
            return Decision("E-SHAPE-UNKNOWN", (group.name,), f"the shape of {name} is not known", "give --input-shape")
        types[name] = replace(known, dtype=plan.storage_types.get(name, known.dtype))
    inputs = tuple(i for i in group.inputs if i in read)
    lowered = Lowered(group, inputs, group.outputs, types, _with_storage_dtypes(composed, plan.storage_types), demands)
    said = unheld(lowered, plan.layouts)
    if said is not None:
        return Decision("E-RESOURCE", (group.name,), said, "check the sizes of the model")
    return with_shapes(lowered, plan.layouts, {v: graph.types.get(v) for v in graph.inputs})


def _read_by_body(group: Group, graph: Graph, rows: OperatorTable) -> list[str]:
    """Inputs of a group that its function body reads even where the kernel does not.

    These are operands of a Concat that a later Slice drops, say, and constants too large for a function body.
    """
    read = {v for n in group.nodes for v in data(graph, n, rows)}
    return [
        v
        for v in group.inputs
        if (graph.constants[v].bytes > LIMIT if v in graph.constants else v in read) and v in graph.types
    ]


def _with_storage_dtypes(made: tuple[Definition, ...], storage_types: Mapping[str, DType]) -> tuple[Definition, ...]:
    """Definitions with casts between compute types and the storage types of values."""

    def go(node: Scalar) -> Scalar | None:
        if not isinstance(node, Load) or node.source not in storage_types:
            return None
        dtype = storage_types[node.source]
        otherwise = cast(rebuild(node.otherwise, go, lambda i: i), dtype) if node.otherwise is not None else None
        return cast(replace(node, dtype=dtype, otherwise=otherwise), node.dtype)

    def value(d: Definition) -> Scalar:
        x = rebuild(d.value, go, lambda i: i)
        return cast(x, storage_types[d.name]) if d.name in storage_types else x

    return tuple(replace(d, value=value(d)) for d in made) if storage_types else made


def _live(made: Sequence[Definition], outputs: tuple[str, ...]) -> list[Definition]:
    """The definitions that some output depends on (dead code elimination), in order."""
    wanted = set(outputs)
    for part in reversed(in_order(made)):
        if any(d.name in wanted for d in part):
            wanted = wanted.union(*(sources(d.value) for d in part))
    return [d for d in made if d.name in wanted]


def _apart(made: Sequence[Definition]) -> list[Definition]:
    """The definitions, those of recurrences of one step as any others: they read nothing of another step."""
    apart = {p[0].name for p in in_order(made) if len(p) == 1 and p[0].name not in sources(p[0].value)}
    return [replace(d, recurrent=False) if d.recurrent and d.name in apart else d for d in made]


def _readers(made: list[Definition]) -> dict[str, list[Definition]]:
    found: dict[str, list[Definition]] = {}
    for d in made:
        for s in sources(d.value):
            found.setdefault(s, []).append(d)
    return found


def has_reduction(x: Scalar) -> bool:
    """Whether x contains a reduction."""
    return any(isinstance(n, Reduce) for n in walk(x))


def _reads_once(reader: Definition, name: str, shape: tuple[Index, ...]) -> bool:
    """Whether an elementwise consumer reads `name` through one index map only, a bijection onto the whole value."""
    found = {n.index for n in loads(reader.value) if n.source == name and not n.guards}
    guarded = any(n.source == name and n.guards for n in loads(reader.value))
    behind_index = name in sources(reader.value) and not any(n.source == name for n in loads(reader.value))
    if guarded or behind_index or len(found) != 1 or has_reduction(reader.value):
        return False
    return bijective(next(iter(found)), shape, reader.axes)


def _epilogue(
    start: Definition, made: list[Definition], readers: Mapping[str, list[Definition]], outputs: Iterable[str]
) -> set[str]:
    """The values of a reduction's epilogue that are not materialized: the reduction itself and elementwise values.

    All uses of these lie inside the region, and the definition that ends it, a post-dominator of the reduction, reads
    them one to one. A scan or a scatter has no epilogue, since its accumulator is the result itself and has to stay as
    it is. Neither has a part of a recurrence, nor does it belong to one, whose steps are computed one after the other.
    """
    if start.recurrent or _sequential_axes(start):
        return set()
    outside = set(outputs)
    region = {start.name: start}
    best: set[str] = set()
    order = [d for d in made if d is not start]
    for d in order:
        used = [r for r in region.values() if d.name != r.name and r.name in sources(d.value)]
        if not used:
            continue
        if d.recurrent or not all(_reads_once(d, r.name, r.shape) for r in used):
            break
        region[d.name] = d
        inner = set(region) - {d.name}
        closed = all(x.name in region for n in inner for x in readers.get(n, ())) and not inner & outside
        if closed:
            best = inner
        if d.name in outside and not closed:
            break
    return best


def _compose(made: list[Definition], outputs: tuple[str, ...]) -> tuple[Definition, ...]:
    readers = _readers(made)
    epilogues: set[str] = set()
    for d in made:
        if has_reduction(d.value) and d.name not in outputs and d.name not in epilogues:
            epilogues |= _epilogue(d, made, readers, outputs)
    looked_up = {a.source for d in made for i in indices_of(d.value) for a in atoms(i) if isinstance(a, Loaded)}
    inlined: dict[str, tuple[tuple[Axis, ...], Scalar]] = {}
    kept: list[Definition] = []
    for d in made:
        value = recoded(simplify(_resolve(inline(d.value, inlined), inlined)))
        stored = d.recurrent or d.name in outputs or (d.name in looked_up and not _is_index(value))
        if not stored and (d.name in epilogues or _cheap(d, value, readers)) and _small_enough(value):
            inlined[d.name] = (d.axes, value)
        else:
            kept.append(Definition(d.name, d.axes, value, recurrent=d.recurrent))
    return tuple(kept)


def _small_enough(value: Scalar) -> bool:
    """Whether an expression may be inlined: repeated inlining into several uses grows exponentially."""
    return size(value) <= LARGEST and index_size(value) <= LONGEST


def _cheap(d: Definition, value: Scalar, readers: Mapping[str, list[Definition]]) -> bool:
    """Whether recomputing a value at each use is cheaper than materializing it."""
    users = readers.get(d.name, [])
    if has_reduction(value) or (_is_looked_up_half(value) and any(_is_window(user, d.name) for user in users)):
        return False
    if cost(value) < EXPENSIVE and not (len(users) > 1 and _divides(d.axes, value)):
        return True
    return len(users) == 1 and (_reads_once(users[0], d.name, d.shape) or _only_inside_reduction(users[0], d))


def _divides(axes: tuple[Axis, ...], value: Scalar) -> bool:
    """Whether an element is found by dividing by an extent for each place along the last axis, digits not counted.

    No vector divides by what is not known when the kernel is built: each element takes as long as ten vectors.
    """
    indices = tuple(i for n in loads(value) for i in n.index)
    _, values = split_axes(axes, indices)
    last = frozenset[Axis]().union(*(axes_of(values.get(a, Index.of(a))) for a in axes[-1:]))
    found = (a for i in indices for a in atoms(substitute(i, values)) if isinstance(a, (Div, Mod)))
    return any(a.den.constant is None and not axes_of(a.num).isdisjoint(last) for a in found)


def _is_looked_up_half(value: Scalar) -> bool:
    """Whether a value is made of 16-bit floats that are found through loaded indices.

    Windows over them as they lie would be the columns of a product whose rows, the filters, are widened in every run.
    """
    found = (a for n in loads(value) if n.dtype in (F16, BF16) for i in n.index for a in atoms(i))
    return value.dtype.floating and any(isinstance(a, Loaded) for a in found)


def _is_window(user: Definition, name: str) -> bool:
    """Whether a consumer reduces windows over a value that overlap: an index has a reduced and an own axis."""
    own = set(user.axes)
    reads = ((n, set(x.ranges)) for x in walk(user.value) if isinstance(x, Reduce) for n in loads(x))
    return any(axes_of(e) & own and axes_of(e) & ranges for n, ranges in reads if n.source == name for e in n.index)


def _only_inside_reduction(user: Definition, d: Definition) -> bool:
    """Whether a consumer that reduces reads each element of d exactly once."""
    found = {n.index for n in loads(user.value) if n.source == d.name}
    ranges = tuple(r for n in walk(user.value) if isinstance(n, Reduce) for r in n.ranges)
    sequential = _sequential_axes(user)
    axes = tuple(a for a in user.axes if a not in sequential)
    return len(found) == 1 and bijective(next(iter(found)), d.shape, (*axes, *ranges))


def _sequential_axes(d: Definition) -> tuple[Axis, ...]:
    """The axes that a scan, or the destination of a scatter, runs along sequentially: no reads depend on them."""
    scan = scan_of(d)
    if scan is not None:
        return (scan.axis,)
    scatter = scatter_of(d)
    return tuple(a for a, _ in scatter.places) if scatter is not None else ()


def _resolve(x: Scalar, inlined: Mapping[str, tuple[tuple[Axis, ...], Scalar]]) -> Scalar:
    """x with indices loaded from inlined values replaced by the index expressions that these values are."""

    def go(atom: object) -> Index | None:
        if not isinstance(atom, Loaded) or atom.source not in inlined:
            return None
        value = simplify(inline(Load(atom.source, atom.at, F32), inlined))
        return _as_index(value, atom.extent)

    return rebuild(x, lambda n: None, lambda i: transform(i, go))


def _is_index(value: Scalar) -> bool:
    """Whether a value used as an index is an index expression: a nonnegative one, or an element of another tensor."""
    value = _uncast(value)
    if isinstance(value, FromIndex):
        return not value.guards and never_below_zero(value.index)
    return isinstance(value, Load) and not value.guards


def _as_index(value: Scalar, extent: Index) -> Index:
    value = _uncast(value)
    assert isinstance(value, (FromIndex, Load)), "lower: an inlined index is neither an index expression nor an element"
    return value.index if isinstance(value, FromIndex) else Index.of(Loaded(value.source, value.index, extent))


def _uncast(value: Scalar) -> Scalar:
    """A value without conversions of integers to int32 and int64, which hold every index; floats are truncated."""
    while isinstance(value, Apply) and value.fn == "cast" and value.dtype in (I32, I64):
        (inner,) = value.args
        if not isinstance(inner, FromIndex) and inner.dtype.kind not in "iu":
            break
        value = inner
    return value
