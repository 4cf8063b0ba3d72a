"""Verification of phases that are launched as threads.

Barriers and other cooperative statements have to be in uniform control flow of their group, which is checked statically
(and conservatively). Data races are found by interpreting the first blocks and the first iterations of every loop,
without data: every finding has two threads as its witness.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import combinations

import numpy as np

from onnxfuse.ir.compose import elements_read
from onnxfuse.ir.fragments import LINE, WARPGROUP
from onnxfuse.ir.index import Axis, Index, Loaded, atoms, axes_of
from onnxfuse.ir.indexing import coefficient, product
from onnxfuse.ir.interpret import bound, prepared
from onnxfuse.ir.interpret.elements import KernelFault
from onnxfuse.ir.interpret.values import Iterations
from onnxfuse.ir.interpret.warps import misfits
from onnxfuse.ir.kernel import (
    Bind,
    Call,
    Computed,
    ExtentBind,
    Kernel,
    Loop,
    Phase,
    ReduceLoop,
    Stmt,
    Store,
    When,
    statements,
)
from onnxfuse.ir.launch import (
    ALIGNED,
    MOST_BLOCKS,
    MOST_BOX,
    MOST_SHARED,
    MOST_THREADS,
    REPEATED,
    SWIZZLED,
    BeginArrivals,
    Commit,
    CopyAsync,
    CopyBox,
    Launch,
    LibraryConvolution,
    Mma,
    Sync,
    Threaded,
    Wait,
    WaitArrival,
    WaitProducts,
    WarpgroupMma,
)
from onnxfuse.ir.monoid import MONOIDS
from onnxfuse.ir.scalar import Guard
from onnxfuse.ir.verify.turns import in_turns

GRID, BLOCK, WARP, THREAD = range(4)  # uniformity of values: over all threads, a block, a warp, or none
SCOPES = {"grid": GRID, "block": BLOCK, "warp": WARP}
DIVIDED = {
    "block": BLOCK,
    "warp": WARP,
    "thread": THREAD,
    "lane": THREAD,
}  # uniformity of the loop variables of distributed loops
EXTENTS = (17, 40, 129)  # values of symbols for the interpreted samples
MOST_ELEMENTS = 1 << 20  # of a buffer in those: outer symbols are smaller where several are multiplied
WIDE = (1, 2, 4, 8)  # elements of one access
_WIDTHS = ", ".join(map(str, WIDE))


def launch_faults(kernel: Kernel) -> list[str]:
    """The errors in phases with a launch, and in phases of tasks that use features of launches."""
    found: list[str] = []
    for number, phase in enumerate(kernel.phases):
        found += [f"phase {number}: {what}" for what in _library(kernel, phase)]
        here = _alone(phase) if phase.launch is None else (*_Levels(kernel, phase).found, *_buffers(phase))
        found += [f"phase {number}: {what}" for what in here]
    if not found and any(phase.launch is not None for phase in kernel.phases):
        found += _run_some(kernel)
    return found


def _alone(phase: Phase) -> Iterator[str]:
    """Statements and buffers that a phase without a launch may not have."""
    for s in statements(phase.body):
        if isinstance(s, Threaded) or (isinstance(s, Loop) and s.kind in DIVIDED):
            yield f"{_name(s)} in a phase without a launch"
        if isinstance(s, ReduceLoop) and s.scope in SCOPES:
            yield f"a reduction of scope {s.scope} in a phase without a launch"


def _library(kernel: Kernel, phase: Phase) -> Iterator[str]:
    """Operands of a call of a library that are no buffers of its type, or reach beyond them."""
    if phase.library is None:
        return
    sizes = {p.name: (p.dtype, product(list(p.storage))) for p in (*kernel.inputs, *kernel.outputs)}
    sizes |= {b.name: (b.dtype, b.size) for b in kernel.scratch}
    if isinstance(phase.library, LibraryConvolution):
        for name, wanted in phase.library.operands:
            if sizes.get(name) != (phase.library.dtype, wanted):
                yield f"cuDNN's operand {name} is no buffer of {wanted!r} elements of {phase.library.dtype}"
        return
    if len(phase.library.pitches) != len(("left", "right", "residual", "result")):
        yield f"{len(phase.library.pitches)} pitches of a call of cuBLASLt, expected 4"
        return
    for name, rows, columns, pitch in phase.library.operands:
        dtype, size = sizes.get(name, (None, None))
        if dtype != phase.library.dtype or size is None:
            yield f"cuBLASLt's operand {name} is no buffer of {phase.library.dtype}"
        elif pitch < columns or (((rows - 1) * pitch + columns - size).constant or 0) > 0:
            yield f"cuBLASLt's operand {name} is {size!r} elements, but rows have {columns}, {pitch} apart"


def _name(s: Stmt) -> str:
    return f"a loop over {s.kind}s" if isinstance(s, Loop) else f"a {type(s).__name__}"


def _buffers(phase: Phase) -> Iterator[str]:
    """Check that shared buffers fit and do not overlap."""
    launch = phase.launch
    assert launch is not None
    places = []
    for b in phase.locals:
        if b.space != "shared":
            continue
        if b.size.constant is None or b.at is None:
            yield f"the shared buffer {b.name} has no constant size or no offset in shared memory"
        elif b.at % (wanted := SWIZZLED if b.swizzled else ALIGNED):
            yield f"the shared buffer {b.name} does not begin at a multiple of {wanted} bytes"
        else:
            places.append((b.at, b.at + b.size.constant * b.dtype.bytes, b.name))
    places.sort()
    for (first, end, one), (begin, last, other) in combinations(places, 2):
        if begin < end and first < last and not in_turns(phase.body, one, other):
            yield f"the shared buffers {one} and {other} overlap"
    total = launch.shared.constant
    if total is None or any(end > total for _, end, _ in places):
        yield f"shared buffers need more than the {launch.shared!r} bytes of a block"
    if total is not None and total > MOST_SHARED:
        yield f"{total} bytes of shared memory are more than {MOST_SHARED}"


class _Levels:
    """Uniformity analysis of a launched phase, and its findings."""

    def __init__(self, kernel: Kernel, phase: Phase) -> None:
        assert phase.launch is not None
        self.launch: Launch = phase.launch
        self.found: list[str] = []
        self.levels: dict[str, int] = {}  # uniformity of axes
        self.unrolled: set[str] = set()  # axes that are constants after unrolling
        self.vector: Axis | None = None
        buffers = (*kernel.scratch, *phase.locals)
        self.types = {p.name: p.dtype for p in (*kernel.inputs, *kernel.outputs)} | {b.name: b.dtype for b in buffers}
        self.inputs = {p.name for p in kernel.inputs}
        self.private = {b.name for b in phase.locals if b.space != "shared"}
        self.spaces = {b.name: b.space for b in buffers}
        self.swizzled = {b.name for b in phase.locals if b.swizzled and b.space == "shared" and b.dtype.bytes == 2}
        self.limits(phase)
        self.body(phase.body, GRID)

    def say(self, what: str) -> None:
        """A finding."""
        self.found.append(what)

    def limits(self, phase: Phase) -> None:
        """Check the limits of launches."""
        grid, block = self.launch.grid.constant, self.launch.block.constant
        if phase.splits:
            self.say("phase has both splits and a launch")
        if block is None or not 0 < block <= MOST_THREADS or block % self.launch.lanes:
            self.say(f"block size is {self.launch.block!r} threads, expected whole warps of {self.launch.lanes}")
        if grid is not None and not 0 < grid <= MOST_BLOCKS:
            self.say(f"grid size is {grid} blocks, expected 1 to {MOST_BLOCKS}")
        if {*self.launch.ahead} - self.inputs or (self.launch.ahead and not self.launch.dependent):
            self.say(f"{', '.join(self.launch.ahead)} ahead of a kernel, expected inputs and a dependent launch")
        for s in statements(phase.body):
            if isinstance(s, Call):
                self.say(f"a {type(s).__name__} in a GPU phase")
            if isinstance(s, Sync) and s.scope == "grid" and not self.launch.cooperative:
                self.say("a grid barrier in a non-cooperative launch")
            if isinstance(s, Mma):
                self.found += misfits(s.core)
                self.found += self.fragments(s)
            if isinstance(s, WarpgroupMma):
                self.found += self.warpgroup(s)
            if isinstance(s, CopyBox):
                self.found += self.box(s)
            if isinstance(s, (BeginArrivals, CopyBox, WaitArrival)) and self.spaces.get(s.arrivals) != "shared":
                self.say(f"arrivals {s.arrivals} are in the space {self.spaces.get(s.arrivals)!r}, expected 'shared'")

    def fragments(self, s: Mma) -> Iterator[str]:
        """Check that fragments are in fragment buffers of their types."""
        if s.core.lanes != self.launch.lanes:
            yield f"{s.core!r} has {s.core.lanes} lanes, expected {self.launch.lanes} as a warp"
        for name, f in ((s.left, s.core.left), (s.right, s.core.right), (s.sums, s.core.sums)):
            if self.spaces.get(name) != "fragment" or self.types[name] != f.dtype:
                found = f"{self.types[name]} in the space {self.spaces.get(name)!r}"
                yield f"operand {name} of {s.core!r} is {found}, expected {f.dtype} in the space 'fragment'"

    def warpgroup(self, s: WarpgroupMma) -> Iterator[str]:
        """Check that both sides are where a warpgroup reads them, in whole pieces, and that there are whole groups."""
        if (self.launch.block.constant or 0) % s.core.lanes or self.launch.lanes * WARPGROUP != s.core.lanes:
            yield f"{s.core!r} is of {s.core.lanes} threads, of a block of {self.launch.block!r}"
        if s.depth < 1 or s.depth % s.core.k:
            yield f"{s.core!r} multiplies {s.depth} steps, expected a multiple of {s.core.k}"
        for name, at, pitch in ((s.left, s.left_at, s.left_pitch), (s.right, s.right_at, s.right_pitch)):
            if name not in self.swizzled or self.types[name] != s.core.dtype:
                found = f"{self.types[name]} in the space {self.spaces.get(name)!r}"
                yield f"operand {name} of {s.core!r} is {found}, expected {s.core.dtype} in a swizzled buffer"
            if pitch % LINE or not _divides(LINE, at):
                yield f"operand {name} of {s.core!r}, at {at!r} in pieces {pitch} apart, is not aligned"
        if self.spaces.get(s.sums) != "fragment" or self.types[s.sums] != s.core.sums.dtype:
            yield f"sums {s.sums} of {s.core!r} are not {s.core.sums.dtype} in the space 'fragment'"

    def box(self, s: CopyBox) -> Iterator[str]:
        """Check what the copy engine asks for: whole lines, 16 bytes apart, in a swizzled buffer."""
        size = self.types[s.source].bytes
        if s.target not in self.swizzled or self.types[s.target] != self.types[s.source] or s.source in self.private:
            yield f"a box goes from {s.source} to {s.target}, expected a swizzled buffer of its type"
        if not 0 < s.rows <= MOST_BOX or s.rows % REPEATED or s.pitch * size % ALIGNED or s.pitch < s.all_columns:
            yield f"a box is {s.rows} rows of {s.source}, {s.pitch} elements apart"
        if not _divides(SWIZZLED // size, s.to):
            yield f"a box goes to {s.target}[{s.to!r}], which is not aligned"

    # Levels -----------------------------------------------------------------------------------------------------------

    def level(self, e: Index) -> int:
        """The uniformity of an index."""
        here = max((self.levels.get(a.name, GRID) for a in axes_of(e)), default=GRID)
        looked_up = [a for a in atoms(e) if isinstance(a, Loaded)]
        return THREAD if any(a.source in self.private for a in looked_up) else here

    def guarded(self, guards: tuple[Guard, ...]) -> int:
        """The uniformity of a branch under guards."""
        return max((max(self.level(g.index), self.level(g.extent)) for g in guards), default=GRID)

    def body(self, body: tuple[Stmt, ...], level: int) -> None:
        """Check statements in control flow of this uniformity."""
        for s in body:
            self.statement(s, level)

    def statement(self, s: Stmt, level: int) -> None:
        """One statement."""
        self.accesses(s)
        match s:
            case Bind():
                self.levels[s.axis.name] = max(self.level(s.value), self.guarded(s.guards))
            case When():
                self.body(s.body, max(level, self.guarded(s.guards)))
            case Loop():
                self.loop(s, level)
            case ReduceLoop():
                if s.scope in SCOPES:
                    self.whole(f"a reduction of a {s.scope}", s.scope, level)
                    if MONOIDS[s.combine].numpy is None:
                        self.say(f"{s.combine} across threads depends on their order")
                self.body(s.body, level)
            case Sync():
                self.whole("a barrier", s.scope, level)
            case Mma():
                self.whole("a product of fragments", "warp", level)
            case WarpgroupMma() | WaitProducts():
                self.whole("a product of a warpgroup", "warp", level)
            case WaitArrival():
                self.whole("a wait for boxes", "block", level)
            case Commit() | Wait():
                self.whole("a group of copies", "block", level)
            case _:
                pass

    def whole(self, what: str, scope: str, level: int) -> None:
        """Find a cooperative statement in control flow that is not uniform over its group."""
        if level > SCOPES[scope]:
            self.say(f"{what} is in a branch that not all threads of a {scope} take")

    def loop(self, s: Loop, level: int) -> None:
        """A loop; a distributed one diverges between those that it is distributed over."""
        own = max(DIVIDED.get(s.kind, GRID), self.level(s.begin), self.level(s.end))
        outer = self.vector
        self.levels[s.axis.name] = own
        if s.kind == "vector":
            count = s.end.constant
            self.vector = s.axis
            if s.begin.constant != 0 or count not in WIDE:
                self.say(f"a vector loop from {s.begin!r} to {s.end!r}, expected from 0 to one of {_WIDTHS}")
        if s.kind in ("unroll", "vector"):
            self.unrolled.add(s.axis.name)
            if s.begin.constant is None or s.end.constant is None:
                self.say(f"the loop over {s.axis!r} is {s.kind}, expected constant bounds")
        self.body(s.body, max(level, own))
        self.vector = outer

    # Accesses ---------------------------------------------------------------------------------------------------------

    def accesses(self, s: Stmt) -> None:
        """Check that registers have constant offsets and wide accesses are aligned."""
        if isinstance(s, CopyAsync):
            self.copy(s)
        if isinstance(s, Store):
            self.access(s.buffer, s.offset, stores=True)
            if s.stream or s.behind:
                self.say(f"a non-temporal or interleaved store into {s.buffer} in a GPU phase")
        for f in fields(s):
            if f.name != "body":
                for load in elements_read(getattr(s, f.name)):
                    self.access(load.source, load.index[0])

    def access(self, name: str, offset: Index, *, stores: bool = False) -> None:
        """An element of a buffer."""
        if name in self.swizzled and not stores:
            self.say(f"an element of {name} is read, which is swizzled")
        if self.spaces.get(name) in ("register", "fragment"):
            if not {a.name for a in axes_of(offset)} <= self.unrolled:
                self.say(f"register index of {name}[{offset!r}] is not a compile-time constant")
        elif self.vector is not None and coefficient(offset, self.vector) == Index.of(1):
            width = self.vector.extent.constant
            if width in WIDE:
                self.aligned(name, offset - self.vector, width)

    def aligned(self, name: str, offset: Index, width: int) -> None:
        """A wide access, from an offset on."""
        if width * self.types[name].bytes > ALIGNED:
            self.say(f"{width} elements of {name} are more than {ALIGNED} bytes")
        if not _divides(width, offset):
            self.say(f"an access of {width} elements at {name}[{offset!r}] is not aligned")

    def copy(self, s: CopyAsync) -> None:
        """An asynchronous copy."""
        if s.count * self.types[s.target].bytes not in (4, 8, 16) or self.types[s.target] != self.types[s.source]:
            self.say(f"a copy of {s.count} elements of {s.source} is not of 4, 8 or 16 bytes of one type")
        if self.spaces.get(s.target) != "shared" or s.source in self.private:
            self.say(f"an asynchronous copy goes from {s.source} to {s.target}, expected from global to shared memory")
        for name, at in ((s.target, s.to), (s.source, s.at)):
            self.aligned(name, at, s.count)


def _divides(width: int, offset: Index) -> bool:
    """Whether an offset is proven a multiple of a width: each of its terms is."""
    return all(c % width == 0 for _, c in offset.terms)


# Threads that run -----------------------------------------------------------------------------------------------------


def _run_some(kernel: Kernel) -> list[str]:
    """Faults of an interpreted sample, the first blocks and iterations, on zero inputs of some sizes."""
    found: dict[str, None] = {}
    for extent in EXTENTS if kernel.binds else EXTENTS[:1]:
        here = Iterations((), np.zeros(1, np.int64), _fitting(kernel, extent), {})
        shapes = [tuple(int(here.index(e)) for e in p.storage) for p in kernel.inputs]
        if any(e < 0 for shape in shapes for e in shape) or any(here.index(e) < 0 for e in kernel.requires):
            continue
        zeros = [np.zeros(shape, p.dtype.numpy) for shape, p in zip(shapes, kernel.inputs, strict=True)]
        try:
            run = prepared(kernel, bound(kernel, shapes), zeros, 1, 1, sample=True)
            for phase in kernel.phases:
                if phase.launch is not None:
                    run.phase(phase)
        except KernelFault as fault:
            found[str(fault)] = None
    return list(found)


def _fitting(kernel: Kernel, extent: int) -> Mapping[str, int]:
    """Values of symbols: this extent, and less for as many outer ones as it takes for each buffer to be small."""
    sizes = [product(list(p.storage)) for p in (*kernel.inputs, *kernel.outputs)] + [b.size for b in kernel.scratch]
    asked = [extent] * len(kernel.binds)
    while True:
        values = _symbols(kernel.binds, asked)
        here = Iterations((), np.zeros(1, np.int64), values, {})
        outer = next((at for at, each in enumerate(asked) if each > 1), None)
        if outer is None or all(int(here.index(size)) <= MOST_ELEMENTS for size in sizes):
            return values
        asked[outer] //= 2


def _symbols(binds: tuple[ExtentBind | Computed, ...], asked: Sequence[int]) -> Mapping[str, int]:
    """Values of symbols where bound dimensions have these extents, or their least; and of computed symbols."""
    values: dict[str, int] = {}
    here = Iterations((), np.zeros(1, np.int64), values, {})
    for b, extent in zip(binds, asked, strict=True):
        known = int(here.index(b.value)) if isinstance(b, Computed) else max(extent, b.symbol.least)
        values[b.symbol.name] = known
    return values
