"""The reference interpreter of definitions, in NumPy: one evaluator for all operators, over whole arrays.

Rows are tested with it against ONNX before any code is generated, and constant folding runs it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from onnxfuse.ir.affine import simplify
from onnxfuse.ir.compose import substitute_axes, walk
from onnxfuse.ir.dtype import F64
from onnxfuse.ir.functions import FUNCTIONS
from onnxfuse.ir.index import Atom, Axis, Entry, Index, Loaded, Symbol
from onnxfuse.ir.indexing import evaluate
from onnxfuse.ir.monoid import MONOIDS
from onnxfuse.ir.scalar import Apply, Const, FromIndex, Guard, Load, Reduce, Scalar, children
from onnxfuse.ops.spec import Definition, in_order

Array = np.ndarray[Any, Any]
Frame = tuple[Axis, ...]

MANY_TERMS = 1 << 16  # of a sum of products from which on it is computed by matrix products


def meaning(
    definitions: Sequence[Definition],
    arrays: Mapping[str, Array],
    symbols: Mapping[str, int],
    *,
    by_products: bool = False,
) -> dict[str, Array]:
    """The values of all definitions, given the arrays that they read and the values of symbols.

    With `by_products`, long sums of products in float64 are matrix products, whose order of summation is not known.
    """
    known: dict[str, Array] = dict(arrays)
    with np.errstate(all="ignore"):
        for part in in_order(definitions):
            if part[0].recurrent:
                _run(part, known, symbols, by_products=by_products)
                continue
            (d,) = part
            evaluator = _Evaluator(known, symbols, d.value, by_products)
            known[d.name] = _whole(evaluator, d.value, d.axes)
    return {d.name: known[d.name] for d in definitions}


def _whole(evaluator: _Evaluator, value: Scalar, axes: Frame) -> Array:
    """A value at all places of its axes."""
    shape = tuple(evaluator.extent(a) for a in axes)
    return np.broadcast_to(evaluator.scalar(value, axes), shape).astype(value.dtype.numpy)


def _run(part: Sequence[Definition], known: dict[str, Array], symbols: Mapping[str, int], *, by_products: bool) -> None:
    """Compute the definitions of a recurrence, step by step, and add their values to what is known."""
    sizes = _Evaluator(known, symbols, part[0].value, by_products)
    for d in part:
        known[d.name] = np.zeros(tuple(map(sizes.extent, d.axes)), d.value.dtype.numpy)
    for step in range(sizes.extent(part[0].axes[0])):
        for d in part:
            value = simplify(substitute_axes(d.value, {d.axes[0]: Index.of(step)}))
            evaluator = _Evaluator(known, symbols, value, by_products)
            known[d.name][step] = _whole(evaluator, value, d.axes[1:])


class _Evaluator:
    """Evaluates scalars over a frame: arrays have one dimension per axis of the frame, of its extent or 1.

    They may share memory with each other and with what is read: nothing writes to them. Operands that `whole` has more
    than once are evaluated once.
    """

    def __init__(
        self, arrays: Mapping[str, Array], symbols: Mapping[str, int], whole: Scalar, by_products: bool
    ) -> None:
        self.arrays = arrays
        self.symbols, self.by_products = symbols, by_products
        self.readers = Counter(c for x in walk(whole) for c in children(x))
        self.known: dict[tuple[Scalar, Frame], Array] = {}

    def extent(self, axis: Axis) -> int:
        return int(evaluate(axis.extent, lambda a: self.symbols[a.name] if isinstance(a, Symbol) else None))

    def index(self, e: Index, frame: Frame, inside: Any = None) -> Any:
        def value(atom: Atom) -> Any:
            if isinstance(atom, Symbol):
                return self.symbols[atom.name]
            if isinstance(atom, Axis):
                at = frame.index(atom)
                return np.arange(self.extent(atom)).reshape([-1 if i == at else 1 for i in range(len(frame))])
            if isinstance(atom, Entry):
                return self._element(np.array(atom.table.values, np.int64), (atom.at,), frame, inside)
            assert isinstance(atom, Loaded)
            got = self._element(self.arrays[atom.source], atom.at, frame, inside).astype(np.int64)
            return np.where(got < 0, got + self.index(atom.extent, frame), got)

        return evaluate(e, value)

    def _element(self, array: Array, at: tuple[Index, ...], frame: Frame, inside: Any = None) -> Array:
        """Elements of an array, arbitrary ones where not `inside`. Raises IndexError for reads out of bounds."""
        if not at:
            return array.reshape((1,) * len(frame))
        if array.size == 0 and (inside is not None or any(self.extent(a) == 0 for a in frame)):
            return np.zeros((1,) * len(frame), array.dtype)
        index = [np.asarray(self.index(i, frame, inside)) for i in at]
        if inside is not None:
            index = [np.where(inside, i, 0) for i in index]
        index = [i.reshape((1,) * (len(frame) - i.ndim) + i.shape) for i in index]
        for i, extent in zip(index, array.shape, strict=True):
            if i.size and (i.min() < 0 or i.max() >= extent):
                raise IndexError(f"{at!r} leaves a tensor of shape {array.shape}")
        return np.asarray(array[tuple(np.broadcast_arrays(*index))])

    def scalar(self, x: Scalar, frame: Frame) -> Array:
        if self.readers[x] < 2:
            return self._scalar(x, frame)
        if (x, frame) not in self.known:
            self.known[x, frame] = self._scalar(x, frame)
        return self.known[x, frame]

    def _scalar(self, x: Scalar, frame: Frame) -> Array:
        if isinstance(x, Const):
            return np.full((1,) * len(frame), x.value, x.dtype.numpy)
        if isinstance(x, FromIndex):
            inside = self._inside(x.guards, frame)
            got = np.asarray(self.index(x.index, frame, inside))
            if inside is not None:
                got = np.where(inside, got, 0)
            return got.reshape((1,) * (len(frame) - got.ndim) + got.shape).astype(x.dtype.numpy, copy=False)
        if isinstance(x, Load):
            return self._load(x, frame)
        if isinstance(x, Reduce):
            return self._reduce(x, frame)
        args = [self.scalar(a, frame) for a in x.args]
        if x.fn == "cast":
            return args[0] != 0 if x.dtype.kind == "b" else args[0].astype(x.dtype.numpy, copy=False)
        return np.asarray(FUNCTIONS[x.fn].numpy(*args)).astype(x.dtype.numpy, copy=False)

    def _load(self, x: Load, frame: Frame) -> Array:
        if not x.guards:
            return self._element(self.arrays[x.source], x.index, frame)
        inside = self._inside(x.guards, frame)
        assert x.otherwise is not None
        return np.where(
            inside, self._element(self.arrays[x.source], x.index, frame, inside), self.scalar(x.otherwise, frame)
        )

    def _inside(self, guards: tuple[Guard, ...], frame: Frame) -> Any:
        """Where all guards hold, None without guards; each is evaluated only where the previous ones hold."""
        inside: Any = None
        for g in guards:
            i = np.asarray(self.index(g.index, frame, inside))
            held = (i >= 0) & (i < self.index(g.extent, frame, inside))
            inside = held if inside is None else inside & held
        return inside

    def _reduce(self, x: Reduce, frame: Frame) -> Array:
        inner = frame + x.ranges
        counts = tuple(self.extent(r) for r in x.ranges)
        factors = self._factors(x, inner)
        if factors is not None and (made := contracted(*factors, counts)) is not None:
            return made
        parts = [self.scalar(b, inner) for b in x.body]
        outer = np.broadcast_shapes(*(p.shape for p in parts))[: len(frame)]
        flat = [np.broadcast_to(p, outer + counts).reshape((*outer, prod(counts))) for p in parts]
        monoid = MONOIDS[x.combine]
        if monoid.numpy is None:
            pick = np.argmax(flat[0], -1) if x.combine == "argmax" else np.argmin(flat[0], -1)
            return np.take_along_axis(flat[x.slot], pick[..., None], -1)[..., 0]
        if flat[0].shape[-1] == 0:
            start = monoid.init(x.dtype)[0]
            return np.full(outer, start.value if isinstance(start, Const) else 0, x.dtype.numpy)
        return np.asarray(monoid.numpy(flat[0], axis=-1)).astype(x.dtype.numpy, copy=False)

    def _factors(self, x: Reduce, inner: Frame) -> tuple[Array, Array] | None:
        """The factors of a sum of products that may be a matrix product; None for all else."""
        product = x.body[0]
        if (
            not self.by_products
            or x.combine != "sum"
            or x.dtype != F64
            or not isinstance(product, Apply)
            or product.fn != "mul"
        ):
            return None
        left, right = (self.scalar(a, inner) for a in product.args)
        return left, right


def contracted(left: Array, right: Array, counts: Sequence[int]) -> Array | None:
    """The sum of left * right over their last dimensions, of these extents, by matrix products.

    None where one of them is in neither operand, or there are few terms.

    >>> contracted(np.ones((600, 1, 300)), np.ones((1, 2, 300)), (300,)).tolist()[0]
    [300.0, 300.0]
    """
    rank = left.ndim - len(counts)
    whole = np.broadcast_shapes(left.shape, right.shape)
    if whole[rank:] != tuple(counts) or int(np.prod(whole, dtype=np.int64)) < MANY_TERMS:
        return None
    labels = [[i for i, n in enumerate(a.shape) if n > 1] for a in (left, right)]
    squeezed = [a.reshape([n for n in a.shape if n > 1]) for a in (left, right)]
    kept = [i for i in range(rank) if i in labels[0] or i in labels[1]]
    made = np.einsum(squeezed[0], labels[0], squeezed[1], labels[1], kept, optimize=True)
    return np.asarray(made).reshape(whole[:rank])
