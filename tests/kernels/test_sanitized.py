"""All kernels of the case tables under AddressSanitizer and UBSan: no access outside a tensor, nothing undefined."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from onnxfuse.build import BuildRequest, Library, build_library
from onnxfuse.build.cache import Cache
from onnxfuse.build.toolchain import Toolchain, find_toolchain
from onnxfuse.errors import ToolchainError
from onnxfuse.ir.kernel import Kernel, products_of
from onnxfuse.ir.products import AMX
from onnxfuse.render.source import Source
from onnxfuse.target import CPUS, Target
from tests.kernels.cases import (
    codes,
    contraction,
    elementwise,
    half,
    movement,
    row,
    window,
    winograd,
)
from tests.kernels.compiled import MACHINES, MODEL, Case, fed, scheduled, unit_of
from tests.kernels.isa import CACHE
from tests.kernels.pool_host import ROOT
from tests.sanitizers import sanitizer_env

TABLES = (contraction, window, winograd, half, row, elementwise, movement)
HERE = Path(__file__).resolve().parent
SOME = 40  # of how many cases one is run where time counts; the interpreter sees accesses outside in all of them
# Sanitizers do not see masked loads and stores: vectors are of the baseline, short or long.
SHORT = CPUS["generic"]
LONG = replace(CPUS["x86-64-v4"], flags=("-DONNXFUSE_LANES=16",))
UNIT = replace(MACHINES["amx-model"], name="amx-model", flags=("-DONNXFUSE_LANES=16", f'-DONNXFUSE_AMX_UNIT="{MODEL}"'))


@pytest.fixture(scope="module")
def gcc() -> Toolchain:
    try:
        return find_toolchain("gcc")
    except ToolchainError as problem:
        pytest.skip(problem.message)


def library_of(
    gcc: Toolchain, target: Target, cases: Sequence[Case], out: Path, change: tuple[str, str] = ("", "")
) -> Library:
    """A sanitized library of all cases; its entry point gives their descriptors in order."""
    names = [case.name for case in cases]
    externs = "".join(f'extern "C" const onnxfuse::Kernel onnxfuse_{name};\n' for name in names)
    table = ", ".join(f"&onnxfuse_{name}" for name in names)
    glue = Source(
        "glue",
        f"""#include "host.h"
{externs}const onnxfuse::Kernel* const kernels[] = {{{table}}};
extern "C" __attribute__((visibility("default"))) const onnxfuse::Kernel* const* RegisterCustomOps() {{
  return kernels;
}}
""",
    )
    text = unit_of(cases, target.name).replace(*change) if change[0] else unit_of(cases, target.name)
    sources = [Source("cases", text, target.compiled)]
    return build_library(BuildRequest(sources, [glue], gcc, Cache(CACHE), 1, out, sanitize=True))


def ran(gcc: Toolchain, target: Target, cases: Sequence[Case], library: Path) -> subprocess.CompletedProcess[str]:
    """A child that runs every case for all of its sizes."""
    work = []
    for case in cases:
        kernel = scheduled(case, target.name)
        assert isinstance(kernel, Kernel)
        work.append([fed(kernel, case, number) for number in range(len(case.sizes))])
    jobs = library.with_suffix(".pickle")
    jobs.write_bytes(pickle.dumps(work))
    command = [sys.executable, str(HERE / "sanitized_child.py"), str(library), str(jobs)]
    env = {**os.environ, **sanitizer_env(gcc), "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)


def assert_clean(gcc: Toolchain, target: Target, cases: Sequence[Case], folder: Path) -> None:
    library = library_of(gcc, target, cases, folder / "kernels.so")
    done = ran(gcc, target, cases, library.path)
    assert done.returncode == 0, done.stderr[-6000:]
    assert done.stdout == f"{len(cases)} kernels\n"


def test_nothing_is_read_or_written_outside(gcc: Toolchain, tmp_path: Path) -> None:
    assert_clean(gcc, SHORT, [case for module in TABLES for case in module.CASES[::SOME]], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("module", TABLES, ids=lambda m: m.__name__.rpartition(".")[2])
def test_no_case_reads_or_writes_out_of_bounds(gcc: Toolchain, module: ModuleType, tmp_path: Path) -> None:
    assert_clean(gcc, LONG, module.CASES, tmp_path)


@pytest.mark.slow
def test_a_matrix_unit_reads_and_writes_nothing_outside(gcc: Toolchain, tmp_path: Path) -> None:
    """Panels, packed rows and rows where they lie: all of it through the model of the unit."""
    kernels = {case: scheduled(case, UNIT.name) for case in (*half.CASES, *codes.CASES)}
    on_unit = [
        case for case, k in kernels.items() if isinstance(k, Kernel) and {p.unit for p in products_of([k])} == {AMX}
    ]
    assert len(on_unit) > 40
    assert_clean(gcc, UNIT, on_unit, tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("store_lanes(out0 + ", "store_lanes(out0 + 1 + "), "AddressSanitizer"),
        (("load_lanes(in0 + ", "load_lanes(in0 + 40 + "), "AddressSanitizer"),
    ],
)
def test_an_access_outside_is_found(gcc: Toolchain, change: tuple[str, str], said: str, tmp_path: Path) -> None:
    (case,) = (case for case in elementwise.CASES if case.name == "Relu_float32")
    library = library_of(gcc, SHORT, [case], tmp_path / "kernels.so", change)
    done = ran(gcc, SHORT, [case], library.path)
    assert done.returncode != 0
    assert said in done.stderr
