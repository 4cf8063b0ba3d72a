"""Kernels of threads under the sanitizer of undefined behaviour: shifts, overflows, alignment, array bounds."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Sequence
from unittest.mock import patch

import pytest

from onnxfuse.ir.kernel import Kernel
from tests.craft.sources import ROOT
from tests.kernels.compiled import fed
from tests.kernels.pool_host import compiler
from tests.threads import emulator
from tests.threads.scheduled import USUAL, name_of, scheduled

EVERY = 6  # one of so many of the kernels that are compiled every time
SANITIZED = (*emulator.FLAGS, "-fsanitize=undefined", "-fno-sanitize-recover=all", "-fno-sanitize=vptr")
PLANTED = """
#include "cuda.h"
extern "C" __global__ void __launch_bounds__(32) planted(int* __restrict__ out) {
  out[threadIdx.x] = 0x7fffffff + (int)threadIdx.x;
}
"""


def child(*arguments: str) -> subprocess.CompletedProcess[str]:
    """This file in a process of its own, which ends where something is undefined."""
    command = [sys.executable, "-m", "tests.kernels.test_sanitized_threads", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
def test_kernels_have_no_undefined_behaviour() -> None:
    done = child("kernels")
    assert done.returncode == 0, done.stdout[-300:] + done.stderr[-1000:]
    assert int(done.stdout.split()[-1]) >= len(USUAL) // EVERY // 2


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
def test_the_sanitizer_finds_undefined_behaviour() -> None:
    done = child("planted")
    assert done.returncode != 0 and "signed integer overflow" in done.stderr


def main(what: Sequence[str]) -> None:
    """Run kernels, or the planted one; on standard output the name of each, and how many they were."""
    with patch.object(emulator, "FLAGS", SANITIZED):
        if what == ["planted"]:
            library = ctypes.CDLL(str(emulator.library_of(PLANTED, "planted")))
            out = (ctypes.c_int * 32)()
            argument = ctypes.c_void_p(ctypes.addressof(out))
            given = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
            library.run_planted(given, ctypes.c_uint(1), ctypes.c_uint(32), ctypes.c_size_t(0), ctypes.c_uint(1))
            return
        made = [(c, k) for c in USUAL[::EVERY] if isinstance(k := scheduled(c), Kernel)]
        library = ctypes.CDLL(str(emulator.compiled({name_of(c): k for c, k in made})))
    for case, kernel in made:
        sys.stdout.write(f"{case.name}\n")
        sys.stdout.flush()
        for number in range(len(case.sizes)):
            emulator.run(kernel, name_of(case), fed(kernel, case, number), library)
    sys.stdout.write(f"{len(made)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
