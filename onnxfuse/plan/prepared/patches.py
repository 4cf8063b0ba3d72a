"""Convolutions of patches that do not overlap, as products of what the patches hold.

A convolution whose stride is the size of its kernel, without padding, is a matrix product: of one row of elements for
each patch of the image, and the weights. ONNX Runtime's CUDA provider leaves it to cuDNN, which changes the layout of
image, weights and result around it and has poor kernels for large patches; as a product it is one kernel, and the
movement around it joins the kernels that write the image and read the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxfuse.ir.dtype import I64, DType
from onnxfuse.ir.graph import Attribute, Constant, Graph, Node, TensorType
from onnxfuse.ir.index import Index


@dataclass(frozen=True, slots=True)
class Patches:
    """A convolution of patches: batch, sizes of the image, sizes of a patch, and the weight."""

    batch: Index
    channels: int
    image: tuple[int, ...]
    patch: tuple[int, ...]
    weight: Constant

    @property
    def places(self) -> tuple[int, ...]:
        """How many patches lie along each axis."""
        return tuple(n // k for n, k in zip(self.image, self.patch, strict=True))


def patches_as_products(graph: Graph) -> Graph:
    """The graph with each convolution of patches that do not overlap as a MatMul with movement around it."""
    draft = _Draft(graph)
    for n in graph.nodes:
        found = _patches(n, graph)
        if found is None or draft.taken(n):
            draft.nodes.append(n)
        else:
            draft.product(n, found)
    return graph if len(draft.nodes) == len(graph.nodes) else draft.graph()


def _patches(n: Node, graph: Graph) -> Patches | None:
    """What a convolution of patches with a constant weight is of; None for any other node."""
    if n.op != "Conv" or not n.standard or n.attrs.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return None
    x, weight = graph.types.get(n.inputs[0]), graph.constants.get(n.inputs[1])
    if x is None or weight is None or graph.types.get(n.outputs[0]) is None or not x.dtype.floating:
        return None
    image, patch = tuple(e.constant or 0 for e in x.shape[2:]), weight.shape[2:]
    ones, zeros = (1,) * len(patch), (0,) * (2 * len(patch))
    plain = n.attrs.get("group", 1) == 1 and n.attrs.get("dilations", ones) == ones
    padded = n.attrs.get("pads", zeros) != zeros
    if not plain or padded or n.attrs.get("strides", ones) != patch or patch == ones:
        return None
    whole = all(size and size % k == 0 for size, k in zip(image, patch, strict=True))
    return Patches(x.shape[0], weight.shape[1], image, patch, weight) if whole else None


class _Draft:
    """The nodes of a graph that replaces another, with the types and constants of what is new."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.nodes: list[Node] = []
        self._types: dict[str, TensorType | None] = dict(graph.types)
        self._constants: dict[str, Constant] = dict(graph.constants)
        self._known: dict[str, tuple[Index, ...]] = dict(graph.known)

    def graph(self) -> Graph:
        """The graph of what was drafted."""
        return self._graph.with_nodes(self.nodes, types=self._types, constants=self._constants, known=self._known)

    def taken(self, conv: Node) -> bool:
        """Whether the model has a value that could be mistaken for one of those that are made for a convolution."""
        return any(name.startswith(f"{conv.outputs[0]}/") for name in self._graph.types)

    def product(self, conv: Node, p: Patches) -> None:
        """The product that a convolution is: rows of patches times weights, a bias, and channels before positions."""
        x, rank, columns = conv.inputs[0], len(p.patch), p.weight.shape[0]
        dtype, count, depth = p.weight.dtype, prod(p.places), p.channels * prod(p.patch)
        apart = (p.channels, *(n for pair in zip(p.places, p.patch, strict=True) for n in pair))
        split = self._reshaped(conv, x, dtype, (p.batch, *apart), "apart")
        order = (0, *range(2, 2 + 2 * rank, 2), 1, *range(3, 3 + 2 * rank, 2))
        moved = self._transposed(conv, split, dtype, (p.batch, *p.places, p.channels, *p.patch), order, "patches")
        rows = self._reshaped(conv, moved, dtype, (p.batch, count, depth), "rows")
        load = p.weight.load
        weight = self._constant(conv, "matrix", dtype, (depth, columns), lambda: _matrix(load()))
        y = self._made(conv, "MatMul", (rows, weight), dtype, (p.batch, count, columns), "product")
        if len(conv.inputs) > 2 and conv.inputs[2]:
            y = self._made(conv, "Add", (y, conv.inputs[2]), dtype, (p.batch, count, columns), "biased")
        back = self._transposed(conv, y, dtype, (p.batch, columns, count), (0, 2, 1), "channels")
        self._reshaped(conv, back, dtype, (p.batch, columns, *p.places), "")

    def _made(
        self,
        conv: Node,
        op: str,
        inputs: tuple[str, ...],
        dtype: DType,
        shape: tuple[Index | int, ...],
        name: str,
        attrs: dict[str, Attribute] | None = None,
    ) -> str:
        """A new node, whose result is the convolution's where it has no name of its own."""
        made = f"{conv.outputs[0]}/{name}" if name else conv.outputs[0]
        self._types[made] = TensorType(dtype, tuple(map(Index.of, shape)))
        title = f"{conv.name}/{name}" if name else conv.name
        self.nodes.append(replace(conv, op=op, inputs=inputs, outputs=(made,), attrs=attrs or {}, name=title))
        return made

    def _transposed(
        self, conv: Node, x: str, dtype: DType, shape: tuple[Index | int, ...], order: tuple[int, ...], name: str
    ) -> str:
        return self._made(conv, "Transpose", (x,), dtype, shape, name, {"perm": order})

    def _reshaped(self, conv: Node, x: str, dtype: DType, shape: tuple[Index | int, ...], name: str) -> str:
        """A Reshape whose first extent, the batch, is what is left."""
        sizes = np.array([-1, *shape[1:]], np.int64)
        target = self._constant(conv, f"{name or 'result'}/sizes", I64, sizes.shape, lambda: sizes)
        self._known[target] = tuple(map(Index.of, (-1, *shape[1:])))
        return self._made(conv, "Reshape", (x, target), dtype, shape, name)

    def _constant(
        self, conv: Node, name: str, dtype: DType, shape: tuple[int, ...], load: Callable[[], npt.NDArray[Any]]
    ) -> str:
        made = f"{conv.outputs[0]}/{name}"
        self._constants[made] = Constant(dtype, shape, load)
        self._types[made] = TensorType(dtype, tuple(map(Index.of, shape)))
        return made


def _matrix(weight: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The weight of a convolution as a matrix: a row for each element of a patch, a column for each channel made."""
    return np.ascontiguousarray(weight.reshape(weight.shape[0], -1).T)
