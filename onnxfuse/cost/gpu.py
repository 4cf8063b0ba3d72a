"""Predicted seconds on a GPU: launch gaps, memory traffic, and the latency of dependent reductions.

A plain model with few numbers, most of which are of data sheets: it says what is worth a kernel, not how long one
takes. The runtime's own nodes are predicted alike, so that what differs is how many there are and what they move.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from math import prod

from onnxfuse.cost import Cost, PhaseCost, number
from onnxfuse.cost.fusions import calls_of
from onnxfuse.cost.means import SymbolUnknown
from onnxfuse.cost.nodes import VIEW, Call, NodeWork, Tensor, work_of
from onnxfuse.ir.compose import cost as operations
from onnxfuse.ir.compose import loads
from onnxfuse.ir.dtype import F32, DType
from onnxfuse.ir.fragments import WARPGROUP
from onnxfuse.ir.graph import Node
from onnxfuse.ir.index import Index, axes_of, floor_div, lower, upper
from onnxfuse.ir.indexing import product, substitute
from onnxfuse.ir.kernel import Accumulate, Kernel, Let, Loop, Phase, ReduceLoop, Stmt, Store, When, statements
from onnxfuse.ir.launch import (
    Activation,
    CopyAsync,
    CopyBox,
    LibraryConvolution,
    LibraryProduct,
    Mma,
    Sync,
    WarpgroupMma,
)
from onnxfuse.ir.scalar import Scalar
from onnxfuse.target import Gpu

HELD = 0.5  # share of L2 that holds what goes from kernel to kernel
REACHED = 0.85  # share of a bandwidth that kernels reach
PRODUCTS = 0.6  # and of the units that multiply, by the runtime's own
DEPTHWISE, DEPTHWISE_SHORT = 0.036, 0.12  # and of a thread's own arithmetic, by its depthwise ones; of 16-bit types
OWN = 0.7  # and of a thread's own arithmetic, by kernels, whose loads count as well
OWN_TENSOR = 0.2  # and of products of fragments, by kernels
OWN_WARPGROUPS = 0.5  # and of those of warpgroups
PER_BYTE = 2  # operations that a multiprocessor does while a byte comes from shared memory, or from its first cache
TF32_SINCE = 80  # the capability from which on float32 is multiplied so, at half of the rate of 16-bit types
STEP_US = 0.01  # of a value that a loop carries in a register from one turn to the next
STORED_US = 0.7  # and in memory
TURN_US = 0.03  # of a turn of a reduction that a thread does alone, which reads memory: loads of a few are under way
TOGETHER = 0.5  # latencies that threads of a block, or lanes of a warp, wait for each other
PRODUCT_WAITS = 4.5  # latencies of a product of the runtime: the least of its kernels take 2.5 us (benchmarks/gpu)
EPILOGUE_US = 0.2  # of an epilogue of cuBLASLt, and operations per element: as measured on an H100 (benchmarks/gpu)
EPILOGUE_OPERATIONS: Mapping[Activation, float] = {"": 10.0, "relu": 10.0, "gelu": 30.0}
FEW_CHANNELS = 3  # of a filter: with fewer cuDNN convolves images as they are
VIEWS = 0.0  # seconds of a node that only changes a shape


def node_seconds(call: Call, target: Gpu, run_weight_bytes: float = 0.0) -> float:
    """Seconds of a node in the runtime's provider."""
    work = work_of(call)
    if work.kind == VIEW:
        return VIEWS
    made = sum(t.bytes for t in call.outputs)
    moved = sum(t.bytes for t in call.read) + made
    if not work.kind.startswith(("product", "convolution")):
        return kernel_seconds(moved, target)
    taken = _multiplying(*_operations_of(call, work, target), moved, target)
    biased = call.op in ("Conv", "Gemm") and call.input(2) is not None
    return taken + kernel_seconds(made, target) if biased else taken


def _operations_of(call: Call, work: NodeWork, target: Gpu) -> tuple[float, float]:
    """Operations of a product of the runtime, and those that it does in a nanosecond at most."""
    types = [t.dtype for t in call.outputs]
    if work.kind != "convolution depthwise":
        return work.operations, _peak(types, target) * PRODUCTS
    weights = call.input(1)
    assert weights is not None
    share = DEPTHWISE_SHORT if all(t.bits == 16 for t in types) else DEPTHWISE
    return 2.0 * call.outputs[0].elements * prod(weights.shape[1:]), target.gflops * share


def turning_seconds(call: Call, target: Gpu) -> float:
    """Seconds in which cuDNN changes layouts around a convolution of the runtime's, which `node_seconds` leaves out.

    Those of more than points have them: of image and filters, and of a result of 16 bits, as counted on an H200.
    """
    image, filters = call.inputs[0], call.inputs[1]
    assert image is not None and filters is not None
    strides = call.attrs.get("strides")
    steps = strides if isinstance(strides, tuple) else ()
    if all(n == 1 for n in (*filters.shape[2:], *steps)) or filters.shape[1] < FEW_CHANNELS:
        return 0.0
    turned = [image, filters, *(t for t in call.outputs[:1] if t.dtype.bits == 16)]
    return sum(kernel_seconds(2 * t.bytes, target) for t in turned)


def kernel_seconds(moved: float, target: Gpu) -> float:
    """Seconds of a kernel that moves so many bytes, and does nothing else that takes time."""
    return (target.boundary_us + target.latency_us) * 1e-6 + moving(moved, target)


def handing_on(size: float, target: Gpu) -> float:
    """Seconds that one kernel less saves at most, where a value of so many bytes goes from one kernel to the next."""
    return kernel_seconds(2 * size, target)


def _multiplying(operations_: float, rate: float, moved: float, target: Gpu) -> float:
    """Seconds of a product of the runtime's, or of a library's, that does so many operations in a nanosecond."""
    computing = operations_ / (rate * 1e9)
    return (target.boundary_us + PRODUCT_WAITS * target.latency_us) * 1e-6 + max(moving(moved, target), computing)


def _peak(types: Sequence[DType], target: Gpu) -> float:
    """What multiplies in the runtime: float32 is rounded to TF32, unless it is told not to."""
    if all(t.bits == 16 for t in types):
        return target.tensor_gflops
    rounds = target.capability >= TF32_SINCE and all(t == F32 for t in types)
    return target.tensor_gflops / 2 if rounds else target.gflops


def library_seconds(
    rows: int, columns: int, depth: int, dtype: DType, activation: Activation, target: Gpu, *, residual: bool = False
) -> float:
    """Seconds of a product by cuBLASLt with its epilogue: as the runtime's, but that float32 is not rounded."""
    moved = (rows * depth + depth * columns + rows * columns * (2 if residual else 1)) * dtype.bytes
    peak = target.tensor_gflops if dtype.bits == 16 else target.gflops
    added = EPILOGUE_US * 1e-6 + rows * columns * EPILOGUE_OPERATIONS[activation] / (target.gflops * 1e9)
    return _multiplying(2.0 * rows * columns * depth, peak * PRODUCTS, moved, target) + added


def convolution_seconds(operations_: float, moved: float, dtype: DType, target: Gpu) -> float:
    """Seconds of a convolution by cuDNN, all channels last, with its epilogue; float32 is rounded."""
    return _multiplying(operations_, _peak([dtype], target) * PRODUCTS, moved, target) + EPILOGUE_US * 1e-6


def group_seconds(
    nodes: Sequence[Node], tensors: Mapping[str, Tensor], target: Gpu, run_weight_bytes: float = 0.0
) -> float:
    """Seconds that the runtime takes for nodes, in topological order."""
    return sum(node_seconds(call, target, run_weight_bytes) for call in calls_of(nodes, tensors))


def cost_of(
    kernel: Kernel,
    target: Gpu,
    constants: Container[str] = (),
    run_weight_bytes: float = 0.0,
    symbols: Mapping[str, int] | None = None,
) -> Cost | None:
    """The predicted cost of one run of a kernel; None where it depends on a symbol that has no value."""
    known = dict(symbols or {})
    try:
        sizes = {
            p.name: number(product(list(p.storage)), known) * p.dtype.bytes for p in (*kernel.inputs, *kernel.outputs)
        }
        sizes |= {b.name: number(b.size, known) * b.dtype.bytes for b in kernel.scratch}
        return Cost(tuple(_phase(p, sizes, target, known) for p in kernel.phases), 0.0)
    except SymbolUnknown:
        return None


def _phase(phase: Phase, sizes: Mapping[str, int], target: Gpu, symbols: Mapping[str, int]) -> PhaseCost:
    """Every buffer that a phase touches is moved once: what a row reads again lies near."""
    if isinstance(phase.library, LibraryConvolution):
        return _by_cudnn(phase.library, target, symbols)
    if phase.library is not None:
        return _by_library(phase.library, target, symbols)
    launch = phase.launch
    assert launch is not None
    touched = {name for s in statements(phase.body) for name in _buffers(s)}
    moved = sum(size for name, size in sizes.items() if name in touched)
    inside = moved <= target.l2_bytes * HELD
    bytes_take = moving(moved, target)
    grid = number(launch.grid, symbols)
    waits = sum(
        isinstance(s, Sync) or (isinstance(s, ReduceLoop) and s.scope != "serial") for s in statements(phase.body)
    )
    resident = max(target.threads // number(launch.block, symbols), 1) * target.sms
    waves = -(-min(grid, target.blocks) // resident)  # others wait while these do
    private = {b.name for b in phase.locals}
    waiting = target.boundary_us * 1e-6 + waves * (1 + TOGETHER * waits) * target.latency_us * 1e-6
    waiting += waves * _carried(phase.body, private, target, symbols) * 1e-6
    if not any(isinstance(s, (CopyAsync, CopyBox, Mma, WarpgroupMma)) for s in statements(phase.body)):
        waiting += TURN_US * 1e-6 * _alone(phase.body, sizes, symbols)
    rounds = -(-grid // target.sms) * target.sms / max(grid, 1)  # the last blocks leave multiprocessors idle
    computing = _computing(phase, target, symbols) * rounds
    parts = (bytes_take, 0.0) if inside else (0.0, bytes_take)
    return PhaseCost(computing, parts[0], 0.0, parts[1], moved, grid, waiting, max(bytes_take, computing) + waiting)


def _by_library(p: LibraryProduct, target: Gpu, symbols: Mapping[str, int]) -> PhaseCost:
    """A product that cuBLASLt computes. Where it does not the phase is launched, for which nothing is planned."""
    rows = number(p.rows, symbols)
    seconds = library_seconds(rows, p.columns, p.depth, p.dtype, p.activation, target, residual=p.residual != "")
    moved = (rows * p.depth + p.depth * p.columns + rows * p.columns) * p.dtype.bytes
    waiting = target.boundary_us * 1e-6
    return PhaseCost(seconds - waiting, 0.0, 0.0, 0.0, moved, 1, waiting, seconds)


def _by_cudnn(c: LibraryConvolution, target: Gpu, symbols: Mapping[str, int]) -> PhaseCost:
    """A convolution that cuDNN computes."""
    moved = sum(number(size, symbols) for _, size in c.operands) * c.dtype.bytes
    operations_ = 2.0 * number(c.batch, symbols) * prod(c.made) * c.filters * prod(c.window) * c.channels / c.groups
    seconds, waiting = convolution_seconds(operations_, moved, c.dtype, target), target.boundary_us * 1e-6
    return PhaseCost(seconds - waiting, 0.0, 0.0, 0.0, moved, 1, waiting, seconds)


def _carried(body: tuple[Stmt, ...], private: Container[str], target: Gpu, symbols: Mapping[str, int]) -> float:
    """Microseconds of turns of a thread's loops that wait for the one before, since they read what it has stored."""
    found = 0.0
    for s in body:
        inside = _carried(s.body, private, target, symbols) if isinstance(s, (Loop, When)) else 0.0
        if isinstance(s, Loop) and s.kind == "serial":
            stored = {x.buffer for x in s.body if isinstance(x, Store)}
            read = {load.source for x in s.body for v in _values(x) for load in loads(v) if load.index}
            steps = [STEP_US if name in private else STORED_US for name in stored & read]
            inside = _turns(s, symbols) * max([inside, *steps])
        found += inside
    return found


def _alone(body: tuple[Stmt, ...], read: Container[str], symbols: Mapping[str, int], *, inside: bool = False) -> float:
    """Turns of reductions that a thread does alone, and that read memory.

    Those of products with fragments are in what these are measured to take.
    """
    found = 0.0
    for s in body:
        if isinstance(s, ReduceLoop):
            found += _alone(s.body, read, symbols, inside=inside or s.scope == "serial")
        elif isinstance(s, (Loop, When)):
            turns = _turns(s, symbols) if isinstance(s, Loop) and s.kind in ("serial", "unroll") else 1
            found += turns * _alone(s.body, read, symbols, inside=inside)
    mine = (load.source for s in body for v in _values(s) for load in loads(v) if load.index)
    return found + (inside and any(source in read for source in mine))


def moving(moved: float, target: Gpu) -> float:
    """Seconds in which bytes come from the second cache, or from memory where they are too many."""
    rate = target.l2_gbps if moved <= target.l2_bytes * HELD else target.bandwidth
    return moved / (rate * REACHED) * 1e-9


def _computing(phase: Phase, target: Gpu, symbols: Mapping[str, int]) -> float:
    """Seconds of the operations of all statements, as often as their loops run, whoever runs them."""
    private = {b.name for b in phase.locals if b.space != "shared"}
    found = _operations(phase.body, 1.0, symbols, private)
    return found[0] / (target.gflops * OWN * 1e9) + found[1] / (target.tensor_gflops * OWN_TENSOR * 1e9)


def _operations(
    body: tuple[Stmt, ...], times: float, symbols: Mapping[str, int], private: Container[str]
) -> tuple[float, float]:
    """Operations of statements that run so many times: of numbers, loads among them, and of products of fragments."""
    plain = multiplied = 0.0
    pieces = sum(isinstance(s, When) for s in body) > 1
    for s in body:
        plain += times * sum(operations(v) + _loading(v, private) for v in _values(s))
        if isinstance(s, Mma):
            multiplied += times * 2 * s.core.m * s.core.n * s.core.k
        if isinstance(s, WarpgroupMma):
            multiplied += times * 2 * s.core.m // WARPGROUP * s.core.n * s.depth * OWN_TENSOR / OWN_WARPGROUPS
        if isinstance(s, (Loop, ReduceLoop, When)):
            turns: float = _turns(s, symbols) if isinstance(s, Loop) else 1
            turns = _share(s) if isinstance(s, When) and pieces else turns
            inner = _operations(s.body, times * turns, symbols, private)
            plain, multiplied = plain + inner[0], multiplied + inner[1]
    return plain, multiplied


def _share(s: When) -> float:
    """How often the guards of one of several branches hold, where all values of an index are as frequent."""
    found = 1.0
    for g in s.guards:
        low, high, extent = lower(g.index), upper(g.index), g.extent.constant
        if low is not None and high is not None and extent is not None:
            count = (high - low).constant
            found *= min(1.0, extent / (count + 1)) if count is not None else 1.0
    return found


def _loading(x: Scalar, private: Container[str]) -> float:
    """What else a multiprocessor could compute while a value's elements come, which are not in registers."""
    return sum(PER_BYTE * load.dtype.bytes for load in loads(x) if load.index and load.source not in private)


def _turns(s: Loop, symbols: Mapping[str, int]) -> int:
    """How often a loop's body runs; in the middle of other loops where it depends on these, as behind a causal mask."""
    length = s.end - s.begin
    middle = {x: floor_div(x.extent, Index.of(2)) for x in axes_of(length)}
    return max(number(substitute(length, middle), symbols), 0)


def _values(s: Stmt) -> tuple[Scalar, ...]:
    if isinstance(s, Let):
        return (s.value,)
    return s.values if isinstance(s, (Store, Accumulate)) else ()


def _buffers(s: Stmt) -> set[str]:
    found = {load.source for v in _values(s) for load in loads(v)}
    found |= {s.source} if isinstance(s, (CopyAsync, CopyBox)) else set()
    return found | ({s.buffer} if isinstance(s, Store) else set())
