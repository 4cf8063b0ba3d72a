"""Launches kernels over the driver mock, each dependent on the one before, in a stream or in a graph.

`python dependent_child.py WHERE NAME...`; WHERE is stream or graph. Kernels have the same two arrays of 64 floats,
`x` from 0 on and `y`, which holds -1; prints both.
"""

from __future__ import annotations

import ctypes
import json
import sys

from benchmarks.gpu.driver import DEPENDENT, Driver, Function

COUNT = 64
STREAM = 0x1000


def main(where: str, *names: str) -> None:
    """Load, launch, synchronize."""
    driver = Driver()
    context, graph, stream = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p(STREAM)
    driver.check(driver.lib.cuInit(0))
    driver.check(driver.lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    driver.check(driver.lib.cuCtxSetCurrent(context))
    functions: list[Function] = [driver.load_library(b"//\n.version 9.0\n", name) for name in names]
    x, y = ((ctypes.c_float * COUNT)(*numbers) for numbers in (range(COUNT), [-1.0] * COUNT))
    given = [ctypes.c_void_p(ctypes.addressof(a)) for a in (x, y)]
    if where == "graph":
        driver.check(driver.lib.cuStreamBeginCapture_v2(stream, 1))
    for each in functions:
        each.launcher(2, 32, 0, *given, attributes=(DEPENDENT,))(STREAM)
    if where == "graph":
        driver.check(driver.lib.cuStreamEndCapture(stream, ctypes.byref(graph)))
        driver.check(driver.lib.cuGraphInstantiateWithFlags(ctypes.byref(graph), graph, ctypes.c_ulonglong(0)))
        driver.check(driver.lib.cuGraphLaunch(graph, stream))
    driver.check(driver.lib.cuStreamSynchronize(stream))
    sys.stdout.write(json.dumps([[*x], [*y]]))


if __name__ == "__main__":
    main(*sys.argv[1:])
