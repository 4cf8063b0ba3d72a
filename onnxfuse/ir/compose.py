"""Traversal and composition of scalars: a producer is inlined into its consumer by substituting index maps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from onnxfuse.ir.dtype import I64
from onnxfuse.ir.functions import FUNCTIONS
from onnxfuse.ir.index import Atom, Axis, Div, Entry, Index, Least, Loaded, Mod, axes_of
from onnxfuse.ir.index import atoms as index_atoms
from onnxfuse.ir.indexing import looked_up, product, substitute, transform
from onnxfuse.ir.monoid import MONOIDS
from onnxfuse.ir.scalar import (
    Apply,
    Const,
    FromIndex,
    Guard,
    Load,
    Reduce,
    Scalar,
    apply,
    by_identity,
    cast,
    children,
    number,
)

EXPENSIVE = 10.0  # vector operations per element above which recomputing a value costs more than storing it


def walk(x: Scalar) -> Iterator[Scalar]:
    """Every distinct scalar inside x, itself included, children first."""
    return iter(_nodes(x))


@by_identity
def _nodes(x: Scalar) -> tuple[Scalar, ...]:
    """The same: most scalars are walked through ten times while their kernel is scheduled."""
    found: dict[Scalar, None] = {}
    _visit(x, found)
    return tuple(found)


def _visit(node: Scalar, found: dict[Scalar, None]) -> None:
    for child in children(node):
        if child not in found:
            _visit(child, found)
    found[node] = None


def size(x: Scalar) -> int:
    """The number of nodes of x as a tree: shared nodes count once for each occurrence."""
    sizes: dict[Scalar, int] = {}
    for node in walk(x):
        sizes[node] = 1 + sum(sizes[c] for c in children(node))
    return sizes[x]


def index_size(x: Scalar) -> int:
    """The number of atoms of the longest index in x, as a tree."""
    known: dict[Index, int] = {}
    return max((_index_size(i, known) for i in indices_of(x)), default=0)


def loads(x: Scalar) -> Iterator[Load]:
    """Every distinct tensor load inside x (variables excluded), not those behind loaded indices."""
    return (n for n in walk(x) if isinstance(n, Load) and not n.variable)


def elements_read(x: object) -> Iterator[Load]:
    """The loads from buffers in a scalar of a kernel, or in a tuple of scalars; variables are excluded."""
    if isinstance(x, Scalar):
        yield from (n for n in walk(x) if isinstance(n, Load) and n.index)
    elif isinstance(x, tuple):
        for each in x:
            yield from elements_read(each)


def indices_of(x: Scalar) -> Iterator[Index]:
    """Every index expression directly held by the nodes of x."""
    for node in walk(x):
        if isinstance(node, (Load, FromIndex)):
            yield from node.index if isinstance(node, Load) else (node.index,)
            for g in node.guards:
                yield from (g.index, g.extent)


def computes(x: Scalar) -> bool:
    """Whether a scalar is more than a copied, padded or cast element."""
    return any(isinstance(n, Reduce) or (isinstance(n, Apply) and n.fn != "cast") for n in walk(x))


def sources(x: Scalar) -> frozenset[str]:
    """Names of all tensors that x reads, those behind loaded indices too."""
    return frozenset(n.source for n in loads(x)).union(*map(looked_up, indices_of(x)))


def runs(names: Sequence[str], reads: Sequence[Collection[str]]) -> Iterator[tuple[int, int]]:
    """Begin and end of runs of values: from one that reads values behind it up to these; others are alone.

    >>> list(runs("abcde", ["", "d", "", "b", "a"]))
    [(0, 1), (1, 4), (4, 5)]
    """
    place, begin = {name: at for at, name in enumerate(names)}, 0
    while begin < len(names):
        end, at = begin + 1, begin
        while at < end:
            end, at = max([end, *(place.get(name, 0) + 1 for name in reads[at])]), at + 1
        yield begin, end
        begin = end


def _index_size(e: Index, known: dict[Index, int]) -> int:
    """The number of atoms of an index as a tree; `known` memoizes those of its parts."""
    found = known.get(e)
    if found is None:
        parts = [part for mono, _ in e.terms for a in mono for part in _parts(a)]
        found = known[e] = sum(len(mono) for mono, _ in e.terms) + sum(_index_size(p, known) for p in parts)
    return found


def _parts(a: Atom) -> tuple[Index, ...]:
    """The operands of an atom."""
    if isinstance(a, (Div, Mod)):
        return (a.num, a.den)
    if isinstance(a, Least):
        return (a.one, a.two)
    if isinstance(a, Entry):
        return (a.at,)
    return a.at if isinstance(a, Loaded) else ()


def free_axes(x: Scalar) -> frozenset[Axis]:
    """The free axes of x, that is, those that it does not reduce over."""
    found: dict[Scalar, frozenset[Axis]] = {}
    for node in walk(x):
        own = frozenset[Axis]().union(*(found[c] for c in children(node)))
        if isinstance(node, Reduce):
            own -= frozenset(node.ranges)
        elif isinstance(node, (Load, FromIndex)):
            indices = node.index if isinstance(node, Load) else (node.index,)
            own = own.union(*(axes_of(i) for i in (*indices, *(g.index for g in node.guards))))
        found[node] = own
    return found[x]


def outermost(x: Scalar) -> Reduce | None:
    """The reduction of a value that is not nested in another one; None unless there is exactly one."""
    found: set[Reduce] = set()
    waiting = [x]
    while waiting:
        here = waiting.pop()
        if isinstance(here, Reduce):
            found.add(here)
        else:
            waiting.extend(children(here))
    return found.pop() if len(found) == 1 else None


def rebuild(x: Scalar, leaf: Callable[[Scalar], Scalar | None], on_index: Callable[[Index], Index]) -> Scalar:
    """x rewritten top-down: `leaf` replaces nodes (None keeps one), `on_index` maps the indices of kept nodes.

    Results are memoized by node, so that shared nodes stay shared.
    """
    memo: dict[Scalar, Scalar] = {}

    def go(node: Scalar) -> Scalar:
        done = memo.get(node)
        if done is None:
            done = memo[node] = _rebuild_one(node, leaf, on_index, go)  # noqa: F821  deleted when it has returned
        return done

    made = go(x)
    del go  # it refers to itself: only a search for cycles would free it, and all that it remembers
    return made


def _rebuild_one(
    node: Scalar,
    leaf: Callable[[Scalar], Scalar | None],
    on_index: Callable[[Index], Index],
    go: Callable[[Scalar], Scalar],
) -> Scalar:
    new = leaf(node)
    if new is not None:
        return new
    if isinstance(node, Apply):
        args = tuple([go(a) for a in node.args])
        return node if args == node.args else Apply(node.fn, args, node.dtype)
    if isinstance(node, Reduce):
        body = tuple([go(b) for b in node.body])
        return node if body == node.body else Reduce(node.combine, node.ranges, body, node.dtype, node.slot)
    if isinstance(node, Const) or (isinstance(node, Load) and not node.index and not node.guards):
        return node
    guards = tuple([Guard(on_index(g.index), on_index(g.extent)) for g in node.guards])
    if isinstance(node, FromIndex):
        return FromIndex(on_index(node.index), node.dtype, guards)
    index = tuple([on_index(i) for i in node.index])
    otherwise = go(node.otherwise) if node.otherwise is not None else None
    same = (index, guards, otherwise, None) == (node.index, node.guards, node.otherwise, node.lanes)
    return node if same else Load(node.source, index, node.dtype, guards, otherwise)


def substitute_axes(x: Scalar, values: Mapping[Axis, Index]) -> Scalar:
    """x with axes replaced; ranges of reductions are never replaced (they are distinct axes)."""
    if not values:
        return x
    return rebuild(x, lambda n: None, lambda i: substitute(i, values))


def replaced(x: Scalar, old: Scalar, new: Scalar) -> Scalar:
    """x with `new` in place of `old`."""
    return rebuild(x, lambda n: new if n == old else None, lambda i: i)


def inline(x: Scalar, producers: Mapping[str, tuple[tuple[Axis, ...], Scalar]]) -> Scalar:
    """x with loads of the producers (axes, expression) replaced by their expressions, maps composed."""

    def go(node: Scalar) -> Scalar | None:
        if not isinstance(node, Load) or node.source not in producers:
            return None
        axes, body = producers[node.source]
        value = substitute_axes(fresh_ranges(body, node.index), dict(zip(axes, node.index, strict=True)))
        if not node.guards:
            return value
        assert node.otherwise is not None
        otherwise = inline(node.otherwise, producers)
        if isinstance(value, Load) and not value.guards:
            return replace(value, guards=node.guards, otherwise=otherwise)
        return Apply("select", (in_guards(node.guards), guarded(value, node.guards), otherwise), node.dtype)

    return rebuild(x, go, lambda i: i)


def guarded(x: Scalar, guards: tuple[Guard, ...]) -> Scalar:
    """x with these guards added to every load and every indirect index, so that no read is out of bounds."""

    def go(node: Scalar) -> Scalar | None:
        if isinstance(node, Load) and node.index:
            otherwise = number(0, node.dtype) if node.otherwise is None else guarded(node.otherwise, guards)
            return Load(node.source, node.index, node.dtype, guards + node.guards, otherwise)
        if isinstance(node, FromIndex) and any(isinstance(a, (Entry, Loaded)) for a in index_atoms(node.index)):
            return FromIndex(node.index, node.dtype, guards + node.guards)
        return None

    return rebuild(x, go, lambda i: i)


def inside(guards: tuple[Guard, ...], x: Scalar, otherwise: Scalar) -> Scalar:
    """x where all guards hold, else `otherwise`; x is a load or a constant."""
    if not guards:
        return x
    if isinstance(x, Load) and not x.guards:
        return replace(x, guards=guards, otherwise=cast(otherwise, x.dtype))
    return apply("select", in_guards(guards), x, cast(otherwise, x.dtype))


def in_guards(guards: tuple[Guard, ...]) -> Scalar:
    """Whether all guards hold, as a bool."""
    result: Scalar | None = None
    for at, g in enumerate(guards):
        both = apply("and", *in_guard(g, guards[:at]))
        result = both if result is None else apply("and", result, both)
    assert result is not None
    return result


def in_guard(g: Guard, guards: tuple[Guard, ...] = ()) -> tuple[Scalar, Scalar]:
    """Whether the index of a guard is not negative, and whether it is below the extent; read inside other guards."""
    low = apply("greater_equal", guarded(FromIndex(g.index, I64), guards), Const(0, I64))
    return low, apply("less", guarded(FromIndex(g.index - g.extent, I64), guards), Const(0, I64))


def fresh_ranges(x: Scalar, index: tuple[Index, ...]) -> Scalar:
    """x with reduction ranges renamed where a substituted index would be captured by an axis of the same name."""
    taken = {a.name for i in index for a in axes_of(i)}
    ranges = {r for n in walk(x) if isinstance(n, Reduce) for r in n.ranges}
    used = taken | {r.name for r in ranges}
    clash: dict[Axis, Axis] = {}
    for r in sorted((r for r in ranges if r.name in taken), key=lambda r: r.name):
        name = r.name
        while name in used:
            name += "'"
        used.add(name)
        clash[r] = Axis(name, r.extent)
    return rename_ranges(x, clash) if clash else x


def rename_ranges(x: Scalar, names: Mapping[Axis, Axis]) -> Scalar:
    """x with reduction ranges renamed, bound occurrences included."""
    values = {a: Index.of(b) for a, b in names.items()}

    def go(node: Scalar) -> Scalar | None:
        if isinstance(node, Reduce):
            body = tuple(rename_ranges(b, names) for b in node.body)
            return Reduce(node.combine, tuple(names.get(r, r) for r in node.ranges), body, node.dtype, node.slot)
        return None

    return rebuild(x, go, lambda i: transform(i, lambda a: values.get(a) if isinstance(a, Axis) else None))


def cost(x: Scalar) -> float:
    """Vector operations per element of x, reductions not multiplied by their ranges."""
    return sum(FUNCTIONS[n.fn].cost for n in walk(x) if isinstance(n, Apply))


def with_sources(x: Scalar, names: Mapping[str, str], numbers: Mapping[str, Const]) -> Scalar:
    """x with sources renamed by `names`, and loads of those in `numbers` replaced by constants."""

    def leaf(n: Scalar) -> Scalar | None:
        if not isinstance(n, Load):
            return None
        if n.source in numbers and not n.guards:
            return numbers[n.source]
        guards = tuple(Guard(on_index(g.index), on_index(g.extent)) for g in n.guards)
        otherwise = with_sources(n.otherwise, names, numbers) if n.otherwise is not None else None
        source = names.get(n.source, n.source)
        return Load(source, tuple(map(on_index, n.index)), n.dtype, guards, otherwise, variable=n.variable)

    def on_atom(a: Atom) -> Index | None:
        if not isinstance(a, Loaded) or a.source not in names:
            return None
        return Index.of(replace(a, source=names[a.source], at=tuple(map(on_index, a.at)), extent=on_index(a.extent)))

    def on_index(i: Index) -> Index:
        return transform(i, on_atom)

    return rebuild(x, leaf, on_index)


def folded(x: Scalar) -> Scalar:
    """x with functions of constants, constant extents and extremes of a single value folded."""
    made: dict[Scalar, Scalar] = {}
    for node in walk(x):
        made[node] = _folded_one(node, made)
    return made[x]


def _folded_one(x: Scalar, made: Mapping[Scalar, Scalar]) -> Scalar:
    if isinstance(x, FromIndex):
        value = x.index.constant
        return x if value is None else number(value, x.dtype)
    if isinstance(x, Reduce):
        body = tuple(made[b] for b in x.body)
        if x.combine in ("max", "min") and isinstance(body[0], Const):
            return _of_one_number(x, body[0])
        return Reduce(x.combine, x.ranges, body, x.dtype, x.slot)
    if not isinstance(x, Apply):
        return x
    args = tuple(made[a] for a in x.args)
    if not all(isinstance(a, Const) for a in args):
        return Apply(x.fn, args, x.dtype)
    if x.fn == "cast":
        return cast(args[0], x.dtype)
    with np.errstate(all="ignore"):
        found = FUNCTIONS[x.fn].numpy(*(np.asarray(a.value, a.dtype.numpy) for a in args if isinstance(a, Const)))
    return Const(np.asarray(found).astype(x.dtype.numpy).item(), x.dtype)


def _of_one_number(x: Reduce, n: Const) -> Scalar:
    """The maximum or minimum of a constant is the constant, unless the ranges may be empty."""
    empty = MONOIDS[x.combine].init(x.dtype)[0]
    if all((r.extent.constant or 0) > 0 for r in x.ranges):
        return n
    count = FromIndex(product([r.extent for r in x.ranges]), I64)
    return apply("select", apply("greater", count, number(0, I64)), n, empty)


def is_static(axes: tuple[Axis, ...], value: Scalar) -> bool:
    """Whether all extents of axes and of a value over them, of ranges and guards too, are numbers."""
    scalars = list(walk(value))
    ranges = [r.extent for n in scalars if isinstance(n, Reduce) for r in n.ranges]
    guards = [g.extent for n in scalars if isinstance(n, (Load, FromIndex)) for g in n.guards]
    return all(e.constant is not None for e in (*(a.extent for a in axes), *ranges, *guards))


def with_extents(
    axes: tuple[Axis, ...], value: Scalar, change: Callable[[Index], Index], places: Callable[[Index], Index]
) -> tuple[tuple[Axis, ...], Scalar]:
    """Axes and a value over them, `change` applied to extents (ranges too), `places` to possibly negative indices."""
    ranges = [r for n in walk(value) if isinstance(n, Reduce) for r in n.ranges]
    made = {a: Axis(a.name, change(a.extent)) for a in (*axes, *ranges)}

    kept = all(a == b for a, b in made.items())

    def index(e: Index) -> Index:
        return places(e if kept else transform(e, lambda a: Index.of(made[a]) if isinstance(a, Axis) else None))

    def leaf(x: Scalar) -> Scalar | None:
        if kept or not isinstance(x, Reduce):
            return None
        body = tuple(rebuild(b, leaf, index) for b in x.body)
        return Reduce(x.combine, tuple(made[r] for r in x.ranges), body, x.dtype, x.slot)

    return tuple(made[a] for a in axes), rebuild(value, leaf, index)
