"""Machine classes of CPUs: what scheduler and cost model assume (`Cpu`), and a row for each class."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from math import inf

from onnxfuse.target.common import Target
from onnxfuse.target.processors import PROCESSORS, Processor

TILE_VECTORS = 2  # vectors in a row of a register tile
LARGE_L2 = 1 << 20  # bytes: less is soon full of a core's own data, and of those of another hardware thread
LATENCY = 4  # clocks until the sum of a multiply-add can be added to


def in_flight(rows: int) -> bool:
    """Whether tiles of so many rows have more sums than the multiply-adds that two units begin until one is done."""
    return rows * TILE_VECTORS > 2 * LATENCY


@dataclass(frozen=True, slots=True, kw_only=True)
class SerialTimes:
    """Picoseconds of one core for each kind of work of a phase, roughly: they decide how many tasks it is worth."""

    element: int = 40  # loaded and stored by vectors
    operation: int = 15  # of a vector, for an element
    scalar_element: int = 700  # loaded or stored by itself
    transposition: int = 4  # times that of a plain copy
    term: int = 15  # of a reduction
    term_operation: int = 10  # of a vector, for a term
    tile_term: int = 8  # of a contraction on register tiles, among other jobs of its phase
    multiply_add: int = 10  # of Winograd's algorithm, and of contractions that read each other's rows
    quantization: int = 50  # of a sum
    update: int = 2000  # of a scatter: an index lookup, and a load from a random address
    updated_element: int = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu(Target):
    """CPUs with vector units. Lanes are fp32 lanes of one vector; sizes are in bytes.

    Targets of one library have the same `panel`, since they share the packed weights: a multiple of the width of each
    target's register tile, which is two vectors.
    """

    lanes: int
    rows: int  # rows of one register tile
    panel: int  # columns of one packed weight panel
    l1_bytes: int
    l2_bytes: int
    gflops: float  # per core, fp32
    cores: int = 2  # that times are predicted for
    l3_bytes: int = 32 << 20
    l2_gbps: float = 190.0  # repeated reads by one core from this cache level
    l3_gbps: float = 60.0
    memory_gbps: float = 30.0  # from memory by all cores together; one core reaches `bandwidth`
    stored: float = 2.0  # ways of a line that is stored to a cache: 1 where it is fetched and written back at a time
    reread: float = inf  # times that a thread fetches from memory at most what several loops of a phase load
    early_lines: tuple[float, float] = (1.0, inf)  # as in `EarlyLines`, of results that exceed these shares of L2
    near_lines: float = inf  # share of L2 that a result exceeds whose lines are fetched to L1 before they are computed
    streams: float = inf  # of lines that its prefetchers follow at a time: loops over more fetch what they read next
    tail: float = 0.0  # cycles that the last vector of a loop takes longer to store if it is not whole
    masks: bool = False  # whether a masked load is as fast as another one
    lines_ahead: float = inf  # share of L2 that an image exceeds whose next lines are prefetched
    codes: float = 4.0  # multiply-adds of 8-bit integers in the time of one in fp32: 4 with dot-product instructions
    clocks: float = 1.0  # of the core in a `cycle`: 2 where a unit computes a vector in halves
    dispatch_us: float = 1.0  # overhead of a kernel call: before the kernel begins and after it ends
    barrier_us: float = 3.0  # overhead of a phase: starting its tasks and waiting for all of them
    serial: SerialTimes = SerialTimes()
    processor: str = ""  # the family whose numbers these are; empty: numbers of the slower families of the class

    @property
    def compiled(self) -> tuple[str, ...]:
        """All compiler flags of this target, including macros for the namespace of its code and the panel width."""
        return (*self.flags, f"-DONNXFUSE_ISA={self.identifier}", f"-DONNXFUSE_PANEL={self.panel}")

    @property
    def peaks(self) -> dict[str, float]:
        """Peak rates of all cores together: GFLOP/s in fp32, GB/s from memory."""
        return {"gflops": self.gflops * self.cores, "memory_gbps": self.memory_gbps}

    @property
    def cycle(self) -> float:
        """Seconds of two vector multiply-adds: a clock cycle, or several where units are narrower than vectors."""
        return 4 * self.lanes / self.gflops * 1e-9

    def prefetches(self, image_bytes: float) -> bool:
        """Whether the next lines of an image of this size are prefetched while others are computed."""
        return image_bytes > self.lines_ahead * self.l2_bytes

    @property
    def small_l2(self) -> bool:
        """Whether L2 is soon full, so that what is behind it should be read once."""
        return self.l2_bytes < LARGE_L2

    def rows_of_line(self, width: int) -> int | None:
        """Rows of the highest register tile of a line of so many pixels; None if only low ones divide it.

        If those that divide it have too few sums to be in flight, tiles differ by one row and are as high as possible.
        """
        whole = next((n for n in range(self.rows, self.rows // 2 - 1, -1) if n and width % n == 0), None)
        if whole is None or whole == self.rows or in_flight(whole):
            return whole
        return -(-width // -(-width // self.rows))

    def on(self, p: Processor) -> Cpu:
        """The machine class with the numbers of a processor family, whose units may be wider than the class assumes."""
        numbers = {name: value for name, value in asdict(p).items() if name not in ("name", "lanes", "gflops")}
        peak, clocks = p.gflops * min(1.0, self.lanes / p.lanes), max(1.0, self.lanes / p.lanes)
        return replace(self, processor=p.name, gflops=peak, clocks=clocks, **numbers)


EXTRAS = ("avx512bf16",)  # features that some machines of the widest class have

# All features that a compiler may use for a given -march: code is registered only on processors that have them.
_V2 = ("sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "cx16", "sahf")
_V3 = (*_V2, "avx", "avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_WIDE = ("-march=x86-64-v4", "-mprefer-vector-width=512")

AMX_FEATURES = ("amx-tile", "amx-bf16", "amx-int8", "avx512bf16")  # that register tiles on AMX may use

_K, _M = 1 << 10, 1 << 20

# In the order of preference.
CPUS: dict[str, Cpu] = {
    row.name: row
    for row in (
        Cpu(
            "sapphirerapids", "x86_64", _WIDE, _V4, lanes=16, rows=14, panel=32, l1_bytes=48 * _K, l2_bytes=2 * _M,
            gflops=180.0, bandwidth=13.0, extras=AMX_FEATURES, masks=True,
        ).on(PROCESSORS["sapphire-rapids"]),
        Cpu(
            "x86-64-v4", "x86_64", _WIDE, _V4, lanes=16, rows=14, panel=32, l1_bytes=32 * _K, l2_bytes=1 * _M,
            gflops=200.0, bandwidth=20.0, masks=True, near_lines=1.0,
        ),
        Cpu(
            "x86-64-v3", "x86_64", ("-march=x86-64-v3",), _V3, lanes=8, rows=6, panel=16, l1_bytes=32 * _K,
            l2_bytes=1 * _M, gflops=80.0, bandwidth=20.0, codes=1.3, early_lines=(0.25, 0.25), lines_ahead=0.5,
            streams=12, tail=6.0, reread=1.0,
        ),
        Cpu(
            "aarch64", "aarch64", ("-march=armv8-a",), (), lanes=4, rows=12, panel=8, l1_bytes=32 * _K,
            l2_bytes=512 * _K, gflops=40.0, bandwidth=10.0,
        ),
        Cpu(
            "generic", "", (), (), lanes=4, rows=4, panel=8, l1_bytes=32 * _K, l2_bytes=512 * _K,
            gflops=20.0, bandwidth=8.0,
        ),
    )
}  # fmt: skip
