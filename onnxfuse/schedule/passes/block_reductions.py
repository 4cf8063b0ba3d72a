"""Reductions of a block spelled out: of each warp first, then of what the warps leave in shared memory.

Each thread combines the results of few warps itself, those of many are a reduction of a warp again.

A barrier behind lets everybody see what is there. One before lets everybody have read what was; it is not needed where
reductions follow each other with a place each: between reading one and storing to it lies the barrier of another.
"""

from __future__ import annotations

from dataclasses import replace

from onnxfuse.ir.dtype import DType
from onnxfuse.ir.index import ZERO, Axis, Index
from onnxfuse.ir.kernel import Accumulate, Buffer, Kernel, Loop, Phase, ReduceLoop, Stmt, Store, When, statements
from onnxfuse.ir.launch import ALIGNED, Sync
from onnxfuse.ir.scalar import Load, variable

PARTS = "warps"  # the buffer that warps leave their partial results in
FEW = 8  # results of warps that each thread combines itself: it reads them at once, where shuffles wait for each other


def block_reductions(kernel: Kernel, _: object) -> Kernel:
    """The kernel with the reductions of blocks spelled out in all of its phases."""
    return replace(kernel, phases=tuple(in_warps(p) if p.launch is not None else p for p in kernel.phases))


def in_warps(phase: Phase) -> Phase:
    """A launched phase whose reductions of a block are reductions of warps, and one more of their results."""
    assert phase.launch is not None
    made = _Warps(phase)
    body = made.body(phase.body)
    if not made.used:
        return phase
    buffers = tuple(made.used.values())
    shared = max(b.at + int(b.size.constant or 0) * b.dtype.bytes for b in buffers if b.at is not None)
    return replace(
        phase, body=body, locals=(*phase.locals, *buffers), launch=replace(phase.launch, shared=Index.of(shared))
    )


class _Warps:
    """The buffers of one phase while its statements are rewritten: one for each type, or for each reduction."""

    def __init__(self, phase: Phase) -> None:
        assert phase.launch is not None
        block, shared = phase.launch.block.constant, phase.launch.shared.constant
        assert block is not None
        assert shared is not None
        self.warps, self.lanes, self.next = block // phase.launch.lanes, phase.launch.lanes, shared
        self.used: dict[str, Buffer] = {}
        self.count = self.places = 0
        self.all = _reductions(tuple(statements(phase.body)))
        self.apart = False

    def body(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """Statements with reductions across the block rewritten."""
        made: list[Stmt] = []
        self.apart = self.apart or _reductions(body) == self.all > 1  # several, and no others elsewhere
        for s in body:
            if isinstance(s, (Loop, When, ReduceLoop)):
                s = replace(s, body=self.body(s.body))
            made += self.reduced(s) if isinstance(s, ReduceLoop) and s.scope == "block" else [s]
        return tuple(made)

    def reduced(self, s: ReduceLoop) -> tuple[Stmt, ...]:
        """One reduction; the variables of the warps' results are named after those of the block."""
        assert self.warps <= self.lanes, "a warp reduces what all warps leave"
        self.count += 1
        variables = {t: f"{t}.warp" for t in s.targets}
        first = replace(s, targets=tuple(variables.values()), body=_renamed(s.body, variables), scope="warp")
        made: list[Stmt] = [first]
        for target, part in variables.items():
            buffer = self.buffer(s.dtype)
            few = self.warps <= FEW
            warp = Axis(f"w{self.count}", Index.of(self.warps))
            lane = Axis(f"l{self.count}", Index.of(self.warps if few else self.lanes))
            left = Store(buffer.name, Index.of(warp), variable(part, s.dtype))
            one = Loop(lane, ZERO, Index.of(1), "lane", (left,))
            store = Loop(warp, ZERO, warp.extent, "warp", (one,))
            read = Accumulate((target,), s.combine, (Load(buffer.name, (Index.of(lane),), s.dtype),))
            again = Loop(lane, ZERO, warp.extent, "unroll" if few else "lane", (read,))
            total = ReduceLoop((target,), s.combine, s.dtype, (again,), scope="serial" if few else "warp")
            made += [*(() if self.apart else (Sync("block"),)), store, Sync("block"), total]
        return tuple(made)

    def buffer(self, dtype: DType) -> Buffer:
        """A buffer of a type, an element for each warp."""
        self.places += self.apart
        name = f"{PARTS}_{dtype}_{self.places}" if self.apart else f"{PARTS}_{dtype}"
        if name not in self.used:
            at = -(-self.next // ALIGNED) * ALIGNED
            self.used[name] = Buffer(name, dtype, Index.of(self.warps), "shared", at)
            self.next = at + self.warps * dtype.bytes
        return self.used[name]


def _reductions(body: tuple[Stmt, ...]) -> int:
    """How many results statements reduce across the block."""
    return sum(len(s.targets) for s in body if isinstance(s, ReduceLoop) and s.scope == "block")


def _renamed(body: tuple[Stmt, ...], names: dict[str, str]) -> tuple[Stmt, ...]:
    """Statements that accumulate into other variables."""
    made: list[Stmt] = []
    for s in body:
        if isinstance(s, (Loop, When, ReduceLoop)):
            s = replace(s, body=_renamed(s.body, names))
        elif isinstance(s, Accumulate):
            s = replace(s, targets=tuple(names.get(t, t) for t in s.targets))
        made.append(s)
    return tuple(made)
