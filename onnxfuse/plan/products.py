"""Which matrix products get kernels on a GPU: those of attention, skinny ones, and some more.

`generated_products` selects those. All others are left to the runtime, and so are convolutions but depthwise ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from onnxfuse.ir.compose import indices_of, walk
from onnxfuse.ir.contraction import contraction_of
from onnxfuse.ir.dtype import F32
from onnxfuse.ir.graph import Decision, Graph, edges_of
from onnxfuse.ir.index import ONE, axes_of
from onnxfuse.ir.indexing import coefficient, product
from onnxfuse.ir.scalar import Reduce
from onnxfuse.plan.generated_products import of_few_rows, own_products
from onnxfuse.plan.kinds import BATCHED, ELEMENTWISE, MOVEMENT, RECURRENT, REDUCTION, WEIGHTS, WINDOW, Kind
from onnxfuse.plan.own_convolutions import own_convolutions
from onnxfuse.target import MOST_DEPTH, Gpu

CHANNELS = 2  # axes of an image before those of its pixels: image and channel


def products_refused(graph: Graph, kinds: Mapping[int, Kind], target: Gpu) -> dict[int, Decision]:
    """Refusals of the products and convolutions that are left to the runtime on a GPU."""
    selected = own_products(graph, kinds, target)
    own = {i for pair in _attentions(graph, kinds) for i in pair} | selected.products
    own |= {i for i, k in kinds.items() if k.name == WEIGHTS and k.images == "" and of_few_rows(graph, k)}
    own |= own_convolutions(graph, kinds, target)
    own -= {i for i, k in kinds.items() if k.products > 1 and not graph.nodes[i].standard}  # one kernel there already
    found = {}
    for i, kind in kinds.items():
        if kind.name == RECURRENT:
            said = "recurrent layers are left to ONNX Runtime on GPUs"
            found[i] = Decision("E-NO-KERNEL", (graph.nodes[i].name,), f"{graph.nodes[i].op}: {said}", "--target cpu")
        products = kind.name in (WEIGHTS, BATCHED) and i not in own
        if products or (kind.images == "convolution" and i not in own and not _slides(kind)):
            n = graph.nodes[i]
            code, said = "E-NO-KERNEL", "such products and convolutions are left to ONNX Runtime on GPUs"
            if i in selected.compared:
                code, said = "E-COST", "its kernel would lose more time than fusion saves: left to ONNX Runtime on GPUs"
            found[i] = Decision(code, (n.name,), f"{n.op}: {said}", "--target cpu")
    return found


def _slides(kind: Kind) -> bool:
    """Whether a convolution is of each channel by itself, by windows whose elements are so many apart each."""
    reduces = [(d, n) for d in kind.definitions for n in walk(d.value) if isinstance(n, Reduce)]
    if kind.name != WINDOW or len(reduces) != 1:
        return False
    ((d, reduce),) = reduces
    ranges = [r for r in reduce.ranges if r.extent != ONE]
    steps = [coefficient(e, r) for e in indices_of(reduce) for r in ranges if r in axes_of(e)]
    return len(ranges) <= len(d.axes) - CHANNELS and all(c is not None and (c.constant or 0) > 0 for c in steps)


def _attentions(graph: Graph, kinds: Mapping[int, Kind]) -> Iterator[tuple[int, ...]]:
    """Pairs of products with a reduction between them, and single operators that are whole attentions."""
    _, readers = edges_of(graph)
    fit = {i for i, k in kinds.items() if k.name == BATCHED and _fits(k)}
    for i in sorted(fit):
        if kinds[i].products > 1:
            yield (i,)
        else:
            yield from ((i, j) for j in _behind(i, graph, kinds, readers) if j in fit and kinds[j].products == 1)


def _fits(kind: Kind) -> bool:
    """Whether all contractions are floating-point, and have a depth or number of columns that fits a block."""
    for d in kind.definitions:
        for reduce in (n for n in walk(d.value) if isinstance(n, Reduce)):
            found = contraction_of(d.axes, reduce)
            if found is None:
                continue
            sizes = [product([a.extent for a in axes]).constant for axes in (found.ranges, found.columns)]
            if reduce.dtype != F32 or all(n is None or n > MOST_DEPTH for n in sizes):
                return False
    return True


def _behind(first: int, graph: Graph, kinds: Mapping[int, Kind], readers: Mapping[str, list[int]]) -> Iterator[int]:
    """Products whose left operand is computed from another product with a reduction in between."""
    waiting, seen = [(first, False)], {(first, False)}
    while waiting:
        at, reduced = waiting.pop()
        for v in graph.nodes[at].outputs:
            for i in readers.get(v, ()):
                kind = kinds.get(i)
                if kind is None:
                    continue
                if kind.name == BATCHED and reduced and graph.nodes[i].inputs[0] == v:
                    yield i
                here = (i, reduced or kind.name == REDUCTION)
                if kind.name in (ELEMENTWISE, MOVEMENT, REDUCTION) and here not in seen:
                    seen.add(here)
                    waiting.append(here)
