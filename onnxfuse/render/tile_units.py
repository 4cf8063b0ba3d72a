"""The translation units of register tiles: the functions of tile.h that kernels of a library call, compiled once.

Each function takes the compiler a third of a second or more, so only those that some kernel calls are spelled out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from onnxfuse.ir.kernel import Kernel, Pack, products_of, statements
from onnxfuse.ir.products import DOT_BF16, Product
from onnxfuse.ir.tile import Packed, Pointers, Tile
from onnxfuse.render.c_family import stored
from onnxfuse.render.source import Source


@dataclass(frozen=True, order=True, slots=True)
class _Unit:
    """A translation unit: what it includes, and flags of the compiler besides those of the target."""

    name: str = "tiles"
    header: str = "tile_code.h"
    flags: tuple[str, ...] = ()


_COMMON = _Unit()  # what needs no flags of its own; it is there wherever there are others


def tile_headers(kernel: Kernel) -> list[str]:
    """The lines that include what declares the tiles of a kernel. What packs rows is declared there too."""
    used = products_of([kernel])
    units = dict.fromkeys(f"{p.unit.name}.h" for p in used if p.unit is not None)
    codes = any(p.exact and p.unit is None for p in used)
    return [f'#include "{name}"' for name in (*units, *(["codes.h"] if codes else []))] or ['#include "tile.h"']


def tiles_sources(kernels: Iterable[Kernel], tail: str = "", flags: tuple[str, ...] = ()) -> tuple[Source, ...]:
    """The units, compiled with `flags`, those of the kernels' target; `tail` tells its symbols from other targets'."""
    units: defaultdict[_Unit, set[str]] = defaultdict(set)
    for unit, line in (called for kernel in kernels for called in _called(kernel)):
        units[unit].add(line)
        units[_COMMON].add("ONNXFUSE_ZEROS\n")
    return tuple(
        Source(f"{u.name}{tail}", f'#include "{u.header}"\n{"".join(sorted(lines))}', (*flags, *u.flags))
        for u, lines in sorted(units.items())
    )


def _called(kernel: Kernel) -> Iterator[tuple[_Unit, str]]:
    """For each call of a tile, or of what packs rows: where the function is, and the line there that spells it out."""
    for phase in kernel.phases:
        types = {p.name: p.dtype for p in kernel.outputs} | {b.name: b.dtype for b in (*kernel.scratch, *phase.locals)}
        for s in statements(phase.body):
            if isinstance(s, Tile):
                yield _unit_of(s.core.product), _line(s)
            elif isinstance(s, Pack) and s.unit is None:
                left = types[s.out]
                unit = _unit_of(DOT_BF16) if left == DOT_BF16.left else _COMMON
                yield unit, f"ONNXFUSE_PACKS({stored(s.load.dtype)}, {stored(left)})\n"


def _unit_of(p: Product) -> _Unit:
    """Where the tiles of a product are; a matrix unit, and codes, have headers that need no further word."""
    if p.unit is not None:
        return _Unit(f"tiles_{p.unit.name}", f"{p.unit.name}_code.h", p.flags)
    if p.exact:
        return _Unit("tiles_codes", "codes_code.h")
    return _Unit(f"tiles_{p.name}", flags=p.flags) if p.flags else _COMMON


def _line(s: Tile) -> str:
    """The macro of tile_code.h for the function that render/statements.py calls."""
    p = s.core.product
    if p.unit is not None or p.exact:
        return ""
    even = isinstance(s.left, Pointers) and s.left.even
    kind = "PACKED" if isinstance(s.left, Packed) else "EVEN" if even else "ROWS"
    some = "SOME_" if s.some else ""
    return f"ONNXFUSE_{some}{kind}_TILE({stored(p.left)}, {stored(p.right)})\n"
