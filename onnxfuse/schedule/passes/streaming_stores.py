"""Non-temporal stores for outputs larger than every cache, so that their lines are not read before they are written."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import replace

from onnxfuse.ir.compose import loads
from onnxfuse.ir.dtype import F32
from onnxfuse.ir.index import ONE, Axis
from onnxfuse.ir.indexing import coefficient, product
from onnxfuse.ir.kernel import Accumulate, Kernel, Let, Loop, Param, Phase, ReduceLoop, Stmt, Store, When, statements
from onnxfuse.ir.scalar import Scalar
from onnxfuse.ir.tile import Tile
from onnxfuse.target import Cpu


def too_large(outputs: Sequence[Param], target: Cpu) -> frozenset[str]:
    """Outputs that are known to be too large for the last-level cache."""
    sizes = {p.name: product(p.shape).constant or 0 for p in outputs if p.dtype == F32}
    return frozenset(name for name, size in sizes.items() if 4 * size >= 2 * target.l3_bytes)


def streamed(kernel: Kernel, target: Cpu) -> Kernel:
    """The kernel with non-temporal stores to outputs that are too large, in phases without register tiles."""
    large = too_large(kernel.outputs, target)

    def phase(p: Phase) -> Phase:
        tiled = p.rows is None and any(isinstance(s, Tile) for s in statements(p.body))
        return p if tiled else _streaming(p, large)

    return replace(kernel, phases=tuple(map(phase, kernel.phases))) if large else kernel


def _streaming(phase: Phase, large: frozenset[str]) -> Phase:
    """The phase with non-temporal stores to those large outputs that it does not read again."""
    names = large - {x.source for v in _values(phase.body) for x in loads(v)}
    return replace(phase, body=_streamed(phase.body, names, None)) if names else phase


def _values(body: tuple[Stmt, ...]) -> Iterator[Scalar]:
    for s in statements(body):
        if isinstance(s, Let):
            yield s.value
        elif isinstance(s, (Store, Accumulate)):
            yield from s.values


def _streamed(body: tuple[Stmt, ...], names: Container[str], axis: Axis | None) -> tuple[Stmt, ...]:
    """Statements with such stores; `axis` is that of the enclosing vector loop."""
    made: list[Stmt] = []
    for s in body:
        if isinstance(s, Loop):
            s = replace(s, body=_streamed(s.body, names, s.axis if s.kind == "vector" else axis))
        elif isinstance(s, (ReduceLoop, When)):
            s = replace(s, body=_streamed(s.body, names, axis))
        elif isinstance(s, Store) and s.buffer in names and axis is not None and coefficient(s.offset, axis) == ONE:
            s = replace(s, stream=True)
        made.append(s)
    return tuple(made)
