"""Machine classes of GPUs: what scheduler and cost model assume (`Gpu`), and a row for each compute capability."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from onnxfuse.errors import UsageError
from onnxfuse.target.common import Target
from onnxfuse.target.cpu import CPUS
from onnxfuse.target.device import cuda_driver


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu(Target):
    """GPUs that run CUDA kernels. Sizes are in bytes; numbers are those of a typical card of the compute capability.

    Code is for one capability or, if `portable` (PTX), for that one and all later ones. Code with `warpgroups` (wgmma)
    runs on no other capability at all.
    """

    on_host: ClassVar[bool] = False

    capability: int  # 10 * major + minor
    sms: int
    shared_bytes: int  # the most that a block may use
    l2_bytes: int
    l2_gbps: float
    gflops: float  # of fp32, all multiprocessors together
    tensor_gflops: float  # of 16-bit floating-point matrix products on tensor cores
    threads: int = 2048  # resident threads of a multiprocessor
    boundary_us: float = 4.1  # between two kernels of a stream
    latency_us: float = 0.35  # of a kernel's begin, first reads and end, beyond the boundary
    warp: int = 32
    portable: bool = False
    warpgroups: bool = False

    @property
    def blocks(self) -> int:
        """Blocks of a grid with grid-stride loops: several for every multiprocessor."""
        return 16 * self.sms

    def suits(self, capability: int) -> bool:
        """Whether a device of a compute capability runs code for this row, as the launcher decides it (cuda_host.h)."""
        if self.portable or capability == self.capability:
            return self.capability <= capability
        if self.warpgroups:
            return False
        same = capability // 10 == self.capability // 10
        return same and self.capability < capability and not TEGRA & {capability, self.capability}


MOST_DEPTH = 256  # largest depth of queries and keys, and number of columns of values, of an attention kernel
MOST_ROWS = 8  # largest number of rows of a skinny product, limited by reading the matrix
IN_GRAPH_US = 0.9  # between two kernels of a CUDA graph
TEGRA = frozenset({72, 87, 110})  # capabilities whose machine code runs on no other GPU, nor that of others on theirs
CORES_SINCE = 80  # the first capability with 16x8x16 tensor core instructions
LIBRARY_SINCE = 80  # the first capability whose products are left to cuBLASLt: it has all types
COPIES_SINCE = 80  # the first capability with asynchronous copies to shared memory
DEPENDENT_SINCE = 90  # the first capability whose kernels may begin before the one before has ended

_K, _M = 1 << 10, 1 << 20


def _gpu(name: str, capability: int, **numbers: float) -> Gpu:
    return Gpu(name, "", (f"--gpu-architecture={name}",), (), capability=capability, **numbers)  # type: ignore[arg-type]  # the fields' own types


_H100 = {
    "sms": 132, "shared_bytes": 227 * _K, "l2_bytes": 50 * _M, "bandwidth": 2980, "l2_gbps": 7000, "gflops": 67e3,
    "tensor_gflops": 990e3,
}  # fmt: skip

# In the order of preference; from last to first: T4, A100, A10, L40, H100, B200 and RTX 5090. Bandwidths and boundary
# of the H100 are measured (benchmarks/gpu), those of the others are from data sheets.
GPUS: dict[str, Gpu] = {
    row.name: row
    for row in (
        _gpu(
            "sm_120", 120, sms=170, shared_bytes=99 * _K, l2_bytes=96 * _M, bandwidth=1792, l2_gbps=6000,
            gflops=105e3, tensor_gflops=420e3, threads=1536,
        ),
        _gpu(
            "sm_100", 100, sms=148, shared_bytes=227 * _K, l2_bytes=126 * _M, bandwidth=8000, l2_gbps=12000,
            gflops=75e3, tensor_gflops=2250e3,
        ),
        _gpu("sm_90a", 90, **_H100, warpgroups=True),
        _gpu("sm_90", 90, **_H100),
        _gpu(
            "sm_89", 89, sms=142, shared_bytes=99 * _K, l2_bytes=96 * _M, bandwidth=864, l2_gbps=4000,
            gflops=90e3, tensor_gflops=362e3, threads=1536,
        ),
        _gpu(
            "sm_86", 86, sms=72, shared_bytes=99 * _K, l2_bytes=6 * _M, bandwidth=600, l2_gbps=1800,
            gflops=31e3, tensor_gflops=125e3, threads=1536,
        ),
        _gpu(
            "sm_80", 80, sms=108, shared_bytes=163 * _K, l2_bytes=40 * _M, bandwidth=1555, l2_gbps=4500,
            gflops=19.5e3, tensor_gflops=312e3,
        ),
        _gpu(
            "sm_75", 75, sms=40, shared_bytes=64 * _K, l2_bytes=4 * _M, bandwidth=320, l2_gbps=1200,
            gflops=8.1e3, tensor_gflops=65e3, threads=1024,
        ),
    )
}  # fmt: skip
NATIVE = "native"
USUAL = ("sm_80", "sm_90", "sm_100")  # the default


def portable(row: Gpu) -> Gpu:
    """The target as PTX, which drivers compile for this capability and all later ones."""
    name = f"compute_{row.capability}"
    return replace(row, name=name, flags=(f"--gpu-architecture={name}",), portable=True, warpgroups=False)


PORTABLE: dict[str, Gpu] = {made.name: made for made in map(portable, GPUS.values())}


def block_shared(target: Gpu) -> int:
    """The most bytes of shared memory that a block may use on every GPU that can run a target's code."""
    line = target.capability // 10
    return min(
        row.shared_bytes
        for row in GPUS.values()
        if row.capability >= target.capability and (target.portable or row.capability // 10 == line)
    )


def gpus_of(archs: Sequence[str], *, graph: bool = False) -> tuple[Gpu, ...]:
    """The GPU targets of `--arch` values, best first, and the oldest of them as PTX for later GPUs.

    `native` is the best target for each device of this machine, names of CPUs are left out. With `graph`, times are
    predicted for kernels in a CUDA graph.
    """
    named = [n for name in archs if name not in CPUS for n in (_native() if name == NATIVE else (name,))] or USUAL
    found = [row for name, row in GPUS.items() if name in named]
    found = [replace(row, boundary_us=IN_GRAPH_US) for row in found] if graph else found
    return (*found, portable(found[-1]))


def _native() -> tuple[str, ...]:
    """The best row for each device of this machine."""
    driver = cuda_driver()
    devices = driver.devices if driver is not None else ()
    rows = {name: row for name, row in GPUS.items() if not row.warpgroups}  # that is to be asked for
    found = [next((n for n, row in rows.items() if row.suits(d.capability)), None) for d in devices]
    if not found or None in found:
        raise UsageError("options: --arch native: this machine has no supported GPU", hint="name one, such as sm_90")
    return tuple(name for name in found if name is not None)
