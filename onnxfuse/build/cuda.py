"""CUDA kernels to one shared library: device code for every architecture, and the host code that launches it.

Each source is compiled by NVRTC or nvcc, in threads, and cached under a hash of all its inputs. The host code of all
sources is one translation unit; their device code, as arrays, is another. Sources for CPUs are units of their own.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields, replace

from onnxfuse.build import BuildRequest, CompileError, Library, nvcc, nvrtc
from onnxfuse.build import build_library as build_host
from onnxfuse.build.cache import Cache, key_of
from onnxfuse.build.resources import CompileFailed, DeviceCompiler, Image, Resources
from onnxfuse.build.toolchain import Toolchain
from onnxfuse.build.toolchain import find_toolchain as find_host
from onnxfuse.config import DEVICE_COMPILERS, NVCC, NVRTC, Options
from onnxfuse.errors import BudgetError
from onnxfuse.render.source import Source

ARCHITECTURE = "--gpu-architecture="
BOUNDS = re.compile(r"__launch_bounds__\((\d+)\)")  # of a function without a number of resident blocks
LIMITED = "--maxrregcount=128"  # of each thread
_LINE = 2048  # bytes of device code per line of source text
_ESCAPED = [f"\\{n:03o}" for n in range(256)]


@dataclass(frozen=True, slots=True)
class CudaToolchain(Toolchain):
    """A C++ compiler for the host code, and the compiler of the device code."""

    device: DeviceCompiler


def find_toolchain(options: Options, target: str) -> CudaToolchain:
    """The compilers that `--toolchain` and `--nvcc` name; `target` is the architecture of the host.

    The default is any C++ compiler with NVRTC, or with nvcc where NVRTC is not installed. Raises ToolchainError.
    """
    host = find_host("auto" if options.toolchain in DEVICE_COMPILERS else options.toolchain, target)
    by_nvcc = options.nvcc is not None or options.toolchain == NVCC
    if options.toolchain != NVRTC and not nvrtc.libraries():
        by_nvcc |= nvcc.is_found()
    device = nvcc.compiler(options.nvcc, host) if by_nvcc else nvrtc.compiler()
    shared = {each.name: getattr(host, each.name) for each in fields(host)}
    return CudaToolchain(**shared | {"identity": f"{host.identity} {device.identity}"}, device=device)


def builder(code_symbol: Callable[[str], str]) -> Callable[[BuildRequest], Library]:
    """The function that builds libraries; `code_symbol` names the array with the device code of a source."""

    def build_library(request: BuildRequest) -> Library:
        """Build sources and registration code into a library. Raises CompileError and BudgetError."""
        start, toolchain = time.monotonic(), request.toolchain
        until = None if request.time_limit is None else start + request.time_limit
        assert isinstance(toolchain, CudaToolchain), "build: no device compiler"
        device = [source for source in request.sources if architecture(source)]
        images, fresh = _images(device, toolchain.device, request.cache, request.workers, until)
        host = Source("launchers", "".join(source.text for source in device))
        arrays = [_array(code_symbol(s.symbol), image.code) for s, image in zip(device, images, strict=True)]
        left = None if until is None else max(until - time.monotonic(), 0.0)
        others = (source for source in request.sources if not architecture(source))
        units = (host, Source("code", "".join(arrays)), *others)
        made = build_host(replace(request, sources=units, time_limit=left, links=("-ldl",)))
        functions = tuple(each for image in images for each in image.functions)
        return replace(
            made, compiled=fresh, cached=len(device) - fresh, seconds=time.monotonic() - start,
            compiler=f"{toolchain.device.title} and {made.compiler}", functions=functions,
        )  # fmt: skip

    return build_library


def architecture(source: Source) -> str:
    """The GPU architecture that a source is compiled for; empty for code of a CPU."""
    return next((f.removeprefix(ARCHITECTURE) for f in source.flags if f.startswith(ARCHITECTURE)), "")


def _images(
    sources: Sequence[Source], compiler: DeviceCompiler, cache: Cache | None, jobs: int, until: float | None
) -> tuple[list[Image], int]:
    """The device code of all sources in their order, and how many were compiled."""
    common = key_of("cuda 3", compiler.identity, *(t for pair in nvrtc.headers().items() for t in pair))
    keys = [key_of(common, *s.flags, s.text) for s in sources]
    known = [image_in(cache, key) for key in keys]

    def make(at: int) -> Image:
        if until is not None and time.monotonic() > until:
            raise BudgetError("build: compiling takes longer than allowed", hint="raise --time-budget")
        return _compiled(sources[at], compiler)

    missing = [at for at, image in enumerate(known) if image is None]
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        made = dict(zip(missing, pool.map(make, missing), strict=True))
    for at, image in made.items():
        keep_image(cache, keys[at], image)
    return [image if image is not None else made[at] for at, image in enumerate(known)], len(missing)


def unspilled(text: str, flags: Sequence[str], compiler: DeviceCompiler) -> Image:
    """The device code of a source; where a function spills registers, the one that spills least of others.

    By itself ptxas saves registers for more resident blocks, and may spill although many are left. It gives that up
    where one resident block is asked for, or the number of registers has a limit. Functions with a number of resident
    blocks of their own keep it. Raises CompileFailed.
    """
    image = compiler.compiled(text, flags)
    for other, more in ((BOUNDS.sub(r"__launch_bounds__(\1, 1)", text), ()), (text, (LIMITED,))):
        if not image.spills:
            break
        again = compiler.compiled(other, (*flags, *more))
        image = again if again.spills < image.spills else image
    return image


def _compiled(source: Source, compiler: DeviceCompiler) -> Image:
    try:
        image = unspilled(source.file, source.flags, compiler)
    except CompileFailed as problem:
        said = str(problem)
        first = next((line for line in said.splitlines() if "error" in line), said[:200])
        hint = f"a bug of onnxfuse or of {compiler.title}"
        wrong = CompileError(f"build: {source.symbol}.cu does not compile: {first}", hint=hint, log=said)
        wrong.units = {source.symbol: wrong.message}
        raise wrong from None
    target = architecture(source)
    return replace(image, functions=tuple(replace(each, target=target) for each in image.functions))


def image_in(cache: Cache | None, key: str) -> Image | None:
    """A cached image, if it is there: the first line of the file has the resources of its functions, as JSON."""
    path = cache.get(key) if cache is not None else None
    if path is None:
        return None
    resources, _, code = path.read_bytes().partition(b"\n")
    return Image(code, tuple(Resources(**each) for each in json.loads(resources)))


def keep_image(cache: Cache | None, key: str, image: Image) -> None:
    """Cache an image, where there is a cache."""
    if cache is not None:
        resources = json.dumps([asdict(each) for each in image.functions])
        cache.put(key, resources.encode() + b"\n" + image.code)


def _array(name: str, code: bytes) -> str:
    """Bytes as a constant array, written as a string literal, which compilers parse much faster than numbers."""
    lines = [code[at : at + _LINE] for at in range(0, len(code), _LINE)]
    text = "\n".join('"' + "".join(map(_ESCAPED.__getitem__, line)) + '"' for line in lines)
    declared = f"const unsigned char {name}[]"
    return f'extern "C" {{ extern {declared}; alignas(64) {declared} =\n{text}; }}\n'
