"""Recurrent layers by themselves, at sizes (inputs, units, steps, sequences)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Sizes = tuple[int, int, int, int]
ALONE: Sequence[Sizes] = (
    (16, 16, 50, 1), (64, 64, 50, 1), (128, 128, 50, 1), (64, 128, 512, 1), (256, 256, 50, 1), (513, 257, 20, 1),
)  # fmt: skip
SEVERAL: Sequence[Sizes] = (
    (16, 16, 50, 7), (64, 128, 50, 3), (64, 128, 50, 36), (64, 128, 50, 128), (256, 256, 50, 6), (256, 256, 50, 36),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of so many gates for each unit."""

    op: str
    gates: int
    direction: str = "forward"

    def model(self, sizes: Sizes) -> onnx.ModelProto:
        """The layer with biases, and all of its results."""
        inputs, units, steps, batch = sizes
        random, n = np.random.default_rng(0), 2 if self.direction == "bidirectional" else 1
        shapes = {
            "w": (n, self.gates * units, inputs), "r": (n, self.gates * units, units), "b": (n, 2 * self.gates * units),
        }  # fmt: skip
        weights = [
            numpy_helper.from_array((random.standard_normal(shape) / shape[-1] ** 0.5).astype(np.float32), name)
            for name, shape in shapes.items()
        ]
        reset = {"linear_before_reset": 1} if self.op == "GRU" else {}
        node = helper.make_node(
            self.op, ["x", *shapes], ["y", "y_h"], hidden_size=units, direction=self.direction, **reset
        )
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (steps, batch, inputs))
        made = [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, (steps, n, batch, units)),
            helper.make_tensor_value_info("y_h", TensorProto.FLOAT, (n, batch, units)),
        ]
        graph = helper.make_graph([node], self.op, [x], made, weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


LAYERS = {
    "LSTM": Layer("LSTM", 4),
    "LSTM, both directions": Layer("LSTM", 4, "bidirectional"),
    "GRU": Layer("GRU", 3),
    "RNN": Layer("RNN", 1),
}


def models() -> Mapping[str, tuple[Callable[[Sizes], onnx.ModelProto], Sequence[Sizes]]]:
    """What builds the model of each class, and the sizes to measure it at."""
    counts = {"one sequence": ALONE, "sequences": SEVERAL}
    return {f"{name}, {many}": (row.model, sizes) for name, row in LAYERS.items() for many, sizes in counts.items()}
