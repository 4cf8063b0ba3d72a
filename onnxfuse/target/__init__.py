"""Machine classes that kernels are made for (`Target`), and what of them this machine can run."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

from onnxfuse.errors import UsageError
from onnxfuse.target.processors import PROCESSORS, Processor, cpu_facts, processor_of

ISA = "ONNXFUSE_ISA"  # the environment variable that allows a library one instruction set only
ARCHS = ("native", "x86-64-v3", "x86-64-v4", "sapphirerapids", "aarch64")


@dataclass(frozen=True, slots=True)
class Target:
    """A machine class: what the scheduler may count on. Lanes are fp32 lanes of one vector; sizes in bytes.

    Targets of one library have one `panel`, since they share the packed weights: some register tiles of each of them,
    which are two vectors wide.
    """

    name: str
    machine: str  # the architecture, as `uname -m` spells it; empty: any
    lanes: int
    rows: int  # rows of one register tile
    panel: int  # columns of one packed weight panel
    l1_bytes: int
    l2_bytes: int
    flags: tuple[str, ...]  # of the machine, for the compiler, gcc spelling
    features: tuple[str, ...]  # what the processor must have before kernels are registered, gcc spelling
    gflops: float  # per core, fp32
    bandwidth: float  # GB/s per core beyond the caches
    extras: tuple[str, ...] = ()  # features besides, for tiles that need them; a library with such a tile asks for them
    cores: int = 2  # that predictions are for
    l3_bytes: int = 32 << 20
    l2_gbps: float = 190.0  # read by one core from each level, again and again
    l3_gbps: float = 60.0
    memory_gbps: float = 30.0  # beyond the caches by all cores together; one reaches `bandwidth`
    dispatch_us: float = 1.0  # until a kernel begins, and its node is done
    barrier_us: float = 3.0  # from the start of a phase's tasks to the end of the last one, without their work
    processor: str = ""  # the family that the numbers are of; empty: what the slower ones of the class have

    @property
    def identifier(self) -> str:
        """The name as a C identifier."""
        return self.name.replace("-", "_")

    @property
    def compiled(self) -> tuple[str, ...]:
        """All flags of this target: those of the machine, the namespace of its code, the panels that it reads."""
        return (*self.flags, f"-DONNXFUSE_ISA={self.identifier}", f"-DONNXFUSE_PANEL={self.panel}")

    @property
    def cycle(self) -> float:
        """Seconds of a cycle in which two vectors are multiplied and added."""
        return 4 * self.lanes / self.gflops * 1e-9

    def on(self, p: Processor) -> Target:
        """The machine class with the numbers of a family of processors, whose units may be wider than its vectors."""
        numbers = {name: value for name, value in asdict(p).items() if name not in ("name", "lanes", "gflops")}
        return replace(self, processor=p.name, gflops=p.gflops * min(1.0, self.lanes / p.lanes), **numbers)


EXTRAS = ("avx512bf16",)  # features that some machines of the widest class have

# Everything that a compiler may use when told -march, so that what a processor lacks is never met.
_V2 = ("sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "cx16", "sahf")
_V3 = (*_V2, "avx", "avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")

AMX_FEATURES = ("amx-tile", "amx-bf16", "amx-int8", "avx512bf16")  # what tiles on the matrix unit may use

# In the order of preference.
TARGETS: dict[str, Target] = {
    "sapphirerapids": Target(
        "sapphirerapids", "x86_64", 16, 14, 32, 48 << 10, 2 << 20,
        ("-march=x86-64-v4", "-mprefer-vector-width=512"), _V4, 180.0, 13.0,
        extras=AMX_FEATURES,
    ).on(PROCESSORS["sapphire-rapids"]),
    "x86-64-v4": Target(
        "x86-64-v4", "x86_64", 16, 14, 32, 32 << 10, 1 << 20,
        ("-march=x86-64-v4", "-mprefer-vector-width=512"), _V4, 200.0, 20.0,
    ),
    "x86-64-v3": Target("x86-64-v3", "x86_64", 8, 6, 16, 32 << 10, 1 << 20, ("-march=x86-64-v3",), _V3, 80.0, 20.0),
    "aarch64": Target("aarch64", "aarch64", 4, 12, 8, 32 << 10, 1 << 19, ("-march=armv8-a",), (), 40.0, 10.0),
    "generic": Target("generic", "", 4, 4, 8, 32 << 10, 1 << 19, (), (), 20.0, 8.0),
}  # fmt: skip
_WIDEST = max(t.lanes for t in TARGETS.values())

_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18  # of Linux for x86-64

# Names that Linux spells otherwise than gcc does.
_LINUX = {
    "sse3": "pni", "sse4.1": "sse4_1", "sse4.2": "sse4_2", "sahf": "lahf_lm", "bmi": "bmi1", "lzcnt": "abm",
    "avxvnni": "avx_vnni", "avx512vnni": "avx512_vnni", "avx512bf16": "avx512_bf16", "avx512fp16": "avx512_fp16",
}  # fmt: skip


def cpu_flags() -> frozenset[str]:
    """Instruction-set names of this machine as Linux spells them; empty where it does not say."""
    facts = cpu_facts()
    return frozenset((facts.get("flags") or facts.get("Features") or "").split())


def has_features(names: Iterable[str]) -> bool:
    """Whether this processor has all these features, which are spelled as gcc does, and Linux lets them be used."""
    have, wanted = cpu_flags(), [_LINUX.get(name, name.replace("-", "_")) for name in names]
    return have.issuperset(wanted) and ("amx_tile" not in wanted or tiles_granted())


def has_amx() -> bool:
    """Whether this processor has the matrix unit and both of its kinds of products that there are tiles for."""
    return cpu_flags() >= {"amx_tile", "amx_bf16", "amx_int8"}


def tiles_granted() -> bool:
    """Whether Linux lets this process use the tiles of AMX, which is asked for them as by a library."""
    if machine() != "x86_64" or platform.system() != "Linux":
        return False
    return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0)


def machine() -> str:
    """The architecture of this machine, as Linux spells it."""
    said = platform.machine()
    return {"AMD64": "x86_64", "arm64": "aarch64"}.get(said, said)


def runs_here(target: Target) -> bool:
    """Whether this machine can run every kernel that may be made for a target."""
    return target.machine in ("", machine()) and has_features((*target.features, *target.extras))


def unable(names: Iterable[str]) -> str:
    """What is to be said of those targets whose kernels this machine cannot run; empty where it can run all.

    A name may be followed by features that the kernels need besides, a + before each.
    """
    others = [name for name in names if not _able(*name.split("+"))]
    return f"this machine cannot run kernels for {' and '.join(others)}" if others else ""


def _able(name: str, *besides: str) -> bool:
    return name in TARGETS and runs_here(TARGETS[name]) and has_features(besides)


def targets_of(archs: Sequence[str]) -> tuple[Target, ...]:
    """The `Target` rows of `--arch` values, best first, all with the panels of the widest.

    `native`, and no value at all, is the best row that this machine can run, with the extras that it has and, where
    that is known, the numbers of its processor. Raises UsageError for what no library can hold together.
    """
    wanted = archs or ("native",)
    native = next(target for target in TARGETS.values() if runs_here(target))
    besides = tuple(name for name in EXTRAS if native.lanes == _WIDEST and has_features([name]))
    native = replace(native, extras=native.extras or besides)
    here = processor_of(cpu_facts())
    own = native if here is None else native.on(here)
    rows = {**TARGETS, native.name: own} if "native" in wanted else TARGETS
    named = {native.name if arch == "native" else arch for arch in wanted}
    found = [target for name, target in rows.items() if name in named]
    if len({target.machine for target in found}) > 1:
        raise UsageError(
            f"options: no library is for {' and '.join(t.name for t in found)}", hint="build one library for each"
        )
    panel = max(target.panel for target in found)
    return tuple(replace(target, panel=panel) for target in found)
