"""Budgets of time and memory hold in every step, within one long call, and where exceptions are caught."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxfuse import optimize
from onnxfuse.backends import Backend
from onnxfuse.build import BuildRequest, build_library
from onnxfuse.build.toolchain import Toolchain
from onnxfuse.errors import BudgetError
from onnxfuse.pipeline.calls import Calls
from onnxfuse.pipeline.meter import Meter
from onnxfuse.render.source import Source
from onnxfuse.rewrite import engine
from onnxfuse.runtime.memory import children, resident, resident_of_tree, trim
from onnxfuse.target import machine
from scripts import large
from tests.caches import own_cache
from tests.calls import planted
from tests.kernels.pool_host import compiler

SECONDS, LATE = 1.0, 1.0  # that a build may take here, and how much later it may end
ROOM, MORE = 300 << 20, 1.1  # bytes that it may take beside what is there, and how much more it may
IN_OTHERS = {"build_library", "find_toolchain", "verify_groups", "verify_models", "verify_culprits"}
IN_OTHERS |= {
    "verify_reference",
    "verify_place",
    "profile_models",
    "measure_gain",
    "time_samples",
    "copied",
    "write_data",
    "write_stream",
}  # their time is that of other processes
ELSEWHERE = {"measured", "node_seconds", "timer", "handing_on"}  # called for guided builds, for images, by tune, and
# for plans of several groups
NO_FUNCTIONS = {"targets", "beside", "backends", "name", "legality", "compilers"}
EACH = [f.name for f in (*fields(Calls), *fields(Backend)) if f.name not in IN_OTHERS | ELSEWHERE | NO_FUNCTIONS]


def small() -> bytes:
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        m (float[4, 8] x) => (float[4, 8] y) { a = Add (x, x) b = Relu (a) c = Softmax (b) y = Neg (c) }""")
    return bytes(proto.SerializeToString())


def for_ever(*_: Any, **__: Any) -> Any:
    """What ends by itself in a minute."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        sum(range(100))
    raise AssertionError("nobody ended it")


def at_rest(*_: Any, **__: Any) -> Any:
    """As long, without a processor."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        time.sleep(0.002)
    raise AssertionError("nobody ended it")


def growing(*_: Any, **__: Any) -> Any:
    """Four gigabytes, bit by bit."""
    held = []
    for _number in range(400):
        held.append(np.ones(10 << 20, np.uint8))
        time.sleep(0.005)
    raise AssertionError("nobody ended it")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A cache that has the kernels: what they take is no matter here."""
    folder = tmp_path_factory.mktemp("cache")
    made = own_cache(folder / "own")
    optimize(small(), folder / "o.onnx", verify=False, gain=False, cache_dir=made)
    return made


def kept_waiting() -> float:
    """Seconds in which this thread could have run and other work of the machine did; 0 where no system says so."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1]) * 1e-9
    except OSError:
        return 0.0


@contextmanager
def takes_at_most(seconds: float) -> Iterator[None]:
    """On the clock, but for what other work of the machine takes; waiting for something counts."""
    begin, before = time.monotonic(), kept_waiting()
    yield
    assert time.monotonic() - begin - (kept_waiting() - before) < seconds


def ends_in_time(tmp_path: Path, **changes: Any) -> str:
    with takes_at_most(SECONDS + LATE), pytest.raises(BudgetError) as told:
        optimize(small(), tmp_path / "o.onnx", time_budget=SECONDS, **changes)
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"
    return told.value.message


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("name", EACH)
def test_a_step_that_takes_long_is_ended(name: str, compiled: str, tmp_path: Path) -> None:
    verify = None if name == "memory_of" else False
    changes: dict[str, Any] = {"verify": verify, "gain": False, "cache_dir": compiled}
    takes_long = for_ever if name == EACH[0] else at_rest  # one step may show what holds the interpreter
    said = ends_in_time(tmp_path, calls=planted(name, takes_long), **changes)
    assert "more than the 1 s allowed" in said


def test_a_rule_that_takes_long_is_no_bug(tmp_path: Path) -> None:
    """What is raised where bugs are caught is not taken for one."""
    with patch.object(engine, "propose", for_ever):
        assert "more than the 1 s allowed" in ends_in_time(tmp_path)


@pytest.mark.parametrize("name", ["load", "rewrite", "plan", "schedule"])
def test_a_step_that_takes_much_memory_is_ended(name: str, tmp_path: Path) -> None:
    gc.collect()
    trim()
    here = resident(os.getpid())
    with pytest.raises(BudgetError, match=r"MB were taken, more than the \d+ MB allowed"):
        optimize(small(), tmp_path / "o.onnx", calls=planted(name, growing), memory_budget=str(here + ROOM))
    assert resident(os.getpid()) < MORE * (here + ROOM)


GREEDY = """
import time
held = []
for _ in range(300):
    held.append(b"x" * (4 << 20))
    time.sleep(0.01)
"""  # a compiler that takes 1.2 GB in three seconds, and then fails


def test_a_compiler_that_takes_much_memory_is_ended_while_it_runs(tmp_path: Path) -> None:
    """The build waits for it in a lock, in which no exception reaches a thread."""
    greedy = Toolchain("greedy", "1", (sys.executable, "-c", GREEDY), "gcc", "greedy", machine())
    gc.collect()
    trim()
    here = resident(os.getpid())
    sources, glue = [Source("one", "int one;")], [Source("glue", "int glue;")]
    with Meter(memory=here + ROOM) as meter, pytest.raises(BudgetError, match="MB were taken"), meter.step("build"):
        build_library(BuildRequest(sources, glue, greedy, None, 1, tmp_path / "l.so"))
    assert here + ROOM < meter.peak < MORE * (here + ROOM)


FORKED = """
import os, time
held = b"x" * (200 << 20)
child = os.fork()
more = b"x" * ({} << 20) if not child else None
os.write(1, b"ready\\n")
time.sleep(20)
"""  # a process and one that it forks, which takes more


@pytest.mark.parametrize(("more", "total"), [(0, 200), (150, 550)])
def test_memory_of_a_process_that_was_just_forked_is_its_parents(more: int, total: int) -> None:
    """A compiler is started so: for a moment it seemed to need as much as the whole build, which ended."""
    with subprocess.Popen([sys.executable, "-c", FORKED.format(more)], stdout=subprocess.PIPE) as parent:
        try:
            assert parent.stdout is not None
            assert [parent.stdout.readline() for _ in range(2)] == [b"ready\n"] * 2
            found = resident_of_tree(parent.pid) >> 20
        finally:
            for pid in (*children(parent.pid), parent.pid):
                os.kill(pid, signal.SIGKILL)
    assert total <= found < total + 40


def chain(count: int) -> bytes:
    """A product and a sum, over and over: hours of work where budgets do not hold, half a minute where nothing does."""
    rng = np.random.default_rng(0)
    nodes, weights = [], []
    for k in range(count):
        weights.append(numpy_helper.from_array(rng.standard_normal((8, 8 + k % 5), np.float32), f"w{k}"))
        weights.append(numpy_helper.from_array(rng.standard_normal((8 + k % 5, 8), np.float32), f"v{k}"))
        value = f"x{k}" if k else "x"
        nodes += [
            helper.make_node("MatMul", [value, f"w{k}"], [f"a{k}"]),
            helper.make_node("Tanh", [f"a{k}"], [f"b{k}"]),
        ]
        nodes += [helper.make_node("MatMul", [f"b{k}", f"v{k}"], [f"c{k}"])]
        nodes += [helper.make_node("Add", [f"c{k}", value], [f"x{k + 1}"])]
    ends = [helper.make_tensor_value_info(name, 1, [3, 8]) for name in ("x", f"x{count}")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def test_a_budget_exception_dropped_in_a_destructor_is_raised_again() -> None:
    """What is raised while a destructor runs is dropped; the step would go on for ever."""

    class Slow:
        def __del__(self) -> None:
            until = time.monotonic() + 0.6
            while time.monotonic() < until:
                pass

    begin, former = time.monotonic(), sys.unraisablehook
    with takes_at_most(0.6 + LATE), Meter(seconds=0.2) as meter, pytest.raises(BudgetError), meter.step("endless"):
        for _ in range(5):
            Slow()
        while time.monotonic() < begin + 20:
            pass
    assert sys.unraisablehook is former


def test_other_exceptions_in_destructors_are_reported_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __del__(self) -> None:
            raise ValueError("lost")

    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: told.append(found.exc_value))
    with Meter(seconds=20):
        Broken()
    assert [str(each) for each in told] == ["lost"]


@pytest.mark.parametrize("seconds", [1.0, 3.0, 6.0])
def test_a_large_model_is_ended_in_time(seconds: float, tmp_path: Path) -> None:
    """With the real steps, whichever of them it is that takes the time."""
    model = chain(2500)
    with takes_at_most(seconds + 2 * LATE), pytest.raises(BudgetError):
        optimize(model, tmp_path / "o.onnx", time_budget=seconds, no_cache=True)


@pytest.mark.slow
def test_three_gigabytes_of_weights_fit_into_the_budgets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """8 GB of memory and ten minutes, verification included; progress is reported on the way."""
    monkeypatch.setenv("ONNXFUSE_GAIN", "0")
    assert large.main(["--gigabytes", "3", "--folder", str(tmp_path)]) == 0
    said = capfd.readouterr()
    found = re.search(r"(\S+) s at most without a line of progress; verified: True", said.out)
    assert found is not None and float(found[1]) < 10, said.out
    assert re.search(r"^verify the model, \d+ s \.\.\.$", said.err, re.MULTILINE), said.err
