"""Attention is one phase, whatever the order of its tokens and channels in memory."""

from __future__ import annotations

import pytest

from onnxfuse.ir.kernel import Kernel
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
)


@pytest.mark.parametrize("name", IN_ONE_PHASE)
@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_scores_are_never_written_whole(name: str, target: str) -> None:
    """The softmax of a row of scores is multiplied with the values while it is in cache."""
    kernel = scheduled(next(c for c in CASES if c.name == name), target)
    assert isinstance(kernel, Kernel)
    assert len(kernel.phases) == 1
