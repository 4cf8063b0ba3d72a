"""The mocks of driver and device refuse what a device refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from onnxfuse.build.nvrtc import compiled, libraries
from tests.kernels.isa import CACHE
from tests.kernels.pool_host import compile_library, compiler
from tests.threads.emulator import library_of

pytestmark = [
    pytest.mark.skipif(compiler() is None, reason="no C++ compiler"),
    pytest.mark.skipif(sys.platform != "linux", reason="the driver is found by the loader of Linux"),
]
HERE = Path(__file__).parent
HEAD = 'extern "C" __global__ void __launch_bounds__(1024) wasteful({})'
EACH = 200  # numbers that a thread holds at a time


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process with the driver, and one function for it."""
    folder = tmp_path_factory.mktemp("driver")
    (folder / "libcuda.so.1").symlink_to(compile_library([HERE / "driver.cpp"], CACHE / "threads", ("-O1",)))
    kernels = library_of(f'#include "cuda.h"\n{HEAD.format("")} {{ }}\n', "wasteful")
    return {**os.environ, "LD_LIBRARY_PATH": str(folder), "DRIVER_KERNELS": str(kernels)}


def asked(driver: dict[str, str], what: str, log: Path, **more: str) -> tuple[str, str]:
    """Whether a launch was refused, and all that the driver was asked for."""
    command = [sys.executable, str(HERE / "misuse_child.py"), what]
    env = {**driver, "DRIVER_LOG": str(log), **more}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout, log.read_text()


@pytest.mark.skipif(not libraries(), reason="the package nvidia-cuda-nvrtc is not installed")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
def test_registers_are_those_of_the_code(driver: dict[str, str], tmp_path: Path, arch: str) -> None:
    """A function that was not compiled for as many threads as it is launched with."""
    unrolled = f"\n#pragma unroll\nfor (int i = 0; i < {EACH}; i++) "
    steps = f"float a[{EACH}]; {unrolled} a[i] = p[i * threadIdx.x]; __syncthreads();"
    steps += f"{unrolled} p[{EACH} - i + threadIdx.x] = a[i] * a[{EACH - 1} - i];"
    head = HEAD.format("float* p").replace("__launch_bounds__(1024) ", "")
    made = compiled(f"{head} {{ {steps} }}", (f"--gpu-architecture={arch}",))
    (used,) = made.functions
    assert used.registers * 1024 > 1 << 16
    (tmp_path / "code").write_bytes(made.code)
    more = {"MISUSE_CODE": str(tmp_path / "code"), "DRIVER_CAPABILITY": arch.removeprefix("sm_")}
    said, log = asked(driver, "registers", tmp_path / "log", **more)
    assert said == "refused"
    assert f"registers wasteful {used.registers}" in log
    assert "refused more registers than a multiprocessor has" in log


@pytest.mark.parametrize(
    ("capability", "said"), [("75", "refused"), ("80", "taken"), ("86", "refused"), ("90", "taken")]
)
def test_shared_memory_is_there_where_it_was_asked_for_and_the_device_has_it(
    driver: dict[str, str], tmp_path: Path, capability: str, said: str
) -> None:
    found, log = asked(driver, "asked", tmp_path / "log", DRIVER_CAPABILITY=capability)
    assert found == said
    assert ("refused more shared memory than the device has" in log) == (said == "refused")
    found, log = asked(driver, "shared", tmp_path / "log", DRIVER_CAPABILITY=capability)
    assert found == "refused"
    assert "refused more shared memory than was asked for" in log


WIDE = """
extern "C" __global__ void __launch_bounds__(32) wide_one(float* __restrict__ p) {
  store_wide(p, load_wide<4>(p));
}
"""
LAUNCHED = """
import ctypes, sys
memory = ctypes.create_string_buffer(256)
place = ctypes.c_void_p(-(-ctypes.addressof(memory) // 64) * 64 + int(sys.argv[2]))
given = (ctypes.c_void_p * 1)(ctypes.addressof(place))
ctypes.CDLL(sys.argv[1]).run_wide_one(given, 1, 32, ctypes.c_size_t(0), 1)
"""


@pytest.mark.parametrize("offset", [0, 8, 16])
def test_a_wide_access_begins_at_a_multiple_of_its_bytes(offset: int) -> None:
    """A tensor that begins anywhere is read by no device in accesses of 16 bytes."""
    library = library_of(f'#include "cuda.h"\n{WIDE}', "wide_one")
    command = [sys.executable, "-c", LAUNCHED, str(library), str(offset)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode == 0) == (offset % 16 == 0)
    assert ("an access of 16 bytes" in done.stderr) == (offset % 16 != 0)
