"""CUDA graphs without a device: a run of the launcher is captured, and its graph computes what new inputs ask for.

Tensors lie in the memory of the stand-in for the driver, which is closed to the host, so that a launcher that looks at
one ends its process. While its stream is captured the driver refuses what a device would.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from onnxfuse.cost.gpu_products import Sizes, tiles_of
from onnxfuse.ir.dtype import F16
from tests.captured.child import THEN
from tests.captured.prepared import CASES, Prepared, assert_right, prepared, product_in_parts
from tests.kernels.compiled import Case
from tests.kernels.pool_host import compiler
from tests.rules.build import Build
from tests.threads.scheduled import TARGET, kernel_of
from tests.threads.test_product_tiles import with_tile

pytestmark = [
    pytest.mark.skipif(compiler() is None, reason="no C++ compiler"),
    pytest.mark.skipif(sys.platform != "linux", reason="the driver is found by the loader of Linux"),
]
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def in_parts(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return product_in_parts(tmp_path_factory.mktemp("captured"))


def captured(made: Prepared, what: str, **more: str) -> tuple[str | None, bool, list[str]]:
    """What a captured run said, whether the capture was broken, and what the driver was asked for."""
    log = made.folder / f"{what}.log"
    log.unlink(missing_ok=True)
    env = {**os.environ, **made.environment, "DRIVER_LOG": str(log), "PYTHONPATH": str(HERE.parents[1]), **more}
    command = [sys.executable, str(HERE / "child.py"), str(made.folder), what]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return found["said"], found["broken"], log.read_text().splitlines()


def test_a_graph_computes_what_new_inputs_ask_for(in_parts: Prepared) -> None:
    said, broken, calls = captured(in_parts, "nothing")
    assert said is None and not broken
    assert not [c for c in calls if c.startswith("refused")]
    assert_right(in_parts, THEN)


@pytest.mark.parametrize(("switch", "dependent"), [("1", True), ("0", False)])
def test_launches_are_dependent_unless_they_are_switched_off(in_parts: Prepared, switch: str, dependent: bool) -> None:
    """The second begins before the first, whose sums it reads, has ended: in a graph, where what is before is known."""
    said, broken, calls = captured(in_parts, "nothing", ONNXFUSE_DEPENDENT_LAUNCHES=switch)
    assert said is None and not broken
    launches = [c for c in calls if c.startswith("launch ")]
    assert [c.endswith(" dependent") for c in launches] == [False, False, False, dependent]
    assert not [c for c in calls if c.startswith("refused")]
    assert_right(in_parts, THEN)


def test_kernels_that_fill_the_machine_begin_when_the_one_before_has_ended(tmp_path: Path) -> None:
    b = Build(22)
    y = b.node("Relu", b.input("x", 1100, 2048))
    case = Case("large", b.graph(y))
    made = prepared(tmp_path, case, kernel_of(case))
    said, broken, calls = captured(made, "nothing")
    assert said is None and not broken
    launches = [c for c in calls if c.startswith("launch ")]
    assert len(launches) == 2 and not [c for c in launches if c.endswith(" dependent")]
    assert_right(made, THEN)


def test_a_kernel_that_does_not_wait_for_the_one_before_is_found(tmp_path: Path) -> None:
    """Planted: the text of kernels without their waits."""
    made = product_in_parts(tmp_path, "wait_for_kernel_before();")
    said, broken, calls = captured(made, "nothing")
    assert said is None and not broken
    assert [c for c in calls if c.startswith("refused a dependent launch")]
    with pytest.raises(AssertionError):
        assert_right(made, THEN)


def test_a_block_asks_for_more_shared_memory_before_it_runs(tmp_path: Path) -> None:
    case = CASES["tiles_float16"]
    large = next(
        t for t in tiles_of(Sizes(1, 50, 96, 64, F16), TARGET) if t.bytes(Sizes(1, 50, 96, 64, F16)) > 64 << 10
    )
    made = prepared(tmp_path, case, with_tile(case, large))
    said, broken, calls = captured(made, "nothing")
    assert said is None and not broken
    (asked,) = [c for c in calls if c.startswith("shared ")]
    assert int(asked.split()[-1]) > 64 << 10
    assert calls.index(asked) < min(i for i, c in enumerate(calls) if c.startswith("launch"))
    assert_right(made, THEN)


@pytest.mark.parametrize(
    ("what", "refused"),
    [
        ("allocate", "memory while a stream is captured"),
        ("wait", "a wait while a stream is captured"),
        ("load", "code loaded while a stream is captured"),
        ("elsewhere", "a launch on another stream than is captured"),
    ],
)
def test_calls_that_cuda_graphs_cannot_record_are_refused_during_capture(
    in_parts: Prepared, what: str, refused: str
) -> None:
    """A launcher that did one of these would be found here: each is planted."""
    said, broken, calls = captured(in_parts, what)
    assert said and broken
    assert f"refused {refused}" in calls
