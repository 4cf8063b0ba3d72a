"""Machine classes that kernels are generated for (`Target`), and which of them this machine can run."""

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
    LIBRARY_SINCE,
    MOST_DEPTH,
    MOST_ROWS,
    NATIVE,
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
    "LIBRARY_SINCE",
    "MOST_DEPTH",
    "MOST_ROWS",
    "NATIVE",
    "PORTABLE",
    "Cpu",
    "Gpu",
    "Target",
    "block_shared",
    "cuda_driver",
    "gpus_of",
    "targets_of",
)

ISA = "ONNXFUSE_ISA"  # the environment variable that restricts a library to one instruction set
ARCHS = ("native", *(row.name for row in CPUS.values() if row.machine), *reversed(GPUS))
_WIDEST = max(t.lanes for t in CPUS.values())

_ARCH_PRCTL = 158  # of Linux for x86-64
REQUEST_PERMISSION, TILE_DATA = 0x1023, 18  # to use the registers of AMX, whose state has this bit in XCR0

# Features whose names in Linux differ from those of gcc.
_LINUX = {
    "sse3": "pni", "sse4.1": "sse4_1", "sse4.2": "sse4_2", "sahf": "lahf_lm", "bmi": "bmi1", "lzcnt": "abm",
    "avxvnni": "avx_vnni", "avx512vnni": "avx512_vnni", "avx512bf16": "avx512_bf16", "avx512fp16": "avx512_fp16",
}  # fmt: skip


def cpu_flags() -> frozenset[str]:
    """Instruction-set features of this machine, by Linux's names; empty if Linux does not report them."""
    facts = cpu_facts()
    return frozenset((facts.get("flags") or facts.get("Features") or "").split())


def has_features(names: Iterable[str]) -> bool:
    """Whether this processor has all these features (gcc's names), and Linux permits their use."""
    have, wanted = cpu_flags(), [_LINUX.get(name, name.replace("-", "_")) for name in names]
    return have.issuperset(wanted) and ("amx_tile" not in wanted or tiles_granted())


def has_amx() -> bool:
    """Whether this processor has AMX with bf16 and int8 products."""
    return cpu_flags() >= {"amx_tile", "amx_bf16", "amx_int8"}


def tiles_granted() -> bool:
    """Whether Linux permits this process to use AMX tiles; requests the permission, as a library does."""
    if machine() != "x86_64" or platform.system() != "Linux":
        return False
    return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA) == 0)


def machine() -> str:
    """The architecture of this machine, by Linux's name."""
    said = platform.machine()
    return {"AMD64": "x86_64", "arm64": "aarch64"}.get(said, said)


def runs_here(target: Target) -> bool:
    """Whether this machine can run every kernel generated for a target."""
    return target.on_host and target.machine in ("", machine()) and has_features((*target.features, *target.extras))


def unable(names: Iterable[str], targets: Mapping[str, Target]) -> str:
    """A message about the targets whose kernels this machine cannot run; empty if it can run all.

    A name may be followed by additional features that the kernels need, as `+FEATURE`.
    """
    others = [name for name in names if not _able(targets, *name.split("+"))]
    gpus = [name for name in others if name in targets and not targets[name].on_host]
    if gpus and gpus == others:
        return f"kernels for {' and '.join(gpus)} are not run on this machine's CPU"
    return f"this machine cannot run kernels for {' and '.join(others)}" if others else ""


def runs_on_gpu(name: str) -> bool:
    """Whether the first GPU of this machine, which sessions use, runs kernels of a target, by its name."""
    row, driver = {**GPUS, **PORTABLE}.get(name), cuda_driver()
    return row is not None and driver is not None and any(row.suits(d.capability) for d in driver.devices[:1])


def _able(targets: Mapping[str, Target], name: str, *besides: str) -> bool:
    return name in targets and runs_here(targets[name]) and has_features(besides)


def targets_of(archs: Sequence[str]) -> tuple[Cpu, ...]:
    """The CPU targets of `--arch` values, best first, all with the panel width of the widest.

    `native`, the default, is the best row that this machine can run, with the extra features that it has and, if its
    processor family is known, the numbers of that. Raises UsageError for targets that one library cannot contain.
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
