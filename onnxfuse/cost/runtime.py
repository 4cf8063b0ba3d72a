"""Predicted seconds of ONNX Runtime's own nodes, from a plain model: dispatch, operations, bytes and threads.

An operator is of a kind (`nodes.py`). A row of the table says what share of a core's peak the operations of that kind
reach in the runtime, and what part of its time more threads divide. `benchmarks/runtime_nodes.py` measures the rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnxfuse.cost.nodes import VIEW, Call, work_of
from onnxfuse.ir.products import QUAD
from onnxfuse.target import Cpu

GRAIN = 15e-6  # seconds of work for which a second thread is woken
WAKING = 3e-6  # until it has begun and ended
HELD = 0.5  # share of a cache that holds what a node reads and writes


@dataclass(frozen=True, slots=True)
class RuntimeRates:
    """A kind: share of a core's peak that it reaches, and the part of its time that threads divide."""

    share: float
    divided: float = 0.0


# Shares were measured by `python -m benchmarks.runtime_nodes rows` with ONNX Runtime 1.31 on one thread of a Sapphire
# Rapids core, of the peak that the row of its family has; four of convolutions were then set by ResNet-50 and
# MobileNetV2. What threads divide is assumed: the machine was too busy to measure two.
KINDS: dict[str, RuntimeRates] = {
    VIEW: RuntimeRates(1.0),
    "cheap": RuntimeRates(0.035, 0.9),
    "moderate": RuntimeRates(0.016, 0.9),
    "exponential": RuntimeRates(0.013, 0.9),
    "error function": RuntimeRates(0.0075, 0.9),
    "function": RuntimeRates(0.002, 0.9),
    "power": RuntimeRates(0.0006, 0.9),
    "comparison": RuntimeRates(0.025, 0.9),
    "selection": RuntimeRates(0.007, 0.9),
    "integer": RuntimeRates(0.006, 0.9),
    "cast": RuntimeRates(0.015, 0.0),
    "code": RuntimeRates(0.02, 0.9),
    "reduction": RuntimeRates(0.035, 0.9),
    "reduction outer": RuntimeRates(0.025, 0.9),
    "extreme outer": RuntimeRates(0.0045, 0.9),
    "scan": RuntimeRates(0.0025, 0.0),
    "cumulation": RuntimeRates(0.022, 0.0),
    "softmax": RuntimeRates(0.012, 0.9),
    "softmax inner": RuntimeRates(0.00037, 0.0),
    "normalization": RuntimeRates(0.009, 0.9),
    "skipping normalization": RuntimeRates(0.00085, 0.9),
    "product": RuntimeRates(0.52, 0.95),
    "product of few rows": RuntimeRates(0.4, 0.9),
    "product of a row": RuntimeRates(0.08, 0.9),
    "product batched": RuntimeRates(0.52, 0.95),
    "product of codes": RuntimeRates(3.0, 0.9),
    "convolution 1x1": RuntimeRates(0.75, 0.95),
    "convolution 3x3": RuntimeRates(0.75, 0.95),
    "convolution large": RuntimeRates(0.6, 0.95),
    "convolution few": RuntimeRates(0.4, 0.95),
    "convolution depthwise": RuntimeRates(0.6, 0.95),
    "convolution depthwise 1-D": RuntimeRates(0.04, 0.0),
    "convolution grouped": RuntimeRates(0.24, 0.95),
    "convolution 1-D": RuntimeRates(0.43, 0.95),
    "convolution 1-D shallow": RuntimeRates(0.22, 0.95),
    "convolution transposed": RuntimeRates(0.46, 0.9),
    "convolution of codes": RuntimeRates(2.7, 0.9),
    "pooling": RuntimeRates(0.33, 0.9),
    "resize nearest": RuntimeRates(0.0047, 0.9),
    "resize linear": RuntimeRates(0.0019, 0.9),
    "resize cubic": RuntimeRates(0.0000042, 0.0),
    "sample nearest": RuntimeRates(0.0009, 0.9),
    "sample linear": RuntimeRates(0.00042, 0.9),
    "sample linear zeros": RuntimeRates(0.003, 0.9),
    "sample cubic": RuntimeRates(0.00015, 0.9),
    "sample regions": RuntimeRates(0.002, 0.9),
    "transpose": RuntimeRates(0.013, 0.0),
    "shuffle": RuntimeRates(0.0018, 0.0),
    "copy": RuntimeRates(0.022, 0.0),
    "pad": RuntimeRates(0.0085, 0.0),
    "gather": RuntimeRates(0.033, 0.5),
    "gather inner": RuntimeRates(0.001, 0.5),
    "scatter": RuntimeRates(0.0008, 0.0),
    "LSTM": RuntimeRates(0.7, 0.9),
    "LSTM of a row": RuntimeRates(0.32, 0.5),
    "GRU": RuntimeRates(0.5, 0.9),
    "GRU of a row": RuntimeRates(0.2, 0.5),
    "RNN": RuntimeRates(0.14, 0.9),
    "RNN of a row": RuntimeRates(0.13, 0.5),
}

# Of machines without dot products of four 8-bit integers: the runtime multiplies pairs, and saturates.
IN_PAIRS = {"product of codes": RuntimeRates(1.7, 0.9), "convolution of codes": RuntimeRates(1.7, 0.9)}


# Of machines with vectors of 8 lanes, whose peak is half as high while most other nodes take as long: kinds that the
# rows above miss by more than 1.5x, or 1-D convolutions by 1.4x, on a thread of a Zen 3 core (94 GFLOP/s).
NARROW = {
    "moderate": RuntimeRates(0.028, 0.9),
    "comparison": RuntimeRates(0.053, 0.9),
    "integer": RuntimeRates(0.013, 0.9),
    "cast": RuntimeRates(0.046, 0.0),
    "reduction": RuntimeRates(0.074, 0.9),
    "scan": RuntimeRates(0.015, 0.0),
    "softmax inner": RuntimeRates(0.00082, 0.0),
    "normalization": RuntimeRates(0.027, 0.9),
    "product of a row": RuntimeRates(0.25, 0.9),
    "convolution depthwise 1-D": RuntimeRates(0.094, 0.0),
    "convolution grouped": RuntimeRates(0.53, 0.95),
    "convolution 1-D": RuntimeRates(0.7, 0.95),
    "resize cubic": RuntimeRates(0.00007, 0.0),
    "transpose": RuntimeRates(0.025, 0.0),
    "copy": RuntimeRates(0.05, 0.0),
    "pad": RuntimeRates(0.019, 0.0),
    "gather inner": RuntimeRates(0.0021, 0.5),
    "LSTM": RuntimeRates(0.9, 0.9),
    "LSTM of a row": RuntimeRates(0.45, 0.5),
    "GRU": RuntimeRates(0.9, 0.9),
    "GRU of a row": RuntimeRates(0.45, 0.5),
    "RNN": RuntimeRates(0.36, 0.9),
    "RNN of a row": RuntimeRates(0.18, 0.5),
}
NARROW_LANES = 8


def node_seconds(call: Call, target: Cpu, run_weight_bytes: float = 0.0) -> float:
    """Seconds of a node in the runtime, all of the target's cores working on it.

    Weights are read once per run of the model, which has `run_weight_bytes` of them.
    """
    work = work_of(call)
    row = _rates(work.kind, target)
    dispatch = target.dispatch_us * 1e-6  # as of a kernel: the runtime treats both alike
    if work.kind == VIEW:
        return dispatch
    computing = work.operations / (row.share * target.gflops * 1e9)
    moved, shared = (work.moves * seconds for seconds in _moving(call, target, run_weight_bytes))
    alone = max(computing, moved)
    threads = max(1, min(target.cores, int(alone / GRAIN))) if row.divided else 1
    seconds = max(alone * (1 - row.divided + row.divided / threads), shared)
    wakes = threads > 1 or (work.nodes > 1 and target.cores > 1)  # images of any size are put into blocks by all
    return dispatch * work.nodes + seconds + (WAKING if wakes else 0.0)


def _rates(kind: str, target: Cpu) -> RuntimeRates:
    """The row of a kind for a machine class."""
    if target.codes < QUAD and kind in IN_PAIRS:
        return IN_PAIRS[kind]
    return NARROW[kind] if target.lanes == NARROW_LANES and kind in NARROW else KINDS[kind]


def _moving(call: Call, target: Cpu, run_weight_bytes: float) -> tuple[float, float]:
    """Seconds in which one core, and all together, move what lies beyond the cores' own caches."""
    made = sum(t.bytes for t in call.outputs)
    picks = call.op.startswith("Gather")  # no more than what comes out is read
    weights = sum(min(t.bytes, made) if picks else t.bytes for t in call.read if t.constant)
    others = sum(min(t.bytes, made) if picks else t.bytes for t in call.read if not t.constant) + made
    alone = shared = 0.0
    for size, footprint in ((weights, max(weights, run_weight_bytes)), (others, others)):
        if footprint > target.l3_bytes * HELD:
            alone, shared = alone + size / target.bandwidth, shared + size / target.memory_gbps
        elif footprint > target.l2_bytes * HELD:
            alone, shared = alone + size / target.l3_gbps, shared + size / (target.l3_gbps * target.cores)
    return alone * 1e-9, shared * 1e-9
