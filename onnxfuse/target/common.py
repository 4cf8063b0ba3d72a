"""The common part of all machine classes: `Target`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Target:
    """A machine class that kernels are generated for: its name, and how its code is compiled and selected.

    Subclasses, one for each backend in `backends/`, add what the scheduler and the cost model need.
    """

    on_host: ClassVar[bool] = True
    """Whether kernels run in the host's execution provider, in which builds are verified and measured."""

    name: str
    machine: str  # the architecture of the host, as `uname -m` prints it; empty: any
    flags: tuple[str, ...]  # for the compiler, gcc spelling
    features: tuple[str, ...]  # that the processor must have for kernels to be registered, gcc spelling
    extras: tuple[str, ...] = ()  # further features, required only by libraries with kernels that use them
    bandwidth: float = field(kw_only=True)  # GB/s from memory; of a CPU, per core beyond the caches

    @property
    def peaks(self) -> dict[str, float]:
        """Peak rates of all cores together, if known: GFLOP/s in fp32, GB/s from memory."""
        return {}

    @property
    def identifier(self) -> str:
        """The name as a C identifier."""
        return self.name.replace("-", "_")
