"""Attention is one phase, whatever the order of its tokens and channels in memory."""

from __future__ import annotations

import pytest

from onnxfuse.ir.kernel import Kernel, Loop, Store, statements
from onnxfuse.ir.tile import Tile
from tests.kernels.cases.contraction import CASES
from tests.kernels.compiled import scheduled

IN_ONE_PHASE = (
    "attention",
    "attention_any",
    "attention_chain",
    "attention_cross",
    "attention_channels_first",
    "attention_channels_last",
    "attention_channels_last_any",
    "attention_narrow",
    "attention_narrow_any",
    "attention_turned_any",
)


@pytest.mark.parametrize("name", IN_ONE_PHASE)
@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_scores_are_never_written_whole(name: str, target: str) -> None:
    """The softmax of a row of scores is multiplied with the values while it is in cache."""
    kernel = scheduled(next(c for c in CASES if c.name == name), target)
    assert isinstance(kernel, Kernel)
    assert len(kernel.phases) == 1


@pytest.mark.parametrize("name", ["attention_narrow", "attention_narrow_any"])
@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_both_products_of_narrow_heads_have_register_tiles(name: str, target: str) -> None:
    """A head of 5 or 7 channels is the depth of one product and the columns of the other."""
    kernel = scheduled(next(c for c in CASES if c.name == name), target)
    assert isinstance(kernel, Kernel)
    assert len([s for p in kernel.phases for s in statements(p.body) if isinstance(s, Tile)]) == 2


def test_keys_along_the_columns_are_copied_by_lines() -> None:
    """The last panel has fewer keys than columns: as many as there are, then zeros; none is tested by itself."""
    kernel = scheduled(next(c for c in CASES if c.name == "attention_turned_any"), "x86-64-v4")
    assert isinstance(kernel, Kernel)
    loops = [s for p in kernel.phases for s in statements(p.body) if isinstance(s, Loop) and s.kind == "vector"]
    keys = [s for s in loops for x in s.body if isinstance(x, Store) and not x.buffer.startswith("out")]
    packed = [
        (repr(s.begin), repr(s.end)) for s in keys if any("right" in x.buffer for x in s.body if isinstance(x, Store))
    ]
    assert packed == [("0", "jn"), ("jn", "32")]
