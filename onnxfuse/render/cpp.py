"""A kernel as one C++17 translation unit: entry point, one function per phase, and the descriptor for the host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from onnxfuse.ir.index import ONE, ZERO, IndexTable
from onnxfuse.ir.kernel import (
    Buffer,
    Computed,
    ExtentBind,
    Kernel,
    Param,
    Phase,
    names_in,
    tables,
)
from onnxfuse.ir.tasks import ALIGNMENT, SLOTS
from onnxfuse.render.c_family import identifier, index, stored
from onnxfuse.render.source import PRELUDE, Source
from onnxfuse.render.statements import CppPrinter
from onnxfuse.render.tile_units import tile_headers


def render(kernel: Kernel, symbol: str, name: str, flags: tuple[str, ...] = ()) -> Source:
    """The source of a kernel: `symbol` names its descriptor onnxfuse_SYMBOL, `name` is the operator type.

    `flags` are those of the target that it was scheduled for.
    """
    assert kernel.legal, "render: a kernel is legalized before it is spelled"
    lines = [
        PRELUDE.rstrip(),
        *tile_headers(kernel),
        "",
        "namespace onnxfuse {",
        "namespace {",
        "",
        *_run_struct(kernel),
        "",
        *map(_table, tables(kernel)),
    ]
    for number, phase in enumerate(kernel.phases):
        lines += [*_phase(kernel, phase, number), ""]
    lines += [*_entry(kernel), "", *_descriptor(kernel, symbol, name)]
    return Source(symbol, "\n".join(lines) + "\n", flags)


def kernel_text(kernel: Kernel) -> str:
    """The text that identifies a kernel: equal for equal computations, independent of value names."""
    inputs, outputs = (tuple(replace(p, value="") for p in part) for part in (kernel.inputs, kernel.outputs))
    return _text(replace(kernel, inputs=inputs, outputs=outputs))


@lru_cache(512)
def _text(kernel: Kernel) -> str:
    """The text of a kernel without value names; equal ones are spelled once."""
    return render(kernel, "kernel", "kernel").text + "".join(
        f"// {p.name} {p.layout.steps} {p.shape}\n" for p in (*kernel.inputs, *kernel.outputs)
    )


# The parts of a translation unit --------------------------------------------------------------------------------------


def _params(kernel: Kernel) -> tuple[Param, ...]:
    return (*kernel.inputs, *kernel.outputs)


def _run_struct(kernel: Kernel) -> list[str]:
    """The arguments of a task: pointers, extents, scratch, and the partition of the parallel axes."""
    out = ["struct Run_ {"]
    out += [f"  const {stored(p.dtype)}* __restrict {p.name};  // {p.dtype} {_shape(p)}" for p in kernel.inputs]
    out += [f"  {stored(p.dtype)}* __restrict {p.name};  // {p.dtype} {_shape(p)}" for p in kernel.outputs]
    out += [f"  {stored(b.dtype)}* __restrict {identifier(b.name)};" for b in kernel.scratch]
    out += [f"  i64 {b.symbol.name};" for b in kernel.binds]
    out += ["  int* fault;", "  Slots slots;", "  Parts parts;", "};"]
    return out


def _table(t: IndexTable) -> str:
    """A constant table, of 32-bit integers where they suffice."""
    narrow = all(-(2**31) < v < 2**31 for v in t.values)
    return f"const {'int32_t' if narrow else 'i64'} {t}[] = {{{', '.join(map(str, t.values))}}};"


def _shape(p: Param) -> str:
    return "[" + ", ".join(index(e) for e in p.storage) + "]"


def _entry(kernel: Kernel) -> list[str]:
    """The function that the host calls: binds extents, checks shapes, allocates, runs the phases."""
    out = ["const char* run_kernel(Host* host, const Tensor* inputs) {", "  Run_ run{};"]
    for b in kernel.binds:
        out += _bind(b)
    for e in kernel.requires:
        out.append(f'  if ({index(e)} < 0) return "a dimension is smaller or larger than the model allows";')
    for i, p in enumerate(kernel.inputs):
        dims = "{" + ", ".join(index(e) for e in p.storage) + "}"
        rank = len(p.storage)
        if rank:
            out.append(
                f"  {{ const i64 want[] = {dims}; if (!same_shape(inputs[{i}], want, {rank})) "
                f'return "input {i} has another shape than the kernel was built for"; }}'
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


def _bind(b: ExtentBind | Computed) -> list[str]:
    """The definition of a symbol; inconsistent dimensions are rejected by the shape checks that follow."""
    name = b.symbol.name
    if isinstance(b, Computed):
        return [f"  const i64 {name} = run.{name} = {index(b.value)};"]
    value = f"inputs[{b.input}].dims[{b.axis}]"
    if b.rest != ZERO:
        value = f"({value} - {index(b.rest, 1)})"
    out = [f'  if (inputs[{b.input}].rank <= {b.axis}) return "an input has too few dimensions";']
    if b.factor.constant is None:
        value = f"quotient({value}, {index(b.factor)})"
    elif b.factor != ONE:
        value = f"{value} / {index(b.factor)}"
    return [*out, f"  const i64 {name} = run.{name} = {value};"]


def _bytes(b: Buffer, *, room: bool = False) -> str:
    count = f"({index(b.size, 1)} + ROOM)" if room else index(b.size, 1)
    size = "sizeof(void*)" if b.space == "pointers" else f"sizeof({stored(b.dtype)})"
    return f"rounded({count} * {size})"


def _scratch(kernel: Kernel) -> list[str]:
    """One allocation: scratch buffers of all tasks, then one slot of local buffers per concurrent task."""
    out = ["  size_t shared = 0, local = 0;"]
    for b in kernel.scratch:
        out.append(f"  const size_t at_{identifier(b.name)} = shared; shared += {_bytes(b)};")
    for number, phase in enumerate(kernel.phases):
        if phase.slots:
            total = " + ".join(_bytes(b, room=True) for b in phase.locals)
            out.append(
                f"  const size_t local{number} = {total}; local = local < local{number} ? local{number} : local;"
            )
    out += [
        f"  run.slots.count = (int)least(host->cores + 1, {SLOTS});",
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
    extents = [index(s.pieces) for s in phase.splits]
    extents += ["1"] * (2 - len(extents))
    return [
        f"  run.parts = {'few_' if phase.few else ''}parts_of(host->cores, {index(phase.work)}, {', '.join(extents)});",
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
        f'extern "C" const onnxfuse::Kernel onnxfuse_{symbol} = {{',
        f'    "{name}", {len(kernel.inputs)}, {len(kernel.outputs)},',
        "    onnxfuse::input_types, onnxfuse::output_types, onnxfuse::run_kernel};",
    ]


def _phase(kernel: Kernel, phase: Phase, number: int) -> list[str]:
    """The function of one task of a phase."""
    used = names_in(phase)
    printer = CppPrinter(
        {p.name: p.dtype for p in _params(kernel)} | {b.name: b.dtype for b in (*kernel.scratch, *phase.locals)},
        own=frozenset(b.name for b in phase.locals),
    )
    put = printer.put
    put("Run_& run = *static_cast<Run_*>(user);")
    for bind in kernel.binds:
        put(f"const i64 {bind.symbol.name} = run.{bind.symbol.name};")
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
            where = f"{index(split.extent)}, (i64)({part}){more}, {parts}{f', {split.step}' if split.step > 1 else ''}"
            put(f"const i64 {identifier(edge.name)} = part_begin({where});")
    if phase.slots:
        put("int slot;")
        put("char* memory = run.slots.claim(&slot);")
    for b in phase.locals:
        printer.lines += [f"  {line}" for line in _local(b, slots=phase.slots)]
    units = [phase.matrix_unit] if phase.matrix_unit is not None else []
    printer.lines += [f"  {unit.name}_begin({most});" for unit, most in units]
    printer.depth = 0
    printer.body(phase.body)
    printer.lines += [f"  {unit.name}_end();" for unit, _ in units]
    printer.lines += ["  streamed();"] if phase.streams else []
    if phase.slots:
        printer.depth = 1
        put("run.slots.release(slot);")
    unused = ["  (void)run;", "  (void)task;"]
    return [f"void phase{number}(void* user, size_t task) {{", *printer.lines[:1], *unused, *printer.lines[1:], "}"]


def _local(b: Buffer, *, slots: bool) -> Iterator[str]:
    """The declaration of a local buffer: in the task's slot, or on the stack."""
    name = identifier(b.name)
    kind = f"const {stored(b.dtype)}*" if b.space == "pointers" else stored(b.dtype)
    if slots:
        yield f"{kind}* __restrict const {name} = reinterpret_cast<{kind}*>(memory);"
        yield f"memory += {_bytes(b, room=True)};"
    else:
        yield f"alignas({ALIGNMENT}) {kind} {name}[{b.size.constant} + ROOM];"
