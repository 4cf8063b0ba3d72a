"""What the C++ and CUDA printers share: names, literals, indices, scalars and control flow of the kernel IR.

A language derives from `Scalars` (expressions) and `StatementPrinter` (statements) and overrides what differs. Its
headers define the functions that are called here (get, put, convert, checked, least, floor_div, max_nan, ...).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from math import isinf, isnan

from onnxfuse.ir.dtype import BOOL, DType
from onnxfuse.ir.index import Atom, Axis, Common, Div, Entry, Index, Least, Loaded, Mod, Symbol, never_below_zero
from onnxfuse.ir.kernel import (
    Accumulate,
    Bind,
    Call,
    Let,
    Loop,
    ReduceLoop,
    Stmt,
    Store,
    When,
)
from onnxfuse.ir.launch import Threaded
from onnxfuse.ir.monoid import MONOIDS
from onnxfuse.ir.scalar import Apply, Const, FromIndex, Guard, Load, Scalar

STORED = {"bool": "bool", "float16": "f16", "bfloat16": "bf16"}
_INFIX = {"add": "+", "sub": "-", "mul": "*"}
COMPARE = {"equal": "eq", "less": "lt", "less_equal": "le", "greater": "gt", "greater_equal": "ge"}
_ORDERED = {"max": "max_nan", "min": "min_nan", "max_or_second": "max_", "min_or_second": "min_"}
_BITS = {"bit_and": "&", "bit_or": "|", "bit_xor": "^"}
_LOGIC = {"and": "&", "or": "|", "xor": "^"}
MERGE = {
    "sum": "({0} + {1})",
    "prod": "({0} * {1})",
    "max": "max_nan({0}, {1})",
    "maxnum": "max_({0}, {1})",
    "min": "min_nan({0}, {1})",
}
_SAFE = re.compile(r"[^A-Za-z0-9]+")


def stored(t: DType) -> str:
    """The storage type of an element."""
    return STORED.get(t.name, t.c)


def computed(t: DType) -> str:
    """The compute type of an element: float for 16-bit floats, uint8_t for bool."""
    return {"bool": "uint8_t", "float16": "float", "bfloat16": "float"}.get(t.name, t.c)


def identifier(name: str) -> str:
    """A name of the kernel as an identifier."""
    return (
        _SAFE.sub("_", name.replace("*", "x")).strip("_")
        if not name.startswith("%")
        else "_" + _SAFE.sub("_", name[1:])
    )


def number(value: float | int | bool, t: DType) -> str:
    """A literal of the compute type."""
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
    """An integer expression. `parent` is 1 where it is an operand of `*`, `/` or `%` and may need parentheses."""
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


def _atom(a: Atom) -> str:
    if isinstance(a, (Symbol, Axis)):
        return identifier(a.name)
    if isinstance(a, Loaded):
        element = f"(i64){identifier(a.source)}[{index(a.at[0])}]"
        return element if a.inside else f"checked({element}, {index(a.extent)}, run.fault)"
    if isinstance(a, Entry):
        return f"(i64){a.table}[{index(a.at)}]"
    if isinstance(a, Least):
        return f"least({index(a.one)}, {index(a.two)})"
    if isinstance(a, Common):
        return f"common({index(a.one)}, {index(a.two)})"
    num, den = index(a.num, 1), index(a.den, 1)
    if isinstance(a, Div):
        return f"({num} / {den})" if never_below_zero(a.num) else f"floor_div({index(a.num)}, {index(a.den)})"
    assert isinstance(a, Mod)
    return f"({num} % {den})" if never_below_zero(a.num) else f"floor_mod({index(a.num)}, {index(a.den)})"


def condition(guards: tuple[Guard, ...]) -> str:
    """The conjunction of guards 0 <= index < extent; one unsigned comparison unless index >= 0 is proven."""
    parts: list[str] = []
    for g in guards:
        text = index(g.index)
        if never_below_zero(g.index):
            parts.append(f"{text} < {index(g.extent)}")
        else:
            parts.append(f"(uint64_t)({text}) < (uint64_t)({index(g.extent)})")
    return " && ".join(parts) if parts else "true"


# Scalars --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scalars:
    """Prints scalar expressions, in their compute types."""

    def text(self, x: Scalar) -> str:
        """x as an expression of its compute type."""
        if isinstance(x, Const):
            return self.wide(self.literal(x.value, x.dtype), x.dtype)
        if isinstance(x, FromIndex):
            return self.from_index(x)
        if isinstance(x, Load):
            return self.load(x) if x.index else self.variable(x)
        assert isinstance(x, Apply), "render: a reduction is a loop, not an expression"
        return self.apply(x)

    def declaring(self, name: str) -> Scalars:
        """The printer of expressions in the scope of a newly declared variable."""
        return self

    def literal(self, value: float | int | bool, t: DType) -> str:
        """A literal of the compute type."""
        return number(value, t)

    def wide(self, text: str, t: DType) -> str:
        """A uniform value: a broadcast in vector code, the value itself here."""
        return text

    def kind(self, t: DType) -> str:
        """The C++ type of values of an element type."""
        return computed(t)

    def back(self, text: str, t: DType) -> str:
        """An expression cast back to its compute type after C's promotion to int."""
        return f"({computed(t)})({text})"

    def variable(self, x: Load) -> str:
        """A local variable."""
        return identifier(x.source)

    def from_index(self, x: FromIndex) -> str:
        """An index converted to a number; 0 where a guard fails."""
        t = computed(x.dtype)
        value = f"({t})({index(x.index)})"
        return f"({condition(x.guards)} ? {value} : ({t})0)" if x.guards else value

    def load(self, x: Load) -> str:
        """An element of a buffer, or its fill value where a guard fails."""
        return self.guarded(x.guards, f"get({identifier(x.source)} + {index(x.index[0], 1)})", x)

    def guarded(self, guards: tuple[Guard, ...], text: str, x: Load) -> str:
        """`text` where the guards hold, else the fill value of the load x."""
        return f"({condition(guards)} ? {text} : {self.text(otherwise(x))})" if guards else text

    def comparison(self, x: Apply) -> str:
        """A comparison as a C++ bool or mask, not yet converted to an element."""
        return f"{COMPARE[x.fn]}({self.text(x.args[0])}, {self.text(x.args[1])})"

    def apply(self, x: Apply) -> str:
        """A function application."""
        fn = x.fn
        if fn == "select":
            return self.select(x)
        if fn == "cast":
            return f"convert<{stored(x.dtype)}>({self.text(x.args[0])})"
        if fn == "snapped":
            return f"snapped<{stored(x.dtype)}>({', '.join(map(self.text, x.args))})"
        if fn == "coded":
            return f"coded<{stored(x.dtype)}>({self.text(x.args[0])}, {self.text(x.args[-1])})"
        if fn in COMPARE:
            return f"to_bool({self.comparison(x)})"
        texts = [self.text(a) for a in x.args]
        if fn in _LOGIC:
            return self.back(f"{texts[0]} {_LOGIC[fn]} {texts[1]}", BOOL)
        if fn in _BITS:
            return self.back(f"{texts[0]} {_BITS[fn]} {texts[1]}", x.dtype)
        if fn in _ORDERED:
            return f"{_ORDERED[fn]}({', '.join(texts)})"
        if x.dtype.kind in "iu" and (fn in _INFIX or fn == "neg"):
            return f"{fn}_<{self.kind(x.dtype)}>({', '.join(texts)})"
        if fn in _INFIX:
            return f"({texts[0]} {_INFIX[fn]} {texts[1]})"
        return self.unary(x, texts[0]) if len(texts) == 1 else f"{fn}_({', '.join(texts)})"

    def unary(self, x: Apply, value: str) -> str:
        """A function of one argument."""
        match x.fn:
            case "isnan":
                return f"to_bool(ne({value}, {value}))"
            case "isinf":
                return f"to_bool(isinf_({value}))"
            case "not":
                return self.back(f"{value} ^ {self.wide('(uint8_t)1', BOOL)}", BOOL)
            case "bit_not":
                return self.back(f"~{value}", x.dtype)
            case "neg":
                return f"(-{value})"
            case _:
                return f"{x.fn}_({value})"

    def select(self, x: Apply) -> str:
        """A conditional expression."""
        test, yes, no = map(self.text, x.args)
        return f"({test} ? {yes} : {no})"


def otherwise(x: Load) -> Scalar:
    """The fill value of a guarded load."""
    assert x.otherwise is not None
    return x.otherwise


# Statements -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class StatementPrinter(ABC):
    """Prints statements of scalar code; `scalars` prints the expressions of the current scope."""

    buffers: dict[str, DType]
    scalars: Scalars = field(default_factory=Scalars)
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    integer: str = "i64"  # the type of indices

    @abstractmethod
    def call(self, s: Call | Threaded) -> None:
        """A statement that is a call into the language's own headers."""

    def put(self, text: str) -> None:
        """One line at the current depth."""
        self.lines.append("  " * self.depth + text)

    def block(self, head: str, body: tuple[Stmt, ...]) -> None:
        """`head` followed by statements in braces."""
        self.put(f"{head} {{")
        self.body(body)
        self.put("}")

    def body(self, stmts: tuple[Stmt, ...]) -> None:
        """The statements of a block, which is the scope of variables declared in it."""
        outer = self.scalars
        self.depth += 1
        self.declare(stmts)
        for s in stmts:
            self.statement(s)
        self.depth -= 1
        self.scalars = outer

    def declare(self, stmts: tuple[Stmt, ...]) -> None:
        """What several statements of a block share, declared before them; nothing where the language has no vectors."""
        return

    def statement(self, s: Stmt) -> None:
        """One statement."""
        match s:
            case Bind():
                value = index(s.value)
                value = value if s.most is None else f"least({value}, {index(s.most)})"
                value = f"{condition(s.guards)} ? {value} : 0" if s.guards else value
                self.put(f"const {self.integer} {identifier(s.axis.name)} = {value};")
            case Loop():
                self.loop(s)
            case ReduceLoop():
                self.reduce_loop(s)
            case Accumulate():
                self.accumulate(s)
            case Let():
                value = self.scalars.text(s.value)
                self.put(f"const auto {identifier(s.name)} = {f'once({value})' if s.kept else value};")
                self.scalars = self.scalars.declaring(s.name)
            case Store():
                self.store(s)
            case When():
                self.block(f"if ({condition(s.guards)})", s.body)
            case _:
                self.call(s)

    def loop(self, s: Loop) -> None:
        """A serial loop."""
        name = identifier(s.axis.name)
        if s.kind == "unroll":
            self.put(f"#pragma GCC unroll {s.axis.extent.constant}")
        self.block(f"for ({self.integer} {name} = {index(s.begin)}; {name} < {index(s.end)}; {name}++)", s.body)

    def reduce_loop(self, s: ReduceLoop) -> None:
        """Accumulators with their identity values, then the loops that accumulate into them, in the same block."""
        start = MONOIDS[s.combine].init(s.dtype)
        alike = start if len(start) == len(s.targets) else start * len(s.targets)
        for name, first in zip(s.targets, alike, strict=True):
            self.put(f"auto {identifier(name)} = {self.scalars.text(first)};")
            self.scalars = self.scalars.declaring(name)
        for inner in s.body:
            self.statement(inner)

    def accumulate(self, s: Accumulate) -> None:
        """Combine values into the accumulators of the enclosing reduction."""
        if s.combine in MERGE:
            name = identifier(s.targets[0])
            self.put(f"{name} = {MERGE[s.combine].format(name, self.scalars.text(s.values[0]))};")
        else:
            self.merge(s)

    def merge(self, s: Accumulate) -> None:
        """A monoid of several components: all new values are computed before any accumulator is assigned."""
        self.put("{")
        for k, m in enumerate(s.merged):
            self.put(f"  const auto next{k} = {self.scalars.text(m)};")
        for k, t in enumerate(s.targets):
            self.put(f"  {identifier(t)} = next{k};")
        self.put("}")

    def store(self, s: Store) -> None:
        """Store one element."""
        assert not s.behind, "render: several elements are stored at a time by vectors"
        self.put(f"put({identifier(s.buffer)} + {index(s.offset, 1)}, {self.scalars.text(s.value)});")
