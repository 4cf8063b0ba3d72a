"""Kernels with launches as CUDA, over the headers in `support/`: what differs from C++.

A translation unit has two parts: the device code, one `__global__` function per phase, and the host code that launches
them (`render/cuda_launch.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from math import isfinite
from typing import Any

import numpy as np

from onnxfuse.ir.compose import elements_read, substitute_axes
from onnxfuse.ir.dtype import BF16, F16, F64, DType
from onnxfuse.ir.fragments import WARP
from onnxfuse.ir.index import Axis, Index, IndexTable
from onnxfuse.ir.indexing import looked_up, product, substitute
from onnxfuse.ir.kernel import (
    Accumulate,
    Buffer,
    Call,
    Kernel,
    Loop,
    Phase,
    ReduceLoop,
    Stmt,
    Store,
    When,
    statements,
    tables,
)
from onnxfuse.ir.launch import (
    Asynchronous,
    Commit,
    CopyAsync,
    Launch,
    MatrixLoad,
    Mma,
    Sync,
    Threaded,
    Wait,
    WideAccess,
)
from onnxfuse.ir.scalar import Apply, Const, Guard, Load, Scalar
from onnxfuse.render import c_family
from onnxfuse.render.c_family import Scalars, condition, identifier, index, stored
from onnxfuse.render.cuda_beside import call_beside
from onnxfuse.render.cuda_parameters import TensorMap, parameters, tensor_maps

SOME = 4  # turns of a loop that are spelled out, where not all are
NARROW = 1 << 30  # elements of a buffer up to which indices are 32-bit; a loop's last stride still fits


def device_text(kernel: Kernel, name: str) -> str:
    """The device code: functions `name_0`, `name_1`, ..., one per phase, all with the same `parameters`."""
    lines = ['#include "cuda.h"', "", *map(_table, tables(kernel))]
    for number, phase in enumerate(kernel.phases):
        lines += ["", *_function(kernel, phase, function_name(name, number))]
    return "\n".join(lines) + "\n"


def function_name(name: str, phase: int) -> str:
    """The name of the function of a phase."""
    return f"{name}_{phase}"


def _table(t: IndexTable) -> str:
    """A constant table, of 32-bit integers where they suffice; defined once per translation unit."""
    narrow = all(-(2**31) < v < 2**31 for v in t.values)
    made = f"__device__ const {'int32_t' if narrow else 'i64'} {t}[] = {{{', '.join(map(str, t.values))}}};"
    return f"#ifndef {t}\n#define {t} {t}\n{made}\n#endif"


def _function(kernel: Kernel, phase: Phase, name: str) -> Iterator[str]:
    assert phase.launch is not None
    given = ", ".join(f"{t} {name}" for t, name in parameters(kernel))
    bounds = ", ".join(str(n) for n in (phase.launch.block.constant, phase.launch.resident) if n)
    yield f'extern "C" __global__ void __launch_bounds__({bounds}) {name}({given}) {{'
    types = {p.name: p.dtype for p in (*kernel.inputs, *kernel.outputs)}
    types |= {b.name: b.dtype for b in (*kernel.scratch, *phase.locals)}
    printer = CudaPrinter(types, phase=phase, integer=_integer(kernel), maps=tensor_maps(kernel))
    if any(b.space == "shared" for b in phase.locals):
        yield "  SHARED(arena);"
    if _looks_up(phase.body):
        yield "  const Run run{};"
    for b in phase.locals:
        yield f"  {_buffer(b)}"
    sizes = {p.name: product(list(p.storage)) for p in kernel.inputs}
    yield from (f"  fetch_ahead({name}, {sizes[name]!r});" for name in phase.launch.ahead)
    if phase.launch.dependent:
        yield "  wait_for_kernel_before();"
    printer.depth = 0
    printer.body(phase.body)
    yield from printer.lines
    if phase.launch.dependent:
        yield "  let_next_kernel_begin();"
    yield "}"


def _integer(kernel: Kernel) -> str:
    """The type of indices: 32-bit where all buffers allow it, which is several times as fast."""
    sizes = [product(list(p.storage)).constant for p in (*kernel.inputs, *kernel.outputs)]
    sizes += [b.size.constant for b in kernel.scratch]
    return "int" if all(n is not None and n <= NARROW for n in sizes) else "i64"


def _looks_up(x: object) -> bool:
    """Whether statements have indirect accesses, that is, indices loaded from a tensor."""
    if isinstance(x, Index):
        return bool(looked_up(x))
    if isinstance(x, tuple):
        return any(map(_looks_up, x))
    return is_dataclass(x) and any(_looks_up(getattr(x, f.name)) for f in fields(x))


def _buffer(b: Buffer) -> str:
    t, name = stored(b.dtype), identifier(b.name)
    if b.space == "shared":
        return f"{t}* const {name} = reinterpret_cast<{t}*>(arena + {b.at});"
    return f"{t} {name}[{b.size.constant}];"


@dataclass(frozen=True, slots=True)
class Expressions(Scalars):
    """Scalar expressions of one thread."""

    def literal(self, value: float | int | bool, t: DType) -> str:
        """A literal; NaN and infinities by their bits, since device code has no builtins for them."""
        if not t.floating or isfinite(value):
            return Scalars.literal(self, value, t)
        bits = np.array(value, np.float64 if t == F64 else np.float32)
        if t == F64:
            return f"bits_as_double({bits.view(np.uint64)}ull)"
        return f"bits_as_float({bits.view(np.uint32)}u)"

    def unary(self, x: Apply, value: str) -> str:
        """A function of one argument; the inverse of a root is one instruction."""
        root = x.args[0]
        if x.fn == "reciprocal" and isinstance(root, Apply) and root.fn == "sqrt":
            return f"rsqrt_({self.text(root.args[0])})"
        return Scalars.unary(self, x, value)

    def load(self, x: Load) -> str:
        """An element of a buffer, or its fill value where a guard fails.

        A 16-bit float becomes a number behind its guards. A predicate is held until what it is for has been issued: if
        that is loads alone, which wait for nothing, more of them than there are predicates are under way.
        """
        bits = _half_bits(x.otherwise, x.dtype) if x.guards else None
        if bits is not None:
            return f"to_float({condition(x.guards)} ? *({self.address(x)}) : {stored(x.dtype)}{{{bits}}})"
        return self.guarded(x.guards, f"get({self.address(x)})", x)

    def address(self, x: Load) -> str:
        """The address of an element."""
        return f"{identifier(x.source)} + {index(x.index[0], 1)}"


def _half_bits(x: Scalar | None, t: DType) -> int | None:
    """A constant as a 16-bit float; None for other values and types, and where it is none."""
    if not isinstance(x, Const) or t not in (F16, BF16):
        return None
    whole = int(np.float32(x.value).view(np.uint32))
    if t == BF16:
        return None if whole & 0xFFFF else whole >> 16
    half = np.float16(x.value)
    return int(half.view(np.uint16)) if np.float32(half).view(np.uint32) == whole else None


Place = tuple[str, Index, tuple[Guard, ...]]  # an element of a buffer, and the guards under which it is read


@dataclass(frozen=True, slots=True)
class Lane(Expressions):
    """Expressions of one element of a vectorized access: `found` are the elements of its wide loads."""

    found: Mapping[Place, str]

    def load(self, x: Load) -> str:
        """An element of a wide load, or one that is loaded by itself."""
        return self.guarded(x.guards, f"get({self.address(x)})", x)

    def address(self, x: Load) -> str:
        """The address of an element: inside a wide load's variable, or in memory."""
        whole = self.found.get((x.source, x.index[0], x.guards))
        return whole if whole is not None else Expressions.address(self, x)


@dataclass(slots=True)
class CudaPrinter(c_family.StatementPrinter):
    """Prints the statements of one phase as SIMT code."""

    phase: Phase = field(kw_only=True)
    maps: tuple[TensorMap, ...] = field(kw_only=True)
    scalars: Expressions = field(default_factory=Expressions)
    wide: int = 0  # wide accesses printed so far

    @property
    def launch(self) -> Launch:
        """The launch configuration of the phase."""
        assert self.phase.launch is not None
        return self.phase.launch

    def loop(self, s: Loop) -> None:
        """A loop distributed over blocks, warps, threads or lanes, a vectorized access, or a serial loop."""
        lanes, block = self.launch.lanes, self.launch.block.constant or 0
        divided = {
            "block": ("blockIdx.x", "gridDim.x"),
            "warp": (f"threadIdx.x / {lanes}", str(block // lanes)),
            "thread": ("threadIdx.x", str(block)),
            "lane": (f"threadIdx.x % {lanes}", str(lanes)),
        }
        name = identifier(s.axis.name)
        if s.matrices is not None:
            self.matrices(s.matrices, name)
        elif s.kind == "vector":
            self.vector(s)
        elif s.kind in divided:
            first, stride = divided[s.kind]
            times = str(self.launch.grid.constant or 0) if s.kind == "block" else stride
            if self.single(s, times):
                self.once(s, name, first, times)
                if s.kind != "block" and self.only_loads(s):
                    self.put("loads_before();")
                return
            head = (
                f"for ({self.integer} {name} = {index(s.begin)} + {first}; {name} < {index(s.end)}; {name} += {stride})"
            )
            self.block(head, s.body)
        elif s.kind == "unroll":
            self.put(f"#pragma unroll{f' {SOME}' if self.beyond_registers(s) else ''}")
            self.block(f"for (int {name} = {index(s.begin)}; {name} < {index(s.end)}; {name}++)", s.body)
        else:
            c_family.StatementPrinter.loop(self, s)

    def beyond_registers(self, s: Loop) -> bool:
        """Whether a loop goes on with elements of a row that are not in registers: all at once would take too many."""
        private = {b.name for b in self.phase.locals if b.space in ("register", "fragment")}
        inside = list(statements(s.body))
        used = {x.buffer for x in inside if isinstance(x, Store)}
        used |= {n.source for x in inside for f in fields(x) for n in elements_read(getattr(x, f.name))}
        return (s.begin.constant or 0) > 0 and not private & used

    def matrices(self, m: MatrixLoad, lane: str) -> None:
        """Matrices of a fragment, loaded by all lanes of a warp at once."""
        self.put(f"{{ const int {lane} = threadIdx.x % {WARP};")
        how = f"{m.count}, {str(m.transposed).lower()}"
        to, row = (f"{identifier(b)} + {index(e, 1)}" for b, e in ((m.target, m.to), (m.source, m.row)))
        self.put(f"  load_matrices<{how}>({to}, {row}); }}")

    def single(self, s: Loop, stride: str) -> bool:
        """Whether each block, thread, warp or lane that a loop is distributed over runs at most one iteration.

        What comes before a loop of blocks would wait for what all iterations load, before these load their own.
        """
        last = s.end.constant
        return s.begin.constant == 0 and last is not None and last <= int(stride)

    def only_loads(self, s: Loop) -> bool:
        """Whether a loop does nothing but load elements into registers."""
        private = {b.name for b in self.phase.locals if b.space == "register"}
        inside = [x for x in statements(s.body) if not isinstance(x, (Loop, When))]
        return all(isinstance(x, Store) and x.buffer in private and isinstance(x.value, Load) for x in inside)

    def once(self, s: Loop, name: str, first: str, stride: str) -> None:
        """A distributed loop of at most one iteration each: an `if` instead of a `for`."""
        kind = self.integer if s.kind == "block" else "int"
        self.put(f"if (const {kind} {name} = {first}; {name} < {s.end!r}) {{" if s.end.constant != int(stride) else "{")
        if s.end.constant == int(stride):
            self.put(f"  const {kind} {name} = {first};")
        self.body(s.body)
        self.put("}")

    def reduce_loop(self, s: ReduceLoop) -> None:
        """A serial reduction per thread, and for the warp scope a shuffle reduction behind it."""
        assert s.scope in ("serial", "warp"), "render: block reductions are lowered to warp reductions before"
        c_family.StatementPrinter.reduce_loop(self, s)
        if s.scope == "warp":
            for t in s.targets:
                self.put(f"{identifier(t)} = {s.combine}_of_warp<{self.launch.lanes}>({identifier(t)});")

    def accumulate(self, s: Accumulate) -> None:
        """An update of accumulators; a maximum that may leave NaN out is one instruction."""
        if s.combine != "maxnum":
            c_family.StatementPrinter.accumulate(self, s)
            return
        name = identifier(s.targets[0])
        self.put(f"{name} = maxnum_({name}, {self.scalars.text(s.values[0])});")

    def vector(self, s: Loop) -> None:
        """A vectorized access: wide loads and stores of contiguous elements, scalar arithmetic in between."""
        width = s.end.constant
        assert width is not None
        found: dict[Place, str] = {}
        self.put("{")
        self.depth += 1
        for access in s.loads:
            found |= self.loaded(access, s.axis, width)
        kept = {(x.buffer, x.offset): self.wide_variable(x.buffer, width) for x in s.stores}
        for lane in range(width):
            self.put("{")
            outer, self.scalars = self.scalars, Lane(found)
            self.depth += 1
            for x in s.body:
                made = _in_lane(x, s.axis, lane)
                whole = kept.get((x.buffer, x.offset)) if isinstance(x, Store) else None
                if whole is not None and isinstance(made, Store):
                    self.element(f"{whole}.at + {lane}", made)
                else:
                    self.statement(made)
            self.depth -= 1
            self.scalars = outer
            self.put("}")
        for (buffer, offset), whole in kept.items():
            first = substitute(offset, {s.axis: Index.of(0)})
            self.put(f"store_wide({self.place(buffer, first)}, {whole});")
        self.depth -= 1
        self.put("}")

    def place(self, buffer: str, offset: Index) -> str:
        """The address of an element that is stored."""
        swizzled = any(b.swizzled for b in self.phase.locals if b.name == buffer)
        return f"{identifier(buffer)} + {f'swizzled({index(offset)})' if swizzled else index(offset, 1)}"

    def store(self, s: Store) -> None:
        """Store one element."""
        self.element(self.place(s.buffer, s.offset), s)

    def element(self, to: str, s: Store) -> None:
        """Store one element at an address."""
        x, t = s.value, self.buffers[s.buffer]
        if s.copied:
            assert isinstance(x, Load), "render: only loads are copied"
            value = f"*({self.scalars.address(x)})"
            self.put(f"*({to}) = {f'{condition(x.guards)} ? {value} : {stored(t)}{{0}}' if x.guards else value};")
        else:
            self.put(f"put({to}, {self.scalars.text(x)});")

    def wide_variable(self, buffer: str, width: int) -> str:
        """A new variable for the elements of a wide access."""
        self.wide += 1
        self.put(f"wide<{stored(self.buffers[buffer])}, {width}> wide{self.wide};")
        return f"wide{self.wide}"

    def loaded(self, access: WideAccess, axis: Axis, width: int) -> dict[Place, str]:
        """A wide load, under its guards; the expressions of its elements."""
        buffer, guards = access.buffer, access.guards
        at = [substitute(access.offset, {axis: Index.of(lane)}) for lane in range(width)]
        whole = self.wide_variable(buffer, width)
        test = f"if ({condition(guards)}) " if guards else ""
        self.put(f"{test}{whole} = load_wide<{width}>({identifier(buffer)} + {index(at[0], 1)});")
        return {(buffer, e, guards): f"{whole}.at + {lane}" for lane, e in enumerate(at)}

    def call(self, s: Call | Threaded) -> None:
        """A barrier, an asynchronous copy or a matrix product of a warp."""
        match s:
            case Sync():
                if s.units:
                    self.put("tell_units();")
                self.put({"warp": f"sync_warp<{self.launch.lanes}>();", "block": "__syncthreads();"}[s.scope])
            case CopyAsync():
                source = f"{identifier(s.source)} + {index(s.at, 1)}"
                self.put(f"copy_async<{s.count}>({self.place(s.target, s.to)}, {source});")
            case Commit():
                self.put("commit_copies();")
            case Wait():
                self.put(f"wait_copies<{s.pending}>();")
            case Mma():
                sides = ((s.sums, s.sums_at), (s.left, s.left_at), (s.right, s.right_at))
                self.put(f"{s.core!r}({', '.join(f'{identifier(b)} + {index(e, 1)}' for b, e in sides)});")
            case Asynchronous():
                self.put(call_beside(s, self.maps, self.buffers))
            case _:
                raise TypeError(f"{type(s).__name__} is the CPU's")


def _in_lane(s: Stmt, axis: Axis, lane: int) -> Stmt:
    """A statement with the axis of a vectorized access replaced by one lane."""
    values = {axis: Index.of(lane)}

    def go(x: Any) -> Any:
        if isinstance(x, Index):
            return substitute(x, values)
        if isinstance(x, Scalar):
            return substitute_axes(x, values)
        if isinstance(x, tuple):
            return tuple(map(go, x))
        return replace(x, **{f.name: go(getattr(x, f.name)) for f in fields(x)}) if isinstance(x, (Stmt, Guard)) else x

    return replace(s, **{f.name: go(getattr(s, f.name)) for f in fields(s)})
