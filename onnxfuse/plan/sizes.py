"""Values of the symbols of a graph for which times are predicted, and tensors at these sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from onnxfuse.cost import number
from onnxfuse.cost.nodes import FEW, Tensor, whole
from onnxfuse.ir.extents import expanded, place_of
from onnxfuse.ir.graph import Constant, Graph, TensorType
from onnxfuse.ir.index import Index, symbols_of
from onnxfuse.load.dims import plain_name

FEW_SIZES = (16, 128, 512)  # small, usual, large
_FRAME = 64  # samples per frame from which on an open dimension is one of samples
_SAMPLES = 1 << 16  # that a signal usually has at most
_LONG = 1 << 20  # samples at which the growth of other extents is seen

Sizes = Mapping[str, int]


def tensor_of(graph: Graph, name: str, sizes: Sizes) -> Tensor:
    """The tensor of a value with a known type, with symbols replaced by `sizes`. Raises SymbolUnknown."""
    t = graph.types[name]
    assert t is not None, f"plan: the type of {name} is not known"
    known = graph.constants.get(name)
    ints = _ints(known) if known is not None else ()
    return Tensor(t.dtype, tuple(number(e, sizes) for e in t.shape), known is not None, ints)


def _ints(constant: Constant) -> tuple[int, ...]:
    """The elements of a small integer constant, else empty."""
    return whole(constant.load()) if constant.size <= FEW else ()


def symbols_in(types: Iterable[TensorType | None]) -> list[str]:
    """The names of the symbols in the shapes of these types."""
    return sorted({s.name for t in types if t is not None for e in t.shape for s in symbols_of(expanded(e))})


def input_symbols(graph: Graph) -> dict[str, str]:
    """The symbols in the shapes of the inputs, with what people call them: `x[2]` where a dimension has no name."""
    return {s: _called(s, "{0}[{1}]") for s in symbols_in(map(graph.types.get, graph.inputs))}


def _called(symbol: str, form: str) -> str:
    """The model's name of a dimension; one without a name is told by input and axis, in this form."""
    place = place_of(symbol)
    return plain_name(symbol) if place is None else form.format(*place)


def batches_of(graph: Graph) -> list[str]:
    """The names of the symbols in the batch dimension (the first one) of the model's inputs."""
    return _names(t.shape[0] for v in graph.inputs if (t := graph.types.get(v)) is not None and t.shape)


def _names(extents: Iterable[Index]) -> list[str]:
    return sorted({s.name for e in extents for s in symbols_of(expanded(e))})


def sizes_of(graph: Graph, values: Sequence[int]) -> list[dict[str, int]]:
    """For each value, a map from all symbols of a graph to it, with batches of 1; one empty map without symbols."""
    symbols = symbols_in(graph.types.values())
    batches = batches_of(graph)
    found = [{s: 1 if s in batches else n for s in symbols} for n in values]
    return [dict(pairs) for pairs in dict.fromkeys(tuple(each.items()) for each in found)] if symbols else [{}]


def signal_sizes(graph: Graph) -> dict[str, int]:
    """Usual numbers of samples, by symbol: as many as give a usual number of frames.

    A symbol counts samples where it is the only open extent of an input of floats beside the batch, and some value has
    one more element for every 64 or more of them: frames of a spectrum, or what strided convolutions over a waveform
    leave.
    """
    batches = batches_of(graph)
    floats = [t.shape for v in graph.inputs if (t := graph.types.get(v)) is not None and t.dtype.floating]
    alone = [
        names
        for shape in floats
        if len(shape) <= 3 and len(names := [s for s in _names(shape) if s not in batches]) == 1
    ]
    if not alone:
        return {}
    extents = {e for t in graph.types.values() if t is not None for e in t.shape if e.constant is None}
    found = {name: _samples_per_frame(name, extents) for (name,) in alone}
    return {name: min(FEW_SIZES[1] * n, _SAMPLES) for name, n in found.items() if n >= _FRAME}


def signal_dims(graph: Graph) -> dict[str, int]:
    """The same by dimension, as generated inputs name them: `x.2` where a dimension has no name."""
    return {_called(s, "{0}.{1}"): n for s, n in signal_sizes(graph).items()}


def _samples_per_frame(name: str, extents: Iterable[Index]) -> int:
    """For how many elements of a symbol the extent that grows least with it grows by one; 1 where none is known."""
    found = [1]
    for e in map(expanded, extents):
        symbols = {s.name for s in symbols_of(e)}
        if name in symbols:
            short, long = (number(e, {**dict.fromkeys(symbols, 1), name: n}) for n in (_LONG, 2 * _LONG))
            found += [round(_LONG / (long - short))] if long > short else []
    return max(found)


def sizes_at(graphs: Sequence[Graph], given: Sizes, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """One value for each symbol of a model's graphs, the main graph first.

    An input that has one of the `shapes` decides, then what is `given`; else batches are 1, all others of usual size.
    """
    main = graphs[0]
    signals = signal_sizes(main)
    types = {name: t.shape for name in main.inputs if (t := main.types.get(name)) is not None}
    bound = [pair for name, shape in shapes.items() for pair in zip(types.get(name, ()), shape, strict=False)]
    known = {str(e): n for e, n in bound if {str(s) for s in symbols_of(e)} == {str(e)}}
    batches = batches_of(main)
    symbols = symbols_in(t for graph in graphs for t in graph.types.values())
    given = {s: n for s in symbols if (n := given.get(s, given.get(plain_name(s)))) is not None}
    return {s: known.get(s, given.get(s, 1 if s in batches else signals.get(s, FEW_SIZES[1]))) for s in symbols}
