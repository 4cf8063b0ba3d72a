"""Values of the symbols of a graph for which times are predicted, and tensors at these sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from onnxfuse.cost import number
from onnxfuse.cost.runtime import FEW, Tensor, whole
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
