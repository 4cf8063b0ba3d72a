"""One output element as an expression, and the table of scalar functions with meaning, algebra and cost.

Five kinds: `Const`, `Load` (an element of a tensor, guarded or not), `FromIndex` (an index as a number), `Apply` (a
function of the table) and `Reduce` (a monoid over ranges). Loads compose by substitution, so inlining a producer into
a consumer is one call of `inline`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onnxfuse.ir.dtype import BOOL, F32, I64, DType
from onnxfuse.ir.index import Axis, Index, Loaded, axes_of, substitute, transform
from onnxfuse.ir.index import atoms as index_atoms


@dataclass(frozen=True, slots=True)
class Guard:
    """Holds where 0 <= index < extent."""

    index: Index
    extent: Index


@dataclass(frozen=True, slots=True)
class Const:
    """A number."""

    value: float | int | bool
    dtype: DType

    def __eq__(self, other: object) -> bool:  # nan equals itself, 0.0 differs from -0.0
        return isinstance(other, Const) and repr(self.value) == repr(other.value) and self.dtype == other.dtype

    def __hash__(self) -> int:
        return hash((repr(self.value), self.dtype.name))

    def __repr__(self) -> str:
        return f"{self.value!r}"


@dataclass(frozen=True, slots=True)
class Load:
    """Element `index` of tensor `source`; where a guard fails, `otherwise`. A source "%x" with no index is a variable.

    Guards are checked in order, and nothing behind one that fails (a loaded index, the element) is read.
    """

    source: str
    index: tuple[Index, ...]
    dtype: DType
    guards: tuple[Guard, ...] = ()
    otherwise: Scalar | None = None
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        key = ("load", self.source, self.index, self.dtype.name, self.guards, self.otherwise)
        object.__setattr__(self, "_hash", hash(key))

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        text = f"{self.source}[{', '.join(map(repr, self.index))}]" if self.index else self.source
        if not self.guards:
            return text
        when = " & ".join(f"0<={g.index!r}<{g.extent!r}" for g in self.guards)
        return f"({text} if {when} else {self.otherwise!r})"


@dataclass(frozen=True, slots=True)
class FromIndex:
    """An index as a number."""

    index: Index
    dtype: DType

    def __repr__(self) -> str:
        return f"num({self.index!r})"


@dataclass(frozen=True, slots=True)
class Apply:
    """A function of the table on scalars."""

    fn: str
    args: tuple[Scalar, ...]
    dtype: DType
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.fn, self.args, self.dtype.name)))

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        name = f"cast<{self.dtype}>" if self.fn == "cast" else self.fn
        return f"{name}({', '.join(map(repr, self.args))})"


@dataclass(frozen=True, slots=True)
class Reduce:
    """The monoid `combine` of `body` over all values of `ranges`; element `slot` of the monoid's tuple."""

    combine: str
    ranges: tuple[Axis, ...]
    body: tuple[Scalar, ...]
    dtype: DType
    slot: int = 0
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.combine, self.ranges, self.body, self.slot)))

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        over = ", ".join(f"{r!r}<{r.extent!r}" for r in self.ranges)
        slot = f".{self.slot}" if self.slot else ""
        return f"{self.combine}{slot}[{over}]({', '.join(map(repr, self.body))})"


Scalar = Const | Load | FromIndex | Apply | Reduce


@dataclass(frozen=True, slots=True)
class Function:
    """A scalar function. `result`: "same" as its arguments, or "bool". `cost` in vector operations per vector.

    `laws`: c commutative, a associative, i idempotent, f(x, x) = x. `unit`: f(x, unit) = x. `zero` keeps its sign.
    """

    name: str
    arity: int
    numpy: Callable[..., Any]
    cost: float = 1.0
    result: str = "same"
    laws: str = ""
    unit: float | None = None


def _erf(x: Any) -> Any:
    from math import erf  # noqa: PLC0415  only the reference meaning needs it

    return np.vectorize(erf, otypes=[np.float64])(x)


def _div(a: Any, b: Any) -> Any:
    """ONNX Div: integers are divided with truncation towards zero."""
    a, b = np.asarray(a), np.asarray(b)
    if np.issubdtype(a.dtype, np.floating):
        return a / b
    safe = np.where(b == 0, 1, b)
    return (np.sign(a) * np.sign(safe) * (np.abs(a) // np.abs(safe))).astype(a.dtype)


def _sigmoid(x: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-x))


FUNCTIONS: dict[str, Function] = {
    f.name: f
    for f in (
        Function("add", 2, np.add, laws="ca", unit=0.0),
        Function("sub", 2, np.subtract, unit=0.0),
        Function("mul", 2, np.multiply, laws="ca", unit=1.0),
        Function("div", 2, _div, 4.0, unit=1.0),
        Function("mod", 2, np.mod, 8.0),
        Function("fmod", 2, np.fmod, 8.0),
        Function("min", 2, np.minimum, laws="cai"),
        Function("max", 2, np.maximum, laws="cai"),
        Function("pow", 2, np.power, 40.0, unit=1.0),
        Function("neg", 1, np.negative),
        Function("abs", 1, np.abs),
        Function("sign", 1, np.sign, 2.0),
        Function("floor", 1, np.floor),
        Function("ceil", 1, np.ceil),
        Function("round", 1, np.round),
        Function("sqrt", 1, np.sqrt, 6.0),
        Function("reciprocal", 1, lambda x: 1.0 / x, 4.0),
        Function("exp", 1, np.exp, 14.0),
        Function("log", 1, np.log, 18.0),
        Function("erf", 1, _erf, 18.0),
        Function("tanh", 1, np.tanh, 18.0),
        Function("sigmoid", 1, _sigmoid, 18.0),
        Function("sin", 1, np.sin, 20.0),
        Function("cos", 1, np.cos, 20.0),
        Function("equal", 2, np.equal, result="bool", laws="c"),
        Function("less", 2, np.less, result="bool"),
        Function("less_equal", 2, np.less_equal, result="bool"),
        Function("greater", 2, np.greater, result="bool"),
        Function("greater_equal", 2, np.greater_equal, result="bool"),
        Function("and", 2, np.logical_and, result="bool", laws="cai"),
        Function("or", 2, np.logical_or, result="bool", laws="cai"),
        Function("xor", 2, np.logical_xor, result="bool", laws="ca"),
        Function("not", 1, np.logical_not, result="bool"),
        Function("isnan", 1, np.isnan, result="bool"),
        Function("isinf", 1, np.isinf, result="bool"),
        Function("select", 3, np.where),
        Function("cast", 1, lambda x: x),
    )
}


@dataclass(frozen=True, slots=True)
class Monoid:
    """A combine: per slot its start value and how two partial results merge (over variables %l0.. and %r0..)."""

    name: str
    init: Callable[[DType], tuple[Scalar, ...]]
    merge: Callable[[tuple[Scalar, ...], tuple[Scalar, ...]], tuple[Scalar, ...]]
    numpy: Callable[..., Any] | None = None


def _lowest(t: DType) -> Const:
    return Const(float("-inf") if t.floating else False if t.kind == "b" else int(np.iinfo(t.numpy).min), t)


def _highest(t: DType) -> Const:
    return Const(float("inf") if t.floating else True if t.kind == "b" else int(np.iinfo(t.numpy).max), t)


def _number(x: int, t: DType) -> Const:
    return Const(float(x) if t.floating else bool(x) if t.kind == "b" else x, t)


def _binary(fn: str) -> Callable[[tuple[Scalar, ...], tuple[Scalar, ...]], tuple[Scalar, ...]]:
    return lambda a, b: (apply(fn, a[0], b[0]),)


def _arg(better: str) -> Callable[[tuple[Scalar, ...], tuple[Scalar, ...]], tuple[Scalar, ...]]:
    def merge(a: tuple[Scalar, ...], b: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
        take = apply(better, b[0], a[0])  # the left operand holds the smaller indices: the first of equals stays
        return apply("select", take, b[0], a[0]), apply("select", take, b[1], a[1])

    return merge


MONOIDS: dict[str, Monoid] = {
    m.name: m
    for m in (
        Monoid("sum", lambda t: (_number(0, t),), _binary("add"), np.sum),
        Monoid("prod", lambda t: (_number(1, t),), _binary("mul"), np.prod),
        Monoid("max", lambda t: (_lowest(t),), _binary("max"), np.max),
        Monoid("min", lambda t: (_highest(t),), _binary("min"), np.min),
        Monoid("argmax", lambda t: (_lowest(t), Const(0, I64)), _arg("greater")),
        Monoid("argmin", lambda t: (_highest(t), Const(0, I64)), _arg("less")),
    )
}


# Building -------------------------------------------------------------------------------------------------------------


def apply(fn: str, *args: Scalar, dtype: DType | None = None) -> Scalar:
    """fn(args) with its result type derived; casts to the same type vanish."""
    row = FUNCTIONS[fn]
    if fn == "cast":
        assert dtype is not None
        return args[0] if args[0].dtype == dtype else Apply("cast", args, dtype)
    if len(args) != row.arity:
        raise ValueError(f"{fn} takes {row.arity} operands, not {len(args)}")
    if dtype is None:
        dtype = BOOL if row.result == "bool" else args[-1].dtype
    return Apply(fn, args, dtype)


def cast(x: Scalar, dtype: DType) -> Scalar:
    """x converted to dtype."""
    if isinstance(x, Const):
        return Const(_converted(np.asarray(x.value, x.dtype.numpy), dtype), dtype)
    return apply("cast", x, dtype=dtype)


def const(value: float | int | bool, dtype: DType = F32) -> Const:
    """A number rounded to dtype."""
    return Const(_converted(np.asarray(value), dtype), dtype)


def _converted(value: Any, dtype: DType) -> Any:
    with np.errstate(all="ignore"):
        return value.astype(dtype.numpy).item()


# Walking --------------------------------------------------------------------------------------------------------------


def children(x: Scalar) -> tuple[Scalar, ...]:
    """The scalars directly inside x."""
    if isinstance(x, Apply):
        return x.args
    if isinstance(x, Reduce):
        return x.body
    if isinstance(x, Load) and x.otherwise is not None:
        return (x.otherwise,)
    return ()


def walk(x: Scalar) -> Iterator[Scalar]:
    """Every distinct scalar inside x, itself included, children first."""
    seen: set[int] = set()
    keep: set[Scalar] = set()

    def visit(node: Scalar) -> Iterator[Scalar]:
        if id(node) in seen:
            return
        seen.add(id(node))
        for child in children(node):
            yield from visit(child)
        if node not in keep:
            keep.add(node)
            yield node

    yield from visit(x)


def loads(x: Scalar) -> Iterator[Load]:
    """Every distinct tensor load inside x (variables excluded), not those behind loaded indices."""
    return (n for n in walk(x) if isinstance(n, Load) and not n.source.startswith("%"))


def indices_of(x: Scalar) -> Iterator[Index]:
    """Every index expression directly held by the nodes of x."""
    for node in walk(x):
        if isinstance(node, Load):
            yield from node.index
            for g in node.guards:
                yield from (g.index, g.extent)
        elif isinstance(node, FromIndex):
            yield node.index


def sources(x: Scalar) -> frozenset[str]:
    """Names of all tensors that x reads, those behind loaded indices too."""
    found = {n.source for n in loads(x)}
    for i in indices_of(x):
        found.update(a.source for a in index_atoms(i) if isinstance(a, Loaded))
    return frozenset(found)


def free_axes(x: Scalar) -> frozenset[Axis]:
    """Axes that x mentions and does not reduce over."""
    if isinstance(x, Reduce):
        inner = frozenset().union(*(free_axes(b) for b in x.body))
        return inner - frozenset(x.ranges)
    found: set[Axis] = set()
    if isinstance(x, Load):
        for i in (*x.index, *(g.index for g in x.guards)):
            found |= axes_of(i)
    elif isinstance(x, FromIndex):
        found |= axes_of(x.index)
    for child in children(x):
        found |= free_axes(child)
    return frozenset(found)


def rebuild(x: Scalar, leaf: Callable[[Scalar], Scalar | None], on_index: Callable[[Index], Index]) -> Scalar:
    """x with `leaf` tried on every node from the top, and `on_index` applied to every index of what stays."""
    memo: dict[int, Scalar] = {}

    def go(node: Scalar) -> Scalar:
        done = memo.get(id(node))
        if done is None:
            done = memo[id(node)] = _rebuild_one(node, leaf, on_index, go)
        return done

    return go(x)


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
        return Apply(node.fn, tuple(go(a) for a in node.args), node.dtype)
    if isinstance(node, Reduce):
        return Reduce(node.combine, node.ranges, tuple(go(b) for b in node.body), node.dtype, node.slot)
    if isinstance(node, FromIndex):
        return FromIndex(on_index(node.index), node.dtype)
    if isinstance(node, Load) and (node.index or node.guards):
        guards = tuple(Guard(on_index(g.index), on_index(g.extent)) for g in node.guards)
        otherwise = go(node.otherwise) if node.otherwise is not None else None
        return Load(node.source, tuple(on_index(i) for i in node.index), node.dtype, guards, otherwise)
    return node


def substitute_axes(x: Scalar, values: Mapping[Axis, Index]) -> Scalar:
    """x with axes replaced; ranges of reductions are never replaced (they are distinct axes)."""
    if not values:
        return x
    return rebuild(x, lambda n: None, lambda i: substitute(i, values))


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
        return Apply("select", (in_guards(node.guards), guarded(value, node.guards), inline(node.otherwise, producers)), node.dtype)

    return rebuild(x, go, lambda i: i)


def guarded(x: Scalar, guards: tuple[Guard, ...]) -> Scalar:
    """x with every load also under these guards, so that nothing outside its tensor is read."""

    def go(node: Scalar) -> Scalar | None:
        if isinstance(node, Load) and node.index:
            otherwise = _number(0, node.dtype) if node.otherwise is None else guarded(node.otherwise, guards)
            return Load(node.source, node.index, node.dtype, guards + node.guards, otherwise)
        return None

    return rebuild(x, go, lambda i: i)


def inside(guards: tuple[Guard, ...], x: Scalar, otherwise: Scalar) -> Scalar:
    """x where all guards hold, else `otherwise`; x is an element of a tensor or a number."""
    if not guards:
        return x
    if isinstance(x, Load) and not x.guards:
        return Load(x.source, x.index, x.dtype, guards, cast(otherwise, x.dtype))
    return apply("select", in_guards(guards), x, cast(otherwise, x.dtype))


def in_guards(guards: tuple[Guard, ...]) -> Scalar:
    """Whether all guards hold, as a bool."""
    result: Scalar | None = None
    for g in guards:
        low = apply("greater_equal", FromIndex(g.index, I64), Const(0, I64))
        high = apply("less", FromIndex(g.index - g.extent, I64), Const(0, I64))
        both = apply("and", low, high)
        result = both if result is None else apply("and", result, both)
    assert result is not None
    return result


def fresh_ranges(x: Scalar, index: tuple[Index, ...]) -> Scalar:
    """x with reduction ranges renamed where the substituted index mentions an axis of the same name."""
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
    """x with reduction ranges renamed, inside and outside."""
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
