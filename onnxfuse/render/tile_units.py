"""The translation units of register tiles: explicit instantiations of the functions of tile.h, once per library.

Each instantiation takes the compiler a third of a second or more, so there are only those that some kernel calls.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from onnxfuse.ir.kernel import Kernel, Pack, products_of, statements
from onnxfuse.ir.products import DOT_BF16, ProductKind
from onnxfuse.ir.tile import Packed, Pointers, Tile
from onnxfuse.render.c_family import stored
from onnxfuse.render.source import Source


@dataclass(frozen=True, order=True, slots=True)
class _Unit:
    """A translation unit: the header it includes, and compiler flags beyond those of the target."""

    name: str = "tiles"
    header: str = "tile_code.h"
    flags: tuple[str, ...] = ()


_COMMON = _Unit()  # tiles without flags of their own; present in every library that has tiles


def tile_headers(kernel: Kernel) -> list[str]:
    """The includes that declare the tiles of a kernel and the functions that pack their rows."""
    used = products_of([kernel])
    units = dict.fromkeys(f"{p.unit.name}.h" for p in used if p.unit is not None)
    codes = any(p.exact and p.unit is None for p in used)
    return [f'#include "{name}"' for name in (*units, *(["codes.h"] if codes else []))] or ['#include "tile.h"']


def tiles_sources(kernels: Iterable[Kernel], tail: str = "", flags: tuple[str, ...] = ()) -> tuple[Source, ...]:
    """The units, compiled with the target's `flags`; `tail` keeps symbols of several targets of a library apart."""
    units: defaultdict[_Unit, set[str]] = defaultdict(set)
    for unit, line in (called for kernel in kernels for called in _called(kernel)):
        units[unit].add(line)
        units[_COMMON].add("ONNXFUSE_ZEROS\n")
    return tuple(
        Source(f"{u.name}{tail}", f'#include "{u.header}"\n{"".join(sorted(lines))}', (*flags, *u.flags))
        for u, lines in sorted(units.items())
    )


def _called(kernel: Kernel) -> Iterator[tuple[_Unit, str]]:
    """For each call of a tile or a pack: the unit of the function, and the line that instantiates it there."""
    for phase in kernel.phases:
        types = {p.name: p.dtype for p in kernel.outputs} | {b.name: b.dtype for b in (*kernel.scratch, *phase.locals)}
        for s in statements(phase.body):
            if isinstance(s, Tile):
                yield _unit_of(s.core.product), _line(s)
            elif isinstance(s, Pack) and s.unit is None:
                left = types[s.out]
                unit = _unit_of(DOT_BF16) if left == DOT_BF16.left else _COMMON
                yield unit, f"ONNXFUSE_PACKS({stored(s.load.dtype)}, {stored(left)})\n"


def _unit_of(p: ProductKind) -> _Unit:
    """The unit of a product's tiles; headers of matrix units and of 8-bit integers need no instantiation lines."""
    if p.unit is not None:
        return _Unit(f"tiles_{p.unit.name}", f"{p.unit.name}_code.h", p.flags)
    if p.exact:
        return _Unit("tiles_codes", "codes_code.h")
    return _Unit(f"tiles_{p.name}", flags=p.flags) if p.flags else _COMMON


def _line(s: Tile) -> str:
    """The macro of tile_code.h that instantiates the function called by render/statements.py."""
    p = s.core.product
    if p.unit is not None or p.exact:
        return ""
    even = isinstance(s.left, Pointers) and s.left.even
    kind = "PACKED" if isinstance(s.left, Packed) else "EVEN" if even else "ROWS"
    some = "SOME_" if s.some else ""
    return f"ONNXFUSE_{some}{kind}_TILE({stored(p.left)}, {stored(p.right)})\n"
