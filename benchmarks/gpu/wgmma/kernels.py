"""Kernels of the probe: instructions, tiles, and their code in a file."""

from __future__ import annotations

import base64
import json
import lzma
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.driver import Compiler

SOURCE = Path(__file__).with_name("products.cu")
PACK = Path(".cache/gpu-wgmma/pack.xz")
WIDTHS = (32, 64, 96, 128, 192, 256)  # columns of an instruction
SHARED = 227 << 10
Row = dict[str, Any]


def instruction(width: int, major: str, dtype: str, *, registers: bool) -> str:
    """A function for one shape: right side along its depth (`k`) or across it (`n`), left side also from registers."""
    count = width // 2
    sums, across = ", ".join(f"%{i}" for i in range(count)), int(major == "n")
    left = "{" + ", ".join(f"%{count + i}" for i in range(4)) + "}" if registers else f"%{count}"
    after = count + (4 if registers else 1)
    of_left = '"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])' if registers else '"l"(a)'
    ends = f"p, 1, 1, {across}" if registers else f"p, 1, 1, 0, {across}"
    name = f"mma_{'registers_' if registers else ''}n{width}_{major}{'' if dtype == 'f16' else '_' + dtype}"
    outputs = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    return (
        f"__device__ __forceinline__ void {name}(float* d, {'const unsigned*' if registers else 'uint64_t'} a, "
        f'uint64_t b, int more) {{ asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{after + 1}, 0; '
        f'wgmma.mma_async.sync.aligned.m64n{width}k16.f32.{dtype}.{dtype} {{{sums}}}, {left}, %{after}, {ends}; }}" '
        f': {outputs} : {of_left}, "l"(b), "r"(more)); }}\n'
    )


@dataclass(frozen=True)
class Tile:
    """A block's part of a product, and how it comes (wgmma.cu)."""

    high: int
    wide: int
    columns: int
    depth: int = 64
    stages: int = 4
    pending: int = 1
    swizzled: bool = False
    by_shared: bool = True
    fenced: bool = True
    width: int = 0  # columns of an instruction, if not all of a warpgroup
    bulk: bool = False

    @property
    def name(self) -> str:
        """In results."""
        how = [f"{self.high * 64} x {self.columns} x {self.depth} by {self.high} x {self.wide}, {self.stages} stages"]
        how += ["bulk"] if self.bulk else [f"{self.pending} pending", "swizzled" if self.swizzled else "padded"]
        how += [] if self.by_shared else ["direct"]
        how += [] if self.fenced else ["unfenced"]
        return ", ".join([*how, *([f"n{self.width}"] if self.width else [])])

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.high * self.wide * 128 + (128 if self.bulk else 0)

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        rows, depth, columns = self.high * 64, self.depth, self.columns
        if self.swizzled:
            stage = (rows + columns) * depth * 2
        else:
            stage = depth // 8 * (rows * 16 + 16) + columns // 8 * (depth * 16 + 16)
        return max(self.stages * stage + 256, rows * (columns + 8) * 4 if self.by_shared else 0)

    @property
    def defines(self) -> tuple[str, ...]:
        """Of its kernel."""
        mine = self.width or self.columns // self.wide
        numbers = {
            "HIGH": self.high, "WIDE": self.wide, "COLUMNS": self.columns, "DEPTH": self.depth, "STAGES": self.stages,
            "PENDING": self.pending, "SWIZZLED": int(self.swizzled), "BY_SHARED": int(self.by_shared),
            "FENCED": int(self.fenced), "N": mine, "MMA": f"mma_n{mine}_n", "RESIDENT": 1,
        }  # fmt: skip
        return ("BULK" if self.bulk else "PIPELINE", *(f"{k}={v}" for k, v in numbers.items()))

    def takes(self, columns: int, depth: int) -> bool:
        """Whether there are only whole tiles, but for rows."""
        return not columns % self.columns and (self.bulk or not depth % self.depth)


def tiles() -> Iterator[Tile]:
    """All that are timed."""
    places = [(1, 1, n) for n in (64, 96, 128, 192, 256)] + [(1, 2, 128), (1, 2, 256), (2, 1, 64), (2, 1, 96)]
    places += [(2, 1, 128), (2, 1, 192), (2, 1, 256), (2, 2, 256)]
    few = [(1, 1, 64), (1, 1, 128), (2, 1, 128)]
    for each in places:
        yield Tile(*each)
        if each[2] // each[1] % 64 == 0:
            yield Tile(*each, swizzled=True)
            yield Tile(*each, swizzled=True, bulk=True)
    for each in few:
        for stages, pending in ((3, 0), (3, 1), (4, 0), (6, 1)):
            yield Tile(*each, stages=stages, pending=pending)
        yield Tile(*each, stages=6, swizzled=True, bulk=True)
        yield Tile(*each, by_shared=False)
        yield Tile(*each, depth=128, stages=3)
    for each in (*few, (1, 1, 96), (2, 1, 96), (2, 1, 192)):
        yield Tile(*each, depth=32)
        yield Tile(*each, depth=96, stages=2, pending=0)
    yield from (Tile(1, 1, 128, width=64), Tile(2, 1, 128, width=64), Tile(1, 1, 256, width=128))
    yield Tile(2, 1, 128, fenced=False)


def kernels() -> dict[str, tuple[str, ...]]:
    """What is compiled, by name: the defines of each."""
    found: dict[str, tuple[str, ...]] = {}
    for width in WIDTHS:
        for major in "kn":
            for registers in (0, 1):
                functions = (f"MMA=mma_n{width}_{major}", f"MMA_REGISTERS=mma_registers_n{width}_{major}")
                found[f"layout {width} {major} {registers}"] = (
                    "LAYOUT", f"N={width}", f"IN_REGISTERS={registers}", *functions)  # fmt: skip
    found["layout 64 n 0 bf16"] = (
        "LAYOUT", "N=64", "IN_REGISTERS=0", "MMA=mma_n64_n_bf16", "MMA_REGISTERS=mma_registers_n64_n")  # fmt: skip
    for copies in (0, 1):
        for fenced in (0, 1):
            found[f"fences {copies} {fenced}"] = ("FENCES", f"BY_COPIES={copies}", f"FENCED={fenced}")
    return found | {t.name: t.defines for t in tiles() if t.shared <= SHARED}


def prepare() -> None:
    """Compile everything."""
    head = "typedef unsigned int uint32_t;\ntypedef unsigned long long uint64_t;\n"
    for width in WIDTHS:
        for major in "kn":
            head += "".join(instruction(width, major, "f16", registers=r) for r in (False, True))
    source = head + instruction(64, "n", "bf16", registers=False) + SOURCE.read_text(encoding="utf-8")
    compiler, wanted = Compiler(), kernels()

    def made(name: str) -> tuple[str, Row]:
        code, log = compiler.compile(source, "sm_90a", wanted[name])
        lines = [
            x for x in log.splitlines() if "warning" in x.lower() or ("spill" in x and "0 bytes spill stores" not in x)
        ]
        sys.stderr.write("\n  ".join([name, *lines]) + "\n")
        return name, {"code": base64.b85encode(code).decode(), "log": lines}

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        pack = dict(pool.map(made, wanted))
    PACK.parent.mkdir(parents=True, exist_ok=True)
    PACK.write_bytes(lzma.compress(json.dumps(pack).encode()))
