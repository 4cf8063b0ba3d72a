"""The launcher in several threads, contexts and devices, over the stand-in for the driver, each in its own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.captured.contexts_child import THREADS
from tests.captured.prepared import Prepared, assert_right, product_in_parts
from tests.kernels.pool_host import compiler

pytestmark = [
    pytest.mark.skipif(compiler() is None, reason="no C++ compiler"),
    pytest.mark.skipif(sys.platform != "linux", reason="the driver is found by the loader of Linux"),
]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def in_parts(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return product_in_parts(tmp_path_factory.mktemp("contexts"))


def said(made: Prepared, what: str, **environment: str) -> tuple[list[str], list[str]]:
    """What the launcher said, and what the driver was asked for."""
    log = made.folder / f"{what}.log"
    env = {**os.environ, **made.environment, "DRIVER_LOG": str(log), "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, "-m", "tests.captured.contexts_child", str(made.folder), what]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    calls = log.read_text().splitlines()
    assert not [c for c in calls if "the driver is gone" in c], "a call after the end of the process"
    return json.loads(done.stdout), calls


def test_a_thread_without_a_context_runs_what_another_one_prepared(in_parts: Prepared) -> None:
    assert said(in_parts, "elsewhere")[0] == ["", ""]
    assert_right(in_parts, 1)


def test_code_is_brought_to_the_device_of_the_session_and_the_thread_keeps_its_own(in_parts: Prepared) -> None:
    """On a stream of the first device, to which nothing was brought, it is refused."""
    (prepared, current, first, second), calls = said(in_parts, "second", DRIVER_DEVICES="2", DRIVER_CAPABILITY="80,90")
    assert (prepared, current, second) == ("", "0", "")
    assert first.startswith("a kernel could not be launched: CUDA error 600")
    assert calls.count("refused a launch of what is loaded only then") == 1
    assert_right(in_parts, 1)


def test_a_session_after_a_reset_runs(in_parts: Prepared) -> None:
    (*before, lost, again, after), calls = said(in_parts, "reset")
    assert before == ["", ""] and (again, after) == ("", "")
    assert lost.startswith("a kernel could not be launched")
    assert sum(c.startswith("load") for c in calls) == 1, "a library is of no context"
    assert_right(in_parts, 1)


@pytest.mark.parametrize(("number", "what"), [(1, "a kernel could not be launched"), (2, "a kernel failed")])
def test_a_lost_context_is_said_in_the_words_of_the_driver(in_parts: Prepared, number: int, what: str) -> None:
    (prepared, run), _ = said(in_parts, "fault", DRIVER_FAULT=str(number))
    assert prepared == ""
    assert run == f"{what}: CUDA error 700, an illegal memory access was encountered"


def test_a_node_that_is_made_does_not_break_another_thread_s_capture(in_parts: Prepared) -> None:
    (prepared, ended), calls = said(in_parts, "capturing")
    assert (prepared, ended) == ("", "0")
    assert not [c for c in calls if c.startswith("refused")]


def test_threads_that_prepare_and_run_at_once_load_once(in_parts: Prepared) -> None:
    found, calls = said(in_parts, "together")
    assert found == [""] * THREADS
    assert sum(c.startswith("load") for c in calls) == 1
    for number in range(THREADS):
        assert_right(in_parts, 1, f".{number}")


def test_an_input_that_begins_anywhere_is_refused_before_the_device_is_lost(in_parts: Prepared) -> None:
    (_, run), calls = said(in_parts, "offset")
    assert run == "an input does not begin at a multiple of 16 bytes"
    assert not [c for c in calls if c.startswith("launch")]


def test_a_device_that_is_not_there_is_refused(in_parts: Prepared) -> None:
    assert said(in_parts, "nowhere")[0] == ["there is no CUDA driver, or no such device"]
