"""Resources that a compiled GPU function uses."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Resources:
    """Registers (a number), spills and stack (bytes) of each thread, and static shared memory of a block (bytes)."""

    function: str
    registers: int
    spills: int
    stack: int
    shared: int
    target: str = ""
