"""Values of the symbols of a graph for which times are predicted, and tensors at these sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from onnxfuse.cost import number
from onnxfuse.cost.nodes import FEW, Tensor, whole
from onnxfuse.ir.extents import expanded
from onnxfuse.ir.graph import Constant, Graph, TensorType
from onnxfuse.ir.index import Index, symbols_of

FEW_SIZES = (16, 128, 512)  # small, usual, large

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
    names = symbols_in(map(graph.types.get, graph.inputs))
    return {s: "{0}[{2}]".format(*s[1:].rpartition("_")) if s.startswith("?") else s for s in names}


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


def sizes_at(graphs: Sequence[Graph], given: Sizes, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """One value for each symbol of a model's graphs, the main graph first.

    An input that has one of the `shapes` decides, then what is `given`; else batches are 1, all others of usual size.
    """
    main = graphs[0]
    types = {name: t.shape for name in main.inputs if (t := main.types.get(name)) is not None}
    bound = [pair for name, shape in shapes.items() for pair in zip(types.get(name, ()), shape, strict=False)]
    known = {str(e): n for e, n in bound if {str(s) for s in symbols_of(e)} == {str(e)}}
    batches = batches_of(main)
    symbols = symbols_in(t for graph in graphs for t in graph.types.values())
    return {s: known.get(s, given.get(s, 1 if s in batches else FEW_SIZES[1])) for s in symbols}
