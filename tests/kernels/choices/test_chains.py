"""Consecutive contractions are stages of one phase where possible."""

from __future__ import annotations

import pytest

from onnxfuse.ir.kernel import Kernel, statements
from onnxfuse.ir.tile import Tile
from tests.kernels.cases.chain import CASES
from tests.kernels.compiled import scheduled


@pytest.mark.parametrize(
    ("name", "few"),
    [
        ("mlp_29_31_37_41", [True]),
        ("mlp_three", [True]),
        ("mlp_both", [True]),
        ("mlp_norm", [True, False]),
        ("images_lines", [True]),
        ("images_points_both", [True]),
        ("mlp_any", [False, False]),  # nobody knows how many rows there will be
    ],
)
def test_products_of_the_same_rows_are_one_phase(name: str, few: list[bool]) -> None:
    kernel = scheduled(next(c for c in CASES if c.name == name), "x86-64-v4")
    assert isinstance(kernel, Kernel)
    assert [p.few for p in kernel.phases] == few


@pytest.mark.parametrize("name", ["scaled_many", "gated_many", "normed_many", "normed_many_both", "excited_28_28"])
def test_rows_that_are_made_for_a_product_are_made_in_its_phase(name: str) -> None:
    """Where that is predicted to be faster, as it is where as many tasks are left and a copy is saved."""
    kernel = scheduled(next(c for c in CASES if c.name == name), "x86-64-v4")
    assert isinstance(kernel, Kernel)
    assert kernel.phases[-1].few
    assert len(kernel.phases) == 1


@pytest.mark.parametrize(
    ("name", "some"),
    [
        ("mlp_15_16_45_16", [True, True]),
        ("mlp_29_31_37_41", [True, True]),
        ("mlp_three", [True, False, False]),  # 40, 64 and 24 columns in panels of 32
        ("mlp_64_128_96_128", [False, False]),
    ],
)
def test_tiles_of_half_empty_panels_are_half_as_wide(name: str, some: list[bool]) -> None:
    """As they are in a phase of their own: products in one phase would take longer than apart otherwise."""
    kernel = scheduled(next(c for c in CASES if c.name == name), "x86-64-v4")
    assert isinstance(kernel, Kernel)
    (phase,) = kernel.phases
    assert [s.some for s in statements(phase.body) if isinstance(s, Tile)] == some
