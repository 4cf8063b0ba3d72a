"""Values of the symbols of a graph at which times are predicted, and tensors with them put in."""

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
    """What is known of a value whose type is known, with symbols put in. Raises SymbolUnknown."""
    t = graph.types[name]
    assert t is not None, f"plan: the type of {name} is not known"
    known = graph.constants.get(name)
    ints = _ints(known) if known is not None else ()
    return Tensor(t.dtype, tuple(number(e, sizes) for e in t.shape), known is not None, ints)


def _ints(constant: Constant) -> tuple[int, ...]:
    """What a constant of a few whole numbers holds."""
    return whole(constant.load()) if constant.size <= FEW else ()


def symbols_in(types: Iterable[TensorType | None]) -> list[str]:
    """The names of the symbols that decide the shapes of these types."""
    return sorted({s.name for t in types if t is not None for e in t.shape for s in symbols_of(expanded(e))})


def batches_of(graph: Graph) -> list[str]:
    """The names of the symbols that decide how many things a model is given at once."""
    return _names(t.shape[0] for v in graph.inputs if (t := graph.types.get(v)) is not None and t.shape)


def _names(extents: Iterable[Index]) -> list[str]:
    return sorted({s.name for e in extents for s in symbols_of(expanded(e))})


def sizes_of(graph: Graph, values: Sequence[int]) -> list[dict[str, int]]:
    """Each of these values for all symbols of a graph, with batches of 1; nothing where there are no symbols."""
    symbols = symbols_in(graph.types.values())
    batches = batches_of(graph)
    found = [{s: 1 if s in batches else n for s in symbols} for n in values]
    return [dict(pairs) for pairs in dict.fromkeys(tuple(each.items()) for each in found)] if symbols else [{}]
