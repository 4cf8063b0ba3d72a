"""What a compiled function of a GPU uses."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Resources:
    """A function's registers, spills and stack in each thread, and the static shared memory of a block; in bytes."""

    function: str
    registers: int
    spills: int
    stack: int
    shared: int
    target: str = ""
