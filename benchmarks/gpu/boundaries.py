"""Kernels that a GPU would run for a network: as ONNX Runtime does it, and as built with `--target cuda`.

`python -m benchmarks.gpu.boundaries MODEL.onnx ...` prints a table; nothing runs on a device. The runtime's graph is
what its extended optimizations leave, written by a session of the CPU provider; each node counts what BOUNDARIES says.
Of a build every phase of a kernel is one boundary, and every node that is left counts as the runtime's own.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from unittest.mock import patch

import onnx
import onnxruntime

from onnxfuse.ir.graph import Node
from onnxfuse.pipeline import run
from onnxfuse.pipeline.state import Build, Context, have
from onnxfuse.pipeline.steps import nodes_left

# Launches of a node in the CUDA provider: the least that its kernels in float32 do, 1 where nothing is said.
BOUNDARIES = {
    **dict.fromkeys(
        ("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Constant", "Shape", "Size", "Dropout"), 0
    ),
    "Attention": 4,  # product, heads apart, scores with softmax, values
    "EmbedLayerNormalization": 1,
    **dict.fromkeys(
        ("FusedConv", "NhwcFusedConv"), 2
    ),  # the provider has no such nodes: the activation is one of its own
}
# A bias is a launch of its own: copied into the result before, or added behind a convolution, as seen on an H100.
BIASED = ("Gemm", "FusedGemm", "Conv", "FusedConv", "NhwcFusedConv")
PRODUCTS = ("MatMul", "FusedMatMul", "Gemm", "FusedGemm", "Conv", "FusedConv", "NhwcFusedConv", "Einsum")


@dataclass(frozen=True)
class Count:
    """Boundaries of a network, those of products apart."""

    all: int
    products: int

    @property
    def others(self) -> int:
        """Those that are not products."""
        return self.all - self.products


def launches(op: str, biased: bool) -> int:
    """Launches of a node; `biased` nodes have a third input."""
    return BOUNDARIES.get(op, 1) + (op in BIASED and biased)


def counted(nodes: Iterable[tuple[str, Sequence[str]]]) -> Count:
    """The boundaries of nodes, by their operators and inputs."""
    found = [(op, launches(op, len(inputs) > 2 and inputs[2] != "")) for op, inputs in nodes]
    products = sum(1 for op, _ in found if op in PRODUCTS or op == "Attention")
    return Count(sum(count for _, count in found), products)


def optimized(path: Path, folder: Path) -> Path:
    """The file of what the runtime makes of a model."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.log_severity_level = 3
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return folder / "optimized.onnx"


def of_runtime(path: Path) -> Count:
    """The boundaries of what the runtime makes of a model."""
    with tempfile.TemporaryDirectory() as folder:
        graph = onnx.load(optimized(path, Path(folder))).graph
    return counted((n.op_type, n.input) for n in graph.node)


def stopped(path: Path, step: str, *, replayed: bool = False) -> Build:
    """The build of a model up to a step; planned for CUDA graphs where it is to be `replayed`."""
    seen: list[Build] = []
    original = run._result

    def result(context: Context, b: Build, *others: object) -> object:
        seen.append(b)
        return original(context, b, *others)  # type: ignore[arg-type]  # what it was given

    with patch.object(run, "_result", result):
        run.optimize(path, None, target="cuda", arch=("sm_90",), cuda_graph=replayed, stop_after=step)
    return seen[0]


def of_build(b: Build) -> tuple[Count, int]:
    """The boundaries of a build for GPUs, and how many of them are kernels of the library."""
    graph = have(b.plan).graph
    names = set(nodes_left(b))
    left = counted((n.op, n.inputs) for n in graph.nodes if n.name in names)
    ours = sum(len(have(p.kernel).phases) for p in b.all_parts)
    return Count(left.all + ours, left.products), ours


def between_products(b: Build) -> int:
    """The most kernels from a product to the next one: of all that a product depends on, the last product before it.

    Attention and convolutions are products. What residual connections lead around does not count.
    """
    graph = have(b.plan).graph
    unit = {n.name: i for i, part in enumerate(b.all_parts) for n in part.group.nodes}
    nodes: dict[int | str, list[Node]] = {}  # of each group, and those that are left
    for n in graph.nodes:
        nodes.setdefault(unit.get(n.name, n.name), []).append(n)
    made = {o: u for u, each in nodes.items() for n in each for o in n.outputs if o}
    reads = {u: {made[v] for n in each for v in n.reads if made.get(v, u) != u} for u, each in nodes.items()}
    order = list(TopologicalSorter(reads).static_order())
    products = {u for u in order if any(n.op in PRODUCTS for n in nodes[u])}
    number = {u: at for at, u in enumerate(order)}

    def kernels(u: int | str) -> int:
        if isinstance(u, int):
            return len(have(b.all_parts[u].kernel).phases)
        return launches(nodes[u][0].op, len(nodes[u][0].inputs) > 2)

    found, since = 0, dict[int | str, tuple[int, int]]()  # the number of the last product, and kernels since then
    for u in order:
        before = [since[r] for r in reads[u] if r in since]
        last = max((product for product, _ in before), default=0)
        count = max((kernels_ for product, kernels_ in before if product == last), default=0)
        if u in products:
            found, since[u] = max(found, count), (number[u], 0)
        elif before:
            since[u] = (last, count + kernels(u))
    return found


HEAD = (
    "| network | runtime | products | built | products | kernels | built / runtime | others, built / runtime "
    "| between |\n"
    "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"
)


def row(path: Path) -> str:
    """The line of a network."""
    theirs, b = of_runtime(path), stopped(path, "schedule")
    made, ours = of_build(b)
    share = made.others / max(theirs.others, 1)
    return (
        f"| {path.stem} | {theirs.all} | {theirs.products} | {made.all} | {made.products} | {ours} "
        f"| {made.all / theirs.all:.2f} | {made.others} / {theirs.others} = {share:.2f} | {between_products(b)} |\n"
    )


def table(head: str, row_of: Callable[[Path], str], paths: Sequence[str]) -> None:
    """A table of networks, printed line by line as they are done."""
    sys.stdout.write(head)
    for path in map(Path, paths):
        sys.stdout.write(row_of(path))
        sys.stdout.flush()


if __name__ == "__main__":
    table(HEAD, row, sys.argv[1:])
