"""Measuring a gain: which measurements are made in the time there is, by the real clock."""

from __future__ import annotations

import time

import pytest

from onnxfuse.errors import DeviceError
from onnxfuse.measure.gain import CROWDED, seconds_needed
from onnxfuse.measure.gain_child import FEWEST, LONG, PROFILED, _in_time
from onnxfuse.runtime.memory import LoadCost
from onnxfuse.runtime.provider import Provider

RUN = 10 * LONG  # seconds of a long run; delays of a sleep on a busy machine are short beside it


@pytest.mark.parametrize(
    ("rounds", "profiled"),
    [(FEWEST + PROFILED + 4, 1), (FEWEST + 0.5, 0), (FEWEST - 2, None)],
    ids=["node by node too", "turns alone", "too few turns"],
)
def test_long_runs_are_raced_where_that_fits(rounds: float, profiled: int | None):
    def call() -> None:
        time.sleep(RUN)

    until = time.monotonic() + RUN + 2 * RUN * rounds
    if profiled is None:
        with pytest.raises(DeviceError, match="are left for the measurement"):
            _in_time([call], until)
    else:
        assert _in_time([call], until) == profiled


def test_the_first_run_may_take_longer():
    first = [2 * RUN]

    def call() -> None:
        time.sleep(first.pop() if first else LONG / 2)

    assert _in_time([call], time.monotonic() + 14 * RUN) == PROFILED


def test_runs_that_do_not_fit_beside_other_work_may_fit_by_themselves():
    """A YOLO-V4 of 0.37 s: 1.3 s beside other work, where three seconds and fifteen percent of its build are four."""
    crowded, made = LoadCost("original", 0.3, 0, 1.3), LoadCost("with library", 0.1, 0, 0.12, True)
    assert seconds_needed(crowded, made, crowded=CROWDED) < 4.0 < seconds_needed(crowded, made)
    minutes = LoadCost("original", 0.3, 0, 8.0)
    assert seconds_needed(minutes, made, crowded=CROWDED) > 4.0, "what surely takes too long is not begun"


def test_on_a_device_the_original_is_counted_as_the_build():
    """What verification timed of the original is its run on the CPU, which takes longer and says nothing."""
    original, made = LoadCost("original", 9.0, 0, 5.0), LoadCost("with library", 0.3, 0, 0.001, True)
    device = Provider("CUDAExecutionProvider", {}, "cuda", bound=True)
    assert 1.0 < seconds_needed(original, made, provider=device) < 2.0 < seconds_needed(original, made)
