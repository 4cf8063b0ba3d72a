"""Compiled device code, the compilers that make it, and the resources that its functions use."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_ABOUT = re.compile(r"Compiling entry function '(\w+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True, slots=True)
class Resources:
    """Registers (a number), spills and stack (bytes) of each thread, and static shared memory of a block (bytes)."""

    function: str
    registers: int
    spills: int
    stack: int
    shared: int
    target: str = ""


@dataclass(frozen=True, slots=True)
class Image:
    """Code for one architecture: a cubin or PTX, and the resources of each function (none for PTX)."""

    code: bytes
    functions: tuple[Resources, ...]

    @property
    def spills(self) -> int:
        """Bytes that all functions spill."""
        return sum(each.spills for each in self.functions)


class CompileFailed(Exception):
    """A device compiler rejected a source; the message is its log."""


@dataclass(frozen=True, slots=True)
class DeviceCompiler:
    """A compiler of CUDA C++. Compilers with equal `identity` make equal code.

    `compiled` makes the code of a translation unit for the architecture that its flags name, PTX where that is a
    virtual one, and raises `CompileFailed`; it is called from several threads.
    """

    title: str  # name and version
    identity: str
    compiled: Callable[[str, Sequence[str]], Image]


def is_ptx(flags: Sequence[str]) -> bool:
    """Whether flags name a virtual architecture."""
    return any("=compute_" in flag for flag in flags)


def resources(log: str) -> list[Resources]:
    """The resources of each function, parsed from the log of ptxas."""
    found: list[Resources] = []
    name, stack, spills = "", 0, 0
    for line in log.splitlines():
        if about := _ABOUT.search(line):
            name, stack, spills = about[1], 0, 0
        elif held := _STACK.search(line):
            stack, spills = int(held[1]), int(held[2]) + int(held[3])
        elif used := _USED.search(line):
            shared = _SHARED.search(line)
            found.append(Resources(name, int(used[1]), spills, stack, int(shared[1]) if shared else 0))
    return found
