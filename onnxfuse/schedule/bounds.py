"""No read outside a tensor: each index is proven inside, guarded, or made a condition that is checked at launch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from onnxfuse.ir.compose import indices_of, walk
from onnxfuse.ir.graph import Decision
from onnxfuse.ir.index import Index, Loaded, atoms, in_range, lower, nonnegative, upper
from onnxfuse.ir.scalar import Load
from onnxfuse.ops.spec import Definition

Shape = tuple[Index, ...]


def conditions(definitions: Sequence[Definition], shapes: Mapping[str, Shape]) -> tuple[Index, ...] | Decision:
    """Polynomials over symbols that must not be negative when the kernel is launched; a refusal where there is none."""
    found: dict[Index, None] = {}
    for d in definitions:
        for source, index, guarded in _reads(d):
            for e, extent in zip(index, shapes[source], strict=True):
                if (e, extent) in guarded or in_range(e, extent):
                    continue
                low, high = lower(e), upper(e)
                if low is None or high is None or not nonnegative(low):
                    return Decision("E-SHAPE-UNKNOWN", (d.name,), f"whether {e!r} lies within {extent!r} is not known")
                found[extent - 1 - high] = None
    return tuple(found)


def _reads(d: Definition) -> Iterator[tuple[str, Shape, set[tuple[Index, Index]]]]:
    """Every read of a definition: tensor, index, and the guarded (index, extent) pairs around it."""
    for node in walk(d.value):
        if isinstance(node, Load) and node.index:
            yield node.source, node.index, {(g.index, g.extent) for g in node.guards}
    for e in indices_of(d.value):
        for atom in atoms(e):
            if isinstance(atom, Loaded):
                yield atom.source, atom.at, set()
