"""Constant folding: small results are computed at once, large ones each time they are loaded.

Large results that are made from weights in a file are not kept in memory: `load` computes them again, so that weights
are never in memory twice. Results computed from small constants, and tables of positions and masks, are kept, since a
chain of such nodes would otherwise be evaluated again for each reader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from onnxfuse.ir.compose import computes, indices_of, sources, walk
from onnxfuse.ir.dtype import BOOL, I32, I64
from onnxfuse.ir.graph import Constant, Node
from onnxfuse.ir.index import ZERO, Index, Loaded, atoms, axes_of, in_range, symbols_of
from onnxfuse.ir.indexing import flatten, product, substitute
from onnxfuse.ir.layout import Layout, Permute
from onnxfuse.ir.scalar import Apply, Load, Reduce
from onnxfuse.ops.evaluate import meaning
from onnxfuse.ops.spec import Definition
from onnxfuse.rewrite.mutable_graph import Array, Definitions, Miss, NoMatch

EAGER_BYTES = 64 << 10  # results up to this size are always folded, and computed at once
LARGEST_BYTES = 1 << 20  # results of movement and broadcast may grow up to this, and to GROWTH times their inputs
GROWTH = 4
COMPUTED_BYTES = 4 << 20  # results of computation may grow up to this (generated filters, position tables)
TABLES = (BOOL, I32, I64)  # types of positions and masks
LARGEST_WORK = 1 << 23  # elements visited by one evaluation, except where NumPy has a function for it

Constants = Mapping[str, Constant]
Move = Callable[[Array], Array]
Evaluation = Callable[[Mapping[str, Array]], dict[str, Array]]


def folded(
    definitions: Definitions,
    outputs: tuple[str, ...],
    constants: Constants,
    *,
    weights: bool = False,
    by: Evaluation | None = None,
) -> dict[str, Constant]:
    """The outputs of a node as constants. Raises Miss where an input is not one, or the result would be too large.

    `weights`: they are the weights of a product, which would be computed in each run, and may grow GROWTH times. `by`
    evaluates the node in as many steps as it has elements, whatever its definitions would take.
    """
    made = {d.name: d for d in definitions}
    own = [made[o] for o in outputs if o]
    needed = sorted({s for d in definitions for s in sources(d.value)} - made.keys())
    for s in needed:
        if s not in constants:
            raise NoMatch(f"{s} is not a constant")
    shapes = {d.name: _static(d) for d in own}
    size = sum(int(np.prod(shapes[d.name], dtype=np.int64)) * d.value.dtype.bytes for d in own)
    have = sum(constants[s].bytes for s in needed)
    computed = any(computes(d.value) for d in definitions)
    again = not all(constants[s].in_memory or constants[s].bytes <= EAGER_BYTES for s in needed)
    tables = all(d.value.dtype in TABLES for d in own)
    grown = GROWTH * have if weights else min(LARGEST_BYTES, GROWTH * have)
    if size > max(EAGER_BYTES, have, COMPUTED_BYTES if computed else grown):
        raise Miss(f"the folded result would grow from {have} to {size} bytes")
    arrays = {s: constants[s] for s in needed}
    move = moved(own[0], arrays) if len(definitions) == 1 else None
    if move is None and by is None and work(definitions) > LARGEST_WORK:
        raise Miss(f"evaluation would visit more than {LARGEST_WORK} elements")
    gathers = any(isinstance(a, Loaded) for d in definitions for i in indices_of(d.value) for a in atoms(i))
    if gathers and size > LARGEST_BYTES:
        raise Miss("indices of a gather this large are not checked at build time, and may be out of range")
    if gathers or size <= EAGER_BYTES or (computed and size <= COMPUTED_BYTES and (tables or not again)):
        return _now(own, arrays, by or (lambda given: meaning(definitions, given, {})))
    copied = _transposed(own[0], arrays) if move is not None else None
    later = {d.name: _later(definitions, d, arrays, move) for d in own}
    return {d.name: Constant(d.value.dtype, shapes[d.name], later[d.name], copied=copied) for d in own}


def scattered(node: Node, constants: Constants) -> Evaluation | None:
    """ScatterND of constants that overwrites elements, as a NumPy function; None for other nodes."""
    plain_scatter = node.op == "ScatterND" and node.attrs.get("reduction", "none") == "none"
    if not plain_scatter or any(i not in constants for i in node.inputs):
        return None
    data, places, updates = (constants[i] for i in node.inputs)

    def written(_: Mapping[str, Array]) -> dict[str, Array]:
        made = data.load().copy()
        made[tuple(np.moveaxis(places.load(), -1, 0))] = updates.load()
        return {node.outputs[0]: made}

    return written


def _now(own: list[Definition], arrays: Mapping[str, Constant], evaluation: Evaluation) -> dict[str, Constant]:
    try:
        values = evaluation({s: c.load() for s, c in arrays.items()})
    except (ArithmeticError, LookupError, TypeError, ValueError) as problem:
        raise Miss(f"evaluation fails, as it would at run time: {problem}") from None
    return {d.name: Constant.of(np.asarray(values[d.name], order="C"), d.value.dtype) for d in own}


def _later(
    definitions: Definitions, own: Definition, arrays: Mapping[str, Constant], move: Move | None
) -> Callable[[], Array]:
    if move is not None:
        only = next(iter(arrays.values()))
        return lambda: move(only.load())
    return lambda: meaning(definitions, {s: c.load() for s, c in arrays.items()}, {})[own.name]


def _transposed(d: Definition, arrays: Mapping[str, Constant]) -> tuple[Constant, Layout] | None:
    """The constant that a definition only permutes, and the layout that does the same; None where it does more."""
    value = load_of(d)
    if value is None or value.guards or value.source not in arrays:
        return None
    source = arrays[value.source]
    perm = permutation(value.index, tuple(map(Index.of, source.shape)), d)
    return None if perm is None or value.dtype != source.dtype else (source, Layout((Permute(perm),)))


def _static(d: Definition) -> tuple[int, ...]:
    """The shape of a definition without symbolic extents. Raises Miss."""
    extents = [*d.shape, *(r.extent for x in walk(d.value) if isinstance(x, Reduce) for r in x.ranges)]
    if any(e.constant is None for e in extents) or any(symbols_of(i) for i in indices_of(d.value)):
        raise Miss(f"{d.name} depends on a symbolic dimension")
    return tuple(e.constant or 0 for e in d.shape)


def work(definitions: Definitions) -> int:
    """Number of elements that one evaluation of static definitions visits."""
    total = 0
    for d in definitions:
        inner = [product([r.extent for r in x.ranges]) for x in walk(d.value) if isinstance(x, Reduce)]
        total += (product(list(d.shape)).constant or 0) * max([1, *(p.constant or 0 for p in inner)])
    return total


def moved(d: Definition, arrays: Mapping[str, Constant]) -> Move | None:
    """A definition that only permutes, reshapes or casts one array, as a NumPy function that copies little."""
    value = load_of(d) or d.value
    if isinstance(value, Apply) and value.fn == "cast" and value.dtype.kind != "b":
        value = value.args[0]
    if not isinstance(value, Load) or value.guards or value.source not in arrays:
        return None
    shape = tuple(map(Index.of, arrays[value.source].shape))
    target, dtype = _static(d), d.value.dtype.numpy
    perm = permutation(value.index, shape, d)
    if perm is not None:
        return partial(_permute, perm, dtype)
    whole = product(list(shape)) == product(list(d.shape))
    if whole and flatten(plain(value.index, d), shape) == flatten(plain(tuple(map(Index.of, d.axes)), d), d.shape):
        return partial(_reshape, target, dtype)
    return None


def load_of(d: Definition) -> Load | None:
    """The load that a definition consists of, without guards that always hold; None if it computes something."""
    if not isinstance(d.value, Load) or not all(in_range(g.index, g.extent) for g in d.value.guards):
        return None
    return Load(d.value.source, d.value.index, d.value.dtype) if d.value.guards else d.value


def _permute(perm: tuple[int, ...], dtype: np.dtype[np.generic], array: Array) -> Array:
    return _cast(array.transpose(perm), dtype)


def _reshape(shape: tuple[int, ...], dtype: np.dtype[np.generic], array: Array) -> Array:
    return _cast(array.reshape(shape), dtype)


def _cast(array: Array, dtype: np.dtype[np.generic]) -> Array:
    """The elements cast to dtype; values out of its range are converted as the processor does, like in the runtime."""
    with np.errstate(invalid="ignore", over="ignore"):
        return array.astype(dtype, copy=False)


def plain(index: tuple[Index, ...], d: Definition) -> tuple[Index, ...]:
    """An index with 0 for axes of one element."""
    units = {a: ZERO for a in d.axes if a.extent.constant == 1}
    return tuple(substitute(i, units) for i in index)


def permutation(index: tuple[Index, ...], shape: tuple[Index, ...], d: Definition) -> tuple[int, ...] | None:
    """The `perm` of the Transpose that reads a tensor of this shape at `index`; None if it is not a permutation.

    Axes of extent 1 fill the remaining places in their order.
    """
    if len(index) != len(d.axes):
        return None
    place: dict[Index, int] = {Index.of(a): at for at, a in enumerate(d.axes) if a.extent.constant != 1}
    spare = iter([at for at, a in enumerate(d.axes) if a.extent.constant == 1])
    perm = [-1] * len(d.axes)
    for dim, (i, extent) in enumerate(zip(plain(index, d), shape, strict=True)):
        at = next(spare, None) if extent.constant == 1 and not axes_of(i) else place.pop(i, None)
        if at is None or d.axes[at].extent != extent:
            return None
        perm[at] = dim
    return tuple(perm)
