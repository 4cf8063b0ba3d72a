"""Statements of the kernel IR in C++ that CUDA does not share: vector loops, and calls into the headers of `tiles/`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import assert_never

from onnxfuse.ir.dtype import F32
from onnxfuse.ir.index import ONE, ZERO, Index
from onnxfuse.ir.indexing import coefficient, substitute
from onnxfuse.ir.kernel import (
    Accumulate,
    Bind,
    Call,
    HorizontalReduce,
    Let,
    Loop,
    Pack,
    Prefetch,
    ReduceLoop,
    RowPointer,
    Stmt,
    Store,
)
from onnxfuse.ir.lanes import INTERLEAVED, values_of
from onnxfuse.ir.launch import Asynchronous, Commit, CopyAsync, Mma, Sync, Threaded, Wait
from onnxfuse.ir.monoid import MONOIDS
from onnxfuse.ir.scalar import Apply, Load, Scalar, const
from onnxfuse.ir.tile import EVEN_ENTRIES, Channels, Coding, Packed, Quantized, Tile
from onnxfuse.render import c_family
from onnxfuse.render.c_family import MERGE, Scalars, computed, condition, identifier, index, stored
from onnxfuse.render.vectors import Vectors

_ACROSS = {
    "sum": "reduce_add",
    "prod": "reduce_mul",
    "max": "reduce_max_nan",
    "maxnum": "reduce_max",
    "min": "reduce_min_nan",
}


@dataclass(slots=True)
class CppPrinter(c_family.StatementPrinter):
    """Prints C++ statements, vector loops and vector accumulators included."""

    own: frozenset[str] = frozenset()  # buffers of a task

    def call(self, s: Call | Threaded) -> None:
        """A call of a function in a header."""
        match s:
            case RowPointer():
                self.row_pointer(s)
            case Tile():
                self.tile(s)
            case Pack():
                self.pack(s)
            case HorizontalReduce():
                rows = f"(int)({index(s.rows)})"
                self.put(f"{_ACROSS[s.combine]}_each_row({identifier(s.source)}, {rows}, {identifier(s.target)});")
            case Prefetch():
                touch = "touch_near" if s.near else "touch"
                self.put(f"{touch}<{s.count}>({identifier(s.buffer)} + {index(s.offset, 1)});")
            case Sync() | CopyAsync() | Commit() | Wait() | Mma() | Asynchronous():
                raise TypeError(f"{type(s).__name__} is a statement of threads, and C++ is for tasks")
            case _:
                assert_never(s)

    def declare(self, stmts: tuple[Stmt, ...]) -> None:
        """The lanes that several masked loads of a block have in common."""
        if not isinstance(self.scalars, Vectors) or any(isinstance(s, Bind) for s in stmts):
            return
        between = dict(self.scalars.between)
        for bounds in self.scalars.shared(v for s in stmts for v in values_of(s)):
            between[bounds] = f"between{len(between)}"
            self.put(f"const auto {between[bounds]} = lanes_between(lanes, {bounds});")
        self.scalars = replace(self.scalars, between=between)

    def loop(self, s: Loop) -> None:
        """A loop; the body of a vector loop is a lambda of the position and the mask of active lanes."""
        if s.together:
            outer, self.scalars = self.scalars, Vectors(s.axis, self.own) if s.kind == "vector" else self.scalars
            self.codes_together(s)
            self.scalars = outer
            return
        if s.kind != "vector":
            c_family.StatementPrinter.loop(self, s)
            return
        name, bounds = identifier(s.axis.name), f"{index(s.begin)}, {index(s.end)}"
        rows = _rows_of_codes(s)
        if rows is not None:
            zero, t = _coding(rows)
            bounds = f"{bounds}, {index(rows.begin)}, {index(rows.end)}, {Scalars().text(zero)}"
            self.put(f"codes_by_rows<{t}>({bounds}, [&](i64 {name}, auto lanes, auto then) HOLE {{")
        elif s.carries:
            self.put(f"for_lanes_ways<{s.carries}>({bounds}, [&](i64 {name}, auto lanes, auto way) HOLE {{")
        else:
            again = "_again" if s.again else ""
            self.put(f"for_lanes{again}({bounds}, [&](i64 {name}, auto lanes) HOLE {{")
        outer = self.scalars
        self.scalars = Vectors(s.axis, self.own)
        if rows is None:
            self.body(s.body)
        else:
            self.depth += 1
            for let in s.body[:-1]:
                self.statement(let)
            self.codes(rows, "then(")
            self.depth -= 1
        self.scalars = outer
        self.put("});")

    def codes_together(self, s: Loop) -> None:
        """A loop of vectors of 8-bit integers that are narrowed together."""
        zero, t = _coding(s)
        bounds, zero_point = f"{index(s.begin)}, {index(s.end)}", Scalars().text(zero)
        if s.kind == "vector":
            self.codes(s, f"codes_in_lanes<{t}>({bounds}, {zero_point}, ", ", auto lanes")
        else:
            self.codes(s, f"codes_together<{t}>({bounds}, lanes, {zero_point}, ")

    def codes(self, s: Loop, call: str, lanes: str = "") -> None:
        """The end of a call: what each vector of a loop of 8-bit integers is made of, and where it is stored."""
        *lets, last = s.body
        assert isinstance(last, Store)
        assert isinstance(last.value, Apply)
        name, outer = identifier(s.axis.name), self.scalars
        self.put(f"{call}[&](i64 {name}{lanes}) HOLE {{")
        self.depth += 1
        for let in lets:
            self.statement(let)
        self.put(f"return {self.scalars.text(last.value.args[0])};")
        self.depth -= 1
        self.scalars = outer
        self.put(f"}}, [&](i64 {name}) HOLE {{ return {identifier(last.buffer)} + {index(last.offset, 1)}; }});")

    def reduce_loop(self, s: ReduceLoop) -> None:
        """A reduction; vector accumulators are combined across lanes, or stored as a vector."""
        if s.scope != "lane":
            c_family.StatementPrinter.reduce_loop(self, s)
            return
        name, kind = identifier(s.targets[0]), computed(s.dtype)
        (start,) = MONOIDS[s.combine].init(s.dtype)
        self.put(f"vec<{kind}> {name}w[{s.accumulators}];")
        self.put(f"for (auto& w : {name}w) w = splat<{kind}>({self.scalars.text(start)});")
        for inner in s.body:
            self.statement(inner)
        for w in range(1, s.accumulators):
            self.put(f"{name}w[0] = {MERGE[s.combine].format(f'{name}w[0]', f'{name}w[{w}]')};")
        if s.part is not None:
            self.put(f"store({identifier(s.part[0])} + {index(s.part[1], 1)}, {name}w[0]);")
        else:
            self.put(f"const {kind} {name} = {_ACROSS[s.combine]}({name}w[0]);")

    def accumulate(self, s: Accumulate) -> None:
        """Combine values into scalar or vector accumulators of the enclosing reduction."""
        if not s.carried:
            c_family.StatementPrinter.accumulate(self, s)
            return
        target = f"{identifier(s.targets[0])}w[decltype(way)::value]"
        value, idle = self.scalars.text(s.values[0]), self.scalars.text(MONOIDS[s.combine].init(s.values[0].dtype)[0])
        merged = MERGE[s.combine].format(target, f"alive({value}, {idle}, lanes)")
        self.put(f"{target} = {merged};")

    def store(self, s: Store) -> None:
        """A store: of a vector where lanes are contiguous, else a scatter lane by lane."""
        if not isinstance(self.scalars, Vectors):
            c_family.StatementPrinter.store(self, s)
            return
        name, axis = identifier(s.buffer), self.scalars.axis
        if s.behind:
            assert self.buffers[s.buffer] in INTERLEAVED, "vectors of float32 and of codes are interleaved"
            values = ", ".join(map(self.scalars.text, s.values))
            self.put(f"weave_lanes({name} + {index(s.offset, 1)}, lanes, {values});")
            return
        value = self.scalars.text(s.value)
        if not s.scattered:
            self.put(f"{'stream' if s.stream else 'store'}_lanes({name} + {index(s.offset, 1)}, {value}, lanes);")
        else:
            at = index(s.offset)
            lane = identifier(axis.name)
            self.put(
                f"put_each_lane<{stored(self.buffers[s.buffer])}>({lane}, lanes, {value}, "
                f"[&](i64 {lane}) HOLE {{ return {name} + {at}; }});"
            )

    def row_pointer(self, s: RowPointer) -> None:
        """The row pointers of a tile."""
        row = identifier(s.row.name)
        if not s.even:
            self.put(f"for (i64 {row} = {index(s.begin)}; {row} < {index(s.end)}; {row}++) {{")
            self.pointers(s, s.row - s.begin, s.pitch)
            return
        for entry, at in enumerate((s.begin, s.begin + 1, s.begin + 2, s.end - 1)):
            self.put("{")
            self.put(f"  const i64 {row} = {index(at)};")
            self.pointers(s, Index.of(entry), EVEN_ENTRIES)

    def pointers(self, s: RowPointer, entry: Index, pitch: int) -> None:
        """The pointers of one row, one for each segment."""
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
        core, left, right = s.core, s.left, s.right
        unit = core.product.unit
        name = unit.name if unit is not None else "some" if s.some else "tile"
        rows, out = f"(int)({index(s.rows)})", _address(s.out, s.out_at) if s.out_at != ZERO else identifier(s.out)
        a, b = _address(left.buffer, left.at), _address(right.buffer, right.at)
        depth, ahead = index(s.panel_depth), _ahead(s)
        last = f"{ahead}, (int)({index(right.columns)})" if s.some else ahead
        if isinstance(left, Channels):
            sides = f"{left.segments}, {index(left.length)}, {index(left.across)}, {b}, {index(right.columns)}"
            zero, slides = Scalars().text(left.coding.left_zero), str(left.slides).lower()
            self.put(f"tile_channels({rows}, {a}, {core.most}, {sides}, {out}, {zero}, {slides});")
        elif isinstance(left, Quantized):
            self.codes_tile(s, left.coding, out)
        elif right.source is not None:
            source = _address(right.source.buffer, right.source.at)
            self.put(f"tile_filled({rows}, {a}, {depth}, {source}, {b}, {out}, {index(s.more)} != 0);")
        elif isinstance(left, Packed):
            most = str(core.most) if unit is not None else rows
            self.put(f"{name}_packed({most}, {a}, {depth}, {b}, {out}, {index(s.more)} != 0, {last});")
        else:
            kind = "even" if left.even else "rows"
            most = f"{core.most}, " if not left.even or unit is not None else ""
            pieces = f"{most}{left.segments}, {index(left.length)}"
            self.put(f"{name}_{kind}({rows}, {a}, {pieces}, {b}, {out}, {last});")

    def codes_tile(self, s: Tile, c: Coding, out: str) -> None:
        """A call of the register tile of 8-bit integers."""
        core, zero, zeros = s.core, c.right_zero, f"(const {stored(c.right)}*)nullptr"
        name, ahead = (core.product.unit.name, f", {_ahead(s)}") if core.product.unit is not None else ("tile", "")
        if isinstance(zero, tuple):
            zeros, zero = _address(*zero), const(0, c.right)
        self.put(
            f"{name}_codes((int)({index(s.rows)}), {_address(s.left.buffer, s.left.at)}, {core.most}, "
            f"{s.left.segments}, {index(s.left.length)}, {_address(s.right.buffer, s.right.at)}, "
            f"{index(s.right.columns)}, {out}, "
            f"{Scalars().text(c.left_zero)}, {Scalars().text(zero)}, {zeros}{ahead});"
        )

    def pack(self, s: Pack) -> None:
        """Packs rows k-major: element k of all rows before element k + 1."""
        row = identifier(s.row.name)
        where = _piece(s.load, substitute(s.load.index[0], {s.k: ZERO}))
        self.put("{")
        self.put(f"  const {stored(s.load.dtype)}* from[MOST];")
        self.put(
            f"  for (i64 {row} = {index(s.begin)}; {row} < {index(s.end)}; {row}++) "
            f"from[{row} - {index(s.begin, 1)}] = {where};"
        )
        rows = f"(int)({index(s.end - s.begin)})"
        pitch = rows if s.pitch == ZERO else index(s.pitch)
        to = f"from, {index(s.k.extent)}, {identifier(s.out)} + {index(s.at, 1)});"
        if s.unit is not None:
            self.put(f"  {s.unit.name}_pack({rows}, {pitch}, {index(s.skip)}, {to}")
        else:
            self.put(f"  pack_rows({rows}, {rows if s.apart else pitch}, {pitch}, {to}")
        self.put("}")


def _rows_of_codes(s: Loop) -> Loop | None:
    """The loop over rows in a vector loop that makes 8-bit integers side by side, and nothing else."""
    *lets, rows = s.body
    if not isinstance(rows, Loop) or not rows.together or not all(isinstance(x, Let) for x in lets):
        return None
    last = rows.body[-1]
    return rows if isinstance(last, Store) and coefficient(last.offset, s.axis) == ONE else None


def _coding(s: Loop) -> tuple[Scalar, str]:
    """The zero point of the 8-bit integers that a loop makes, and their type."""
    last = s.body[-1]
    assert isinstance(last, Store)
    assert isinstance(last.value, Apply)
    return last.value.args[-1], stored(last.value.dtype)


def _address(buffer: str, at: Index) -> str:
    return f"{identifier(buffer)} + {index(at, 1)}"


def _ahead(s: Tile) -> str:
    """The prefetch argument of a tile."""
    if s.ahead is None:
        return "Ahead{nullptr, 0}"
    following = _address(s.ahead.buffer, s.ahead.at)
    if s.ahead.after is not None:
        here, panels, other = s.ahead.after
        following = f"{index(here + 1)} < {index(panels)} ? {following} : {identifier(other)}"
    return f"ahead_of({following}, {index(s.panel_depth)}, {index(s.ahead.turn)}, {index(s.ahead.turns)})"


def _piece(load: Load, at: Index, padding: str = "") -> str:
    """The address of a contiguous segment; where a guard fails, that of `padding`, or of zeros."""
    where = f"{identifier(load.source)} + {index(at, 1)}"
    if not load.guards:
        return where
    zeros = "ZEROS" if load.dtype == F32 else f"reinterpret_cast<const {stored(load.dtype)}*>(ZEROS)"
    return f"{condition(load.guards)} ? {where} : {padding or zeros}"
