"""Which convolutions get kernels on a GPU: those that cuDNN computes faster with all images channels last.

The runtime's provider leaves images as ONNX has them, so that cuDNN changes the layout around each convolution that
multiplies more than points, and what follows is a kernel. In a kernel of ours both are saved, and images between
kernels lie channels last; where a neighbour is the runtime's, the image is turned once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from onnxfuse.cost.fusions import calls_of
from onnxfuse.cost.gpu import convolution_seconds, kernel_seconds, node_seconds, turning_seconds
from onnxfuse.cost.library_convolutions import Convolution, convolution_of, without_unit_axes
from onnxfuse.cost.library_products import epilogue_of
from onnxfuse.cost.means import SymbolUnknown
from onnxfuse.ir.compose import inline, outermost
from onnxfuse.ir.graph import Graph, edges_of
from onnxfuse.ir.index import Axis
from onnxfuse.ir.indexing import product
from onnxfuse.ir.scalar import Scalar
from onnxfuse.plan.kinds import ELEMENTWISE, MOVEMENT, REDUCTION, WEIGHTS, WINDOW, Kind
from onnxfuse.plan.sizes import tensor_of
from onnxfuse.target import LIBRARY_SINCE, Gpu

LEAST = 0.5e-6  # seconds that a convolution has to save, so that the model may be a little wrong


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A convolution: seconds that its kernel saves between kernels of ours, and bytes of its image and its result.

    `last` is the value behind its epilogue.
    """

    saved: float
    image: int
    made: int
    last: str


def own_convolutions(graph: Graph, kinds: Mapping[int, Kind], target: Gpu) -> frozenset[int]:
    """Positions of the convolutions that get kernels."""
    return _Selection(graph, kinds, target).run() if target.capability >= LIBRARY_SINCE else frozenset()


@dataclass(eq=False)
class _Selection:
    """Compares what kernels save with what turning images takes where neighbours are the runtime's."""

    graph: Graph
    kinds: Mapping[int, Kind]
    target: Gpu
    readers: dict[str, list[int]] = field(default_factory=dict)
    makers: dict[str, int] = field(default_factory=dict)
    taken: set[int] = field(default_factory=set)  # nodes that are behind a convolution already

    def run(self) -> frozenset[int]:
        """All that save time, without those, one after the other, that save none beside the others."""
        self.makers, self.readers = edges_of(self.graph)
        found = {i: c for i, k in self.kinds.items() if (c := self._candidate(i, k)) is not None}
        while found:
            saved = {i: c.saved - self._turns(i, c, found) for i, c in found.items()}
            least = min(saved, key=lambda i: (saved[i], i))
            if saved[least] > LEAST:
                break
            del found[least]
        return frozenset(found)

    def _candidate(self, i: int, kind: Kind) -> _Candidate | None:
        n = self.graph.nodes[i]
        known = [self.graph.types.get(v) for v in (*n.inputs, *n.outputs) if v]
        if kind.images != "convolution" or kind.name != WEIGHTS or len(kind.definitions) != 1 or None in known:
            return None
        (d,) = kind.definitions
        c = convolution_of(without_unit_axes(d), {v: t.shape for v, t in self.graph.types.items() if t is not None})
        if c is None or c.weights.source not in self.graph.constants or c.groups > 1:
            return None
        try:
            tensors = {v: tensor_of(self.graph, v, {}) for v in (*n.inputs, *n.outputs) if v}
        except SymbolUnknown:
            return None
        image, made = tensors[n.inputs[0]].bytes, tensors[n.outputs[0]].bytes
        calls = [*calls_of([n], tensors)]
        theirs = sum(node_seconds(call, self.target) + turning_seconds(call, self.target) for call in calls)
        chain = self._behind(i)
        last = self.graph.nodes[chain[-1]].outputs[0] if chain else n.outputs[0]
        added = made * self._residuals(chain)
        if chain and self._is_epilogue(i, chain, c):
            theirs += kernel_seconds(2 * made + added, self.target)
        else:
            added = 0
        operations = 2.0 * (product(d.shape).constant or 0) * c.window[0] * c.window[1] * c.channels
        moved = sum(t.bytes for t in tensors.values()) + added
        ours = convolution_seconds(operations, moved, d.value.dtype, self.target)
        return _Candidate(theirs - ours, image, made, last)

    def _behind(self, i: int) -> list[int]:
        """The elementwise nodes behind a convolution, each the only reader of the one before, and behind no other."""
        chain: list[int] = []
        at = self.graph.nodes[i].outputs[0]
        while at not in self.graph.outputs and len(self.readers.get(at, ())) == 1:
            (r,) = self.readers[at]
            kind, made = self.kinds.get(r), self.graph.types.get(self.graph.nodes[r].outputs[0])
            same = made is not None and made == self.graph.types[self.graph.nodes[i].outputs[0]]
            if kind is None or kind.name != ELEMENTWISE or not same or r in self.taken:
                break
            chain.append(r)
            self.taken.add(r)
            at = self.graph.nodes[r].outputs[0]
        return chain

    def _residuals(self, chain: list[int]) -> int:
        """How many images a chain reads besides that of its convolution."""
        made = {o for i in chain for o in self.graph.nodes[i].outputs}
        first = self.graph.nodes[chain[0]].inputs if chain else ()
        read = [v for i in chain for v in self.graph.nodes[i].reads if v not in self.graph.constants and v not in made]
        return max(len([v for v in read if v not in first[:1]]) - (len(first) > 1 and first[0] not in read), 0)

    def _is_epilogue(self, i: int, chain: list[int], c: Convolution) -> bool:
        """Whether the call computes what is behind."""
        values: dict[str, tuple[tuple[Axis, ...], Scalar]] = {}
        axes, value = c.total.ranges, None
        for at in (i, *chain):
            for d in self.kinds[at].definitions:
                axes, value = d.axes, inline(d.value, values)
                values[d.name] = (axes, value)
        total = outermost(value) if value is not None else None
        found = epilogue_of(value, total, axes[1:2]) if value is not None and total is not None else None
        return found is not None and found.bias is not None and found.activation != "gelu"

    def _turns(self, i: int, c: _Candidate, own: Mapping[int, _Candidate]) -> float:
        """Seconds of turning the image and the result, where a neighbour is the runtime's."""
        maker = self.makers.get(self.graph.nodes[i].inputs[0])
        before = maker is None or not (maker in own or self._turns_itself(maker))
        readers = self.readers.get(c.last, [])
        behind = c.last in self.graph.outputs or not all(r in own or self._turns_itself(r) for r in readers)
        sizes = [c.image] * before + [c.made] * behind
        return sum(kernel_seconds(2 * size, self.target) for size in sizes)

    def _turns_itself(self, i: int) -> bool:
        """Whether a node is part of a kernel that reads and stores images as they lie."""
        kind = self.kinds.get(i)
        return kind is not None and kind.name in (ELEMENTWISE, MOVEMENT, REDUCTION, WINDOW)
