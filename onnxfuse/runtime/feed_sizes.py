"""Infers symbolic input sizes of a model from its operators' shape constraints, above all the widths of weights."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, inliner, numpy_helper

from onnxfuse.runtime import inference
from onnxfuse.runtime.feed_limits import shapes_of
from onnxfuse.runtime.feeds import Input
from onnxfuse.runtime.graphs import graphs

T = TypeVar("T")
Extents: TypeAlias = tuple[int | str | None, ...]
Pair: TypeAlias = tuple[int | str | None, int | str | None]

_ROUNDS = 3  # propagation rounds: a size that is found may determine others
_MARK = "onnxfuse_size_"  # prefix of symbols that stand for extents of inputs during shape inference

_USUAL, _LARGEST = (
    64,
    1 << 14,
)  # a size that images and sequences may have, and what no size of an input is sought above
_SHAPE = 8  # elements of a constant that can be a shape
_LEAST, _MOST, _LIKELY = 3, 1 << 20, 16  # extents that are told, and how many of them

# Positions of the two factors of products, and of image and weights of convolutions.
_PRODUCTS = {"MatMul": (0, 1), "FusedMatMul": (0, 1), "MatMulInteger": (0, 1), "DynamicQuantizeMatMul": (0, 1),
             "MatMulIntegerToFloat": (0, 1), "QLinearMatMul": (0, 3)}  # fmt: skip
_CONVOLUTIONS = {"Conv": (0, 1), "FusedConv": (0, 1), "ConvInteger": (0, 1), "QLinearConv": (0, 3)}
_RECURRENT = ("LSTM", "GRU", "RNN")
_BROADCAST = ("Add", "Sub", "Mul", "Div", "Min", "Max", "PRelu")


def fixed_sizes(bare: ModelProto, inputs: Sequence[Input], known: Mapping[str, int]) -> dict[str, int]:
    """Values of symbols of `inputs` beyond the `known` ones, from a skeleton; those that nothing fixes are left out.

    What the tools cannot infer fixes nothing: the sizes are proposals, which running the model accepts or refuses.
    """
    if not any(isinstance(extent, str) and extent not in known for each in inputs for extent in each.shape):
        return {}
    model = _copy(bare)
    found: dict[str, int] = {}
    for _ in range(_ROUNDS):
        marks = _marked(model, inputs, {**known, **found})
        more = _solved([pair for each in _demands(model) for pair in each], marks)
        more = {symbol: value for symbol, value in more.items() if symbol not in found and symbol not in known}
        if not more:
            break
        found |= more
    return found


def likely_sizes(bare: ModelProto) -> tuple[int, ...]:
    """Numbers in a skeleton that are likely extents, the most frequent first.

    They are in small integer constants, in which exports may have the sizes that they were traced with.
    """
    values = (value for _, t in _wholes(bare) for value in numpy_helper.to_array(t).ravel().tolist())
    counts = Counter(value for value in values if _LEAST <= value <= _MOST)
    return tuple(value for value, _ in counts.most_common(_LIKELY))


def _wholes(bare: ModelProto) -> Iterator[tuple[str, TensorProto]]:
    """Small integer constants, with their names."""
    for graph in graphs(bare.graph):
        for name, t in (*((t.name, t) for t in graph.initializer), *_constants(graph)):
            if t.data_type in (TensorProto.INT64, TensorProto.INT32) and math.prod(t.dims) <= _SHAPE:
                yield name, t


def _constants(graph: GraphProto) -> Iterator[tuple[str, TensorProto]]:
    for node in graph.node:
        values = (a.t for a in node.attribute if node.op_type == "Constant" and a.name == "value")
        yield from ((node.output[0], t) for t in values)


def fitting_sizes(bare: ModelProto, inputs: Sequence[Input], known: Mapping[str, int]) -> dict[str, int]:
    """Values of symbols with which extents that are computed from them are those that weights demand.

    Such is the height of an image whose rows are flattened in front of a product. Extents grow with sizes of inputs, so
    each symbol is found by bisection, the others being of a usual size. Proposals, as those of `fixed_sizes`.
    """
    free = list(dict.fromkeys(e for each in inputs for e in each.shape if isinstance(e, str) and e not in known))
    sizes = {**dict.fromkeys(free, _USUAL), **known}
    found: dict[str, int] = {}
    model = _copy(bare)

    def demands(symbol: str, size: int) -> dict[tuple[int, int], Pair]:
        _marked(model, inputs, {**sizes, **found, symbol: size})
        return {(at, k): pair for at, each in enumerate(_demands(model)) for k, pair in enumerate(each)}

    def reached(symbol: str, at: tuple[int, int], side: int, size: int) -> int:
        extent = demands(symbol, size).get(at, (0, 0))[side]
        return extent if isinstance(extent, int) else 0

    for symbol in free:
        few, many = demands(symbol, _USUAL), demands(symbol, 2 * _USUAL)
        for at in sorted(few.keys() & many.keys()):
            moving = [k for k in (0, 1) if few[at][k] != many[at][k]]
            wanted = few[at][1 - moving[0]] if len(moving) == 1 else None
            if isinstance(wanted, int):
                extent = partial(reached, symbol, at, moving[0])
                size = bisect_left(range(_LARGEST), wanted, 1, key=extent)
                if extent(size) == wanted:
                    found[symbol] = size
                    break
    return found


def _demands(bare: ModelProto) -> list[list[Pair]]:
    """By node, extents that have to be equal, as inference knows them; none where it does not understand the model."""
    try:
        model = inliner.inline_local_functions(bare) if bare.functions else bare
    except Exception:  # whatever the tool says of a model that the runtime may take all the same
        return []
    done = inference.of_model(model)
    if done is None:
        return []
    shapes, nodes = shapes_of(done.graph), [node for each in graphs(done.graph) for node in each.node]
    wholes = {name: numpy_helper.to_array(t).ravel().tolist() for name, t in _wholes(done)}
    flattened = [list(_flattened(node, shapes, wholes)) for node in nodes if node.op_type == "Reshape"]
    return [*(list(_pairs(node, shapes)) for node in nodes), *flattened]


def _copy(bare: ModelProto) -> ModelProto:
    """A skeleton to write sizes into: others still read the symbols of the one that was given."""
    model = ModelProto()
    model.CopyFrom(bare)
    return model


def _marked(bare: ModelProto, inputs: Sequence[Input], sizes: Mapping[str, int]) -> dict[str, str]:
    """Writes sizes into the inputs of a skeleton, a mark for each symbol without one; gives the symbols of marks."""
    marks: dict[str, str] = {}
    by_name = {each.name: each for each in bare.graph.input}
    for each in inputs:
        shape = by_name[each.name].type.tensor_type.shape
        del shape.dim[:]
        for extent in each.shape:
            dim = shape.dim.add()
            if isinstance(extent, int) or extent in sizes:
                dim.dim_value = extent if isinstance(extent, int) else sizes[extent]
            else:
                dim.dim_param = marks.setdefault(extent, f"{_MARK}{len(marks)}")
    return {mark: symbol for symbol, mark in marks.items()}


def _solved(pairs: Sequence[Pair], marks: Mapping[str, str]) -> dict[str, int]:
    """Values of marked symbols that are equal to a number, also transitively (union-find)."""
    home: dict[str, str] = {}

    def root(name: str) -> str:
        while home.setdefault(name, name) != name:
            name = home[name]
        return name

    values: dict[str, int] = {}
    for a, b in pairs:
        if isinstance(a, str) and isinstance(b, str) and a in marks and b in marks:
            home[root(a)] = root(b)
    for a, b in (*pairs, *((b, a) for a, b in pairs)):
        if isinstance(a, str) and a in marks and isinstance(b, int) and b > 0:
            values.setdefault(root(a), b)
    return {symbol: values[root(mark)] for mark, symbol in marks.items() if root(mark) in values}


def _pairs(node: NodeProto, shapes: Mapping[str, Extents]) -> Iterator[Pair]:
    """Pairs of extents that an operator requires to be equal."""
    read = [shapes.get(name, ()) if name else () for name in node.input]
    if node.op_type in _PRODUCTS:
        yield from _of_product(node, read)
    elif node.op_type == "Gemm" and len(read) > 1:
        a, b = read[0], read[1]
        yield _at(a, 0 if _attribute(node, "transA", 0) else 1), _at(b, 1 if _attribute(node, "transB", 0) else 0)
    elif node.op_type in _CONVOLUTIONS:
        x, w = (_at(read, i) or () for i in _CONVOLUTIONS[node.op_type])
        width = _at(w, 1)
        yield _at(x, 1), width * _attribute(node, "group", 1) if isinstance(width, int) else None
    elif node.op_type == "ConvTranspose" and len(read) > 1:
        yield _at(read[0], 1), _at(read[1], 0)
    elif node.op_type in _RECURRENT:
        yield from _of_recurrent(read)
    elif node.op_type in ("BatchNormalization", "InstanceNormalization") and len(read) > 1:
        yield _at(read[0], 1), _at(read[1], 0)
    elif node.op_type in ("LayerNormalization", "SkipLayerNormalization") and len(read) > 1:
        yield _at(read[0], -1), _at(read[-1], -1)
    elif node.op_type in _BROADCAST and len(read) > 1:
        pairs = zip(reversed(read[0]), reversed(read[1]), strict=False)
        yield from ((a, b) for a, b in pairs if a != 1 and b != 1)
    elif node.op_type == "Concat":
        axis = _attribute(node, "axis", 0)
        for other in read[1:]:
            if len(other) == len(read[0]):
                yield from (p for i, p in enumerate(zip(read[0], other, strict=True)) if i != axis % len(other))


def _flattened(node: NodeProto, shapes: Mapping[str, Extents], wholes: Mapping[str, Sequence[int]]) -> Iterator[Pair]:
    """Constraints of a Reshape to (-1 or 0, extents...), which probably flattens all axes but the first."""
    shape, target = shapes.get(node.input[0], ()), wholes.get(node.input[1], ())
    rest = [e for e in shape[1:] if isinstance(e, int)]
    if len(shape) > len(target) > 1 and target[0] <= 0 < min(target[1:]) and len(rest) == len(shape) - 1:
        yield math.prod(rest), math.prod(target[1:])


def _of_product(node: NodeProto, read: Sequence[Extents]) -> Iterator[Pair]:
    """The inner extents of a matrix product, and its batch extents."""
    a, b = (_at(read, i) or () for i in _PRODUCTS[node.op_type])
    if node.op_type == "FusedMatMul" and (_attribute(node, "transA", 0) or _attribute(node, "transB", 0)):
        return
    yield _at(a, -1), _at(b, -2 if len(b) > 1 else 0)
    yield from ((x, y) for x, y in zip(reversed(a[:-2]), reversed(b[:-2]), strict=False) if x != 1 and y != 1)


def _of_recurrent(read: Sequence[Extents]) -> Iterator[Pair]:
    """Constraints of an RNN's inputs: X, W, R, B, sequence lengths, initial state and initial cell."""
    whole: list[Extents] = [*read, *[()] * (7 - len(read))]
    x, w, r, lengths, *states = (whole[i] for i in (0, 1, 2, 4, 5, 6))
    yield _at(x, 2), _at(w, 2)
    yield _at(lengths, 0), _at(x, 1)
    for state in states[:2]:
        yield from ((_at(state, 0), _at(w, 0)), (_at(state, 1), _at(x, 1)), (_at(state, 2), _at(r, 2)))


def _at(items: Sequence[T], place: int) -> T | None:
    """The item at a position, counted from the end where negative; None if out of range."""
    return items[place] if -len(items) <= place < len(items) else None


def _attribute(node: NodeProto, name: str, default: int) -> int:
    return next((int(helper.get_attribute_value(a)) for a in node.attribute if a.name == name), default)
