"""Times of windows on a GPU, as they were measured, and how many results a thread has."""

from __future__ import annotations

import pytest

from onnxfuse.cost.gpu_windows import WARM, WindowSizes, best_height, seconds_of
from onnxfuse.target import gpus_of

H100 = gpus_of(("sm_90",), graph=True)[0]
BETWEEN = 0.5  # microseconds between two kernels there
MEASURED = [  # channels, side of results, taps, step, results of a thread, microseconds on an H200 in float16
    (96, 56, 7, 1, 1, 6.3),
    (96, 56, 7, 1, 4, 3.6),
    (96, 56, 7, 1, 14, 3.4),
    (192, 28, 7, 1, 4, 2.8),
    (384, 14, 7, 1, 2, 2.4),
    (768, 7, 7, 1, 1, 2.3),
    (32, 112, 3, 1, 1, 4.1),
    (32, 112, 3, 1, 4, 2.1),
    (96, 56, 3, 2, 4, 2.0),
    (960, 7, 3, 1, 1, 1.3),
    (240, 28, 5, 1, 4, 2.2),
]


@pytest.mark.parametrize(("channels", "side", "taps", "step", "tall", "us"), MEASURED)
def test_predicted_times_are_near_those_measured(
    channels: int, side: int, taps: int, step: int, tall: int, us: float
) -> None:
    sizes = WindowSizes(channels * side * side, side, taps, taps, step, 1, 1, 1)
    found = seconds_of(sizes, tall, H100, fetched=WARM) * 1e6 + BETWEEN
    assert us / 1.25 < found < us * 1.25


def test_results_of_a_thread_divide_those_of_a_column() -> None:
    assert list(WindowSizes(100, 28, 3, 3).heights) == [1, 2, 4, 7, 14]
    assert list(WindowSizes(100, 13, 3, 3).heights) == [1, 13]
    assert list(WindowSizes(100, 17, 3, 3).heights) == [1]
    assert list(WindowSizes(100, 64, 3, 3, step=4).heights) == [1, 2, 4, 8], "columns stay in registers"


def test_few_results_have_a_thread_each_and_many_share_what_is_loaded() -> None:
    assert best_height(WindowSizes(49 * 32, 7, 3, 3, fixed=1), H100) == 1
    assert best_height(WindowSizes(96 * 56 * 56, 56, 7, 7, fixed=1), H100) >= 4
