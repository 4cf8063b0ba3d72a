"""The translation units of register tiles: each instantiates one function of tile.h or codes.h for its element types.

A unit's text depends on nothing else, so the cache of a build has it from whatever model needed it before. Each takes
the compiler a third of a second or more, so there are only those that some kernel calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from onnxfuse.ir.dtype import DType
from onnxfuse.ir.kernel import Kernel, Pack, products_of, statements
from onnxfuse.ir.products import DOT_BF16
from onnxfuse.ir.tile import Channels, Packed, Pointers, Quantized, Tile
from onnxfuse.render.c_family import stored
from onnxfuse.render.source import PRELUDE, Source


@dataclass(frozen=True, order=True, slots=True)
class _Unit:
    """A translation unit, and compiler flags beyond those of the target."""

    name: str
    text: str
    flags: tuple[str, ...] = ()


_ZEROS = _Unit("tile_zeros", '#include "zeros.h"\n')  # of padding; present in every library that has tiles


def tile_headers(kernel: Kernel) -> list[str]:
    """The includes that declare the tiles of a kernel and the functions that pack their rows."""
    used = products_of([kernel])
    units = dict.fromkeys(f"{p.unit.name}.h" for p in used if p.unit is not None)
    codes = any(p.exact and p.unit is None for p in used)
    return [f'#include "{name}"' for name in (*units, *(["codes.h"] if codes else []))] or ['#include "tile.h"']


def tiles_sources(kernels: Iterable[Kernel], tail: str = "", flags: tuple[str, ...] = ()) -> tuple[Source, ...]:
    """The units, compiled with the target's `flags`; `tail` keeps symbols of several targets of a library apart."""
    called = sorted({unit for kernel in kernels for unit in _called(kernel)})
    units = (_ZEROS, *called) if called else ()
    return tuple(Source(f"{u.name}{tail}", u.text, (*flags, *u.flags)) for u in units)


def _called(kernel: Kernel) -> Iterator[_Unit]:
    """For each call of a tile or a pack the unit of the function."""
    for phase in kernel.phases:
        types = {p.name: p.dtype for p in kernel.outputs} | {b.name: b.dtype for b in (*kernel.scratch, *phase.locals)}
        for s in statements(phase.body):
            if isinstance(s, Tile):
                yield from _tiles(s)
            elif isinstance(s, Pack) and s.unit is None:
                left = types[s.out]
                flags = DOT_BF16.flags if left == DOT_BF16.left else ()
                yield _function("tile", "pack_rows", "PACKS", (s.load.dtype, left), flags)


def _tiles(s: Tile) -> Iterator[_Unit]:
    """The units of a tile; the header of a matrix unit instantiates nothing."""
    p = s.core.product
    if p.unit is not None:
        yield _Unit(f"tiles_{p.unit.name}", f'{PRELUDE}#include "{p.unit.name}_code.h"\n', p.flags)
    elif isinstance(s.left, Channels):
        yield _function("codes", "tile_channels", "CHANNELS_TILE")
    elif isinstance(s.left, Quantized):
        yield _function("codes", "tile_codes", "CODES_TILE", (p.left,))
        yield _function("codes", "tile_widened", "WIDENED_TILE")  # where a machine lacks dot-product instructions
    elif s.right.source is not None:
        yield _function("tile", "tile_filled", "FILLED_TILE", (p.left, p.right))
    else:
        even = isinstance(s.left, Pointers) and s.left.even
        kind = "packed" if isinstance(s.left, Packed) else "even" if even else "rows"
        name, macro = ("some", "SOME_") if s.some else ("tile", "")
        yield _function("tile", f"{name}_{kind}", f"{macro}{kind.upper()}_TILE", (p.left, p.right), p.flags)


def _function(header: str, name: str, macro: str, types: tuple[DType, ...] = (), flags: tuple[str, ...] = ()) -> _Unit:
    """The unit of a function for some element types, by the macro of HEADER_code.h that instantiates it."""
    names = [stored(each) for each in types]
    text = f'{PRELUDE}#include "{header}_code.h"\nONNXFUSE_{macro}({", ".join(names)})\n'
    return _Unit("_".join((name, *names)), text, flags)
