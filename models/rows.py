"""What a row of the table of networks is: a builder, and the inputs that make sense to it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
import onnx

from models.net import Extent


@dataclass(frozen=True, slots=True)
class Input:
    """A graph input and what a sensible value of it is.

    `ids` below `high`, a `mask` of ones, a normal `image` (or wave, or state), `places` counted on from those of the
    `past`, or the `number` that `sizes` or `high` gives. An extent may be a sum, such as "past + sequence".
    """

    name: str
    kind: Literal["ids", "mask", "image", "places", "number"]
    shape: tuple[Extent, ...]
    high: int = 0

    def sample(self, random: np.random.Generator, sizes: Mapping[str, int], padding: int) -> npt.NDArray[Any]:
        """A random value; a mask hides the last `padding` places."""
        shape = tuple(_value(extent, sizes) for extent in self.shape)
        if self.kind == "number":
            return np.full(shape, sizes.get(self.name, self.high), np.int64)
        if self.kind == "places":
            return np.broadcast_to(np.arange(shape[-1]) + sizes.get("past", 0), shape).astype(np.int64)
        if self.kind == "image":
            return random.standard_normal(shape, dtype=np.float32)
        if self.kind == "ids":
            return random.integers(0, self.high, shape)
        mask = np.ones(shape, dtype=np.int64)
        mask[..., shape[-1] - padding :] = 0
        return mask


def _value(extent: Extent, sizes: Mapping[str, int]) -> int:
    return sum(sizes[part] for part in extent.split(" + ")) if isinstance(extent, str) else extent


@dataclass(frozen=True, slots=True)
class Network:
    """One model that can be built. `full` ones need torch and transformers (the extra `[models]`)."""

    name: str
    what: str
    inputs: tuple[Input, ...]
    module: str
    function: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    extents: Mapping[str, int] = field(default_factory=dict)  # usual values of the symbolic extents
    high: float = 10.0  # no activation is larger: more where they are places in an image

    @property
    def full(self) -> bool:
        """Whether this is a full-size network."""
        return not self.name.startswith(("tiny-", "demo-"))

    @property
    def extra(self) -> bool:
        """Whether it takes the extra `[models]` to build."""
        return self.module.startswith("models.full")

    def build(self) -> onnx.ModelProto:
        """The model."""
        # By name: importing torch takes seconds, and the small networks do without it.
        builder = getattr(importlib.import_module(self.module), self.function)
        return cast(onnx.ModelProto, builder(**self.arguments))

    def sample(self, *, seed: int = 1, padding: int = 0, **sizes: int) -> dict[str, npt.NDArray[Any]]:
        """Random inputs; symbolic extents come from `sizes`, then from the row; a mask hides `padding` places."""
        random = np.random.default_rng(seed)
        known = {**self.extents, **sizes}
        return {entry.name: entry.sample(random, known, padding) for entry in self.inputs}
