"""What all machine classes have in common: `Target`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Target:
    """A machine class that kernels are made for: its name, and how code for it is compiled and chosen.

    What its scheduler may count on is said by a class for each backend, which is a file of `backends/`.
    """

    on_host: ClassVar[bool] = True
    """Whether kernels run in the provider of the host, in which builds are verified and measured."""

    name: str
    machine: str  # the architecture of the host, as `uname -m` spells it; empty: any
    flags: tuple[str, ...]  # of the machine, for the compiler, gcc spelling
    features: tuple[str, ...]  # what the processor must have before kernels are registered, gcc spelling
    extras: tuple[str, ...] = ()  # features besides, which a library asks for that has kernels that need them

    @property
    def peaks(self) -> dict[str, float]:
        """What all cores reach together, where that is known: GFLOP/s in fp32, GB/s from memory."""
        return {}

    @property
    def identifier(self) -> str:
        """The name as a C identifier."""
        return self.name.replace("-", "_")
