"""Captures a run of a kernel by its launcher, and launches the graph: kernel and tensors lie in files of a folder.

`python child.py FOLDER WHAT`; WHAT is what the launcher is made to do wrong while its stream is captured
(nothing, allocate, wait, load, elsewhere). Writes out.npz, and prints what the run said.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.captured.host import ASKED, OUTPUT, SCRATCH, TOLD, Host, Kernel, Tensor

STREAM, ANOTHER = 0x1000, 0x2000
DTYPES = {1: np.float32, 10: np.float16, 16: np.uint16}
BRAIN = 16  # bfloat16: its numbers are float32 in files, and the upper half of their bits in memory
SCRATCH_BYTES = 1 << 20
FIRST, THEN, TIMES = 1.0, 0.5, 2  # inputs are scaled while captured, and when the graph runs; how often it does


class Device:
    """The driver's memory, and a kernel's tensors in it."""

    def __init__(self, outputs: dict[str, list[int]], what: str) -> None:
        self.driver = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        self.memory = {name: self.allocated(size) for name, (*_, size) in outputs.items()}
        self.scratch = self.allocated(SCRATCH_BYTES)
        self.what = what
        self.capturing = False

    def call(self, name: str, *given: Any) -> None:
        """A call that has to go well."""
        wrong = getattr(self.driver, name)(*given)
        assert wrong == 0, f"{name}: {wrong}"

    def allocated(self, size: int) -> int:
        """Memory of the device; 0 where it gives none."""
        place = ctypes.c_uint64()
        return 0 if self.driver.cuMemAlloc_v2(ctypes.byref(place), ctypes.c_size_t(size)) else place.value

    def fill(self, place: int, x: np.ndarray[Any, Any]) -> None:
        """An array to the device."""
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(place), ctypes.c_void_p(x.ctypes.data), ctypes.c_size_t(x.nbytes))

    def wrong(self, what: str) -> bool:
        """Whether it is this that goes wrong now."""
        return self.capturing and self.what == what

    def host(self) -> Host:
        """What the launcher asks."""
        names = list(self.memory)
        return Host(
            OUTPUT(lambda _, i, dims, rank: self.memory[names[i]]),
            SCRATCH(lambda _, size: self.allocated(size) if self.wrong("allocate") else self.scratch),
            None, 1, ASKED(lambda _: ANOTHER if self.wrong("elsewhere") else STREAM), self.wrong("wait"),
            TOLD(lambda _: "ROUNDS" in os.environ),
        )  # fmt: skip


def main(folder: str, what: str) -> None:
    """One warm-up run, a captured one, and the graph's runs on other inputs."""
    here = Path(folder)
    told = json.loads((here / "told.json").read_text())
    feeds = [np.load(here / f"{i}.npy") for i in range(told["inputs"])]
    library = ctypes.CDLL(str(here / "launchers.so"))
    kernel = Kernel.in_dll(library, f"onnxfuse_{told['symbol']}")
    device = Device(told["outputs"], what)
    places = [device.allocated(max(x.nbytes, 1)) for x in feeds]
    tensors = (Tensor * len(feeds))(*(
        Tensor(place, (ctypes.c_int64 * x.ndim)(*x.shape), x.ndim) for place, x in zip(places, feeds, strict=True)
    ))  # fmt: skip

    def given(scale: float) -> None:
        for place, x, number in zip(places, feeds, told["types"], strict=True):
            scaled = np.ascontiguousarray(x * x.dtype.type(scale))
            device.fill(place, (scaled.view(np.uint32) >> 16).astype(np.uint16) if number == BRAIN else scaled)

    def run() -> str | None:
        host = device.host()
        said = kernel.run(ctypes.byref(host), tensors)
        return said.decode() if said else None

    if what != "load":
        assert kernel.prepare(0) is None, kernel.prepare(0)
        given(FIRST)
        assert run() is None
        device.call("cuStreamSynchronize", ctypes.c_void_p(STREAM))
    graph, stream = ctypes.c_void_p(), ctypes.c_void_p(STREAM)
    device.call("cuStreamBeginCapture_v2", stream, 1)
    device.capturing = True
    said = (kernel.prepare(0) or b"").decode() if what == "load" else run()
    device.capturing = False
    broken = device.driver.cuStreamEndCapture(stream, ctypes.byref(graph))
    sys.stdout.write(json.dumps({"said": said, "broken": broken != 0}))
    if broken:
        return
    for name, (*_, size) in told["outputs"].items():
        device.call("cuMemsetD8_v2", ctypes.c_uint64(device.memory[name]), 0xFF, ctypes.c_size_t(size))
    given(THEN)
    device.call("cuGraphInstantiateWithFlags", ctypes.byref(graph), graph, ctypes.c_ulonglong(0))
    for _ in range(TIMES):
        device.call("cuMemsetD8_v2", ctypes.c_uint64(device.scratch), 0xFF, ctypes.c_size_t(SCRATCH_BYTES))
        device.call("cuGraphLaunch", graph, stream)
        device.call("cuStreamSynchronize", stream)
    for name, (number, *shape, size) in told["outputs"].items():
        made = np.empty(shape, DTYPES[number])
        device.call("cuMemcpyDtoH_v2", ctypes.c_void_p(made.ctypes.data), ctypes.c_uint64(device.memory[name]),
                    ctypes.c_size_t(size))  # fmt: skip
        np.save(here / f"{name}.npy", made)


if __name__ == "__main__":
    main(*sys.argv[1:])
