"""Runs of a launcher in several contexts and threads, over the stand-in for the driver.

`python contexts_child.py FOLDER WHAT` prints what the launcher said, and writes the outputs of each run to the folder.
"""

from __future__ import annotations

import ctypes
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.captured.host import ASKED, OUTPUT, SCRATCH, Host, Kernel, Tensor

DTYPES = {1: np.float32, 10: np.float16}
THREADS = 4


class Launcher:
    """A kernel's launcher, and the driver that it opens."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told = json.loads((folder / "told.json").read_text())
        self.library = ctypes.CDLL(str(folder / "launchers.so"))
        self.kernel = Kernel.in_dll(self.library, f"onnxfuse_{self.told['symbol']}")
        self.driver = ctypes.CDLL("libcuda.so.1")

    def call(self, name: str, *given: Any) -> None:
        """A call of the driver that has to go well."""
        wrong = getattr(self.driver, name)(*given)
        assert wrong == 0, f"{name}: {wrong}"

    def prepare(self, device: int) -> str:
        """What it says when a node is made for a device."""
        return (self.kernel.prepare(device) or b"").decode()

    def context(self, device: int) -> None:
        """The primary context of a device is the thread's."""
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def stream(self) -> ctypes.c_void_p:
        """A stream of the thread's context."""
        made = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(made), 0)
        return made

    def run(self, stream: ctypes.c_void_p | None = None, suffix: str = "", offset: int = 0) -> str:
        """One run on host memory, which begins so many bytes behind a multiple of 256; what it said."""
        feeds = [np.load(self.folder / f"{i}.npy") for i in range(self.told["inputs"])]
        kept = [Memory(x.nbytes, offset) for x in feeds]
        outputs = {name: Memory(size) for name, (*_, size) in self.told["outputs"].items()}
        scratch = Memory(1 << 20)
        for place, x in zip(kept, feeds, strict=True):
            ctypes.memmove(place.at, x.ctypes.data, x.nbytes)
        tensors = (Tensor * len(feeds))(
            *(
                Tensor(place.at, (ctypes.c_int64 * x.ndim)(*x.shape), x.ndim)
                for place, x in zip(kept, feeds, strict=True)
            )
        )
        names = list(outputs)
        host = Host(
            OUTPUT(lambda _, i, dims, rank: outputs[names[i]].at), SCRATCH(lambda _, size: scratch.at), None, 1,
            ASKED(lambda _: stream.value if stream is not None else None), True,
        )  # fmt: skip
        said = self.kernel.run(ctypes.byref(host), tensors)
        for name, (number, *shape, size) in self.told["outputs"].items():
            made = np.empty(shape, DTYPES[number])
            ctypes.memmove(made.ctypes.data, outputs[name].at, size)
            np.save(self.folder / f"{name}{suffix}.npy", made)
        return (said or b"").decode()


class Memory:
    """Aligned memory of the host."""

    def __init__(self, size: int, offset: int = 0) -> None:
        self.held = ctypes.create_string_buffer(size + 512)
        self.at = -(-ctypes.addressof(self.held) // 256) * 256 + offset


def in_thread(work: Callable[[], Any]) -> Any:
    """What another thread makes."""
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.append(work()))
    thread.start()
    thread.join()
    return made[0]


def elsewhere(launcher: Launcher) -> list[str]:
    """Prepared by one thread, run by another one that has no context, on the default stream."""
    launcher.call("cuInit", 0)
    return [launcher.prepare(0), in_thread(launcher.run)]


def second(launcher: Launcher) -> list[str]:
    """Prepared for the second device by a thread of the first one; a stream of each."""
    launcher.context(0)
    first = launcher.stream()
    said = launcher.prepare(1)
    current = ctypes.c_int(-1)
    launcher.call("cuCtxGetDevice", ctypes.byref(current))
    not_there = launcher.run(first)
    launcher.context(1)
    return [said, str(current.value), not_there, launcher.run(launcher.stream())]


def reset(launcher: Launcher) -> list[str]:
    """A device is reset, as by the process's other users; the next session prepares again."""
    launcher.context(0)
    said = [launcher.prepare(0), launcher.run(suffix=".first")]
    launcher.call("cuDevicePrimaryCtxReset_v2", 0)
    return [*said, launcher.run(), launcher.prepare(0), launcher.run()]


def fault(launcher: Launcher) -> list[str]:
    """A launch ends the context (the environment says which one)."""
    launcher.context(0)
    return [launcher.prepare(0), launcher.run()]


def capturing(launcher: Launcher) -> list[str]:
    """One thread captures while another one prepares."""
    launcher.context(0)
    stream, graph = launcher.stream(), ctypes.c_void_p()
    launcher.call("cuStreamBeginCapture_v2", stream, 0)
    said = in_thread(lambda: launcher.prepare(0))
    return [said, str(launcher.driver.cuStreamEndCapture(stream, ctypes.byref(graph)))]


def together(launcher: Launcher) -> list[str]:
    """Several threads prepare and run at once, each on its own stream."""
    launcher.call("cuInit", 0)
    begin, said = threading.Barrier(THREADS), [""] * THREADS

    def work(number: int) -> None:
        launcher.context(0)
        stream = launcher.stream()
        begin.wait()
        said[number] = launcher.prepare(0) + launcher.run(stream, f".{number}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return said


def offset(launcher: Launcher) -> list[str]:
    """An input that begins where wide accesses may not."""
    launcher.context(0)
    return [launcher.prepare(0), launcher.run(offset=2)]


def nowhere(launcher: Launcher) -> list[str]:
    """A device that is not there."""
    launcher.call("cuInit", 0)
    return [launcher.prepare(7)]


if __name__ == "__main__":
    WAYS = (elsewhere, second, reset, fault, capturing, together, offset, nowhere)
    made = Launcher(Path(sys.argv[1]))
    sys.stdout.write(json.dumps({way.__name__: way for way in WAYS}[sys.argv[2]](made)))
