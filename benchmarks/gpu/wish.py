"""The request that the parts of a check get, and the type of their results."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu.devices import Device

Facts = dict[str, Any]
WAYS = ("graph", "plain", "nhwc", "stream")  # of running networks, see `networks.times`


@dataclass(frozen=True)
class CheckRequest:
    """The request to a part of the check. `known` are its earlier results, which long parts continue.

    `models` is a folder with packs of networks of full size (`networks.prepare`), which are run in `ways`; tensors for
    bandwidth have `megabytes`.
    """

    device: Device
    emulated: bool
    every: int
    until: float  # by time.monotonic
    known: Facts = field(default_factory=dict)
    models: Path | None = None
    ways: Sequence[str] = WAYS
    megabytes: float = 256.0
    kept: Path | None = None
    workers: int = 1

    @property
    def late(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() > self.until
