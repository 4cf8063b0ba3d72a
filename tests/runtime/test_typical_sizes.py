"""Sizes that a model leaves open and that are worth measuring: a batch of 1, and 128 of all else."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.runtime.feeds import TYPICAL, Input, sizes_of


def shaped(*shapes: tuple[int | str, ...]) -> tuple[Input, ...]:
    """Inputs of integers with these shapes."""
    return tuple(Input(f"x{i}", np.dtype(np.int64), shape, "int") for i, shape in enumerate(shapes))


@pytest.mark.parametrize(
    ("shapes", "given", "wanted"),
    [
        ((("batch", "tokens"),), {}, {"batch": 1, "tokens": 128}),
        ((("batch", "tokens"),), {"batch": 4}, {"batch": 4, "tokens": 128}),
        ((("batch", "tokens"),), {"tokens": 7}, {"batch": 1, "tokens": 7}),
        (((1, "tokens"),), {}, {"tokens": 128}),
        ((("batch", "tokens"), ("boxes", 4)), {}, {"batch": 1, "tokens": 128, "boxes": 128}),
        ((("batch", "tokens"), ("boxes", 4)), {"batch": 2}, {"batch": 2, "tokens": 128, "boxes": 128}),
        (((), ("n",)), {}, {"n": 1}),
    ],
)
def test_only_a_batch_is_one(
    shapes: tuple[tuple[int | str, ...], ...], given: dict[str, int], wanted: dict[str, int]
) -> None:
    assert sizes_of(shaped(*shapes), TYPICAL, 0, given) == wanted
