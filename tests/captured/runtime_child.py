"""A stand-in for ONNX Runtime with a CUDA provider: what the glue of a library asks of it, and what it is given.

`python runtime_child.py LIBRARY DEVICE SHAPES` registers a library, makes a kernel of its operator in a session of a
device, and runs it on a stream, with inputs of SHAPES (as JSON); prints what was asked.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from typing import Any

P, N, INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
SLOTS = 300
ALLOCATOR, MEMORY, CONTEXT, OPTIONS, DOMAIN = 0xA0, 0xB0, 0xC0, 0xD0, 0xE0
CREATE, COMPUTE = 17, 18  # words of the struct of an operator


def stream_of(device: int) -> int:
    """A stream of a device; the thread is left without a context."""
    driver, context, made = ctypes.CDLL("libcuda.so.1"), P(), P()
    assert not driver.cuInit(0) and not driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    assert not driver.cuCtxSetCurrent(context) and not driver.cuStreamCreate(ctypes.byref(made), 0)
    assert not driver.cuCtxSetCurrent(None)
    return made.value or 0


class Runtime:
    """The table of functions by slot, and what came of it."""

    def __init__(self, device: int) -> None:
        self.device = device
        self.said: dict[str, Any] = {"ops": 0, "allocated": [], "freed": 0, "status": {}}
        self.table = (P * SLOTS)()
        self.kept: list[Any] = []
        self.operator = 0
        self.messages: list[ctypes.Array[ctypes.c_char]] = []
        self.memory = ctypes.create_string_buffer(1 << 22)
        self.provider = ctypes.c_char_p(b"CUDAExecutionProvider")
        self.stream = stream_of(device)
        for slot, given, function in self.functions():
            self.put(slot, function, *given)

    def put(self, slot: int, function: Callable[..., Any], *given: Any) -> None:
        """A function of the table."""
        made = ctypes.CFUNCTYPE(P, *given)(function)
        self.kept.append(made)
        self.table[slot] = ctypes.cast(made, P)

    def functions(self) -> list[tuple[int, tuple[Any, ...], Callable[..., Any]]]:
        """Slots, the types of their arguments, and functions, whose null is success."""
        out = ctypes.POINTER(P)
        return [
            (0, (INT, ctypes.c_char_p), self.failed),
            (26, (ctypes.c_char_p, out), lambda _, to: self.gives(to, DOMAIN)),
            (27, (P, P), self.added),
            (28, (P, P), lambda *_: None),
            (51, (P, out), lambda _, to: self.gives(to, self.at)),
            (61, (P, ctypes.POINTER(N)), lambda value, to: self.gives(to, len(SHAPES[value - 0x1000]))),
            (62, (P, ctypes.POINTER(ctypes.c_int64), N), self.dims),
            (65, (P, out), lambda value, to: self.gives(to, value)),
            (72, (P, ctypes.POINTER(INT)), lambda info, to: self.gives(to, self.device if info == MEMORY else -1)),
            (75, (P, N, out), lambda _, size, to: self.allocated("plain", to)),
            (76, (P, P), self.freed),
            (77, (P, out), lambda _, to: self.gives(to, MEMORY)),
            (90, (P, N, out), lambda _, index, to: self.gives(to, 0x1000 + index)),
            (91, (P, N, P, N, out), lambda _, index, dims, rank, to: self.gives(to, 0x2000 + index)),
            (93, (P,), lambda *_: None),
            (99, (P,), lambda *_: None),
            (101, (P,), lambda *_: None),
            (125, (ctypes.POINTER(ctypes.POINTER(ctypes.c_char_p)), ctypes.POINTER(INT)), self.providers),
            (126, (P, INT), lambda *_: None),
            (130, (P, ctypes.c_char_p, ctypes.c_char_p), self.entry),
            (132, (P,), lambda *_: None),
            (193, (P, out), lambda _, to: self.gives(to, self.stream)),
            (237, (P, ctypes.c_char_p, ctypes.POINTER(INT)), lambda _, key, to: self.gives(to, 0)),
            (277, (P, P, N, out), lambda _, info, size, to: self.allocated("of the stream", to, info)),
            (278, (P, INT, out), lambda _, kind, to: self.gives(to, ALLOCATOR)),
        ]

    @property
    def at(self) -> int:
        """Aligned memory."""
        return -(-ctypes.addressof(self.memory) // 256) * 256

    def gives(self, to: Any, value: int) -> None:
        """A result."""
        to[0] = value

    def failed(self, code: int, text: bytes) -> int:
        """A status."""
        self.messages.append(ctypes.create_string_buffer(text))
        return ctypes.addressof(self.messages[-1])

    def added(self, domain: int, op: int) -> None:
        """An operator of the domain."""
        self.said["ops"] += 1
        self.operator = op

    def dims(self, value: int, to: Any, rank: int) -> None:
        """What the test says of each input."""
        for axis, extent in enumerate(SHAPES[value - 0x1000]):
            to[axis] = extent

    def allocated(self, kind: str, to: Any, info: int = MEMORY) -> None:
        """Memory of a run."""
        assert info == MEMORY
        self.said["allocated"].append(kind)
        to[0] = self.at + (1 << 20)

    def freed(self, allocator: int, place: int) -> None:
        """It came back."""
        assert allocator == ALLOCATOR
        self.said["freed"] += 1

    def providers(self, names: Any, count: Any) -> None:
        """One provider."""
        names[0], count[0] = ctypes.pointer(self.provider), 1

    def entry(self, options: int, key: bytes, value: bytes) -> None:
        """A config entry."""
        self.said["status"][key.decode()] = value.decode()


class Base(ctypes.Structure):
    """The runtime's two functions."""

    _fields_ = (("get_api", ctypes.CFUNCTYPE(P, ctypes.c_uint32)), ("version", ctypes.CFUNCTYPE(P)))


def text(status: int | None) -> str:
    """What a status says."""
    return ctypes.string_at(status).decode() if status else ""


SHAPES: list[list[int]] = []


def main(library: str, device: str, shapes: str) -> None:
    """Register, make, run."""
    SHAPES[:] = json.loads(shapes)
    runtime = Runtime(int(device))
    version = ctypes.create_string_buffer(b"1.18.0")
    table = ctypes.addressof(runtime.table)
    base = Base(ctypes.CFUNCTYPE(P, ctypes.c_uint32)(lambda v: table if v == 18 else None),
                ctypes.CFUNCTYPE(P)(lambda: ctypes.addressof(version)))  # fmt: skip
    loaded = ctypes.CDLL(library)
    loaded.RegisterCustomOps.restype = P
    said = runtime.said
    said["registered"] = text(loaded.RegisterCustomOps(P(OPTIONS), ctypes.byref(base)))
    if runtime.operator:
        words = (P * 26).from_address(runtime.operator)
        create = ctypes.CFUNCTYPE(P, P, P, P, ctypes.POINTER(P))(words[CREATE] or 0)
        compute = ctypes.CFUNCTYPE(P, P, P)(words[COMPUTE] or 0)
        instance = P()
        said["made"] = text(create(runtime.operator, table, None, ctypes.byref(instance)))
        if instance.value:
            said["ran"] = text(compute(instance.value, CONTEXT))
    sys.stdout.write(json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:])
