"""The same kernels on the device and in an emulator on the CPU, on the same inputs, beside a float64 reference.

    python -m benchmarks.gpu.emulated OUT.json --header EMULATOR.hpp

EMULATOR.hpp is a single header that runs blocks of threads as fibers (`cuemu::launch`). Needs g++ with C++20.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from ctypes import c_float, c_int, c_longlong
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from benchmarks.gpu.driver import Compiler, Driver, pointer
from benchmarks.gpu.rows import SOURCE, Choice, reference

HERE = Path(__file__).resolve().parent
KERNELS = HERE / "emulated.cu"
ROWS = 37
CHOICES = (
    Choice(0, 1, 64, 8, 128), Choice(0, 1, 768, 64, 256, 2, 1, 0, 1), Choice(0, 0, 1024, 128, 128),
    Choice(0, 1, 2048, 256, 256, 4, 1, 0, 1), Choice(0, 0, 4096, 1024, 1024), Choice(1, 1, 256, 32, 256, 1, 1, 1, 1),
    Choice(1, 0, 768, 64, 64, 2), Choice(1, 1, 8192, 512, 512), Choice(2, 1, 768, 64, 64, 1, 1, 0, 1),
    Choice(2, 0, 96, 8, 128), Choice(2, 0, 3072, 512, 512), Choice(3, 1, 3072, 1, 256, 2, 1, 0, 0, 1),
    Choice(2, 1, 768, 32, 128, early=1), Choice(0, 1, 8192, 512, 512, reread=1), Choice(2, 0, 8192, 512, 512, reread=1),
    Choice(3, 0, 1024, 1, 512), Choice(3, 1, 1024, 1, 128, 4),
)  # fmt: skip

Values = Sequence[Any]


def emulated(header: Path, source: Path, call: str, defines: Sequence[str], values: Values, out: int) -> np.ndarray:
    """What the emulator says; `call` launches the kernel on pointers a[0], a[1], ... to the arrays."""
    with tempfile.TemporaryDirectory() as folder:
        main, library = Path(folder, "main.cpp"), Path(folder, "lib.so")
        text = f'#include "{source}"\nextern "C" void go(void** a) {{ {call} }}\n'
        main.write_text(text, encoding="utf-8")
        flags = [f'-DEMULATED="{header}"', *(f"-D{each}" for each in defines)]
        command = [
            "g++",
            "-std=c++20",
            "-O1",
            "-w",
            "-fPIC",
            "-shared",
            *flags,
            str(main),
            "-o",
            str(library),
            "-lpthread",
        ]
        subprocess.run(command, check=True)
        arrays = [np.array(each) for each in values]
        arrays[out].fill(np.nan)
        cells = (ctypes.c_void_p * len(arrays))(*(each.ctypes.data for each in arrays))
        ctypes.CDLL(str(library)).go(cells)
        return arrays[out]


def compared(device: torch.Tensor, emulator: np.ndarray, wanted: torch.Tensor) -> dict[str, float]:
    """Errors over the largest value of the reference, and how far the two are apart."""
    top = float(wanted.abs().max())
    other = torch.tensor(emulator.astype(np.float64), device="cuda")
    return {
        "device_error": float((device.double() - wanted).abs().max()) / top,
        "emulator_error": float((other - wanted).abs().max()) / top,
        "apart": float((device.double() - other).abs().max()) / top,
        "same_bits": float((device.double() == other).double().mean()),
    }


def rows(header: Path, compiler: Compiler, driver: Driver) -> list[dict[str, Any]]:
    """The row kernels."""
    found = []
    for choice in CHOICES:
        kind = torch.float16 if choice.half else torch.float32
        tensors = [torch.randn(shape, device="cuda").to(kind) for shape in ((ROWS, choice.n),) * 2 + ((choice.n,),) * 2]
        y = torch.full_like(tensors[0], float("nan"))
        function = driver.load(compiler.compile(SOURCE, "sm_90", choice.defines)[0])
        launch = function.launcher(
            choice.grid(ROWS), choice.threads, choice.shared, *map(pointer, (*tensors, y)), c_longlong(ROWS)
        )
        launch(torch.cuda.current_stream().cuda_stream)
        t = "__half" if choice.half else "float"
        given = ", ".join(f"({'' if i == 4 else 'const '}{t}*)a[{i}]" for i in range(5))
        size = f"{choice.grid(ROWS)}, {choice.threads}, {choice.shared}"
        launched = f"cuemu::launch({size}, [&]{{ kernel({given}, {ROWS}); }}, 2, true, seed);"
        call = f"for (int seed = 1; seed < 3; ++seed) {launched}"
        values = [each.cpu().numpy() for each in (*tensors, y)]
        result = emulated(header, HERE / "rows.cu", call, choice.defines, values, 4)
        found.append({"kernel": str(choice), **compared(y, result, reference(choice.op, *tensors))})
    return found


def others(header: Path, compiler: Compiler, driver: Driver) -> list[dict[str, Any]]:
    """The kernels of emulated.cu."""
    image = compiler.compile(KERNELS.read_text(encoding="utf-8"), "sm_90")[0]
    found = []
    half, single = torch.float16, torch.float32

    def case(
        name: str, grid: int, threads: int, shared: int, tensors: list[torch.Tensor], kinds: str, scalars: list[Any],
        wanted: Callable[..., torch.Tensor], out: int,
    ) -> None:  # fmt: skip
        launch = driver.load(image, name).launcher(grid, threads, shared, *map(pointer, tensors), *scalars)
        values = [each.cpu().numpy() for each in tensors]
        launch(torch.cuda.current_stream().cuda_stream)
        given = ", ".join(f"({t}*)a[{i}]" for i, t in enumerate(kinds.split()))
        words = ", ".join(str(each.value) + ("f" if isinstance(each, c_float) else "") for each in scalars)
        call = f"cuemu::launch({grid}, {threads}, {shared}, [&]{{ {name}({given}, {words}); }}, 2, true, 1);"
        result = emulated(header, KERNELS, call, (), values, out)
        found.append({"kernel": name, **compared(tensors[out], result, wanted(*(each.double() for each in tensors)))})

    random = [
        torch.randn(shape, device="cuda") for shape in ((128, 1024), (1024,), (512, 768), (512, 768), (768,), (768,))
    ]
    case(
        "softmax_h", 128, 128, (1024 + 4) * 4,
        [*(random[i].to(half) for i in (0, 1)), torch.empty_like(random[0]).to(half)],
        "__half __half __half", [c_int(1024), c_float(0.125)], lambda x, b, y: torch.softmax(x * 0.125 + b, -1), 2,
    )  # fmt: skip
    case(
        "ln_gelu", 128, 128, 16, [*random[2:6], torch.empty_like(random[2]), torch.zeros(1, device="cuda")],
        "float float float float float float", [c_int(512), c_int(768), c_float(1e-5)],
        lambda x, r, g, b, *_: functional.gelu(functional.layer_norm(x + r, (768,), g, b, 1e-5)), 4,
    )  # fmt: skip
    left, right = (torch.randn((128, 128), device="cuda").to(half) for _ in range(2))
    case(
        "mma_gemm", 8 * 16, 32, 0, [left, right, torch.empty((128, 128), device="cuda", dtype=single)],
        "__half __half float", [c_int(128), c_int(128)], lambda a, b, c: a @ b.T, 2,
    )  # fmt: skip
    return found


def main() -> None:
    """Compare and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--header", type=Path, required=True)
    asked = parser.parse_args()
    torch.manual_seed(0)
    torch.zeros(1, device="cuda")
    compiler, driver = Compiler(), Driver()
    found = others(asked.header.resolve(), compiler, driver) + rows(asked.header.resolve(), compiler, driver)
    asked.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    sys.stderr.writelines(f"{each}\n" for each in found)


if __name__ == "__main__":
    main()
