"""Scalar expressions: one output element as a tree.

Five kinds of node: `Const`, `Load` (an element of a tensor, possibly guarded), `FromIndex` (an index converted to a
number), `Apply` (a function of the table) and `Reduce` (a monoid over ranges). Producers are inlined into loads by
substitution (`compose.inline`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Literal, TypeVar

import numpy as np

from onnxfuse.ir.dtype import BOOL, F32, DType
from onnxfuse.ir.functions import FUNCTIONS
from onnxfuse.ir.index import ZERO, Axis, Index

R = TypeVar("R")
REMEMBERED = 1 << 12  # scalars, by each function


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
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((repr(self.value), self.dtype.name)))

    def __eq__(self, other: object) -> bool:  # nan equals itself, 0.0 differs from -0.0
        return isinstance(other, Const) and repr(self.value) == repr(other.value) and self.dtype == other.dtype

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"{self.value!r}"


LaneKind = Literal[
    "vector", "broadcast", "strided", "grouped", "masked", "piecewise", "climbing", "gathered", "guarded", "boundary"
]


@dataclass(frozen=True, slots=True)
class Lanes:
    """How the lanes of a vector loop are loaded, or computed from an index; semantics do not depend on it.

    `vector`: contiguous. `broadcast`: one scalar. `strided`: `step` apart, loaded as `step` vectors and shuffled.
    `grouped`: all lanes of a group of `step` have element `part` of it; a vector starts at a group or lies within one.
    `masked`: `step` apart (0: one element), the guards hold for a contiguous range of lanes. `piecewise`: contiguous
    where the ends are as far apart as the lanes, else a gather. `climbing`: each element in `step` lanes side by side,
    loaded once and shuffled, else a gather. `gathered`: a gather. `guarded`: a gather with a guard
    per lane. `boundary`: an affine index with slope `step` that is only compared with 0, hence a mask.
    """

    kind: LaneKind
    step: int = 1
    part: Index = ZERO

    def __repr__(self) -> str:
        if self.kind == "grouped":
            return f"grouped({self.step}, {self.part!r})"
        return self.kind if self.step == 1 else f"{self.kind}({self.step})"


@dataclass(frozen=True, slots=True)
class Load:
    """Element `index` of tensor `source`; where a guard fails, `otherwise`. With `variable`, the variable of that name.

    Guards are evaluated in order, and nothing after one that fails (a loaded index, the element) is read. `legalize`
    sets `lanes` in vector loops.
    """

    source: str
    index: tuple[Index, ...]
    dtype: DType
    guards: tuple[Guard, ...] = ()
    otherwise: Scalar | None = None
    lanes: Lanes | None = None
    variable: bool = False
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        key = ("load", self.source, self.index, self.dtype.name, self.guards, self.otherwise, self.lanes)
        object.__setattr__(self, "_hash", hash(key))

    def __eq__(self, other: object) -> bool:
        return _same(self, other)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        text = f"{self.source}[{', '.join(map(repr, self.index))}]" if self.index else self.source
        text += f".{self.lanes!r}" if self.lanes is not None else ""
        if not self.guards:
            return text
        return f"({text} if {_when(self.guards)} else {self.otherwise!r})"


@dataclass(frozen=True, slots=True)
class FromIndex:
    """An index converted to a number; 0 where a guard fails, and then no index is loaded."""

    index: Index
    dtype: DType
    guards: tuple[Guard, ...] = ()
    lanes: Lanes | None = None

    def __repr__(self) -> str:
        text = f"num({self.index!r})" + (f".{self.lanes!r}" if self.lanes is not None else "")
        return f"({text} if {_when(self.guards)} else 0)" if self.guards else text


@dataclass(frozen=True, slots=True)
class Apply:
    """A function of the table on scalars."""

    fn: str
    args: tuple[Scalar, ...]
    dtype: DType
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.fn, self.args, self.dtype.name)))

    def __eq__(self, other: object) -> bool:
        return _same(self, other)

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

    def __eq__(self, other: object) -> bool:
        return _same(self, other)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        over = ", ".join(f"{r!r}<{r.extent!r}" for r in self.ranges)
        slot = f".{self.slot}" if self.slot else ""
        return f"{self.combine}{slot}[{over}]({', '.join(map(repr, self.body))})"


Scalar = Const | Load | FromIndex | Apply | Reduce


def children(x: Scalar) -> tuple[Scalar, ...]:
    """The scalars directly inside x."""
    if type(x) is Apply:
        return x.args
    if type(x) is Load:
        return () if x.otherwise is None else (x.otherwise,)
    return x.body if type(x) is Reduce else ()


def _same(a: Scalar, b: object) -> bool:
    """Structural equality in time linear in distinct pairs of nodes, also for heavily shared DAGs."""
    if a is b:
        return True
    if not _alike(a, b):
        return False
    pairs: list[tuple[Scalar, Any]] = [(a, b)]
    seen: set[tuple[int, int]] = set()
    while pairs:
        for one, two in zip(*map(children, pairs.pop()), strict=True):
            if one is two or (id(one), id(two)) in seen:
                continue
            if not _alike(one, two):
                return False
            if children(one):
                seen.add((id(one), id(two)))
                pairs.append((one, two))
    return True


def _alike(one: Scalar, two: object) -> bool:
    """Whether two nodes are equal apart from their operands."""
    if type(one) is not type(two) or hash(one) != hash(two):
        return False
    if type(one) is Apply and type(two) is Apply:
        return one.fn == two.fn and one.dtype == two.dtype and len(one.args) == len(two.args)
    if type(one) is Load and type(two) is Load:
        return (
            one.source == two.source
            and one.index == two.index
            and one.dtype == two.dtype
            and one.guards == two.guards
            and one.lanes == two.lanes
            and one.variable == two.variable
            and (one.otherwise is None) == (two.otherwise is None)
        )
    if type(one) is Reduce and type(two) is Reduce:
        sums = [(x.combine, x.ranges, x.dtype, x.slot, len(x.body)) for x in (one, two)]
        return sums[0] == sums[1]
    return one == two


def by_identity(function: Callable[[Scalar], R]) -> Callable[[Scalar], R]:
    """The function, which remembers what it made of an object: comparing two takes longer than a walk through one."""
    known: dict[int, tuple[Scalar, R]] = {}  # with the scalar, so that no other one gets its number

    @wraps(function)
    def remembering(x: Scalar) -> R:
        found = known.get(id(x))
        if found is None:
            if len(known) >= REMEMBERED:
                known.clear()
            found = known[id(x)] = (x, function(x))
        return found[1]

    return remembering


def _when(guards: tuple[Guard, ...]) -> str:
    return " & ".join(f"0<={g.index!r}<{g.extent!r}" for g in guards)


def variable(name: str, dtype: DType) -> Load:
    """A variable that a Let or a reduction declares, or a placeholder for a value; its name begins with "%"."""
    return Load(name, (), dtype, variable=True)


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


def uncast(x: Scalar) -> Scalar:
    """x without its outer casts."""
    while isinstance(x, Apply) and x.fn == "cast":
        x = x.args[0]
    return x


def const(value: float | int | bool, dtype: DType = F32) -> Const:
    """A number rounded to dtype."""
    return Const(_converted(np.asarray(value), dtype), dtype)


def _converted(value: np.ndarray[Any, Any], dtype: DType) -> Any:
    with np.errstate(all="ignore"):
        return value.astype(dtype.numpy).item()


def number(x: int, t: DType) -> Const:
    """An integer as a constant of type t."""
    return Const(float(x) if t.floating else bool(x) if t.kind == "b" else x, t)
