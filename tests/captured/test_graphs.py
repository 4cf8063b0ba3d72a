"""CUDA graphs without a device: a run of the launcher is captured, and its graph computes what new inputs ask for.

Tensors lie in the memory of the stand-in for the driver, which is closed to the host, so that a launcher that looks at
one ends its process. While its stream is captured the driver refuses what a device would.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from onnxfuse.build import SUPPORT
from onnxfuse.cost.gpu_products import Sizes, tiles_of
from onnxfuse.ir.dtype import F16
from onnxfuse.ir.interpret import interpret
from onnxfuse.ir.kernel import Kernel
from onnxfuse.render.cuda_launch import code_symbol, render
from tests.captured.child import THEN
from tests.kernels.compiled import Case, fed
from tests.kernels.isa import CACHE
from tests.kernels.pool_host import Array, compile_library, compiler
from tests.threads.emulator import library_of
from tests.threads.product_cases import TILED
from tests.threads.scheduled import TARGET
from tests.threads.test_product_tiles import with_tile

pytestmark = [
    pytest.mark.skipif(compiler() is None, reason="no C++ compiler"),
    pytest.mark.skipif(sys.platform != "linux", reason="the driver is found by the loader of Linux"),
]
HERE = Path(__file__).parent
DRIVER = HERE.parent / "threads" / "driver.cpp"
CASES = {c.name: c for c in TILED}
SYMBOL = "captured"
ANY_DEVICE = b"//\n.version 9.0\n"  # code that the stand-in takes for that of any function


@dataclass(frozen=True)
class Prepared:
    """A folder with a kernel's launcher and inputs, the kernel for the host, and the folder of the driver."""

    folder: Path
    kernel: Kernel
    feeds: tuple[Array, ...]
    environment: dict[str, str]


@pytest.fixture(scope="module")
def in_parts(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """A product whose sums are of two parts, with a normalization: two launches, and memory of the run."""
    case = CASES["norm_behind_float16"]
    kernel = with_tile(case, next(t for t in tiles_of(Sizes(1, 24, 64, 256, F16), TARGET) if t.splits > 1))
    assert len(kernel.phases) == 2 and kernel.scratch
    return prepared(tmp_path_factory.mktemp("captured"), case, kernel)


def prepared(folder: Path, case: Case, kernel: Kernel) -> Prepared:
    """A kernel's launcher, compiled as in a library, and a driver for it."""
    source = render(kernel, SYMBOL, "Captured")
    code = ", ".join(map(str, (*ANY_DEVICE, 0)))
    text = f'{source.text}\nextern "C" const unsigned char {code_symbol(SYMBOL)}[] = {{{code}}};\n'
    (folder / "launchers.cpp").write_text(text)
    made = compile_library([folder / "launchers.cpp"], CACHE / "threads", ("-std=c++20", "-O1", f"-I{SUPPORT}"))
    (folder / "launchers.so").symlink_to(made)
    (folder / "libcuda.so.1").symlink_to(compile_library([DRIVER], CACHE / "threads", ("-O1",)))
    feeds = tuple(np.ascontiguousarray(a) for a in fed(kernel, case, 0))
    for i, x in enumerate(feeds):
        np.save(folder / f"{i}.npy", x)
    shapes = {p: [e.constant or 0 for e in p.shape] for p in kernel.outputs}
    outputs = {p.name: [p.dtype.onnx, *s, p.dtype.bytes * int(np.prod(s))] for p, s in shapes.items()}
    (folder / "told.json").write_text(json.dumps({"symbol": SYMBOL, "inputs": len(feeds), "outputs": outputs}))
    emulated = library_of(source.text, SYMBOL)
    return Prepared(folder, kernel, feeds, {"LD_LIBRARY_PATH": str(folder), "DRIVER_KERNELS": str(emulated)})


def captured(made: Prepared, what: str) -> tuple[str | None, bool, list[str]]:
    """What a captured run said, whether the capture was broken, and what the driver was asked for."""
    log = made.folder / f"{what}.log"
    env = {**os.environ, **made.environment, "DRIVER_LOG": str(log), "PYTHONPATH": str(HERE.parents[1])}
    command = [sys.executable, str(HERE / "child.py"), str(made.folder), what]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return found["said"], found["broken"], log.read_text().splitlines()


def assert_right(made: Prepared) -> None:
    """What the graph left is what its last inputs ask for."""
    halves = [(x * x.dtype.type(THEN)).astype(x.dtype) for x in made.feeds]
    for p, a in zip(made.kernel.outputs, interpret(made.kernel, halves, 1), strict=True):
        got = np.load(made.folder / f"{p.name}.npy")
        np.testing.assert_allclose(got.astype(np.float64), a.astype(np.float64), rtol=1e-2, atol=1e-2)


def test_a_graph_computes_what_new_inputs_ask_for(in_parts: Prepared) -> None:
    said, broken, calls = captured(in_parts, "nothing")
    assert said is None and not broken
    assert not [c for c in calls if c.startswith("refused")]
    assert_right(in_parts)


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
    assert_right(made)


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
