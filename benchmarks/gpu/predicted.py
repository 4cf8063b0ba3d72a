"""What a network would take on an H200, and what its kernels move: as ONNX Runtime does it, and as built for GPUs.

`python -m benchmarks.gpu.predicted MODEL.onnx ...` prints two tables. Nothing is measured: it is the cost model of
plans (`onnxfuse/cost/gpu.py`), with the numbers of HERE, on the runtime's graph after its extended optimizations and on
the plan of `--target cuda`. It is written down to be confronted with the first device.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.gpu.boundaries import launches, optimized, stopped, table
from onnxfuse.cost.fusions import calls_of
from onnxfuse.cost.gpu import cost_of, node_seconds
from onnxfuse.cost.nodes import Call, work_of
from onnxfuse.ir.graph import Graph, Node
from onnxfuse.pipeline.state import have
from onnxfuse.pipeline.steps import nodes_left
from onnxfuse.plan.sizes import tensor_of
from onnxfuse.target import GPUS, Gpu

# An H200: an H100 with 4.8 TB/s of memory; from kernel to kernel in a graph as measured on an H100.
HERE: Gpu = replace(GPUS["sm_90"], bandwidth=4800, boundary_us=0.9)
ALONE = replace(HERE, boundary_us=0.0)


@dataclass
class Parts:
    """Microseconds of a network by what they go to, and bytes that kernels read and write."""

    products: float = 0.0
    theirs: float = 0.0  # other kernels of the runtime
    ours: float = 0.0
    count: int = 0  # kernels
    bytes: int = 0

    @property
    def boundaries(self) -> float:
        """Microseconds between kernels."""
        return self.count * HERE.boundary_us

    @property
    def all(self) -> float:
        """Microseconds of a run."""
        return self.products + self.theirs + self.ours + self.boundaries

    def node(self, call: Call) -> None:
        """A node of the runtime's."""
        count, kind = launches(call.op, call.input(2) is not None), work_of(call).kind
        if not count or kind == "view":
            return
        self.count += count
        self.bytes += sum(t.bytes for t in (*call.read, *call.outputs))
        seconds = node_seconds(call, ALONE) * 1e6
        if kind.startswith(("product", "convolution")):
            self.products += seconds
        else:
            self.theirs += seconds


def add_nodes(parts: Parts, graph: Graph, nodes: Iterable[Node]) -> None:
    """What nodes take that the runtime runs."""
    left = [n for n in nodes if all(graph.types.get(v) is not None for v in (*n.inputs, *n.outputs) if v)]
    names = dict.fromkeys(v for n in left for v in (*n.inputs, *n.outputs) if v)
    for call in calls_of(left, {v: tensor_of(graph, v, {}) for v in names}):
        parts.node(call)


def of_runtime(path: Path) -> Parts:
    """What the runtime's own graph takes."""
    parts = Parts()
    with tempfile.TemporaryDirectory() as folder:
        graph = have(stopped(optimized(path, Path(folder)), "load").loaded)
        add_nodes(parts, graph, graph.nodes)
    return parts


def of_build(path: Path) -> Parts:
    """What the plan for a GPU takes."""
    parts, b = Parts(), stopped(path, "schedule", replayed=True)
    graph, names = have(b.plan).graph, set(nodes_left(b))
    add_nodes(parts, graph, (n for n in graph.nodes if n.name in names))
    for part in b.all_parts:
        cost = cost_of(have(part.kernel), ALONE)
        assert cost is not None, "networks have no open sizes"
        parts.ours += cost.seconds * 1e6
        parts.count += len(cost.phases)
        parts.bytes += sum(p.bytes for p in cost.phases)
    return parts


HEAD = (
    "| network | runtime us | products | others | between | built us | products | others | ours | between |"
    " runtime / built | MB runtime | MB built |\n" + "| --- " + "| ---: " * 12 + "|\n"
)


def row(path: Path) -> str:
    """The line of a network."""
    a, b = of_runtime(path), of_build(path)
    numbers = [f"{x:.0f}" for x in (a.all, a.products, a.theirs, a.boundaries)]
    numbers += [f"{x:.0f}" for x in (b.all, b.products, b.theirs, b.ours, b.boundaries)]
    numbers += [f"{a.all / b.all:.2f}", f"{a.bytes / 1e6:.0f}", f"{b.bytes / 1e6:.0f}"]
    return f"| {path.stem} | {' | '.join(numbers)} |\n"


if __name__ == "__main__":
    table(HEAD, row, sys.argv[1:])
