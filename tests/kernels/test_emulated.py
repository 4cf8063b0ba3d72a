"""Kernels for another architecture, cross-compiled and run by an emulator, give the results of their definitions."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from onnxfuse.build import TILES
from onnxfuse.build.cache import default_cache_dir
from onnxfuse.build.toolchain import Toolchain, compile_flags, find_toolchain
from onnxfuse.errors import ToolchainError
from onnxfuse.ir.kernel import Kernel
from onnxfuse.target import CPUS
from tests.kernels.cases import contraction, elementwise, function, movement, row, window
from tests.kernels.compiled import Array, Case, expected, fed, packed, scheduled, unit_of
from tests.kernels.pool_host import DTYPES
from tests.kernels.rounding import check

HERE = Path(__file__).resolve().parent
TARGET = CPUS["aarch64"]
# Tables, and how many of their cases there are for each that is taken.
TABLES = {
    contraction: 4, elementwise: 24, function: 6, movement: 16, row: 12, window: 12
}  # fmt: skip


def emulator() -> str:
    """The program that runs others of the architecture; the test is skipped where there is none."""
    found = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    if found is None:
        pytest.skip("qemu-user is not installed")
    return found


@pytest.fixture
def toolchain(monkeypatch: pytest.MonkeyPatch) -> Toolchain:
    monkeypatch.setenv("ZIG_GLOBAL_CACHE_DIR", str(default_cache_dir().absolute() / "zig"))
    try:
        return find_toolchain("zig", TARGET.machine)
    except ToolchainError as problem:
        pytest.skip(problem.message)


def program_of(toolchain: Toolchain, cases: Sequence[Case], folder: Path) -> Path:
    """A program that needs no library of its system, with the kernels of all cases in their order."""
    names = [case.name for case in cases]
    externs = "".join(f'extern "C" const onnxfuse::Kernel onnxfuse_{name};\n' for name in names)
    table = ", ".join(f"&onnxfuse_{name}" for name in names)
    (folder / "kernels.cpp").write_text(unit_of(cases, TARGET.name))
    (folder / "table.cpp").write_text(
        f'#include "host.h"\n{externs}extern const onnxfuse::Kernel* const kernels[];\n'
        f"const onnxfuse::Kernel* const kernels[] = {{{table}}};\n"
    )
    flags = [f.replace("linux-gnu.2.28", "linux-musl") for f in compile_flags(toolchain, TARGET.compiled)]
    flags = ["-O1" if f == "-O3" else f for f in flags if f not in ("-fPIC", "-fvisibility=hidden")]
    sources = [folder / "kernels.cpp", folder / "table.cpp", HERE / "emulated.cpp"]
    command = [*toolchain.command, *flags, "-static", f"-iquote{TILES}", *map(str, sources), "-o", "program"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder / "program"


def runs_of(cases: Sequence[Case]) -> Iterator[tuple[int, Case, Kernel, int]]:
    """Each case with its kernel, for each of its sizes."""
    for at, case in enumerate(cases):
        kernel = scheduled(case, TARGET.name)
        assert isinstance(kernel, Kernel), (case.name, kernel)
        for number in range(len(case.sizes)):
            yield at, case, kernel, number


def test_kernels_of_another_architecture(toolchain: Toolchain, tmp_path: Path) -> None:
    run_by = emulator()
    cases = [case for module, step in TABLES.items() for case in module.CASES[::step]]
    program = program_of(toolchain, cases, tmp_path)
    assert program.read_bytes()[18] == 183  # e_machine of ELF: AArch64
    with (tmp_path / "in").open("wb") as stream:
        for at, case, kernel, number in runs_of(cases):
            stream.write(np.int64(at).tobytes())
            for array in fed(kernel, case, number):
                stream.write(np.array([array.ndim, *array.shape], np.int64).tobytes() + array.tobytes())
    done = subprocess.run([run_by, str(program), "in", "out"], cwd=tmp_path, capture_output=True, text=True,
                          check=False, timeout=900)  # fmt: skip
    assert done.returncode == 0, done.stderr
    with (tmp_path / "out").open("rb") as stream:
        for _, case, kernel, number in runs_of(cases):
            wanted = expected(case, number)
            for p in kernel.outputs:
                got = read(stream, np.dtype(DTYPES[p.dtype.onnx]))
                check(got, p.dtype, *(packed(p.layout, a) for a in wanted[p.value]))
        assert not stream.read()


def read(stream: object, dtype: np.dtype) -> Array:
    """An array as the program writes it."""
    rank = np.frombuffer(stream.read(8), np.int64)[0]
    shape = np.frombuffer(stream.read(8 * rank), np.int64)
    count = int(np.prod(shape, dtype=np.int64))
    return np.frombuffer(stream.read(count * dtype.itemsize), dtype).reshape(shape)
