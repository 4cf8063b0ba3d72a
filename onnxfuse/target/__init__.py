"""Machine classes that kernels are made for (`Target`), and what of them this machine can run."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from onnxfuse.errors import UsageError
from onnxfuse.target.common import Target
from onnxfuse.target.cpu import AMX_FEATURES, CPUS, EXTRAS, Cpu
from onnxfuse.target.device import cuda_driver
from onnxfuse.target.gpu import (
    COPIES_SINCE,
    CORES_SINCE,
    GPUS,
    MOST_DEPTH,
    MOST_ROWS,
    PORTABLE,
    Gpu,
    block_shared,
    gpus_of,
)
from onnxfuse.target.processors import cpu_facts, processor_of

__all__ = (
    "AMX_FEATURES",
    "ARCHS",
    "COPIES_SINCE",
    "CORES_SINCE",
    "CPUS",
    "GPUS",
    "ISA",
    "MOST_DEPTH",
    "MOST_ROWS",
    "PORTABLE",
    "Cpu",
    "Gpu",
    "Target",
    "block_shared",
    "cuda_driver",
    "gpus_of",
    "targets_of",
)

ISA = "ONNXFUSE_ISA"  # the environment variable that allows a library one instruction set only
ARCHS = ("native", *(row.name for row in CPUS.values() if row.machine), *reversed(GPUS))
_WIDEST = max(t.lanes for t in CPUS.values())

_ARCH_PRCTL = 158  # of Linux for x86-64
REQUEST_PERMISSION, TILE_DATA = 0x1023, 18  # to use the registers of AMX, whose state has this bit in XCR0

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
    return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA) == 0)


def machine() -> str:
    """The architecture of this machine, as Linux spells it."""
    said = platform.machine()
    return {"AMD64": "x86_64", "arm64": "aarch64"}.get(said, said)


def runs_here(target: Target) -> bool:
    """Whether this machine can run every kernel that may be made for a target."""
    return target.on_host and target.machine in ("", machine()) and has_features((*target.features, *target.extras))


def unable(names: Iterable[str], targets: Mapping[str, Target]) -> str:
    """What is to be said of those targets whose kernels this machine cannot run; empty where it can run all.

    A name may be followed by features that the kernels need besides, a + before each.
    """
    others = [name for name in names if not _able(targets, *name.split("+"))]
    gpus = [name for name in others if name in targets and not targets[name].on_host]
    if gpus and gpus == others:
        return f"kernels for {' and '.join(gpus)} are not run on this machine's CPU"
    return f"this machine cannot run kernels for {' and '.join(others)}" if others else ""


def _able(targets: Mapping[str, Target], name: str, *besides: str) -> bool:
    return name in targets and runs_here(targets[name]) and has_features(besides)


def targets_of(archs: Sequence[str]) -> tuple[Cpu, ...]:
    """The CPUs of `--arch` values, best first, all with the panels of the widest.

    `native`, and no value at all, is the best row that this machine can run, with the extras that it has and, where
    that is known, the numbers of its processor. Raises UsageError for what no library can hold together.
    """
    wanted = archs or ("native",)
    if foreign := [name for name in wanted if name in GPUS]:
        raise UsageError(f"options: {foreign[0]} is a GPU", hint="--target cuda makes kernels for it")
    native = next(target for target in CPUS.values() if runs_here(target))
    besides = tuple(name for name in EXTRAS if native.lanes == _WIDEST and has_features([name]))
    native = replace(native, extras=native.extras or besides)
    here = processor_of(cpu_facts())
    own = native if here is None else native.on(here)
    rows = {**CPUS, native.name: own} if "native" in wanted else CPUS
    named = {native.name if arch == "native" else arch for arch in wanted}
    found = [target for name, target in rows.items() if name in named]
    if len({target.machine for target in found}) > 1:
        raise UsageError(
            f"options: one library cannot contain kernels for {' and '.join(t.name for t in found)}",
            hint="build one library for each",
        )
    panel = max(target.panel for target in found)
    return tuple(replace(target, panel=panel) for target in found)
