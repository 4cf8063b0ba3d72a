"""Samples by which prices can be measured, and correction of predictions at points without a measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log

from onnxfuse.cost.nodes import Call
from onnxfuse.ir.graph import Constant, Graph, Node
from onnxfuse.ir.kernel import Kernel


@dataclass(frozen=True, slots=True, eq=False)
class KernelSample:
    """A kernel with its constants and the values of its symbols; `run_weight_bytes`: all weights of the model.

    `seconds` are the predictions for each machine.
    """

    kernel: Kernel
    constants: Mapping[str, Constant]
    symbols: Mapping[str, int]
    run_weight_bytes: float
    seconds: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class NodeSample:
    """A node that stays with the runtime, as a call with known sizes; `node` and `graph` are given if it can be run."""

    call: Call
    run_weight_bytes: float
    opset: int
    node: Node | None = None
    graph: Graph | None = field(default=None, repr=False)
    seconds: tuple[float, ...] = ()


Sample = KernelSample | NodeSample


def corrected(predicted: Sequence[float], measured: Sequence[float | None]) -> tuple[float, ...]:
    """Seconds at each point: measured, else the prediction times the mean ratio of measurements to predictions.

    >>> corrected([1.0, 0.5, 0.25], [2.0, None, None])
    (2.0, 1.0, 0.5)
    """
    pairs = [(m, p) for m, p in zip(measured, predicted, strict=True) if m is not None]
    if not pairs:
        return tuple(predicted)
    off = exp(sum(log(m / p) for m, p in pairs) / len(pairs))
    return tuple(p * off if m is None else m for m, p in zip(measured, predicted, strict=True))
