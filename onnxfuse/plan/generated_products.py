"""Which matrix products get generated kernels on a GPU: those where fusion saves more than the runtime's are faster.

A generated product fuses its epilogue and a normalization before it, each of which is a kernel otherwise. The savings
are compared with the time that the product itself loses (little where cuBLASLt computes it with its epilogue), first
for every product alone, then for each pair with a normalization between them: its kernel is saved if the first product
fuses what precedes the normalization and the second one the normalization itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf

from onnxfuse.cost.fusions import calls_of
from onnxfuse.cost.gpu import kernel_seconds, library_seconds, node_seconds
from onnxfuse.cost.gpu_products import Sizes, seconds_of, tiles_of
from onnxfuse.cost.library_products import epilogue_of
from onnxfuse.cost.means import SymbolUnknown
from onnxfuse.ir.compose import inline, loads, walk
from onnxfuse.ir.contraction import contraction_of
from onnxfuse.ir.dtype import F32
from onnxfuse.ir.fragments import TENSOR_CORES
from onnxfuse.ir.graph import Graph, edges_of
from onnxfuse.ir.index import Axis
from onnxfuse.ir.indexing import product
from onnxfuse.ir.scalar import Reduce, Scalar
from onnxfuse.plan.kinds import ELEMENTWISE, MOVEMENT, REDUCTION, WEIGHTS, Kind
from onnxfuse.plan.rows import rows_of
from onnxfuse.plan.sizes import tensor_of
from onnxfuse.target import LIBRARY_SINCE, MOST_ROWS, Gpu

NUMBERS = 3  # statistics of each row that a normalization computes: mean, variance, and its root


@dataclass(frozen=True, slots=True)
class Own:
    """Positions of the products with generated kernels, and a map from nodes fused before a product to that product.

    `compared` are the products whose kernels were compared with those of the runtime, by time.
    """

    products: frozenset[int]
    compared: frozenset[int]
    before: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class _Product:
    """Seconds by which a generated product is slower than the runtime's, and the further seconds of a normalization."""

    loss: float
    norm: float


def sizes_of_product(graph: Graph, kind: Kind) -> Sizes | None:
    """The sizes of a product with weights; None if they are unknown, or it is not a single floating-point product."""
    (d, *others) = kind.definitions
    reduce = next((n for n in walk(d.value) if isinstance(n, Reduce)), None)
    found = contraction_of(d.axes, reduce) if reduce is not None else None
    if others or found is None or reduce is None or reduce.dtype != F32:
        return None
    c = found.weights_right(lambda x: all(n.source in graph.constants for n in loads(x)))
    rows, columns, depth = (product([a.extent for a in axes]).constant for axes in (c.rows, c.columns, c.ranges))
    if not rows or not columns or not depth or c.batch:
        return None
    types = {n.dtype for side in (c.left, c.right) for n in loads(side)}
    held = next((core.left.dtype for core in TENSOR_CORES if types == {core.left.dtype}), F32)
    return Sizes(1, rows, columns, depth, held)


def own_products(graph: Graph, kinds: Mapping[int, Kind], target: Gpu) -> Own:
    """The products with many rows that are worth a generated kernel."""
    return _Selection(graph, kinds, target).run()


def of_few_rows(graph: Graph, kind: Kind) -> bool:
    """Whether a product has so few rows that reading its weights determines the time."""
    s = sizes_of_product(graph, kind)
    return s is not None and s.rows <= MOST_ROWS


@dataclass(eq=False)
class _Selection:
    """Compares savings and losses of each product."""

    graph: Graph
    kinds: Mapping[int, Kind]
    target: Gpu
    readers: dict[str, list[int]] = field(default_factory=dict)
    makers: dict[str, int] = field(default_factory=dict)

    def run(self) -> Own:
        """The selected products: alone, then in pairs."""
        self.makers, self.readers = edges_of(self.graph)
        products = {i: p for i, k in self.kinds.items() if (p := self._product(i, k)) is not None}
        net = {i: p.loss - self._behind(i) for i, p in products.items()}
        own = {i for i, loss in net.items() if loss < 0}
        before: dict[int, int] = {}
        for j in sorted(products):
            chain = self._normalization(j)
            made_by = self._made_by(chain[0], products) if chain else None
            if chain and made_by is None:  # a transposition before it then saves its own kernel
                chain = self._with_transposition(chain)
                made_by = set() if chain else None
            if made_by is None:
                continue
            new = {j, *made_by} - own
            if sum(net[i] for i in sorted(new)) + products[j].norm < self._seconds(chain[0]):
                own |= new
                before |= dict.fromkeys(chain, j)
        return Own(frozenset(own), frozenset(products), before)

    def _product(self, i: int, kind: Kind) -> _Product | None:
        if kind.name != WEIGHTS or kind.images == "convolution":
            return None
        s = sizes_of_product(self.graph, kind)
        if s is None or s.rows <= MOST_ROWS:
            return None
        plain, norm = (self._our_seconds(replace(s, normalized=n, boxes=n == 0)) for n in (0, NUMBERS))
        runtime_seconds = self._runtime_seconds(i)
        if plain == inf or norm == inf or not runtime_seconds:
            return None
        best = min(plain, self._library_seconds(i, s))  # a product that normalizes its rows is a kernel of ours
        return _Product(best - runtime_seconds, norm - best)

    def _library_seconds(self, i: int, s: Sizes) -> float:
        """Seconds of a product and what follows it by cuBLASLt; infinite where it has no such epilogue."""
        behind = self._plain_behind(i)
        if behind is None or self.target.capability < LIBRARY_SINCE:
            return inf
        made = {d.name: d for n in (i, *behind) for d in self.kinds[n].definitions}
        whole = {i, *behind}
        left = [v for v in made if v in self.graph.outputs or not whole >= {*self.readers.get(v, ())}]
        if len(left) != 1:
            return inf
        before: dict[str, tuple[tuple[Axis, ...], Scalar]] = {}
        for name, d in made.items():
            before[name] = (d.axes, inline(d.value, before))
        axes, value = before[left[0]]
        reduce = next((n for n in walk(value) if isinstance(n, Reduce)), None)
        found = contraction_of(axes, reduce) if reduce is not None else None
        if found is None or reduce is None:
            return inf
        c = found.weights_right(lambda x: all(n.source in self.graph.constants for n in loads(x)))
        epilogue = epilogue_of(value, reduce, c.columns)
        if epilogue is None:
            return inf
        residual = epilogue.residual is not None
        return library_seconds(s.rows, s.columns, s.depth, s.dtype, epilogue.activation, self.target, residual=residual)

    def _our_seconds(self, s: Sizes) -> float:
        tile = next(iter(tiles_of(s, self.target)), None)
        return seconds_of(s, tile, self.target) if tile is not None else inf

    def _runtime_seconds(self, i: int) -> float:
        n = self.graph.nodes[i]
        try:
            tensors = {v: tensor_of(self.graph, v, {}) for v in (*n.inputs, *n.outputs) if v}
        except SymbolUnknown:
            return 0.0
        return sum(node_seconds(call, self.target) for call in calls_of([n], tensors))

    def _seconds(self, i: int) -> float:
        """Seconds of a kernel that computes a node alone."""
        n = self.graph.nodes[i]
        moved = [tensor_of(self.graph, v, {}).bytes for v in (n.inputs[0], n.outputs[0])]
        return kernel_seconds(sum(moved), self.target)

    def _behind(self, i: int) -> float:
        """Seconds saved by fusing the epilogue of a product: those of a kernel, if it ends before any reduction."""
        works = any(not self.kinds[r].keeps_order for r in self._plain_behind(i) or ())
        return self._seconds(i) if works else 0.0

    def _plain_behind(self, i: int) -> list[int] | None:
        """The nodes of an epilogue, in order; None where there is a kernel after it anyway, which computes it too."""
        waiting, seen = [i], {i}
        while waiting:
            for v in self.graph.nodes[waiting.pop()].outputs:
                for r in self.readers.get(v, ()):
                    kind = self.kinds.get(r)
                    if kind is None or r in seen or kind.name == WEIGHTS:
                        continue
                    if not self._plain(r):
                        return None
                    seen.add(r)
                    waiting.append(r)
        return sorted(seen - {i})

    def _normalization(self, j: int) -> tuple[int, ...]:
        """The normalization read only by a product, and the nodes between them, in order; empty if there is none."""
        chain: list[int] = []
        at = self.graph.nodes[j].inputs[0]
        while at in self.makers and at not in self.graph.outputs and len(self.readers[at]) == 1:
            i = self.makers[at]
            kind = self.kinds.get(i)
            if kind is None or len([o for o in self.graph.nodes[i].outputs if o]) > 1:
                return ()
            chain.insert(0, i)
            if kind.name == REDUCTION:
                return tuple(chain) if self._keeps_rows(i, kind) else ()
            if kind.name != MOVEMENT or not kind.keeps_order:
                return ()
            at = self.graph.nodes[i].inputs[0]
        return ()

    def _with_transposition(self, chain: tuple[int, ...]) -> tuple[int, ...]:
        """A normalization with the transposition before it, of a value not made by a kernel; else empty."""
        value = self.graph.nodes[chain[0]].inputs[0]
        turn = self.makers.get(value)
        kind = self.kinds.get(turn) if turn is not None else None
        if turn is None or kind is None or kind.name != MOVEMENT or not self._plain(turn):
            return ()
        alone = len(self.readers[value]) == 1 and value not in self.graph.outputs
        before = [*self._before(turn)]
        return (turn, *chain) if alone and len(before) == 1 and not self._plain(before[0]) else ()

    def _keeps_rows(self, i: int, kind: Kind) -> bool:
        """Whether a node reduces within rows and keeps the shape."""
        n = self.graph.nodes[i]
        read, made = self.graph.types.get(n.inputs[0]), self.graph.types.get(n.outputs[0])
        return rows_of(kind) is not None and read is not None and made is not None and read.shape == made.shape

    def _made_by(self, norm: int, products: Mapping[int, _Product]) -> set[int] | None:
        """The product that can fuse what precedes a normalization, if any; None if that is a kernel anyway."""
        first = self.makers.get(self.graph.nodes[norm].inputs[0])
        if first is None or not self._plain(first):
            return {first} & products.keys() if first is not None else set()
        seen, waiting, found = {first}, [first], set[int]()
        while waiting:
            new = {m for m in self._before(waiting.pop()) if m not in seen}
            seen |= new
            waiting += [m for m in new if self._plain(m)]
            found |= {m for m in new if not self._plain(m)}
        last = max(found, default=-1)  # the results of earlier ones are inputs of its epilogue
        return {last} if last in products else None

    def _plain(self, i: int) -> bool:
        """Whether a node is fused into its producer."""
        kind = self.kinds.get(i)
        if kind is None or kind.name != MOVEMENT or kind.keeps_order:
            return kind is not None and kind.name in (ELEMENTWISE, MOVEMENT)
        return not kind.joins and all(len(self.readers[v]) == 1 for v in self.graph.nodes[i].reads)

    def _before(self, i: int) -> Iterator[int]:
        return (self.makers[v] for v in dict.fromkeys(self.graph.nodes[i].reads) if v in self.makers)
