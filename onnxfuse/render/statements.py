"""Statements of the kernel IR as C++: every kind has one spelling here, and no choice is made."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import assert_never

from onnxfuse.ir.dtype import F32, DType
from onnxfuse.ir.index import ZERO, Index, floor_div
from onnxfuse.ir.indexing import WIDEST, coefficient, substitute
from onnxfuse.ir.kernel import (
    Accumulate,
    Bind,
    Coding,
    HorizontalReduce,
    Let,
    Loop,
    Pack,
    Prefetch,
    ReduceLoop,
    RowPointer,
    Stmt,
    Store,
    Tile,
    When,
    statements,
)
from onnxfuse.ir.launch import Commit, CopyAsync, Mma, Sync, Wait
from onnxfuse.ir.monoid import MONOIDS
from onnxfuse.ir.scalar import Apply, Load, Scalar, const
from onnxfuse.render.expr import Context, computed, condition, identifier, index, scalar, stored

EVEN = 4  # entries of one segment in a table of even rows

_MERGE = {
    "sum": "({0} + {1})",
    "prod": "({0} * {1})",
    "max": "max_nan({0}, {1})",
    "peak": "max_({0}, {1})",
    "min": "min_nan({0}, {1})",
}
_ACROSS = {
    "sum": "reduce_add",
    "prod": "reduce_mul",
    "max": "reduce_max_nan",
    "peak": "reduce_max",
    "min": "reduce_min_nan",
}


@dataclass(slots=True)
class Printer:
    """Writes statements; knows the types of buffers and of variables that are in scope."""

    buffers: dict[str, DType]
    context: Context = field(default_factory=Context)
    ways: dict[str, int] = field(default_factory=dict)  # fold variables carried by a vector loop
    lines: list[str] = field(default_factory=list)
    depth: int = 1

    def put(self, text: str) -> None:
        """One line at the current depth."""
        self.lines.append("  " * self.depth + text)

    def body(self, stmts: tuple[Stmt, ...]) -> None:
        """The statements of a block; variables declared in it end with it."""
        outer = self.context
        self.depth += 1
        for s in stmts:
            self.statement(s)
        self.depth -= 1
        self.context = outer

    def statement(self, s: Stmt) -> None:
        """One statement."""
        match s:
            case Bind():
                value = index(s.value)
                value = value if s.most is None else f"least({value}, {index(s.most)})"
                value = f"{condition(s.guards)} ? {value} : 0" if s.guards else value
                self.put(f"const i64 {identifier(s.axis.name)} = {value};")
            case Loop():
                self.loop(s)
            case ReduceLoop():
                self.fold(s)
            case Accumulate():
                self.accumulate(s)
            case Let():
                value = scalar(s.value, self.context)
                self.put(f"const auto {identifier(s.name)} = {f'once({value})' if s.kept else value};")
                self.remember(s.name)
            case Store():
                self.store(s)
            case When():
                self.put(f"if ({condition(s.guards)}) {{")
                self.body(s.body)
                self.put("}")
            case RowPointer() | Tile() | Pack() | HorizontalReduce() | Prefetch():
                self.call(s)
            case Sync() | CopyAsync() | Commit() | Wait() | Mma():
                raise TypeError(f"{type(s).__name__} is a statement of threads, and C++ is for tasks")
            case _:
                assert_never(s)

    def call(self, s: RowPointer | Tile | Pack | HorizontalReduce | Prefetch) -> None:
        """A statement that is a call of a function in a header."""
        match s:
            case RowPointer():
                self.point(s)
            case Tile():
                self.tile(s)
            case Pack():
                self.pack(s)
            case HorizontalReduce():
                rows = f"(int)({index(s.rows)})"
                self.put(f"{_ACROSS[s.combine]}_each_row({identifier(s.source)}, {rows}, {identifier(s.target)});")
            case Prefetch():
                self.put(f"touch<{s.count}>({identifier(s.buffer)} + {index(s.offset, 1)});")
            case _:
                assert_never(s)

    def remember(self, name: str) -> None:
        """A variable declared here is a vector in a vector loop."""
        if self.context.axis is not None:
            self.context = replace(self.context, vectors=self.context.vectors | {name})

    def loop(self, s: Loop) -> None:
        """A loop; the body of a vector loop is a function of the position and the lanes that are alive."""
        name, begin, end = identifier(s.axis.name), index(s.begin), index(s.end)
        if s.kind != "vector":
            if s.kind == "unroll":
                self.put(f"#pragma GCC unroll {s.axis.extent.constant}")
            self.put(f"for (i64 {name} = {begin}; {name} < {end}; {name}++) {{")
            self.body(s.body)
            self.put("}")
            return
        ways = max(
            (self.ways.get(t, 0) for x in statements(s.body) if isinstance(x, Accumulate) for t in x.targets), default=0
        )
        if ways:
            self.put(f"for_lanes_ways<{ways}>({begin}, {end}, [&](i64 {name}, auto lanes, auto way) HOLE {{")
        else:
            self.put(f"for_lanes({begin}, {end}, [&](i64 {name}, auto lanes) HOLE {{")
        outer = self.context
        aligned = all(c % WIDEST == 0 for _, c in s.begin.terms)
        self.context = replace(self.context, axis=s.axis, aligned=aligned)
        self.body(s.body)
        self.context = outer
        self.put("});")

    def fold(self, s: ReduceLoop) -> None:
        """Start values, the loops, and, when a vector loop carried the sums, one value from all lanes."""
        start = MONOIDS[s.combine].init(s.dtype)
        carried = self.context.axis is None and any(
            isinstance(x, Loop) and x.kind == "vector" for x in statements(s.body)
        )
        names = [identifier(t) for t in s.targets]
        if carried:
            self.put(f"vec<{computed(s.dtype)}> {names[0]}w[{s.ways}];")
            self.put(f"for (auto& w : {names[0]}w) w = splat<{computed(s.dtype)}>({scalar(start[0], Context())});")
            self.ways[s.targets[0]] = s.ways
        else:
            alike = start if len(start) == len(names) else start * len(names)
            for t, name, first in zip(s.targets, names, alike, strict=True):
                self.put(f"auto {name} = {scalar(first, self.context)};")
                self.remember(t)
        for inner in s.body:
            self.statement(inner)
        if carried:
            del self.ways[s.targets[0]]
            for w in range(1, s.ways):
                self.put(f"{names[0]}w[0] = {_MERGE[s.combine].format(f'{names[0]}w[0]', f'{names[0]}w[{w}]')};")
            if s.part is not None:
                self.put(f"store({identifier(s.part[0])} + {index(s.part[1], 1)}, {names[0]}w[0]);")
            else:
                self.put(f"const {computed(s.dtype)} {names[0]} = {_ACROSS[s.combine]}({names[0]}w[0]);")

    def accumulate(self, s: Accumulate) -> None:
        """Merge values into the variables of the fold around."""
        values = [scalar(v, self.context) for v in s.values]
        if s.targets[0] in self.ways:
            target = f"{identifier(s.targets[0])}w[decltype(way)::value]"
            idle = scalar(MONOIDS[s.combine].init(s.values[0].dtype)[0], self.context)
            merged = _MERGE[s.combine].format(target, f"alive({values[0]}, {idle}, lanes)")
            self.put(f"{target} = {merged};")
        elif s.combine in _MERGE:
            name = identifier(s.targets[0])
            self.put(f"{name} = {_MERGE[s.combine].format(name, values[0])};")
        else:
            self.merge(s)

    def merge(self, s: Accumulate) -> None:
        """A monoid of several slots: all new values first, then all variables."""
        left = tuple(Load(t, (), v.dtype) for t, v in zip(s.targets, s.values, strict=True))
        merged = MONOIDS[s.combine].merge(left, s.values)
        self.put("{")
        for k, m in enumerate(merged):
            self.put(f"  const auto next{k} = {scalar(m, self.context)};")
        for k, t in enumerate(s.targets):
            self.put(f"  {identifier(t)} = next{k};")
        self.put("}")

    def store(self, s: Store) -> None:
        """A store: of a vector where the offset runs with the lanes, else lane by lane."""
        name = identifier(s.buffer)
        axis = self.context.axis
        if s.behind:
            assert self.buffers[s.buffer] == F32, "vectors of float32 are interleaved"
            values = ", ".join(scalar(v, self.context) for v in s.values)
            self.put(f"weave_lanes({name} + {index(s.offset, 1)}, lanes, {values});")
            return
        value = scalar(_unrounded(s.value, self.buffers[s.buffer]), self.context)
        if axis is None:
            self.put(f"put({name} + {index(s.offset, 1)}, {value});")
        elif coefficient(s.offset, axis) == Index.of(1):
            self.put(f"{'stream' if s.stream else 'store'}_lanes({name} + {index(s.offset, 1)}, {value}, lanes);")
        else:
            at = index(s.offset)
            lane = identifier(axis.name)
            self.put(
                f"put_each_lane<{stored(self.buffers[s.buffer])}>({lane}, lanes, {value}, "
                f"[&](i64 {lane}) HOLE {{ return {name} + {at}; }});"
            )

    def point(self, s: RowPointer) -> None:
        """Row pointers of a tile."""
        row = identifier(s.row.name)
        if not s.even:
            self.put(f"for (i64 {row} = {index(s.begin)}; {row} < {index(s.end)}; {row}++) {{")
            self.pointers(s, s.row - s.begin, s.pitch)
            return
        for entry, at in enumerate((s.begin, s.begin + 1, s.begin + 2, s.end - 1)):
            self.put("{")
            self.put(f"  const i64 {row} = {index(at)};")
            self.pointers(s, Index.of(entry), EVEN)

    def pointers(self, s: RowPointer, entry: Index, pitch: int) -> None:
        """Pointers of one row, in a block that is open."""
        table = identifier(s.table)
        self.depth += 1
        segment = Index.of(0)
        for a in s.segments:
            self.put(
                f"for (i64 {identifier(a.name)} = 0; {identifier(a.name)} < {index(a.extent)}; {identifier(a.name)}++)"
            )
            segment = segment * a.extent + a
        at = s.at + segment * pitch + entry
        zeros = identifier(s.padding) if s.padding else ""
        self.put(f"  {table}[{index(at)}] = {_piece(s.load, s.load.index[0], zeros)};")
        self.depth -= 1
        self.put("}")

    def tile(self, s: Tile) -> None:
        """A call of the register tile."""
        unit = s.product.unit
        name = unit.name if unit is not None else "tile"
        a, b = identifier(s.a), identifier(s.b)
        out = f"{identifier(s.out)} + {index(s.out_at, 1)}" if s.out_at != ZERO else identifier(s.out)
        depth = s.length * s.segments if s.codes is None else floor_div(s.length + 3, Index.of(4)) * 4 * s.segments
        ahead = "Ahead{nullptr, 0}"
        if s.ahead is not None:
            following = f"{identifier(s.ahead_in or s.b)} + {index(s.ahead, 1)}"
            if s.after is not None:
                here, panels, other = s.after
                following = f"{index(here + 1)} < {index(panels)} ? {following} : {identifier(other)}"
            ahead = f"ahead_of({following}, {index(depth)}, {index(s.turn)}, {index(s.turns)})"
        if s.codes is not None:
            self.codes(s, s.codes, out, ahead)
        elif s.columns != ZERO:
            where = f"{a} + {index(s.a_at, 1)}, {index(depth)}, {b} + {index(s.b_at, 1)}"
            self.put(f"tile_places((int)({index(s.rows)}), {where}, {out}, (int)({index(s.columns)}));")
        elif s.kind == "packed":
            self.put(
                f"{name}_packed({s.most if unit is not None else f'(int)({index(s.rows)})'}, "
                f"{a} + {index(s.a_at, 1)}, {index(depth)}, "
                f"{b} + {index(s.b_at, 1)}, {out}, {index(s.more)} != 0, {ahead});"
            )
        else:
            self.put(
                f"{name}_{s.kind}((int)({index(s.rows)}), {a} + {index(s.a_at, 1)}, "
                f"{f'{s.most}, ' if s.kind == 'rows' or unit is not None else ''}{s.segments}, "
                f"{index(s.length)}, {b} + {index(s.b_at, 1)}, {out}, {ahead});"
            )

    def codes(self, s: Tile, c: Coding, out: str, ahead: str) -> None:
        """A call of the register tile of codes."""
        right, zeros = c.right_zero, f"(const {stored(c.right)}*)nullptr"
        name = s.product.unit.name if s.product.unit is not None else "tile"
        if isinstance(right, tuple):
            zeros, right = f"{identifier(right[0])} + {index(right[1], 1)}", const(0, c.right)
        self.put(
            f"{name}_codes((int)({index(s.rows)}), {identifier(s.a)} + {index(s.a_at, 1)}, {s.most}, {s.segments}, "
            f"{index(s.length)}, {identifier(s.b)} + {index(s.b_at, 1)}, {index(s.columns)}, {out}, "
            f"{scalar(c.left_zero, Context())}, {scalar(right, Context())}, {zeros}, {ahead});"
        )

    def pack(self, s: Pack) -> None:
        """Rows packed side by side."""
        row = identifier(s.row.name)
        where = _piece(s.load, substitute(s.load.index[0], {s.k: ZERO}))
        self.put("{")
        self.put(f"  const {stored(s.load.dtype)}* from[MOST];")
        self.put(
            f"  for (i64 {row} = {index(s.begin)}; {row} < {index(s.end)}; {row}++) "
            f"from[{row} - {index(s.begin, 1)}] = {where};"
        )
        rows = f"(int)({index(s.end - s.begin)})"
        pitch = s.pitch or rows
        to = f"from, {index(s.k.extent)}, {identifier(s.out)} + {index(s.at, 1)});"
        if s.unit is not None:
            self.put(f"  {s.unit.name}_pack({rows}, {pitch}, {index(s.skip)}, {to}")
        else:
            self.put(f"  pack_rows({rows}, {rows if s.apart else pitch}, {pitch}, {to}")
        self.put("}")


def _unrounded(x: Scalar, dtype: DType) -> Scalar:
    """x without the rounding that storing it does as well."""
    rounds = isinstance(x, Apply) and x.fn == "cast" and x.dtype == dtype != dtype.accumulator
    return x.args[0] if isinstance(x, Apply) and rounds and x.args[0].dtype == F32 else x


def _piece(load: Load, at: Index, padding: str = "") -> str:
    """The address of a contiguous piece; where a guard fails, of `padding`, or zeros."""
    where = f"{identifier(load.source)} + {index(at, 1)}"
    if not load.guards:
        return where
    zeros = "ZEROS" if load.dtype == F32 else f"reinterpret_cast<const {stored(load.dtype)}*>(ZEROS)"
    return f"{condition(load.guards)} ? {where} : {padding or zeros}"
