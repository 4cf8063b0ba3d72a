"""The structures of host.h, by which a child process calls a launcher."""

from __future__ import annotations

import ctypes


class Tensor(ctypes.Structure):
    """What host.h says."""

    _fields_ = (("data", ctypes.c_void_p), ("dims", ctypes.POINTER(ctypes.c_int64)), ("rank", ctypes.c_int))


class Host(ctypes.Structure):
    """What host.h says."""


OUTPUT = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.POINTER(Host), ctypes.c_int, ctypes.POINTER(ctypes.c_int64), ctypes.c_int
)
SCRATCH = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(Host), ctypes.c_size_t)
TOLD = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.POINTER(Host))
ASKED = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(Host))
Host._fields_ = (
    ("output", OUTPUT), ("scratch", SCRATCH), ("parallel", ctypes.c_void_p), ("cores", ctypes.c_int),
    ("stream", ASKED), ("waits", ctypes.c_bool), ("rounds", TOLD),
)  # fmt: skip


class Kernel(ctypes.Structure):
    """What host.h says."""

    _fields_ = (
        ("name", ctypes.c_char_p), ("inputs", ctypes.c_int), ("outputs", ctypes.c_int),
        ("input_types", ctypes.c_void_p), ("output_types", ctypes.c_void_p),
        ("run", ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.POINTER(Host), ctypes.POINTER(Tensor))),
        ("prepare", ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_int)),
    )  # fmt: skip
