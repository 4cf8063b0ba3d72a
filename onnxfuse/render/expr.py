"""Indices and scalars of the kernel IR as C++ expressions, for scalar code and for vector loops."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import reduce
from math import isinf, isnan

from onnxfuse.ir.dtype import BOOL, DType
from onnxfuse.ir.index import (
    ONE,
    ZERO,
    Atom,
    Axis,
    Common,
    Div,
    Entry,
    Index,
    Least,
    Loaded,
    Mod,
    Symbol,
    axes_of,
    greatest,
    least,
    lower,
    nonnegative,
)
from onnxfuse.ir.indexing import coefficient, grouped, substitute
from onnxfuse.ir.lanes import NEAR, cutting, masked
from onnxfuse.ir.scalar import Apply, Const, FromIndex, Guard, Load, Scalar

STORED = {"bool": "bool", "float16": "f16", "bfloat16": "bf16"}
_INFIX = {"add": "+", "sub": "-", "mul": "*"}
_COMPARE = {"equal": "eq", "less": "lt", "less_equal": "le", "greater": "gt", "greater_equal": "ge"}
_BITS = {"bit_and": "&", "bit_or": "|", "bit_xor": "^"}
_LOGIC = {"and": "&", "or": "|", "xor": "^"}
_SNAPPED = 32  # bits of the widest integers that are rounded on the way from a number
_SAFE = re.compile(r"[^A-Za-z0-9]+")


def stored(t: DType) -> str:
    """The C++ type of an element in memory."""
    return STORED.get(t.name, t.c)


def computed(t: DType) -> str:
    """The C++ type that arithmetic on an element is done in."""
    return {"bool": "uint8_t", "float16": "float", "bfloat16": "float"}.get(t.name, t.c)


def identifier(name: str) -> str:
    """A name of the kernel as a C++ identifier."""
    return (
        _SAFE.sub("_", name.replace("*", "x")).strip("_")
        if not name.startswith("%")
        else "_" + _SAFE.sub("_", name[1:])
    )


def number(value: float | int | bool, t: DType) -> str:
    """A literal of the computed type."""
    if t.floating:
        suffix = "" if t.name == "float64" else "f"
        if isnan(value):
            return f'__builtin_nan{suffix}("")'
        if isinf(value):
            return ("-" if value < 0 else "") + f"__builtin_inf{suffix}()"
        text = f"{float(value):.9g}" if suffix else repr(float(value))
        return (text if any(c in text for c in ".en") else text + ".0") + suffix
    if t.name == "int64" and value == -(2**63):
        return "INT64_MIN"
    return f"({computed(t)}){int(value)}" + ("ull" if t.name == "uint64" else "ll" if t.bits == 64 else "")


# Indices --------------------------------------------------------------------------------------------------------------


def index(e: Index, parent: int = 0) -> str:
    """An integer expression. `parent` is 0 in a sum, 1 as a factor or operand of a division."""
    if not e.terms:
        return "0"
    parts: list[str] = []
    for mono, c in e.terms:
        factors = [_atom(a) for a in mono]
        if not factors:
            text = str(abs(c))
        else:
            text = " * ".join(([str(abs(c))] if abs(c) != 1 else []) + factors)
        parts.append(("- " if c < 0 else "+ ") + text)
    text = " ".join(parts)
    text = text[2:] if text.startswith("+ ") else "-" + text[2:]
    return f"({text})" if parent and (len(parts) > 1 or text.startswith("-") or " * " in text) else text


def _positive(e: Index) -> bool:
    low = lower(e)
    return low is not None and nonnegative(low)


def _atom(a: Atom) -> str:
    if isinstance(a, (Symbol, Axis)):
        return identifier(a.name)
    if isinstance(a, Loaded):
        return f"checked((i64){identifier(a.source)}[{index(a.at[0])}], {index(a.extent)}, run.fault)"
    if isinstance(a, Entry):
        return f"(i64){a.table}[{index(a.at)}]"
    if isinstance(a, Least):
        return f"least({index(a.one)}, {index(a.two)})"
    if isinstance(a, Common):
        return f"common({index(a.one)}, {index(a.two)})"
    num, den = index(a.num, 1), index(a.den, 1)
    if isinstance(a, Div):
        return f"({num} / {den})" if _positive(a.num) else f"floor_div({index(a.num)}, {index(a.den)})"
    assert isinstance(a, Mod)
    return f"({num} % {den})" if _positive(a.num) else f"floor_mod({index(a.num)}, {index(a.den)})"


def condition(guards: tuple[Guard, ...]) -> str:
    """Whether all guards hold: 0 <= index < extent, halves that are proven left out."""
    parts: list[str] = []
    for g in guards:
        text = index(g.index)
        if _positive(g.index):
            parts.append(f"{text} < {index(g.extent)}")
        else:
            parts.append(f"(uint64_t)({text}) < (uint64_t)({index(g.extent)})")
    return " && ".join(parts) if parts else "true"


# Scalars --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Context:
    """Where an expression stands: the axis of the vector loop around it (or None), and what is a vector there."""

    axis: Axis | None = None
    vectors: frozenset[str] = field(default_factory=frozenset)
    aligned: bool = False  # whether the loop's vectors begin at multiples of their lanes

    def varies(self, e: Index) -> bool:
        """Whether an index differs between lanes."""
        return self.axis is not None and self.axis in axes_of(e)


def scalar(x: Scalar, c: Context) -> str:
    """An expression of the computed type of x: a vector in a vector loop, else a scalar."""
    if isinstance(x, Const):
        return _wide(number(x.value, x.dtype), x.dtype, c)
    if isinstance(x, FromIndex):
        return _from_index(x, c)
    if isinstance(x, Load):
        if not x.index:
            name = identifier(x.source)
            return name if x.source in c.vectors or c.axis is None else _wide(name, x.dtype, c)
        return _load(x, c)
    assert isinstance(x, Apply)
    return _apply(x, c)


def _wide(text: str, t: DType, c: Context) -> str:
    return text if c.axis is None else f"splat<{computed(t)}>({text})"


def _lane(e: Index, axis: Axis) -> Index:
    return substitute(e, {axis: Index.of(Axis("lane", axis.extent))})


def _at_lane(e: Index, axis: Axis) -> str:
    return index(_lane(e, axis))


def _from_index(x: FromIndex, c: Context) -> str:
    t = computed(x.dtype)
    if c.axis is None or not any(c.varies(e) for e in (x.index, *(g.index for g in x.guards))):
        value = f"({t})({index(x.index)})"
        return _wide(f"({condition(x.guards)} ? {value} : ({t})0)" if x.guards else value, x.dtype, c)
    if not x.guards and coefficient(x.index, c.axis) == ONE and x.dtype.kind in "iu":
        return f"(splat<{t}>(({t})({index(x.index)})) + iota<{t}>())"
    value = f"({t})({_at_lane(x.index, c.axis)})"
    if x.guards:
        value = f"{condition(tuple(Guard(_lane(g.index, c.axis), g.extent) for g in x.guards))} ? {value} : ({t})0"
    return f"each_lane<{t}>({identifier(c.axis.name)}, lanes, [&](i64 lane) HOLE {{ return {value}; }})"


def _load(x: Load, c: Context) -> str:
    offset = x.index[0]
    name = identifier(x.source)
    if c.axis is None:
        text = f"get({name} + {index(offset, 1)})"
        return f"({condition(x.guards)} ? {text} : {scalar(_otherwise(x), c)})" if x.guards else text
    axis = c.axis
    guarded = any(c.varies(g.index) for g in x.guards)
    if (apart := masked(x, axis)) is not None:
        return _masked_load(x, axis, apart, c)
    t = computed(x.dtype)
    place = f"get({name} + {_at_lane(offset, axis)})"
    if guarded:
        guards = tuple(Guard(_lane(g.index, axis), g.extent) for g in x.guards)
        return (
            f"each_lane_if<{t}>({identifier(axis.name)}, lanes, [&](i64 lane) HOLE {{ return {condition(guards)}; }}, "
            f"[&](i64 lane) HOLE {{ return {place}; }}, {scalar(_otherwise(x), c)})"
        )
    stride = coefficient(offset, axis)
    if stride == ONE:
        text = f"load_lanes({name} + {index(offset, 1)}, lanes)"
    elif stride == ZERO:
        text = _wide(f"get({name} + {index(offset, 1)})", x.dtype, c)
    elif stride is not None and stride.constant in NEAR:
        text = f"strided_lanes<{stride.constant}>({name} + {index(offset, 1)}, lanes)"
    elif c.aligned and (found := grouped(offset, axis)) is not None:
        size, inner = found
        text = f"group_lanes<{size}>({name} + {index(offset - inner, 1)}, {index(inner)}, lanes)"
    else:
        text = f"each_lane<{t}>({identifier(axis.name)}, lanes, [&](i64 lane) HOLE {{ return {place}; }})"
    return f"({condition(x.guards)} ? {text} : {scalar(_otherwise(x), c)})" if x.guards else text


def _masked_load(x: Load, axis: Axis, apart: int, c: Context) -> str:
    """A vector of which the guards let the elements of one range through."""
    cut = cutting(x, axis)
    first = reduce(greatest, (-g.index for g in cut))
    last = reduce(least, (g.extent - g.index for g in cut))
    fill = scalar(_otherwise(x), Context())
    where = f"{identifier(x.source)} + {index(x.index[0], 1)}"
    text = f"lanes_within<{apart}>({where}, lanes, {index(first)}, {index(last)}, {fill})"
    rest = tuple(g for g in x.guards if g not in cut)
    return f"({condition(rest)} ? {text} : {scalar(_otherwise(x), c)})" if rest else text


def _otherwise(x: Load) -> Scalar:
    assert x.otherwise is not None
    return x.otherwise


def _is_comparison(x: Scalar) -> bool:
    return isinstance(x, Apply) and x.fn in _COMPARE


def _comparison(x: Apply, c: Context) -> str:
    """A comparison as a mask (vectors) or a truth value (scalars). The sign of an index is lanes by number."""
    left, zero = x.args
    if c.axis is not None and isinstance(left, FromIndex) and not left.guards and zero == Const(0, left.dtype):
        stride = coefficient(left.index, c.axis)
        if x.fn in ("less", "greater_equal") and stride in (ONE, -ONE):
            falls = stride == -ONE
            side = "from" if (x.fn == "less") == falls else "below"
            return f"lanes_{side}({index(left.index + 1 if falls else -left.index)})"
    return f"{_COMPARE[x.fn]}({scalar(x.args[0], c)}, {scalar(x.args[1], c)})"


def _apply(x: Apply, c: Context) -> str:
    fn, args = x.fn, x.args
    if fn == "select":
        return _select(x, c)
    if fn == "cast":
        return _cast(x, c)
    if fn in _COMPARE:
        return f"to_bool({_comparison(x, c)})"
    if fn in ("isnan", "isinf"):
        inner = scalar(args[0], c)
        return f"to_bool(ne({inner}, {inner}))" if fn == "isnan" else f"to_bool(isinf_({inner}))"
    texts = [scalar(a, c) for a in args]
    if fn in _LOGIC:
        return f"{_cast8(c)}({texts[0]} {_LOGIC[fn]} {texts[1]})"
    if fn == "not":
        return f"{_cast8(c)}({texts[0]} ^ {_wide('(uint8_t)1', BOOL, c)})"
    if fn in _BITS or fn == "bit_not":
        text = f"~{texts[0]}" if fn == "bit_not" else f"{texts[0]} {_BITS[fn]} {texts[1]}"
        return f"({computed(x.dtype)})({text})" if c.axis is None else f"({text})"
    if x.dtype.kind in "iu" and (fn in _INFIX or fn == "neg"):
        t = computed(x.dtype)
        return f"{fn}_<{t if c.axis is None else f'vec<{t}>'}>({', '.join(texts)})"
    if fn in _INFIX:
        return f"({texts[0]} {_INFIX[fn]} {texts[1]})"
    if fn == "neg":
        return f"(-{texts[0]})"
    if fn in ("max", "min"):
        return _extreme(fn, args, texts)
    return f"{fn}_({', '.join(texts)})"


def _cast(x: Apply, c: Context) -> str:
    (inner,) = x.args
    if isinstance(inner, Apply) and inner.fn == "snap" and x.dtype.kind in "iu" and x.dtype.bits <= _SNAPPED:
        return f"snapped<{stored(x.dtype)}>({', '.join(scalar(a, c) for a in inner.args)})"
    return f"convert<{stored(x.dtype)}>({scalar(inner, c)})"


def _cast8(c: Context) -> str:
    return "(uint8_t)" if c.axis is None else ""


def _extreme(fn: str, args: tuple[Scalar, ...], texts: list[str]) -> str:
    """max or min with NaN kept; with a constant on one side one instruction does it (it gives its second operand)."""
    if isinstance(args[1], Const) and args[1].value == args[1].value:
        return f"{fn}_({texts[1]}, {texts[0]})"
    if isinstance(args[0], Const) and args[0].value == args[0].value:
        return f"{fn}_({texts[0]}, {texts[1]})"
    return f"{fn}_nan({texts[0]}, {texts[1]})"


def _select(x: Apply, c: Context) -> str:
    test, yes, no = x.args
    if c.axis is None:
        return f"({scalar(test, c)} ? {scalar(yes, c)} : {scalar(no, c)})"
    t = computed(x.dtype)
    if isinstance(test, Apply) and test.fn == "greater" and test.args == (yes, no):
        return f"max_({scalar(yes, c)}, {scalar(no, c)})"
    if isinstance(test, Apply) and test.fn == "isnan":
        inner = scalar(test.args[0], c)
        mask = f"mask_to<{t}>(ne({inner}, {inner}))"
    elif isinstance(test, Apply) and _is_comparison(test):
        mask = f"mask_to<{t}>({_comparison(test, c)})"
    else:
        mask = f"from_bool<{t}>({scalar(test, c)})"
    return f"select({mask}, {scalar(yes, c)}, {scalar(no, c)})"
