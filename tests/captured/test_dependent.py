"""Dependent launches: kernels wait for the one before, and the driver mock shows where one does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from onnxfuse.build.nvrtc import compiled, libraries
from onnxfuse.ir.dtype import I64
from onnxfuse.ir.graph import Decision
from onnxfuse.ir.kernel import Kernel
from onnxfuse.ir.verify import verify
from onnxfuse.render.cuda import device_text
from onnxfuse.schedule.gpu.scheduler import schedule
from onnxfuse.target import GPUS, Gpu
from onnxfuse.target.gpu import PORTABLE
from tests.captured.machine_code import before_the_wait
from tests.captured.prepared import DRIVER
from tests.captured.test_devices import with_launches
from tests.kernels.cases import row
from tests.kernels.compiled import Case, lowered_of
from tests.kernels.isa import CACHE
from tests.kernels.pool_host import compile_library, compiler
from tests.rules.build import Build
from tests.threads.emulator import library_of

HERE = Path(__file__).parent
COUNT = 64
HEAD = 'extern "C" __global__ void __launch_bounds__(32) NAME(float* __restrict__ x, float* __restrict__ y) {'
BODIES = {
    "adds": "wait_for_kernel_before(); y[i] = x[i] + 1; let_next_kernel_begin();",
    "doubles": "wait_for_kernel_before(); x[i] = 2 * y[i]; let_next_kernel_begin();",
    "reads_early": "const float a = y[i]; wait_for_kernel_before(); x[i] = 2 * a;",
    "stores_early": "x[i] = 7; wait_for_kernel_before();",
    "never_waits": "x[i] = 2 * y[i];",
}
ONCE = ([2.0 * (i + 1) for i in range(COUNT)], [i + 1.0 for i in range(COUNT)])  # adds, then doubles


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process with the driver, and these functions for it."""
    folder = tmp_path_factory.mktemp("dependent")
    (folder / "libcuda.so.1").symlink_to(compile_library([DRIVER], CACHE / "threads", ("-O1",)))
    index = "const int i = blockIdx.x * 32 + threadIdx.x;"
    text = "".join(f"{HEAD.replace('NAME', name)} {index} {body} }}\n" for name, body in BODIES.items())
    kernels = library_of(f'#include "cuda.h"\n{text}', "dependent")
    paths = {"LD_LIBRARY_PATH": str(folder), "DRIVER_KERNELS": str(kernels), "PYTHONPATH": str(HERE.parents[1])}
    return {**os.environ, **paths}


def ran(driver: dict[str, str], place: Path, where: str, *names: str) -> tuple[list[list[float]], list[str]]:
    """Both arrays behind the kernels, and what the driver said."""
    command = [sys.executable, str(HERE / "dependent_child.py"), where, *names]
    env = {**driver, "DRIVER_LOG": str(place / "log")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), (place / "log").read_text().splitlines()


def test_constants_are_asked_for_before_a_kernel_waits() -> None:
    """Those that are read as a whole: no table that rows are looked up in, or sliced off, nor what a kernel stores."""
    b = Build(17)
    x, w, bias = b.input("x", 4, 64), b.input("w", 64, 64), b.input("bias", 64)
    table, ids = b.input("table", 100, 64), b.input("ids", 4, dtype=I64)
    y = b.node("Add", b.node("Add", b.node("MatMul", x, w), bias), b.node("Gather", table, ids))
    places = b.node("Slice", b.input("places", 4096, 64), b.ints(8), b.ints(12), b.ints(0))
    y = b.node("Add", y, places)
    case = Case("ahead", b.graph(y))
    lowered = lowered_of(case)
    assert not isinstance(lowered, Decision)
    held = {"w", "bias", "table", "places"}
    for arch, constants in (("sm_90", held), ("sm_90", set()), ("sm_80", held)):
        kernel = schedule(lowered, case.layouts, GPUS[arch], constants=constants)
        assert isinstance(kernel, Kernel) and verify(kernel) == ()
        names = {p.name: p.value for p in kernel.inputs}
        ahead = {names[name] for p in kernel.phases if p.launch is not None for name in p.launch.ahead}
        assert ahead == ({"w", "bias"} if constants and arch == "sm_90" else set())
        assert device_text(kernel, "k").count("fetch_ahead(") == len(ahead)
    assert isinstance(kernel, Kernel)
    wrong = with_launches(kernel, ahead=("out0",), dependent=True)
    assert "out0 ahead of a kernel, expected inputs and a dependent launch" in " ".join(verify(wrong))


@pytest.mark.skipif(not libraries(), reason="the package nvidia-cuda-nvrtc is not installed")
@pytest.mark.parametrize("arch", ["sm_90", "sm_100", "sm_120"])
def test_machine_code_that_loads_before_it_waits_is_found(arch: str) -> None:
    text = "".join(
        f"{HEAD.replace('NAME', name)} const int i = threadIdx.x; {body} }}\n" for name, body in BODIES.items()
    )
    code = compiled(f'#include "cuda.h"\n{text}', (f"--gpu-architecture={arch}",)).code
    found = {name: before_the_wait(code, name) for name in BODIES}
    good: dict[str, set[str] | None] = {"adds": set(), "doubles": set()}
    assert found == good | {"reads_early": {"LDG"}, "stores_early": {"STG"}, "never_waits": None}


needs_compiler = pytest.mark.skipif(compiler() is None or sys.platform != "linux", reason="no C++ compiler for Linux")


@needs_compiler
@pytest.mark.parametrize("where", ["stream", "graph"])
def test_kernels_that_wait_are_right(driver: dict[str, str], tmp_path: Path, where: str) -> None:
    """Six of them, more than begin at once."""
    x, y = [float(i) for i in range(COUNT)], [-1.0] * COUNT
    for _ in range(3):
        y = [a + 1 for a in x]
        x = [2 * a for a in y]
    found, said = ran(driver, tmp_path, where, *["adds", "doubles"] * 3)
    assert found == [x, y]
    assert sum(line.endswith(" dependent") for line in said) == 6
    assert not [line for line in said if line.startswith("refused")]


@needs_compiler
@pytest.mark.parametrize("where", ["stream", "graph"])
@pytest.mark.parametrize("wrong", ["reads_early", "stores_early", "never_waits"])
def test_a_kernel_that_does_not_wait_is_found(driver: dict[str, str], tmp_path: Path, where: str, wrong: str) -> None:
    """One that reads what the kernel before stores, one that stores what it reads, and one whose end says nothing."""
    found, said = ran(driver, tmp_path, where, "adds", wrong)
    assert found != [*map(list, ONCE)]
    if wrong == "stores_early":
        assert found[1][:32] == [8.0] * 32  # the first block's, read too late
    refused = "refused a dependent launch of never_waits, which waits for nothing"
    assert (refused in said) == (wrong == "never_waits")


@needs_compiler
def test_older_devices_have_no_dependent_launches(driver: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, str(HERE / "dependent_child.py"), "stream", "adds"]
    env = {**driver, "DRIVER_LOG": str(tmp_path / "log"), "DRIVER_CAPABILITY": "89"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode != 0
    assert "refused a dependent launch" in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("target", "waits"),
    [(GPUS["sm_89"], False), (PORTABLE["compute_80"], False), (GPUS["sm_90"], True), (GPUS["sm_120"], True),
     (PORTABLE["compute_90"], False)],
    ids=lambda x: getattr(x, "name", str(x)),
)  # fmt: skip
def test_kernels_wait_where_the_architecture_can(target: Gpu, waits: bool) -> None:
    """Before anything else, and the next one may begin behind everything."""
    case = row.CASES[0]
    lowered = lowered_of(case)
    assert not isinstance(lowered, Decision)
    kernel = schedule(lowered, case.layouts, target)
    assert isinstance(kernel, Kernel)
    lines = [line.strip() for line in device_text(kernel, "k").splitlines()]
    assert (
        lines.count("wait_for_kernel_before();")
        == lines.count("let_next_kernel_begin();")
        == waits * len(kernel.phases)
    )
    if waits:
        body = lines[next(i for i, line in enumerate(lines) if "__global__" in line) + 1 :]
        before = body[: body.index("wait_for_kernel_before();")]
        assert all(line.endswith(";") and "get(" not in line and "load_wide" not in line for line in before)
        assert body[body.index("let_next_kernel_begin();") + 1] == "}"
