"""The text form of kernels, one line per statement: equal kernels have equal lines, and every field is shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import assert_never

from onnxfuse.ir.index import ONE, ZERO
from onnxfuse.ir.kernel import (
    Accumulate,
    Bind,
    Buffer,
    Computed,
    ExtentBind,
    HorizontalReduce,
    Kernel,
    Let,
    Loop,
    Pack,
    Param,
    Phase,
    Prefetch,
    ReduceLoop,
    RowPointer,
    Split,
    Stmt,
    Store,
    When,
    tables,
)
from onnxfuse.ir.launch import (
    Asynchronous,
    BeginArrivals,
    Commit,
    CopyAsync,
    CopyBox,
    Launch,
    LibraryCall,
    LibraryProduct,
    MatrixLoad,
    Mma,
    Sync,
    Threaded,
    Wait,
    WaitArrival,
    WaitProducts,
    WarpgroupMma,
    WideAccess,
)
from onnxfuse.ir.products import SINGLE
from onnxfuse.ir.scalar import Guard
from onnxfuse.ir.text import text
from onnxfuse.ir.tile import Ahead, Channels, Left, Packed, Pointers, Quantized, Tile


def kernel_lines(kernel: Kernel) -> Iterator[str]:
    """The lines of a kernel: parameters, symbols, conditions, scratch, then its phases."""
    for role, params in (("input", kernel.inputs), ("output", kernel.outputs)):
        yield from (f"{role} {_param(p)}" for p in params)
    for b in kernel.binds:
        yield f"{b.symbol!r} is {_bound(b)}"
    if kernel.legal:
        yield "legal"
    yield from (f"requires {e!r} >= 0" for e in kernel.requires)
    yield from (f"{each.space} {_buffer(each)}" for each in kernel.scratch)
    yield from (f"table {t!r} = {_listed(t.values)}" for t in tables(kernel))
    for phase in kernel.phases:
        yield from _phase(phase)


def _bound(b: ExtentBind | Computed) -> str:
    if isinstance(b, Computed):
        return repr(b.value)
    dimension = f"dimension {b.axis} of in{b.input}"
    if b.rest != ZERO:
        dimension = f"({dimension} - ({b.rest!r}))"
    return dimension if b.factor == ONE else f"{dimension} / {b.factor!r}"


def _param(p: Param) -> str:
    layout = f" stored as {text(p.layout)}" if p.layout.steps else ""
    return f"{p.name}: {p.dtype}[{_listed(p.shape)}] is {p.value}{layout}"


def _buffer(b: Buffer) -> str:
    at = f" at byte {b.at}" if b.at is not None else ""
    swizzled = ", swizzled" if b.swizzled else ""
    return f"{b.name}: {b.dtype}[{b.size!r}]{at}{swizzled}"


def _listed(values: Iterable[object]) -> str:
    return ", ".join(map(repr, values))


def _split(s: Split) -> str:
    by = f" by {s.step}" if s.step > 1 else f", at least {s.least}" if s.least > 1 else ""
    return f"{s.first!r} to {s.last!r} of {s.extent!r}{by}"


def _phase(phase: Phase) -> Iterator[str]:
    splits = ", ".join(map(_split, phase.splits))
    few = ", one task per core" if phase.few else ""
    yield f"phase over {splits or 'nothing'}, {phase.work!r} ps{few}"
    if phase.rows is not None:
        yield f"  row window over {phase.rows[0]!r}, {phase.rows[1]} rows"
    if phase.slots:
        yield "  local buffers in slots of scratch memory"
    if phase.matrix_unit is not None:
        yield f"  configure {phase.matrix_unit[0].name} for {phase.matrix_unit[1]} rows"
    if phase.streams:
        yield "  fence after non-temporal stores"
    if phase.launch is not None:
        yield f"  {_launch(phase.launch)}"
    if phase.library is not None:
        yield f"  or {_library(phase.library)}"
    yield from (f"  {b.space} {_buffer(b)}" for b in phase.locals)
    yield from _body(phase.body)


def _launch(launch: Launch) -> str:
    together = ", cooperative" if launch.cooperative else ""
    together += ", dependent" if launch.dependent else ""
    together += f", {', '.join(launch.ahead)} ahead" if launch.ahead else ""
    size = f"{launch.grid!r} blocks of {launch.block!r} threads, warps of {launch.lanes}"
    resident = f", {launch.resident} resident" if launch.resident else ""
    return f"launch {size}, {launch.shared!r} bytes of shared memory{together}{resident}"


def _library(p: LibraryCall) -> str:
    if not isinstance(p, LibraryProduct):
        added = "".join(f" + {name}" for name in (p.bias, p.residual) if name)
        steps = f"strides {p.strides}, pads {p.pads}, dilations {p.dilations}, groups {p.groups}"
        sizes = f"{p.batch!r} of {p.size} x {p.channels} by {p.filters} of {p.window} to {p.made}, {steps}"
        return f"by cuDNN {p.result} = {p.activation}({p.image} * {p.weights}{added}), {p.dtype}, {sizes}"
    transposed, added = (
        (" transposed" if p.transposed else ""),
        "".join(f" + {name}" for name in (p.bias, p.residual) if name),
    )
    sizes = f"{p.rows!r} x {p.columns} x {p.depth}, pitches {_listed(p.pitches)}"
    return f"by cuBLASLt {p.result} = {p.activation}({p.left} {p.right}{transposed}{added}), {p.dtype}, {sizes}"


def _body(body: Iterable[Stmt]) -> Iterator[str]:
    for s in body:
        yield from (f"  {line}" for line in _statement(s))


def _matrices(m: MatrixLoad) -> str:
    transposed = " transposed" if m.transposed else ""
    return f"{m.count} matrices{transposed} of {m.source} from {m.row!r} to {m.target}[{m.to!r}]"


def _wide(x: WideAccess) -> str:
    return f"{x.buffer}[{x.offset!r}]" + (f" when {_guards(x.guards)}" if x.guards else "")


def _statement(s: Stmt) -> Iterator[str]:
    match s:
        case Loop():
            words = ([] if s.kind == "serial" else [s.kind]) + (["aligned"] if s.aligned else [])
            words += [f"{s.carries} vector accumulators"] if s.carries else []
            words += ["may run twice"] if s.again else []
            words += [f"{s.together} narrowing stores at once"] if s.together else []
            words += [_matrices(s.matrices)] if s.matrices is not None else []
            words += [
                f"{how} {_wide(x)} at once" for how, wide in (("loads", s.loads), ("stores", s.stores)) for x in wide
            ]
            kind = f" ({', '.join(words)})" if words else ""
            yield f"for {s.axis!r} from {s.begin!r} to {s.end!r}{kind}"
            yield from _body(s.body)
        case ReduceLoop():
            ways = f" with {s.accumulators} accumulators" if s.accumulators != 1 else ""
            part = f", partial results in {s.part[0]}[{s.part[1]!r}]" if s.part is not None else ""
            scope = {"serial": "", "lane": " across lanes"}.get(s.scope, f" across a {s.scope}")
            yield f"reduce {', '.join(s.targets)}: {s.dtype} by {s.combine}{scope}{ways}{part}"
            yield from _body(s.body)
        case When():
            yield f"when {_guards(s.guards)}"
            yield from _body(s.body)
        case Bind():
            most = f", at most {s.most!r}" if s.most is not None else ""
            where = f" when {_guards(s.guards)}" if s.guards else ""
            yield f"{s.axis!r} = {s.value!r}{most}{where}"
        case Accumulate():
            lanes = " (vector)" if s.carried else ""
            merged = f", which is {_listed(s.merged)}" if s.merged else ""
            yield f"{', '.join(s.targets)} {s.combine}= {_listed(s.values)}{lanes}{merged}"
        case Let():
            yield f"{s.name} = {s.value!r}{' (in a register)' if s.kept else ''}"
        case Store():
            how = " (non-temporal)" if s.stream else " (scattered)" if s.scattered else ""
            how += " (bitwise copy)" if s.copied else ""
            yield f"{s.buffer}[{s.offset!r}] = {_listed(s.values)}{how}"
        case RowPointer() | Tile() | Pack() | HorizontalReduce() | Prefetch():
            yield _call(s)
        case Sync() | CopyAsync() | Commit() | Wait() | Mma() | Asynchronous():
            yield _threaded(s)
        case _:
            assert_never(s)


def _threaded(s: Threaded) -> str:
    """A statement of cooperating threads."""
    match s:
        case Sync():
            return f"sync {s.scope}{' and matrix units' if s.units else ''}"
        case CopyAsync():
            return f"copy {s.count} of {s.source}[{s.at!r}] to {s.target}[{s.to!r}]"
        case Commit():
            return "commit copies"
        case Wait():
            return f"wait until {s.pending} groups of copies are pending"
        case Mma():
            left, right = f"{s.left}[{s.left_at!r}]", f"{s.right}[{s.right_at!r}]"
            return f"{s.sums}[{s.sums_at!r}] += {left} @ {right} by {s.core!r}"
        case WarpgroupMma():
            left, right = (
                f"{b}[{e!r}] in lines {pitch} apart"
                for b, e, pitch in ((s.left, s.left_at, s.left_pitch), (s.right, s.right_at, s.right_pitch))
            )
            across = " transposed" if s.deep else ""
            return f"begin {s.sums}[{s.sums_at!r}] += {left} @ {right}{across}, {s.depth} deep, by {s.core!r}"
        case BeginArrivals():
            return f"begin {s.count} arrivals of {s.boxes} boxes in {s.arrivals}"
        case CopyBox():
            matrix = f"{s.source} as {s.all_rows!r} x {s.all_columns}, pitch {s.pitch}"
            box = f"{s.rows} rows from ({s.row!r}, {s.column!r}) of {matrix}"
            return f"copy {box} to {s.target}[{s.to!r}], {s.arrivals}[{s.arrival!r}]"
        case WaitArrival():
            return f"wait for {s.arrivals}[{s.arrival!r}], turn {s.turn!r}"
        case WaitProducts():
            return f"wait until {s.pending} products into {s.sums} are pending"
        case _:
            assert_never(s)


def _call(s: RowPointer | Tile | Pack | HorizontalReduce | Prefetch) -> str:
    """A statement that calls a function of a header."""
    match s:
        case RowPointer():
            over = "".join(f" for {a!r} < {a.extent!r}" for a in s.segments) + (" (even)" if s.even else "")
            over += f" padded with {s.padding}" if s.padding else ""
            to = f"{s.table}[{s.at!r} + segment * {s.pitch} + {s.row!r} - ({s.begin!r})]"
            return f"{to} = address of {s.length!r} at {s.load!r}{over} for {s.row!r} from {s.begin!r} to {s.end!r}"
        case Tile():
            return _tile(s)
        case Pack():
            rows = f"{s.row!r} from {s.begin!r} to {s.end!r}"
            pitch = f"{'rows' if s.pitch == ZERO else repr(s.pitch)}{' between rows' if s.apart else ''}"
            pieces = f", {s.unit.name}" if s.unit is not None else ""
            pieces += f" after {s.skip!r}" if s.skip != ZERO else ""
            return f"pack {s.out}[{s.at!r}] = {s.load!r} for {rows}, {s.k!r} < {s.k.extent!r}, pitch {pitch}{pieces}"
        case HorizontalReduce():
            return f"reduce lanes {s.target} = {s.combine} of {s.source} for {s.rows!r} rows of {s.lanes}"
        case Prefetch():
            return f"prefetch {s.buffer}[{s.offset!r}], {s.count}" + (" near" if s.near else "")
        case _:
            assert_never(s)


def _tile(s: Tile) -> str:
    """A register tile: operands, sizes, element types and prefetch."""
    plus = f" {s.more!r} * previous +" if s.more != ZERO else ""
    at = f"[{s.out_at!r}]" if s.out_at != ZERO else ""
    how = "" if s.core.product == SINGLE else f" as {s.core.product!r}"
    size = f"rows {s.rows!r} of {s.core.most}, depth {s.left.segments} * {s.left.length!r}, width {s.core.width}"
    size += f", columns {s.right.columns!r}" if s.right.columns != ZERO else ""
    sides = f"{_left(s.left)} {s.left.buffer}[{s.left.at!r}] @ {s.right.buffer}[{s.right.at!r}]"
    source = s.right.source
    sides += f" = {source.length!r} behind each of {source.buffer}[{source.at!r}]" if source is not None else ""
    return f"tile {s.out}{at} ={plus} {sides}{how}, {size}{_ahead(s.ahead)}"


def _left(left: Left) -> str:
    match left:
        case Pointers():
            return "even" if left.even else "rows"
        case Packed():
            return "packed"
        case Quantized():
            c = left.coding
            right = c.right_zero
            zeros = f"{right[0]}[{right[1]!r} ..]" if isinstance(right, tuple) else f"{right!r}"
            across = f"{' overlapping' * left.slides} at {left.across!r}" if isinstance(left, Channels) else ""
            return f"quantized {c.left} (zero point {c.left_zero!r}) by {c.right} (zero point {zeros}){across}"
        case _:
            assert_never(left)


def _ahead(a: Ahead | None) -> str:
    if a is None:
        return ""
    after = f", then {a.after[2]} after panel {a.after[0]!r} of {a.after[1]!r}" if a.after is not None else ""
    return f" prefetch {a.buffer}[{a.at!r}] part {a.turn!r} of {a.turns!r}{after}"


def _guards(guards: Iterable[Guard]) -> str:
    return " and ".join(f"0 <= {g.index!r} < {g.extent!r}" for g in guards)
