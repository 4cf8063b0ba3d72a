"""A kernel as one C++17 translation unit: every statement of the kernel IR has one spelling here, and no choice is made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import assert_never

from onnxfuse.ir.dtype import DType
from onnxfuse.ir.index import ZERO, Index
from onnxfuse.ir.indexing import coefficient, substitute
from onnxfuse.ir.kernel import (
    Accumulate,
    Across,
    Bind,
    Buffer,
    Fold,
    Kernel,
    Let,
    Loop,
    Pack,
    Param,
    Phase,
    Point,
    Stmt,
    Store,
    Tile,
    When,
    statements,
)
from onnxfuse.ir.monoid import MONOIDS
from onnxfuse.ir.scalar import Load, Scalar
from onnxfuse.render.expr import Context, computed, condition, identifier, index, scalar, stored
from onnxfuse.render.source import Source

STACK_BYTES = 64 << 10  # local buffers up to this size are arrays of the task's own stack
_MERGE = {"sum": "({0} + {1})", "prod": "({0} * {1})", "max": "max_nan({0}, {1})", "min": "min_nan({0}, {1})"}
_ACROSS = {"sum": "reduce_add", "prod": "reduce_mul", "max": "reduce_max_nan", "min": "reduce_min_nan"}


def render(kernel: Kernel, symbol: str, name: str) -> Source:
    """The source of a kernel: `symbol` names its descriptor onnxfuse_SYMBOL, `name` is the operator type."""
    lines = [
        '#include "loops.h"',
        '#include "tile.h"',
        "",
        "namespace onnxfuse {",
        "namespace {",
        "",
        *_run_struct(kernel),
        "",
    ]
    for number, phase in enumerate(kernel.phases):
        lines += [*_phase(kernel, phase, number), ""]
    lines += [*_entry(kernel), "", *_descriptor(kernel, symbol, name)]
    return Source(symbol, "\n".join(lines) + "\n")


def tiles_source() -> Source:
    """The translation unit of the register tiles, one per library."""
    return Source("tiles", '#include "tile_code.h"\n')


def kernel_text(kernel: Kernel) -> str:
    """The text that tells kernels apart: the same for equal computations, whatever the values are called."""
    return render(kernel, "kernel", "kernel").text + "".join(
        f"// {p.name} {p.layout.steps} {p.shape}\n" for p in (*kernel.inputs, *kernel.outputs)
    )


# The parts of a translation unit --------------------------------------------------------------------------------------


def _params(kernel: Kernel) -> tuple[Param, ...]:
    return (*kernel.inputs, *kernel.outputs)


def _run_struct(kernel: Kernel) -> list[str]:
    """Everything a task needs: pointers, extents, scratch, how the parallel axes are divided."""
    out = ["struct Run_ {"]
    out += [f"  const {stored(p.dtype)}* __restrict {p.name};  // {p.dtype} {_shape(p)}" for p in kernel.inputs]
    out += [f"  {stored(p.dtype)}* __restrict {p.name};  // {p.dtype} {_shape(p)}" for p in kernel.outputs]
    out += [f"  {stored(b.dtype)}* __restrict {identifier(b.name)};" for b in kernel.scratch]
    out += [f"  i64 {s.name};" for s, _, _ in kernel.binds]
    out += ["  int* fault;", "  Slots slots;", "  Parts parts;", "};"]
    return out


def _shape(p: Param) -> str:
    return "[" + ", ".join(index(e) for e in p.storage) + "]"


def _entry(kernel: Kernel) -> list[str]:
    """The function that the host calls: binds extents, checks shapes, allocates, runs the phases."""
    out = ["const char* run_kernel(Host* host, const Tensor* inputs) {", "  Run_ run{};"]
    for s, i, d in kernel.binds:
        out.append(f'  if (inputs[{i}].rank <= {d}) return "an input has too few dimensions";')
        out.append(f"  const i64 {s.name} = run.{s.name} = inputs[{i}].dims[{d}];")
    for e in kernel.requires:
        out.append(f'  if ({index(e)} < 0) return "a dimension is larger than the model allows";')
    for i, p in enumerate(kernel.inputs):
        dims = "{" + ", ".join(index(e) for e in p.storage) + "}"
        rank = len(p.storage)
        if rank:
            out.append(
                f'  {{ const i64 want[] = {dims}; if (!same_shape(inputs[{i}], want, {rank})) return "input {i} has another shape than the kernel was built for"; }}'
            )
        out.append(f"  run.{p.name} = static_cast<const {stored(p.dtype)}*>(inputs[{i}].data);")
    for i, p in enumerate(kernel.outputs):
        dims = ", ".join(index(e) for e in p.storage)
        declared = f"const i64 dims{i}[] = {{{dims}}};" if dims else f"const i64* dims{i} = nullptr;"
        out.append(f"  {declared}")
        out.append(
            f"  run.{p.name} = static_cast<{stored(p.dtype)}*>(host->output(host, {i}, dims{i}, {len(p.storage)}));"
        )
        out.append(f'  if (!run.{p.name}) return "no memory for an output";')
    out += ["  int fault = 0;", "  run.fault = &fault;", *_scratch(kernel)]
    for number, phase in enumerate(kernel.phases):
        out += _launch(phase, number)
    return [*out, '  return fault ? "an index is out of range" : nullptr;', "}"]


def _bytes(b: Buffer) -> str:
    size = "sizeof(void*)" if b.space == "pointers" else f"sizeof({stored(b.dtype)})"
    return f"rounded({index(b.size, 1)} * {size})"


def _in_slots(phase: Phase) -> bool:
    """Whether a phase's local buffers are too large, or of unknown size, for the stack."""
    sizes = [b.size.constant for b in phase.locals]
    known = sum((s or 0) * 8 for s in sizes)
    return any(s is None for s in sizes) or known > STACK_BYTES


def _scratch(kernel: Kernel) -> list[str]:
    """One allocation: shared buffers, then slots of local buffers for the tasks that run at a time."""
    out = ["  size_t shared = 0, local = 0;"]
    for b in kernel.scratch:
        out.append(f"  const size_t at_{identifier(b.name)} = shared; shared += {_bytes(b)};")
    for number, phase in enumerate(kernel.phases):
        if _in_slots(phase):
            total = " + ".join(_bytes(b) for b in phase.locals)
            out.append(
                f"  const size_t local{number} = {total}; local = local < local{number} ? local{number} : local;"
            )
    out += [
        "  run.slots.count = (int)least(host->cores + 1, 256);",
        "  run.slots.bytes = local;",
        "  if (shared + local) {",
        "    char* memory = static_cast<char*>(host->scratch(host, shared + local * run.slots.count));",
        '    if (!memory) return "no memory for scratch";',
        "    run.slots.base = memory + shared;",
    ]
    for b in kernel.scratch:
        name = identifier(b.name)
        out.append(f"    run.{name} = reinterpret_cast<{stored(b.dtype)}*>(memory + at_{name});")
    return [*out, "  }"]


def _launch(phase: Phase, number: int) -> list[str]:
    extents = [index(s.extent) for s in phase.splits]
    extents += ["1"] * (2 - len(extents))
    return [
        f"  run.parts = parts_of(host->cores, {index(phase.work)}, {extents[0]}, {extents[1]});",
        "  if (run.parts.tasks() == 1) {",
        f"    phase{number}(&run, 0);",
        "  } else if (run.parts.tasks()) {",
        f"    host->parallel(host, run.parts.tasks(), phase{number}, &run);",
        "  }",
    ]


def _descriptor(kernel: Kernel, symbol: str, name: str) -> list[str]:
    ins = ", ".join(str(p.dtype.onnx) for p in kernel.inputs) or "0"
    outs = ", ".join(str(p.dtype.onnx) for p in kernel.outputs) or "0"
    return [
        f"const int input_types[] = {{{ins}}};",
        f"const int output_types[] = {{{outs}}};",
        "",
        "}  // namespace",
        "}  // namespace onnxfuse",
        "",
        f'extern "C" const onnxfuse::Kernel onnxfuse_{symbol} = {{"{name}", {len(kernel.inputs)}, {len(kernel.outputs)},',
        "    onnxfuse::input_types, onnxfuse::output_types, onnxfuse::run_kernel};",
    ]


# Phases and statements ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Printer:
    """Writes statements; knows the types of buffers and of variables that are in scope."""

    buffers: dict[str, DType]
    context: Context = field(default_factory=Context)
    ways: dict[str, int] = field(default_factory=dict)  # fold variables carried by a vector loop
    jams: dict[str, str] = field(default_factory=dict)  # fold variables with a sum per iteration of an unrolled axis
    lines: list[str] = field(default_factory=list)
    depth: int = 1

    def put(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def body(self, stmts: tuple[Stmt, ...]) -> None:
        outer = self.context
        self.depth += 1
        for s in stmts:
            self.statement(s)
        self.depth -= 1
        self.context = outer

    def statement(self, s: Stmt) -> None:
        match s:
            case Bind():
                value = index(s.value)
                self.put(
                    f"const i64 {identifier(s.axis.name)} = {value if s.most is None else f'least({value}, {index(s.most)})'};"
                )
            case Loop():
                self.loop(s)
            case Fold():
                self.fold(s)
            case Accumulate():
                self.accumulate(s)
            case Let():
                self.put(f"const auto {identifier(s.name)} = {scalar(s.value, self.context)};")
                self.remember(s.name)
            case Store():
                self.store(s)
            case When():
                self.put(f"if ({condition(s.guards)}) {{")
                self.body(s.body)
                self.put("}")
            case Point():
                self.point(s)
            case Tile():
                self.tile(s)
            case Pack():
                self.pack(s)
            case Across():
                rows = f"(int)({index(s.rows)})"
                self.put(f"{_ACROSS[s.combine]}_each_row({identifier(s.source)}, {rows}, {identifier(s.target)});")
            case _:
                assert_never(s)

    def remember(self, name: str) -> None:
        """A variable declared here is a vector in a vector loop."""
        if self.context.axis is not None:
            self.context = replace(self.context, vectors=self.context.vectors | {name})

    def loop(self, s: Loop) -> None:
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
        self.context = replace(self.context, axis=s.axis)
        self.body(s.body)
        self.context = outer
        self.put("});")

    def fold(self, s: Fold) -> None:
        """Start values, the loops, and, when a vector loop carried the sums, one value from all lanes."""
        start = MONOIDS[s.combine].init(s.dtype)
        if s.jam is not None:
            self.jam(s, start)
            return
        carried = self.context.axis is None and any(
            isinstance(x, Loop) and x.kind == "vector" for x in statements(s.body)
        )
        names = [identifier(t) for t in s.targets]
        if carried:
            self.put(f"vec<{computed(s.dtype)}> {names[0]}w[{s.ways}];")
            self.put(f"for (auto& w : {names[0]}w) w = splat<{computed(s.dtype)}>({scalar(start[0], Context())});")
            self.ways[s.targets[0]] = s.ways
        else:
            for t, name, first in zip(s.targets, names, start, strict=True):
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

    def jam(self, s: Fold, start: tuple[Scalar, ...]) -> None:
        """One sum for each iteration of an unrolled axis; afterwards its loops read the sum of their own iteration."""
        assert s.jam is not None
        count, name, at = s.jam.extent.constant, identifier(s.targets[0]), identifier(s.jam.name)
        first = scalar(start[0], self.context)
        kind = computed(s.dtype) if self.context.axis is None else f"vec<{computed(s.dtype)}>"
        self.put(f"{kind} {name}u[{count}];")
        self.put(f"for (auto& u : {name}u) u = {first};")
        self.jams[s.targets[0]] = f"{name}u[{at}]"
        self.context = replace(self.context, spelled={**self.context.spelled, s.targets[0]: f"{name}u[{at}]"})
        self.remember(s.targets[0])
        for inner in s.body:
            self.statement(inner)

    def accumulate(self, s: Accumulate) -> None:
        values = [scalar(v, self.context) for v in s.values]
        if s.targets[0] in self.ways:
            target = f"{identifier(s.targets[0])}w[decltype(way)::value]"
            idle = scalar(MONOIDS[s.combine].init(s.values[0].dtype)[0], self.context)
            merged = _MERGE[s.combine].format(target, f"alive({values[0]}, {idle}, lanes)")
            self.put(f"{target} = {merged};")
        elif s.combine in _MERGE:
            name = self.jams.get(s.targets[0], identifier(s.targets[0]))
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
        name = identifier(s.buffer)
        axis = self.context.axis
        value = scalar(s.value, self.context)
        if axis is None:
            self.put(f"put({name} + {index(s.offset, 1)}, {value});")
        elif coefficient(s.offset, axis) == Index.of(1):
            self.put(f"store_lanes({name} + {index(s.offset, 1)}, {value}, lanes);")
        else:
            at = index(s.offset)
            lane = identifier(axis.name)
            self.put(
                f"put_each_lane<{stored(self.buffers[s.buffer])}>({lane}, lanes, {value}, [&](i64 {lane}) HOLE {{ return {name} + {at}; }});"
            )

    def point(self, s: Point) -> None:
        row, table = identifier(s.row.name), identifier(s.table)
        self.put(f"for (i64 {row} = {index(s.begin)}; {row} < {index(s.end)}; {row}++) {{")
        self.depth += 1
        segment = Index.of(0)
        for a in s.segments:
            self.put(
                f"for (i64 {identifier(a.name)} = 0; {identifier(a.name)} < {index(a.extent)}; {identifier(a.name)}++)"
            )
            segment = segment * a.extent + a
        at = s.at + segment * s.pitch + s.row - s.begin
        where = f"{identifier(s.load.source)} + {index(s.load.index[0], 1)}"
        self.put(
            f"  {table}[{index(at)}] = {f'{condition(s.load.guards)} ? {where} : ZEROS' if s.load.guards else where};"
        )
        self.depth -= 1
        self.put("}")

    def tile(self, s: Tile) -> None:
        a, b, out = (identifier(n) for n in (s.a, s.b, s.out))
        depth = s.length * s.segments
        ahead = (
            f"ahead_of({b} + {index(s.ahead, 1)}, {index(depth)}, {index(s.turn)}, {index(s.turns)})"
            if s.ahead is not None
            else "Ahead{nullptr, 0}"
        )
        if s.kind == "packed":
            self.put(
                f"tile_packed((int)({index(s.rows)}), {a} + {index(s.a_at, 1)}, {index(depth)}, {b} + {index(s.b_at, 1)}, {out}, {ahead});"
            )
        else:
            self.put(
                f"tile_rows((int)({index(s.rows)}), {a} + {index(s.a_at, 1)}, {s.most}, {s.segments}, {index(s.length)}, {b} + {index(s.b_at, 1)}, {out}, {ahead});"
            )

    def pack(self, s: Pack) -> None:
        row = identifier(s.row.name)
        first = index(substitute(s.load.index[0], {s.k: ZERO}), 1)
        self.put("{")
        self.put("  const float* from[PANEL];")
        self.put(
            f"  for (i64 {row} = {index(s.begin)}; {row} < {index(s.end)}; {row}++) from[{row} - {index(s.begin, 1)}] = {identifier(s.load.source)} + {first};"
        )
        rows = f"(int)({index(s.end - s.begin)})"
        self.put(
            f"  pack_rows({rows}, {s.pitch or rows}, from, {index(s.k.extent)}, {identifier(s.out)} + {index(s.at, 1)});"
        )
        self.put("}")


def _phase(kernel: Kernel, phase: Phase, number: int) -> list[str]:
    """The function of one task of a phase."""
    used = set(_names_used(phase))
    printer = _Printer(
        {p.name: p.dtype for p in _params(kernel)} | {b.name: b.dtype for b in (*kernel.scratch, *phase.locals)}
    )
    put = printer.put
    put("Run_& run = *static_cast<Run_*>(user);")
    for s, _, _ in kernel.binds:
        put(f"const i64 {s.name} = run.{s.name};")
    for p in kernel.inputs:
        if p.name in used:
            put(f"const {stored(p.dtype)}* __restrict const {p.name} = run.{p.name};")
    for name, dtype in [(o.name, o.dtype) for o in kernel.outputs] + [(b.name, b.dtype) for b in kernel.scratch]:
        if name in used:
            put(f"{stored(dtype)}* __restrict const {identifier(name)} = run.{identifier(name)};")
    for at, split in enumerate(phase.splits):
        part = "task / run.parts.inner" if at == 0 else "task % run.parts.inner"
        parts = "run.parts.outer" if at == 0 else "run.parts.inner"
        for edge, more in ((split.first, ""), (split.last, " + 1")):
            put(f"const i64 {identifier(edge.name)} = part_begin({index(split.extent)}, (i64)({part}){more}, {parts});")
    slots = _in_slots(phase)
    if slots:
        put("int slot;")
        put("char* memory = run.slots.claim(&slot);")
    for b in phase.locals:
        printer.lines += [f"  {line}" for line in _local(b, slots)]
    printer.depth = 0
    printer.body(phase.body)
    if slots:
        printer.depth = 1
        put("run.slots.release(slot);")
    unused = ["  (void)run;", "  (void)task;"]
    return [f"void phase{number}(void* user, size_t task) {{", *printer.lines[:1], *unused, *printer.lines[1:], "}"]


def _local(b: Buffer, slots: bool) -> Iterator[str]:
    """The declaration of a local buffer: from the task's slot, or on its stack."""
    name = identifier(b.name)
    kind = "const float*" if b.space == "pointers" else stored(b.dtype)
    if slots:
        yield f"{kind}* __restrict const {name} = reinterpret_cast<{kind}*>(memory);"
        yield f"memory += {_bytes(b)};"
    else:
        yield f"alignas(64) {kind} {name}[{b.size.constant}];"


def _names_used(phase: Phase) -> Iterator[str]:
    """Buffers that a phase mentions."""
    text = repr(phase.body)
    yield from {w for w in _words(text)}


def _words(text: str) -> Iterator[str]:
    word = ""
    for ch in text + " ":
        if ch.isalnum() or ch in "_%":
            word += ch
        else:
            if word:
                yield word
            word = ""
