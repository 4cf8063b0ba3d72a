"""A library on a machine with several GPUs, by a stand-in for ONNX Runtime's provider: which code each device gets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onnxfuse.backends.cuda import registration
from onnxfuse.build import SUPPORT
from onnxfuse.ir.kernel import Kernel
from onnxfuse.render.cuda_launch import code_symbol, render
from onnxfuse.render.ort_glue import Variant
from tests.captured.prepared import ANY_DEVICE, Prepared, product_in_parts
from tests.kernels.isa import CACHE
from tests.kernels.pool_host import compile_library, compiler
from tests.threads.emulator import library_of

pytestmark = [
    pytest.mark.skipif(compiler() is None, reason="no C++ compiler"),
    pytest.mark.skipif(sys.platform != "linux", reason="the driver is found by the loader of Linux"),
]
ROOT = Path(__file__).parents[2]
CODE = {"sm_90a": "for_90a", "sm_90": "for_90", "sm_80": "for_80"}  # best first
BODIES = "function bodies run instead of the kernels"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> tuple[Prepared, Path, Path]:
    """A kernel for three architectures, as a library, and for the host."""
    made = product_in_parts(tmp_path_factory.mktemp("devices"))
    newer, older = made.kernel, with_launches(made.kernel, dependent=False)
    kernels = {CODE["sm_90a"]: newer, CODE["sm_90"]: newer, CODE["sm_80"]: older}
    sources = {symbol: render(kernel, symbol, "Product").text for symbol, kernel in kernels.items()}
    code = ", ".join(map(str, (*ANY_DEVICE, 0)))
    variants = [Variant(name, (symbol,), ()) for name, symbol in CODE.items()]
    texts = [s.text for s in registration("test.devices", variants)] + list(sources.values())
    texts += [f'extern "C" const unsigned char {code_symbol(s)}[] = {{{code}}};\n' for s in sources]
    files = [made.folder / f"{at}.cpp" for at in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    flags = ("-std=c++20", "-O1", f"-I{SUPPORT}", f"-I{SUPPORT.parent / 'tiles'}")
    return made, compile_library(files, CACHE / "threads", flags), library_of("".join(sources.values()), "devices")


def with_launches(kernel: Kernel, **changes: Any) -> Kernel:
    """A kernel with fields of its launches replaced."""
    launches = [p.launch for p in kernel.phases if p.launch is not None]
    phases = (replace(p, launch=replace(x, **changes)) for p, x in zip(kernel.phases, launches, strict=True))
    return replace(kernel, phases=tuple(phases))


def on(library: tuple[Prepared, Path, Path], device: int, capabilities: str, **more: str) -> tuple[dict[str, Any], str]:
    """What the runtime was asked for by a session on a device, and the names of functions that were launched."""
    made, file, kernels = library
    log = made.folder / f"{capabilities}-{device}.log"
    env = {
        **os.environ, **made.environment, "DRIVER_KERNELS": str(kernels), "DRIVER_LOG": str(log), **more,
        "DRIVER_DEVICES": str(capabilities.count(",") + 1), "DRIVER_CAPABILITY": capabilities, "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    shapes = json.dumps([list(x.shape) for x in made.feeds])
    command = [sys.executable, "-m", "tests.captured.runtime_child", str(file), str(device), shapes]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    calls = log.read_text().splitlines() if log.exists() else []
    assert not [c for c in calls if c.startswith("refused")]
    launched = {c.split()[1].rpartition("_")[0] for c in calls if c.startswith("launch")}
    return json.loads(done.stdout), " ".join(sorted(launched))


@pytest.mark.parametrize(("device", "code"), [(0, "for_80"), (1, "for_90a"), (2, "for_80")])
def test_each_device_runs_the_best_code_for_it(library: tuple[Prepared, Path, Path], device: int, code: str) -> None:
    """Machine code of one major version runs on no other: a library for the oldest would fail on the second device."""
    said, launched = on(library, device, "80,90,86")
    assert (said["registered"], said["made"], said["ran"]) == ("", "", "")
    assert launched == code
    assert said["status"]["test.devices.status"] == "kernels for sm_90a and sm_80"


def test_code_with_instructions_of_one_capability_runs_on_no_other(library: tuple[Prepared, Path, Path]) -> None:
    """There is no 9.1; were there one, it would run sm_90."""
    said, launched = on(library, 0, "91")
    assert (said["status"]["test.devices.status"], launched) == ("kernels for sm_90", "for_90")


@pytest.mark.parametrize("capabilities", ["90,75", "120", "87", "80,87"])
def test_bodies_run_where_one_device_has_no_code(library: tuple[Prepared, Path, Path], capabilities: str) -> None:
    """Of capability 8.7 is the GPU of a Tegra, which runs no machine code for those of desktops."""
    said, launched = on(library, 0, capabilities)
    assert (said["ops"], launched) == (0, "")
    assert said["status"]["test.devices.status"].startswith(BODIES)


def test_memory_of_a_run_is_of_its_stream(library: tuple[Prepared, Path, Path]) -> None:
    """Kernels that use it are still queued when it is given back: others may get it only behind them."""
    said, launched = on(library, 0, "90")
    assert launched == "for_90a"
    assert said["allocated"] == ["of the stream"] and said["freed"] == 1
