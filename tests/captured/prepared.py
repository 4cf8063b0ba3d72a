"""A kernel's launcher as in a library, and the stand-in for the driver, in a folder that a child process works in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np

from onnxfuse.build import SUPPORT
from onnxfuse.cost.gpu_products import Sizes, tiles_of
from onnxfuse.ir.dtype import F16
from onnxfuse.ir.interpret import bound, interpret
from onnxfuse.ir.interpret.values import Iterations
from onnxfuse.ir.kernel import Kernel
from onnxfuse.render.cuda_launch import code_symbol, render
from tests.kernels.compiled import Case, fed
from tests.kernels.isa import CACHE
from tests.kernels.pool_host import Array, compile_library
from tests.threads.emulator import library_of
from tests.threads.product_cases import TILED
from tests.threads.scheduled import TARGET
from tests.threads.test_product_tiles import with_tile

DRIVER = Path(__file__).parents[1] / "threads" / "driver.cpp"
PLACE = DRIVER.with_name("libraries")
LIBRARIES = {"libcublasLt.so.13": PLACE / "cublaslt.cpp", "libcudnn.so.9": PLACE / "cudnn.cpp"}
CASES = {c.name: c for c in TILED}
SYMBOL = "captured"
HEADER = '#include "cuda_host.h"\n'  # which all launchers begin with
ANY_DEVICE = b"//\n.version 9.0\n"  # code that the stand-in takes for that of any function


@dataclass(frozen=True)
class Prepared:
    """A folder with a kernel's launcher and inputs, the kernel for the host, and the folder of the driver."""

    folder: Path
    kernel: Kernel
    feeds: tuple[Array, ...]
    environment: dict[str, str]


@dataclass(frozen=True)
class Unit:
    """Launchers of some kernels, and the kernels for the host, compiled together."""

    launchers: Path
    emulated: Path


def compiled(kernels: Mapping[str, Kernel], without: str = "") -> Unit:
    """Kernels by their symbols, as in a library; those for the host are `without` a text."""
    texts = {symbol: render(kernel, symbol, "Captured").text for symbol, kernel in kernels.items()}
    code = ", ".join(map(str, (*ANY_DEVICE, 0)))
    codes = (f'extern "C" const unsigned char {code_symbol(symbol)}[] = {{{code}}};\n' for symbol in kernels)
    text = "\n".join([*texts.values(), *codes])
    folder = CACHE / "threads"
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / f"launchers_{sha256(text.encode()).hexdigest()[:16]}.cpp"
    source.write_text(text, encoding="utf-8")
    flags = ("-std=c++20", "-O1", f"-I{SUPPORT}")
    launchers = compile_library([source], folder, flags, prelude=HEADER)
    on_host = "".join(each.replace(without, "") if without else each for each in texts.values())
    return Unit(launchers, library_of(on_host, next(iter(kernels))))


def prepared(
    folder: Path, case: Case, kernel: Kernel, *, library: bool = False, unit: Unit | None = None, symbol: str = SYMBOL
) -> Prepared:
    """A kernel's launcher, compiled as in a library, and a driver for it; with `library`, cuBLASLt and cuDNN too.

    Where it was compiled with others, it is a `symbol` of their `unit`.
    """
    unit = unit or compiled({symbol: kernel})
    (folder / "launchers.so").symlink_to(unit.launchers)
    (folder / "libcuda.so.1").symlink_to(compile_library([DRIVER], CACHE / "threads", ("-O1",)))
    if library:
        for name, source_ in LIBRARIES.items():
            (folder / name).symlink_to(compile_library([source_], CACHE / "threads", ("-O1",)))
    feeds = tuple(np.ascontiguousarray(a) for a in fed(kernel, case, 0))
    for i, x in enumerate(feeds):
        np.save(folder / f"{i}.npy", x)
    here = Iterations((), np.zeros(1, np.int64), bound(kernel, [x.shape for x in feeds]), {})
    shapes = {p: [int(here.index(e)) for e in p.storage] for p in kernel.outputs}
    outputs = {p.name: [p.dtype.onnx, *s, p.dtype.bytes * int(np.prod(s))] for p, s in shapes.items()}
    types = [p.dtype.onnx for p in kernel.inputs]
    told = {"symbol": symbol, "inputs": len(feeds), "types": types, "outputs": outputs}
    (folder / "told.json").write_text(json.dumps(told))
    return Prepared(folder, kernel, feeds, {"LD_LIBRARY_PATH": str(folder), "DRIVER_KERNELS": str(unit.emulated)})


def product_in_parts(folder: Path, without: str = "") -> Prepared:
    """A product whose sums are of two parts, with a normalization: two launches, and memory of the run.

    Kernels for the host are `without` a text.
    """
    case = CASES["norm_behind_float16"]
    kernel = with_tile(case, next(t for t in tiles_of(Sizes(1, 24, 64, 256, F16), TARGET) if t.splits > 1))
    assert len(kernel.phases) == 2 and kernel.scratch
    return prepared(folder, case, kernel, unit=compiled({SYMBOL: kernel}, without))


def assert_right(made: Prepared, scale: float, suffix: str = "") -> None:
    """What a child left in the folder is what inputs, scaled, ask for."""
    inputs = [(x * x.dtype.type(scale)).astype(x.dtype) for x in made.feeds]
    for p, a in zip(made.kernel.outputs, interpret(made.kernel, inputs, 1), strict=True):
        got = np.load(made.folder / f"{p.name}{suffix}.npy")
        np.testing.assert_allclose(got.astype(np.float64), a.astype(np.float64), rtol=1e-2, atol=1e-2)
