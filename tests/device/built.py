"""A transformer layer that is built for several machines, and run over a driver that has no device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from onnxfuse.report.result import Result
from tests.threads import driver_mock
from tests.threads.driver_mock import Ran
from tests.threads.layer import ROWS, WIDTH, layer


@dataclass(frozen=True)
class Built:
    """A built layer, inputs for it, and what it makes of them."""

    made: driver_mock.Built
    inputs: Path
    wanted: np.ndarray[Any, Any]

    @property
    def result(self) -> Result:
        """What the build said."""
        return self.made.result

    def ran(self, folder: Path, **how: Any) -> Ran:
        """Two runs in a process of its own; what they make has to be right."""
        made = driver_mock.ran(self.made, self.inputs, folder, **how)
        for got in made.outputs:
            np.testing.assert_allclose(got, self.wanted, rtol=1e-5, atol=1e-5)
        return made


def built_layer(folder: Path, archs: Sequence[str]) -> Built:
    """The layer, built for `archs` in a folder."""
    onnx.save(layer(), folder / "layer.onnx")
    made = driver_mock.built_for_gpus(folder / "layer.onnx", folder, tuple(archs))
    rng = np.random.default_rng(1)
    feeds = {"x": rng.normal(size=(3, ROWS, WIDTH)), "mask": -np.abs(rng.normal(size=(3, 1, 1, ROWS)))}
    feeds = {name: value.astype(np.float32) for name, value in feeds.items()}
    np.savez(folder / "inputs.npz", **feeds)
    (wanted,) = onnxruntime.InferenceSession(folder / "layer.onnx", providers=["CPUExecutionProvider"]).run(None, feeds)
    return Built(made, folder / "inputs.npz", wanted)
