"""Instruction sets: which a library is for, what they need, and that the code of two of them is never mixed up."""

from __future__ import annotations

import platform
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from onnxfuse import target as rows
from onnxfuse.backends.cpu import features as features_of
from onnxfuse.build import TILES
from onnxfuse.build.toolchain import Toolchain, compile_flags, find_toolchain
from onnxfuse.errors import ToolchainError, UsageError
from onnxfuse.ir.dtype import BF16
from onnxfuse.ir.kernel import Kernel
from onnxfuse.render.cpp import render
from onnxfuse.render.ort_glue import FEATURES, Variant, registration
from onnxfuse.render.source import Source
from onnxfuse.runtime import process
from onnxfuse.target import ARCHS, CPUS, GPUS, Target, gpu, targets_of, unable
from onnxfuse.target.device import Device, Driver
from tests.kernels.cases.contraction import CASES
from tests.kernels.compiled import kernel_of

BOTH = ("x86-64-v4", "x86-64-v3")
needs_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="about x86 instruction sets")

EXTRAS = {"sapphirerapids": rows.AMX_FEATURES, "x86-64-v4": rows.EXTRAS}
BEST = {
    "": "sapphirerapids",
    "amx-int8": "x86-64-v4",
    "avx512cd": "x86-64-v3",
    "movbe": "generic",
}  # where one is missing

# Macros by which compilers say what -march lets them use, as features; the others tell how, not what.
MACROS = {"SSE4_1": "sse4.1", "SSE4_2": "sse4.2", "LAHF_SAHF": "sahf", "BMI": "bmi"}


# ---- which ----


def test_several_share_the_panels_of_the_widest():
    wide, narrow = targets_of(["x86-64-v3", "x86-64-v4", "x86-64-v3"])
    assert (wide.name, narrow.name) == BOTH
    assert wide == CPUS["x86-64-v4"]
    assert {t.panel for t in targets_of(["sapphirerapids", "x86-64-v3"])} == {32}
    assert narrow.panel == wide.panel == 32 and CPUS["x86-64-v3"].panel == 16
    assert targets_of(["x86-64-v3"]) == (CPUS["x86-64-v3"],)
    for target in CPUS.values():
        assert target.panel % (2 * target.lanes) == 0


@pytest.mark.parametrize(
    ("capabilities", "names"),
    [
        ((90,), ["sm_90", "compute_90"]),
        ((86, 90), ["sm_90", "sm_86", "compute_86"]),
        ((121, 80), ["sm_120", "sm_80", "compute_80"]),
        ((87,), None),  # of a Tegra, which runs its own machine code alone
        ((60,), None),
        ((), None),
    ],
    ids=str,
)
def test_native_has_code_for_each_gpu(
    monkeypatch: pytest.MonkeyPatch, capabilities: tuple[int, ...], names: list[str] | None
) -> None:
    devices = tuple(Device("", c) for c in capabilities)
    monkeypatch.setattr(gpu, "cuda_driver", lambda: Driver(13000, devices))
    if names is not None:
        assert [t.name for t in gpu.gpus_of(("native",))] == names
        return
    with pytest.raises(UsageError, match="no supported GPU"):
        gpu.gpus_of(("native",))


def test_native_is_the_best_that_runs_here(monkeypatch: pytest.MonkeyPatch):
    for missing, best in BEST.items():
        monkeypatch.setattr(rows, "machine", lambda: "x86_64")
        monkeypatch.setattr(rows, "has_features", lambda names, missing=missing: missing not in names)
        assert [t.name for t in targets_of([])] == [t.name for t in targets_of(["native"])] == [best]
        assert set(targets_of([])[0].extras) == set(EXTRAS.get(best, ()))
    monkeypatch.setattr(rows, "machine", lambda: "aarch64")
    assert [t.name for t in targets_of([])] == ["aarch64"]
    assert unable(["x86-64-v4", "aarch64"], CPUS) == "this machine cannot run kernels for x86-64-v4"
    monkeypatch.setattr(rows, "machine", lambda: "riscv64")
    assert [t.name for t in targets_of([])] == ["generic"]


@pytest.mark.parametrize("granted", [True, False])
def test_amx_counts_where_linux_grants_it(granted: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rows, "cpu_flags", lambda: frozenset({"amx_tile", "amx_bf16", "avx512_bf16"}))
    monkeypatch.setattr(rows, "tiles_granted", lambda: granted)
    assert rows.has_features(["amx-tile", "amx-bf16"]) == granted
    assert rows.has_features(["avx512bf16"]) and not rows.has_features(["amx-tile", "amx-int8"])


def test_only_a_library_with_such_tiles_asks_for_the_matrix_unit():
    target = CPUS["sapphirerapids"]
    case = next(case for case in CASES if case.name == "gemm_13_300_290")
    plain, tiled = (kernel_of(each, target) for each in (case, replace(case, half=BF16)))
    assert isinstance(plain, Kernel) and isinstance(tiled, Kernel)
    assert features_of(target, [plain]) == CPUS["x86-64-v4"].features
    assert set(features_of(target, [plain, tiled])) == {*target.features, *rows.AMX_FEATURES}


def test_no_library_is_for_two_architectures():
    with pytest.raises(UsageError, match="one library cannot contain kernels for x86-64-v3 and aarch64"):
        targets_of(["aarch64", "x86-64-v3"])


def test_every_name_has_a_row_and_every_feature_too():
    assert set(ARCHS) - {"native"} <= {*CPUS, *GPUS}
    assert {name for target in CPUS.values() for name in target.features} <= set(FEATURES)


@needs_x86
@pytest.mark.parametrize("family", ["gcc", "clang", "zig"])
@pytest.mark.parametrize("arch", BOTH)
def test_whatever_a_compiler_may_use_is_asked_for(family: str, arch: str, tmp_path: Path):
    """-march allows more than vectors: a processor without one of these would meet an illegal instruction."""
    toolchain = available(family)
    allowed = macros(toolchain, CPUS[arch].flags, tmp_path) - macros(toolchain, (), tmp_path)
    named = {MACROS.get(name, name.lower()) for name in allowed}
    known = {name for name in named if name in FEATURES}
    assert {"avx2", "fma", "bmi2", "movbe"} <= known
    assert known <= set(CPUS[arch].features)
    how = re.compile(r"(AVX512|EVEX|FP_FAST|GCC|ATOMIC|HAVE|k8|tune|SSE2?_MATH|CRC32|XSAVE|GNUC|GFNI).*|.*_MATH")
    assert not [
        name for name in allowed - {m for m in allowed if MACROS.get(m, m.lower()) in known} if not how.match(name)
    ]


def macros(toolchain: Toolchain, flags: Sequence[str], folder: Path) -> set[str]:
    """The names of what the compiler predefines, without underscores around."""
    (folder / "none.cpp").write_text("")
    done = process.run((*toolchain.command, *compile_flags(toolchain, flags), "-dM", "-E", "none.cpp"), cwd=folder)
    assert done.code == 0, done.err
    return {name.strip("_") for name in re.findall(r"#define (__\w+) 1$", done.out, re.MULTILINE)}


def available(family: str) -> Toolchain:
    try:
        return find_toolchain(family)
    except ToolchainError as error:
        pytest.skip(str(error))


# ---- never mixed up ----


def sources(target: Target) -> list[Source]:
    """A kernel with tiles for a target, everything in headers, and functions that are not inlined where nothing is."""
    case = next(c for c in CASES if c.name == "gemm_deep_43")
    kernel = kernel_of(case, target)
    assert isinstance(kernel, Kernel)
    made = render(kernel, f"gemm_{target.identifier}", "gemm", target.compiled)
    return [made, Source(f"tiles_{target.identifier}", '#include "tile_code.h"\n#include "loops.h"\n', target.compiled)]


def defined(source: Source, folder: Path, *, namespaces: bool = True) -> set[str]:
    """What a unit defines for the linker to see, without optimization, which would inline some of it."""
    toolchain = find_toolchain()
    flags = compile_flags(toolchain, [f for f in source.flags if namespaces or "ONNXFUSE_ISA" not in f])
    (folder / "unit.cpp").write_text(source.text)
    command = (*toolchain.command, *flags, "-O0", f"-iquote{TILES}", "-c", "unit.cpp", "-o", "unit.o")
    done = process.run(command, cwd=folder, time_limit=300)
    assert done.code == 0, done.err
    said = process.run(("nm", "--defined-only", "--extern-only", "unit.o"), cwd=folder)
    return {line.split()[-1] for line in said.out.splitlines()}


@needs_x86
@pytest.mark.skipif(shutil.which("nm") is None, reason="nm is not installed")
def test_instruction_sets_share_no_symbol(tmp_path: Path):
    """Two definitions of one inline function or template would become one, and that of the wider machine maybe."""
    wide, narrow = targets_of(BOTH)
    found = {t.name: [defined(source, tmp_path) for source in sources(t)] for t in (wide, narrow)}
    of_wide, of_narrow = (set().union(*found[t.name]) for t in (wide, narrow))
    assert not of_wide & of_narrow
    for target, names in ((wide, of_wide), (narrow, of_narrow)):
        assert not [name for name in names if target.identifier not in name], "everything is of its instruction set"
    variants = [Variant(t.name, (f"gemm_{t.identifier}",), t.features) for t in (wide, narrow)]
    of_glue = set().union(*(defined(source, tmp_path) for source in registration("onnxfuse.x", variants)))
    assert of_glue >= {"RegisterCustomOps"}
    assert not of_glue & (of_wide | of_narrow)
    mixed = [set().union(*(defined(s, tmp_path, namespaces=False) for s in sources(t))) for t in (wide, narrow)]
    assert mixed[0] & mixed[1], "without a namespace each they would share some"
