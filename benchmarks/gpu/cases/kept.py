"""What a check needs of a compiler or of the emulator, made beforehand on a machine that need not have a GPU.

    python -m benchmarks.gpu.cases.kept OUT.tar.xz [images] [emulated] [--folder FOLDER] [--arch sm_90] [--every N]

`images` are cubins of the kernels of the cases and of bandwidth, `emulated` is what the emulator makes of the cases.
Both are found by what they are made of, so that a file of another version of the kernels is of no use, and of no harm.
`python -m benchmarks.gpu.check ... --kept OUT.tar.xz` takes what is there, and compiles what is not. Made again, what
FOLDER has is kept.
"""

from __future__ import annotations

import argparse
import io
import lzma
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.gpu.cases.images_cache import image
from onnxfuse.build import SUPPORT
from onnxfuse.build.cache import Cache, key_of
from onnxfuse.build.resources import Image
from onnxfuse.ir.kernel import Kernel
from onnxfuse.render.cuda import device_text
from onnxfuse.target import GPUS
from tests.kernels.compiled import Case, fed
from tests.threads import emulator
from tests.threads.scheduled import PER_UNIT, TABLES, kernel_of, library_of, name_of, scheduled, unit_of

Array = npt.NDArray[Any]
SEED = 2  # of the emulator that results are compared with
EMULATOR = ("emulated.h", "emulated_code.h", "emulated_launch.cpp")
OWN = ("rows", "divisions", "attention", "products", "tiles")  # tables of kernels that only GPUs have so


def cases() -> list[Case]:
    """All cases, those first whose kernels only GPUs have."""
    return [case for name in (*OWN, *(n for n in TABLES if n not in OWN)) for case in TABLES[name]]


@dataclass(frozen=True)
class Kept:
    """Images and outputs in a folder, or nothing."""

    folder: Path | None = None

    def compiled(self, text: str, flags: Sequence[str]) -> Image:
        """The code of a translation unit: as it is kept, or compiled and kept."""
        return image(text, flags, self.folder)

    def emulated(self, case: Case, kernel: Kernel, inputs: Sequence[Array]) -> tuple[Array, ...] | None:
        """What the emulator makes of a case, where that is kept."""
        found = self._get(_output_key(case, kernel, inputs))
        if found is None:
            return None
        with np.load(io.BytesIO(found)) as arrays:
            return tuple(arrays[f"arr_{n}"] for n in range(len(arrays.files)))

    def keep_emulated(
        self, case: Case, kernel: Kernel, inputs: Sequence[Array], largest: int, few: tuple[Case, ...]
    ) -> bool:
        """Run the emulator, unless what it makes is kept. Whether it is kept then: not if it has too many bytes.

        The emulator compiles its kernel with those of `few` others, or of its unit.
        """
        key = _output_key(case, kernel, inputs)
        if self.folder is None or self._get(key) is not None:
            return self.folder is not None
        library = unit_of(few) if few else library_of(case)
        outputs = emulator.run(kernel, name_of(case), inputs, library, SEED)
        if sum(a.nbytes for a in outputs) > largest:
            return False
        file = io.BytesIO()
        np.savez(file, *outputs)
        Cache(self.folder).put(key, file.getvalue())
        return True

    def _get(self, key: str) -> bytes | None:
        path = Cache(self.folder).get(key) if self.folder is not None else None
        return path.read_bytes() if path is not None else None


def _output_key(case: Case, kernel: Kernel, inputs: Sequence[Array]) -> str:
    headers = [SUPPORT / "cuda.h", *(emulator.HERE / name for name in EMULATOR)]
    made_of = [part for a in inputs for part in (str(a.dtype), str(a.shape), np.ascontiguousarray(a).tobytes())]
    texts = (path.read_text(encoding="utf-8") for path in headers)
    return key_of("emulated", device_text(kernel, name_of(case)), str(SEED), *made_of, *texts)


def unpacked(file: Path, folder: Path) -> Kept:
    """The content of a file that `main` wrote, in a folder."""
    with lzma.open(file) as stream:
        Cache(folder).unpack(stream)  # type: ignore[arg-type]  # it reads bytes
    return Kept(folder)


def main(arguments: list[str] | None = None) -> int:
    """Make what is missing, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("what", nargs="*", help="images, emulated (default: both)")
    parser.add_argument("--folder", type=Path, default=Path(".cache/gpu-kept"))
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--largest", type=int, default=256 << 10, help="bytes of what the emulator makes: more is left out"
    )
    parser.add_argument("--megabytes", type=float, default=256.0, help="of the tensors of bandwidth")
    asked = parser.parse_args(arguments)
    kept, what = Kept(asked.folder), asked.what or ["images", "emulated"]
    made = [case for case in cases()[:: asked.every] if isinstance(scheduled(case), Kernel)]
    if "images" in what:
        flags = GPUS[asked.arch].flags
        texts = [device_text(kernel_of(case), name_of(case)) for case in made]
        texts += bandwidth_texts(asked.megabytes, asked.every)
        _each(lambda text: kept.compiled(text, flags), texts, asked.threads, "images")
    if "emulated" in what:
        jobs = [(case, number) for case in made for number in range(len(case.sizes))]
        few = tuple(made) if len(made) <= PER_UNIT else ()

        def emulate(job: tuple[Case, int]) -> None:
            case, number = job
            kernel = kernel_of(case)
            if not kept.keep_emulated(case, kernel, fed(kernel, case, number), asked.largest, few):
                sys.stdout.write(f"left out, too large: {case.name}\n")

        _each(emulate, jobs, 1, "emulated")
    with lzma.open(asked.out, "wb", preset=9) as stream:
        info = Cache(asked.folder).pack(stream)  # type: ignore[arg-type]  # it takes bytes
    sys.stdout.write(f"{asked.out}: {asked.out.stat().st_size / 2**20:.1f} MiB, {info.entries} entries\n")
    return 0


def bandwidth_texts(megabytes: float, every: int = 1) -> list[str]:
    """The texts of the kernels of bandwidth, one of so many, as they are named there."""
    from benchmarks.gpu import bandwidth  # noqa: PLC0415  which takes this module's kept images
    from onnxfuse.measure.gpu import symbol_of  # noqa: PLC0415

    kernels = [kernel_of(case) for case in list(bandwidth.cases(int(megabytes * 1e6)))[::every]]
    return [bandwidth.EMPTY, *(device_text(kernel, symbol_of(kernel)) for kernel in kernels)]


def _each(job: Callable[[Any], None], given: Iterable[Any], threads: int, title: str) -> None:
    """Do it for each, in threads; one that fails is said, and the others go on."""
    begin, todo = time.monotonic(), list(given)

    def one(each: Any) -> bool:
        try:
            job(each)
        except Exception as problem:
            sys.stdout.write(f"{title}: {str(problem)[:300]}\n")
            return False
        return True

    with ThreadPoolExecutor(threads) as pool:
        for number, _ in enumerate(pool.map(one, todo), 1):
            if number % 100 == 0 or number == len(todo):
                sys.stdout.write(f"{title}: {number} of {len(todo)}, {time.monotonic() - begin:.0f} s\n")
                sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
