"""Asks the driver mock for launches beyond the limits of a device, and reports whether it refuses them."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

DYNAMIC_SHARED, ASKED = 8, 100 << 10
LAUNCHES = {
    "threads": (2048, 0), "registers": (1024, 0), "shared": (32, 60 << 10), "unloaded": (32, 0), "asked": (32, ASKED),
}  # fmt: skip


def main(what: str) -> None:
    """A launch with too many threads, too many registers of these, too much shared memory, as much as was asked for, or
    of code that was not brought to the device; or a look at the device's memory, which ends the process.
    """
    driver = ctypes.CDLL("libcuda.so.1")
    symbols = subprocess.run(["nm", "-D", os.environ["DRIVER_KERNELS"]], capture_output=True, text=True, check=True)
    match = re.search(r" run_(\w+)$", symbols.stdout, re.MULTILINE)
    assert match is not None
    library, kernel, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    assert driver.cuInit(0) == 0
    none = ctypes.c_void_p()
    file = os.environ.get("MISUSE_CODE")
    code = Path(file).read_bytes() if file else b"//\n.version 9.0\n"
    assert driver.cuLibraryLoadData(ctypes.byref(library), code, none, none, 0, none, none, 0) == 0
    assert driver.cuLibraryGetKernel(ctypes.byref(kernel), library, match[1].encode()) == 0
    context = ctypes.c_void_p()
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert driver.cuCtxSetCurrent(context) == 0
    if what == "memory":
        where = ctypes.c_uint64()
        assert driver.cuMemAlloc_v2(ctypes.byref(where), ctypes.c_size_t(64)) == 0
        ctypes.string_at(where.value, 1)
    if what != "unloaded":
        assert driver.cuKernelGetFunction(ctypes.byref(function), kernel) == 0
    if what == "asked":
        refused = driver.cuKernelSetAttribute(DYNAMIC_SHARED, ASKED, kernel, 0)
        if refused:
            sys.stdout.write("refused")
            return
    threads, shared = LAUNCHES[what]
    refused = driver.cuLaunchKernel(kernel, 1, 1, 1, threads, 1, 1, shared, none, none, none)
    sys.stdout.write("refused" if refused else "taken")


if __name__ == "__main__":
    main(*sys.argv[1:])
