"""A model and its library in the oldest and the newest runtime: they load, kernels run or not as asked, results hold.

Other runtimes than that of this environment are in environments of their own, which `make runtimes` makes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.networks import NETWORKS
from onnxfuse.runtime.engine import open_session, options, run
from onnxfuse.verify.compare import FLOORS, distance
from scripts.runtimes import OLDEST, interpreter, made
from tests.models.fused import Built, built, feeds_of
from tests.models.test_networks import needs_compiler

pytestmark = needs_compiler
CHILD = Path(__file__).with_name("child.py")
HERE = "this one"
SMALL = ("tiny-mobilenet", "tiny-bert.dynamic")
RUNTIMES = sorted({OLDEST, *made()})
ALL = [n.name for n in NETWORKS if n.name.startswith("tiny-")]
WAYS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("with the library", {"library": True, "optimize": True}),
    ("with the library, no optimizations", {"library": True, "optimize": False}),
    ("without the library", {"library": False, "optimize": True}),
    ("without the library, no optimizations", {"library": False, "optimize": False}),
    ("switched off", {"library": True, "optimize": True, "config": {"onnxfuse.disable": "1"}}),
)


def python_with(runtime: str) -> str:
    """The interpreter of a runtime, or a skip."""
    if runtime == HERE:
        return sys.executable
    found = interpreter(runtime)
    if found is None:
        pytest.skip(f"no environment with ONNX Runtime {runtime}: make runtimes")
    return str(found)


def asked(python: str, made: Built, folder: Path) -> dict[str, Any]:
    """What the child says about all ways of running a model; its outputs are files in the folder."""
    sets = feeds_of(made.row)
    for number, feeds in enumerate(sets):
        np.savez(folder / f"in{number}.npz", allow_pickle=False, **feeds)
    requests = []
    for way, (_, how) in enumerate(WAYS):
        pairs = [(str(folder / f"in{n}.npz"), str(folder / f"out{way}.{n}.npz")) for n in range(len(sets))]
        library = str(made.library) if how["library"] else None
        requests.append({"config": {}, "model": str(made.fused), "sets": pairs} | how | {"library": library})
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    command = [python, str(CHILD)]
    done = subprocess.run(command, input=json.dumps(requests), env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def held(python: str, made: Built, folder: Path) -> str:
    """Assert that all ways give what the original gives here and that kernels ran where they should; the runtime."""
    answer = asked(python, made, folder)
    plain = open_session(str(made.original), options(optimize=False, threads=2))
    names = [each.name for each in plain.get_outputs()]
    sets = feeds_of(made.row)
    kernels = {g.kernel for g in made.result.groups}
    for way, (what, how) in enumerate(WAYS):
        for number, feeds in enumerate(sets):
            with np.load(folder / f"out{way}.{number}.npz") as got:
                for name, wanted in zip(names, run(plain, feeds, names), strict=True):
                    assert distance(wanted, got[name]).error <= FLOORS["float32"], (what, number, name)
        ours = {op: count for op, count in answer["ran"][way].items() if op in kernels}
        runs = sum(ours.values())
        wanted_runs = made.result.kernels * len(sets) if how["library"] and "config" not in how else 0
        assert runs == wanted_runs, f"{what}: {ours}"
    return str(answer["runtime"])


@pytest.mark.parametrize("runtime", [HERE, *RUNTIMES])
@pytest.mark.parametrize("name", SMALL)
def test_small_networks(name: str, runtime: str, tmp_path: Path) -> None:
    python = python_with(runtime)
    found = held(python, built(name, tmp_path), tmp_path)
    assert runtime in (HERE, found)


@pytest.mark.slow
@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("name", [n for n in ALL if n not in SMALL])
def test_the_other_small_networks(name: str, runtime: str, tmp_path: Path) -> None:
    assert held(python_with(runtime), built(name, tmp_path), tmp_path) == runtime
