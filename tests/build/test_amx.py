"""AMX tiles as compilers emit them: the instructions of the inner loops, without spills or moves between them."""

from __future__ import annotations

import platform
import re
import shutil
from pathlib import Path

import pytest

from onnxfuse.build import TILES
from onnxfuse.build.toolchain import compile_flags, find_toolchain
from onnxfuse.errors import ToolchainError
from onnxfuse.ir.products import AMX_BF16
from onnxfuse.runtime import process
from onnxfuse.target import CPUS

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="about x86 instruction sets")

# Each register that is loaded takes part in two products.
LOOP = "A tileloadd tileloadd P tileloadd P tileloadd P P A"
ALONE = "A tileloadd tileloadd P tileloadd P A"  # up to 16 rows


@pytest.mark.skipif(shutil.which("objdump") is None, reason="objdump is not installed")
@pytest.mark.parametrize("family", ["gcc", "clang", "zig"])
def test_a_loop_is_loads_and_products(family: str, tmp_path: Path) -> None:
    try:
        toolchain = find_toolchain(family)
    except ToolchainError as error:
        pytest.skip(str(error))
    (tmp_path / "unit.cpp").write_text('#include "amx_code.h"\n')
    flags = compile_flags(toolchain, [*CPUS["sapphirerapids"].compiled, *AMX_BF16.flags])
    command = (*toolchain.command, *flags, f"-iquote{TILES}", "-c", "unit.cpp", "-o", "unit.o")
    done = process.run(command, cwd=tmp_path, time_limit=300)
    assert done.code == 0, done.err
    said = process.run(("objdump", "-d", "--no-show-raw-insn", "unit.o"), cwd=tmp_path).out
    found = [block for block in blocks(said) if any("tdp" in name for name in block)]
    for product in ("tdpbf16ps", "tdpbssd", "tdpbsud", "tdpbusd", "tdpbuud"):
        for shape in (LOOP, ALONE):
            wanted = [w for w in shape.replace("P", product).split() if w != "A"]
            assert wanted in found, f"{product}: {found}"


def blocks(text: str) -> list[list[str]]:
    """The instructions of the matrix unit between two jumps, labels or returns of a disassembly."""
    made: list[list[str]] = [[]]
    for line in text.splitlines():
        name = (re.search(r"^\s+[0-9a-f]+:\s+(\w+)", line) or [None, ""])[1] or ""
        if not line.startswith(" ") or name.startswith(("j", "ret", "call")):
            made.append([])
        elif re.match(r"tile(load|store)d|tdp", name):
            made[-1].append(name)
    return made
