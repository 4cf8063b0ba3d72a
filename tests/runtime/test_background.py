"""Background work of a build: its result or error is returned, and it ends with the build."""

from __future__ import annotations

import threading
import time

import pytest

from onnxfuse.errors import DeviceError
from onnxfuse.runtime.background import Background


def test_a_result_comes_back_each_time_it_is_asked_for():
    with Background() as beside:
        beside.start("sum", lambda stop: sum(range(10)))
        assert [beside.result("sum", lambda: None) for _ in range(2)] == [45, 45]
        assert beside.result("other", lambda: "otherwise") == "otherwise"


def test_an_error_is_raised_where_the_result_is_asked_for():
    def fails(stop: threading.Event) -> None:
        raise DeviceError("it does not run")

    with Background() as beside:
        beside.start("it", fails)
        with pytest.raises(DeviceError, match="it does not run"):
            beside.result("it", lambda: None)


def test_running_work_ends_with_the_context():
    ended: list[str] = []

    def waits(stop: threading.Event) -> None:
        ended.append("stopped" if stop.wait(30) else "late")

    begin = time.monotonic()
    with Background() as beside:
        beside.start("it", waits)
    assert ended == ["stopped"] and time.monotonic() - begin < 10


def test_a_cancelled_name_may_start_again():
    with Background() as beside:
        beside.start("it", lambda stop: stop.wait(30))
        beside.cancel("it")
        beside.start("it", lambda stop: 2)
        assert beside.result("it", lambda: 1) == 2
