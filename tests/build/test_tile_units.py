"""The units of register tiles: a library holds the functions that its kernels call, and no others."""

from __future__ import annotations

import re

import pytest

from onnxfuse.ir.kernel import Kernel
from onnxfuse.render.cpp import render
from onnxfuse.render.tile_units import tiles_sources
from tests.kernels.cases.codes import CASES as CODES
from tests.kernels.cases.codes import WINDOWS as CHANNELS
from tests.kernels.cases.contraction import CASES as CONTRACTIONS
from tests.kernels.cases.half import CASES as HALVES
from tests.kernels.cases.window import CASES as WINDOWS
from tests.kernels.compiled import scheduled

_MACROS = {
    "tile_rows": "ONNXFUSE_ROWS_TILE",
    "tile_even": "ONNXFUSE_EVEN_TILE",
    "tile_packed": "ONNXFUSE_PACKED_TILE",
    "tile_filled": "ONNXFUSE_FILLED_TILE",
    "some_rows": "ONNXFUSE_SOME_ROWS_TILE",
    "some_even": "ONNXFUSE_SOME_EVEN_TILE",
    "some_packed": "ONNXFUSE_SOME_PACKED_TILE",
    "pack_rows": "ONNXFUSE_PACKS",
}
_OF_CODES = {
    "tile_codes": "ONNXFUSE_CODES_TILE",
    "tile_channels": "ONNXFUSE_CHANNELS_TILE",
}


@pytest.mark.parametrize("target", ["x86-64-v4", "bf16"])
def test_what_kernels_call_is_spelled_out_and_nothing_else(target: str) -> None:
    seen: set[str] = set()
    for case in (*CONTRACTIONS[::4], *WINDOWS[::3], *HALVES[::20]):
        kernel = scheduled(case, target)
        if isinstance(kernel, Kernel):
            calls = set(re.findall(rf"\b({'|'.join(_MACROS)})\(", render(kernel, "k", "k").text))
            units = "".join(source.text for source in tiles_sources([kernel]))
            assert set(re.findall(r"ONNXFUSE_\w+", units)) == {_MACROS[name] for name in calls}, case.name
            seen |= calls
    assert seen == set(_MACROS)


def test_so_it_is_with_tiles_of_codes_for_each_type_of_the_left_side() -> None:
    seen: set[str] = set()
    for case in (*CODES, *CHANNELS[:2]):
        kernel = scheduled(case, "x86-64-v4")
        if isinstance(kernel, Kernel):
            calls = set(re.findall(rf"\b({'|'.join(_OF_CODES)})\(", render(kernel, "k", "k").text))
            units = "".join(source.text for source in tiles_sources([kernel]))
            made = re.findall(r"ONNXFUSE_\w+_TILE\(u?int8_t\)|ONNXFUSE_CHANNELS_TILE\(\)", units)
            assert {each.split("(")[0] for each in made} == {_OF_CODES[name] for name in calls}, case.name
            assert ("ONNXFUSE_WIDENED_TILE()" in units) == ("tile_codes" in calls), case.name
            seen |= set(made)
    assert seen == {"ONNXFUSE_CODES_TILE(uint8_t)", "ONNXFUSE_CODES_TILE(int8_t)", "ONNXFUSE_CHANNELS_TILE()"}


def test_every_function_has_a_unit_of_its_own_whatever_the_model() -> None:
    """So that a build has it from the cache, whatever model needed it before."""
    kernels = [k for case in CONTRACTIONS[::6] if isinstance(k := scheduled(case, "x86-64-v4"), Kernel)]
    made = tiles_sources(kernels, "_tail", ("-mavx2",))
    assert made == tiles_sources(reversed(kernels), "_tail", ("-mavx2",))
    assert set(made) == {each for kernel in kernels for each in tiles_sources([kernel], "_tail", ("-mavx2",))}
    zeros, *functions = made
    assert zeros.symbol == "tile_zeros_tail"
    assert len(functions) > 3
    assert all(each.text.count("ONNXFUSE_") == 1 and each.flags == ("-mavx2",) for each in functions)
    assert tiles_sources([]) == ()
