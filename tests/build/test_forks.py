"""Children of `python_child` are forked from a process that has their imports, and are as programs of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from onnxfuse.runtime import process
from onnxfuse.runtime.forks import HAS_FORKS, Forks
from tests.build.test_process import CHILD, gone

pytestmark = pytest.mark.skipif(not HAS_FORKS, reason="this system has no pidfd_open")


def child() -> dict[str, Any]:
    answer: dict[str, Any] = process.python_child(CHILD, {"do": "where"}, stage="test", time_limit=60)
    return answer


@pytest.fixture(autouse=True)
def forks(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A server of each test."""
    made = Forks(process._fork_server)
    monkeypatch.setattr(process, "_FORKS", made)
    yield made
    made.end()


def server_of(forks: Forks) -> int:
    assert forks._server is not None
    return forks._server.program.pid  # type: ignore[attr-defined, no-any-return]


def test_children_come_from_one_server_that_has_their_imports(forks: Forks) -> None:
    first, second = child(), child()
    assert first["pid"] != second["pid"]
    assert first["parent"] == second["parent"] == server_of(forks) != os.getpid()
    assert first["leads"]
    assert first["program"] == "__main__"


def test_a_server_can_be_prepared(forks: Forks) -> None:
    process.prepare(CHILD)
    server = server_of(forks)
    process.prepare(CHILD)  # it runs already
    assert child()["parent"] == server == server_of(forks)


def test_what_cannot_be_imported_is_told_by_the_child(forks: Forks) -> None:
    process.prepare("onnxfuse.nowhere")
    assert child()["parent"] == server_of(forks)


def test_folder_cores_and_our_variables_are_those_of_the_moment(
    forks: Forks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONNXFUSE_NOTE", "here")
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        found = child()
    finally:
        os.sched_setaffinity(0, cores)
    assert (found["cwd"], found["cores"]) == (str(tmp_path), [min(cores)])
    assert (found["parent"], found["variables"]) == (server_of(forks), ["here", ""])
    monkeypatch.delenv("ONNXFUSE_NOTE")
    assert child()["variables"] == ["", ""]


def test_variables_that_libraries_may_have_read_start_a_program(forks: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
    child()
    monkeypatch.setenv("THEIR_NOTE", "new")
    found = child()
    assert (found["parent"], found["variables"]) == (os.getpid(), ["", "new"])
    monkeypatch.delenv("THEIR_NOTE")
    assert child()["parent"] == server_of(forks)


def test_the_variable_that_pytest_sets_for_every_test_is_not_among_them(
    forks: Forks, monkeypatch: pytest.MonkeyPatch
) -> None:
    child()
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "another test")
    assert child()["parent"] == server_of(forks)


def test_a_server_that_died_is_replaced(forks: Forks) -> None:
    child()
    died = server_of(forks)
    os.kill(died, signal.SIGKILL)
    assert child()["parent"] == os.getpid(), "by a program, for this one time"
    assert child()["parent"] == server_of(forks) != died


def test_a_child_that_cannot_be_waited_for_is_ended(forks: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would do its work beside the program that takes its place."""
    child()
    opened: list[int] = []

    def refused(pid: int) -> int:
        opened.append(pid)
        raise OSError

    monkeypatch.setattr(os, "pidfd_open", refused)
    assert child()["parent"] == os.getpid()
    assert len(set(opened)) == 2 and gone(opened[0])  # the fork, and the program, which is waited for without


def test_a_missing_module_is_reported() -> None:
    with pytest.raises(Exception, match="No module named"):
        process.python_child("tests.build.nothing", {}, stage="test")


def test_many_threads_ask_at_once() -> None:
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(child()["pid"])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 8


ASKING = """
import os, signal
from onnxfuse.runtime import process
from tests.build.test_process import CHILD
process.python_child(CHILD, {"do": "echo"}, stage="test")
print(process._FORKS._server.program.pid, flush=True)
"""


@pytest.mark.parametrize("ending", ["", "os.kill(os.getpid(), signal.SIGKILL)"], ids=["well", "killed"])
def test_the_server_ends_with_the_process_that_asks(ending: str) -> None:
    command = (sys.executable, "-c", ASKING + ending)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert gone(int(done.stdout))
