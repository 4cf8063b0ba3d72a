"""Where extents meet, so that dimensions of equal names are taken to be equal, and what is known is put so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from onnxfuse.ir.compose import indices_of
from onnxfuse.ir.extents import expanded, over
from onnxfuse.ir.graph import Node, TensorType
from onnxfuse.ir.index import Index, Symbol
from onnxfuse.ir.indexing import looked_up
from onnxfuse.ops.spec import Definition

Extents = tuple[Index, ...]


def meeting(
    node: Node,
    definitions: Sequence[Definition],
    types: Mapping[str, TensorType | None],
    known: Mapping[str, Extents],
) -> list[Extents]:
    """The extents that meet in an operator: both sides of each demand of its row.

    All extents of its inputs, and the integers known in them, where it has no row or reads one input at places that
    another contains.
    """
    found: list[Extents] = [(d.extent, d.other) for each in definitions for d in each.demands]
    if not definitions or _looks_up(definitions):
        shapes = [t.shape for i in node.reads if (t := types.get(i)) is not None]
        found.append(tuple(e for each in (*shapes, *(known.get(i, ()) for i in node.reads)) for e in each))
    return found


def _looks_up(definitions: Sequence[Definition]) -> bool:
    return any(looked_up(e) for d in definitions for e in indices_of(d.value))


def columns(node: Node, types: Mapping[str, TensorType | None], known: Mapping[str, Extents]) -> list[list[Index]]:
    """The extents of a node's inputs that are broadcast against each other, or are the inner ones of a product."""
    shapes = [t.shape for i in node.inputs if (t := types.get(i)) is not None]
    if node.op == "Expand":
        shapes = [*shapes[:1], known.get(node.inputs[1], ())]
    if node.op != "MatMul":
        return list(_columns(shapes))
    a, b = shapes if len(shapes) == 2 else ((), ())
    return [*_columns([a[:-2], b[:-2]]), [*a[-1:], *b[-2:][:1]]]


def _columns(shapes: Iterable[tuple[Index, ...]]) -> Iterator[list[Index]]:
    """The extents that broadcasting puts on each other, from the last dimension on."""
    shapes = list(shapes)
    for at in range(1, max(map(len, shapes), default=0) + 1):
        yield [s[-at] for s in shapes if len(s) >= at]


def symbol_of(e: Index) -> Symbol | None:
    """The symbol that e is, if it is one."""
    if len(e.terms) == 1 and e.terms[0][1] == 1 and len(e.terms[0][0]) == 1 and isinstance(e.terms[0][0][0], Symbol):
        return e.terms[0][0][0]
    return None


def at_one_size(difference: Index) -> bool:
    """Whether it is a number times a symbol plus another number, which is 0 at one value at most."""
    atoms = [atom for mono, _ in expanded(difference).terms for atom in mono]
    return len(atoms) == 1 and isinstance(atoms[0], Symbol)


def put(united: Mapping[Symbol, Index], known: MutableMapping[Any, Any], keys: Iterable[Any]) -> None:
    """Replace symbols that are united in what is known under some keys: types, integers, arrays of them, extents."""
    for key in keys:
        if (value := known.get(key)) is not None and (made := _over(value, united)) is not value:
            known[key] = made


def _over(value: Any, united: Mapping[Symbol, Index]) -> Any:
    """The same object where no symbol is replaced."""
    made: Any
    if isinstance(value, Index):
        made = over(value, united)
        return value if made == value else made
    if isinstance(value, TensorType):
        made = _over(value.shape, united)
        return value if made is value.shape else replace(value, shape=made)
    if isinstance(value, tuple):
        made = tuple(_over(e, united) for e in value)
        return value if all(a is b for a, b in zip(value, made, strict=True)) else made
    if isinstance(value, np.ndarray) and value.dtype == object:
        flat = tuple(value.reshape(-1))
        made = _over(flat, united)
        return value if made is flat else _array(made, value.shape)
    return value


def _array(elements: Sequence[Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    made = np.empty(len(elements), object)
    made[:] = elements
    return made.reshape(shape)
