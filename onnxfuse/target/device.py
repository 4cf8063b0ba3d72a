"""The NVIDIA GPUs of this machine, queried from the CUDA driver if present; no other part of CUDA is needed."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

_MAJOR, _MINOR, _NAME_BYTES = 75, 76, 256


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU, and its compute capability: 10 * major + minor."""

    name: str
    capability: int


@dataclass(frozen=True, slots=True)
class Driver:
    """The CUDA driver: the newest CUDA version that it supports (13.0 is 13000), and its devices."""

    version: int
    devices: tuple[Device, ...]


def cuda_driver() -> Driver | None:
    """The driver of this machine; None if there is none, or it fails."""
    try:
        lib = ctypes.CDLL("libcuda.so.1")
        version, count = ctypes.c_int(), ctypes.c_int()
        if lib.cuDriverGetVersion(ctypes.byref(version)):
            return None
        if lib.cuInit(0) or lib.cuDeviceGetCount(ctypes.byref(count)):
            return Driver(version.value, ())
        return Driver(version.value, tuple(_device(lib, number) for number in range(count.value)))
    except (OSError, AttributeError):  # no such library, or one that is no driver
        return None


def _device(lib: ctypes.CDLL, number: int) -> Device:
    device, name = ctypes.c_int(), ctypes.create_string_buffer(_NAME_BYTES)
    lib.cuDeviceGet(ctypes.byref(device), number)
    lib.cuDeviceGetName(name, _NAME_BYTES, device)
    found = []
    for attribute in (_MAJOR, _MINOR):
        value = ctypes.c_int()
        lib.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        found.append(value.value)
    return Device(name.value.decode(errors="replace"), 10 * found[0] + found[1])
