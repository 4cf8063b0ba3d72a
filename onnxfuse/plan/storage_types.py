"""Values between kernels that are stored in a narrower type than their type in the graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from onnxfuse.config import Options
from onnxfuse.ir.dtype import F32, DType
from onnxfuse.ir.graph import Graph
from onnxfuse.ir.group import Group
from onnxfuse.ir.products import HALVES, rounds_to
from onnxfuse.target import Cpu

T = TypeVar("T")


def storage_types_of(
    graph: Graph,
    groups: Sequence[Group],
    options: Options,
    targets: Sequence[T],
    stores: Callable[[DType, T], bool],
) -> dict[str, DType]:
    """With `--precision`, the narrower storage type of every float32 value that only groups make and read.

    Only if all targets have products with operands of that type, so that conversion costs neither precision nor time.
    """
    half = HALVES[options.precision]
    if half is None or not all(stores(half, target) for target in targets):
        return {}
    inside = {n.name for g in groups for n in g.nodes}
    readers = graph.consumers()
    made = {v: graph.types.get(v) for g in groups for v in g.outputs if v not in graph.outputs}
    numbers = [v for v, t in made.items() if t is not None and t.dtype == F32]
    return {v: half for v in numbers if all(n.name in inside for n in readers.get(v, []))}


def stores(half: DType, target: Cpu) -> bool:
    """Whether a CPU has products with operands of this type."""
    return rounds_to(half, target.extras)
