"""What the parts of a check are asked for, and what they answer."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu.devices import Device

Facts = dict[str, Any]


@dataclass(frozen=True)
class Wish:
    """What is asked of every part. `known` is what it found before: parts that take long go on from there.

    `models` is a folder with networks as NAME.onnx and inputs as NAME.npz; None for those of `models/`. Tensors of
    bandwidth have so many `megabytes`.
    """

    device: Device
    emulated: bool
    every: int
    until: float  # by time.monotonic
    known: Facts = field(default_factory=dict)
    models: Path | None = None
    megabytes: float = 256.0

    @property
    def late(self) -> bool:
        """Whether nothing new may be begun."""
        return time.monotonic() > self.until
