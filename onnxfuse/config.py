"""Every knob of a build (`Options`) and every machine class (`Target`), as frozen values."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any


def _option(
    default: Any, help: str, *, many: bool = False, choices: tuple[str, ...] = (), metavar: str = "", flag: str = ""
) -> Any:
    """A field of `Options` with what the command line needs to make a flag of it; `flag` is the flag's other name."""
    about = {"help": help, "many": many, "choices": choices, "metavar": metavar, "flag": flag}
    return field(default=default, metadata=about)


STRATEGIES = ("best", "nnvm", "none")
PRECISIONS = ("fp32", "bf16", "fp16")
STEPS = ("load", "rewrite", "plan", "lower", "schedule", "render", "build", "emit", "verify", "guide")


@dataclass(frozen=True, slots=True)
class Options:
    """Every knob of `optimize`; the command line makes one flag of each field (`min_group` is `--min-group`)."""

    output: str | None = _option(
        None, "the model to write (default: STEM.fused.onnx beside the input; - for stdout)", metavar="FILE"
    )
    lib: str | None = _option(None, "the library to write (default: libNAME.so beside the model)", metavar="FILE")
    manifest: str | None = _option(
        None, "the manifest to write (default: NAME.fuse.json beside the model)", metavar="FILE"
    )
    overwrite: bool = _option(False, "replace outputs that exist")
    dry_run: bool = _option(False, "plan only: compile nothing, write nothing")
    target: str = _option("cpu", "what the kernels run on", choices=("cpu",))
    arch: str = _option("native", "instruction set of the kernels", choices=("native", "x86-64-v3", "x86-64-v4"))
    toolchain: str = _option("auto", "the C++ compiler", choices=("auto", "gcc", "clang", "zig"))
    dim: tuple[str, ...] = _option((), "give a symbolic dimension a value", many=True, metavar="NAME=N")
    input_shape: tuple[str, ...] = _option((), "give an input a static shape", many=True, metavar="NAME:D,D,...")
    strategy: str = _option("best", "how groups are chosen", choices=STRATEGIES)
    min_group: int = _option(2, "smallest number of operators worth a kernel (1 fuses single operators too)")
    enable: tuple[str, ...] = _option((), "switch a rewrite rule on", many=True, metavar="RULE")
    disable: tuple[str, ...] = _option((), "switch a rewrite rule off", many=True, metavar="RULE")
    skip_node: tuple[str, ...] = _option(
        (), "leave nodes whose name matches to ONNX Runtime", many=True, metavar="REGEX"
    )
    fast_math: bool = _option(False, "allow rewrites that assume facts about the data")
    precision: str = _option(
        "fp32", "what float32 weights of products are rounded to; sums stay float32", choices=PRECISIONS
    )
    verify: bool | None = _option(None, "compare the result with the original (on by default)")
    rtol: float | None = _option(None, "relative tolerance of verification instead of the computed one")
    atol: float | None = _option(None, "absolute tolerance of verification instead of the computed one")
    inputs: str | None = _option(
        None, "inputs to run with instead of random ones: an .npz file or an ONNX test_data_set folder", metavar="FILE"
    )
    seed: int = _option(0, "seed of the random inputs")
    require_fusion: int = _option(0, "fail (exit 1) when fewer kernels than this are made")
    save_as_external_data: bool = _option(False, "write weights beside the model, whatever their size")
    custom_ops_library: tuple[str, ...] = _option(
        (), "custom-op library that the model needs", many=True, metavar="FILE"
    )
    cache_dir: str | None = _option(None, "where compiled kernels are kept", metavar="DIR")
    no_cache: bool = _option(False, "neither read nor write the cache of compiled kernels")
    jobs: int = _option(0, "compilers that run at once (0: one per core)")
    gain: bool | None = _option(None, "measure the result against the original (on a terminal by default)")
    profile_guided: bool = _option(
        False, "measure areas of the model, and leave to ONNX Runtime what is slower as kernels"
    )
    min_gain: float = _option(0.03, "least part of their time that leaving kernels out must save", metavar="SHARE")
    lock: str | None = _option(
        None, "make the choices of a lock file; with --profile-guided, write it there", metavar="FILE"
    )
    check: bool = _option(False, "fail (exit 1) when the lock file was made for another build")
    time_budget: float | None = _option(None, "seconds it may take, such as 90 or 5m", metavar="SECONDS")
    memory_budget: str | None = _option(None, "memory it may take, such as 8GB", metavar="BYTES")
    stop_after: str | None = _option(None, "stop after this step and write nothing", choices=STEPS)
    print_step: str | None = _option(None, "print what this step made", choices=STEPS, flag="print")


def option_fields() -> tuple[Any, ...]:
    """The fields of `Options`, for the command line and the docs."""
    return fields(Options)


@dataclass(frozen=True, slots=True)
class Target:
    """A machine class: what the scheduler may count on. Lanes are fp32 lanes of one vector; sizes in bytes."""

    name: str
    lanes: int
    rows: int  # rows of one register tile
    vectors: int  # vectors across one register tile: a weight panel is lanes * vectors columns wide
    l1_bytes: int
    l2_bytes: int
    flags: tuple[str, ...]  # compiler flags, gcc spelling
    features: tuple[str, ...]  # names asked of __builtin_cpu_supports before kernels are registered
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

    @property
    def panel(self) -> int:
        """Columns of one packed weight panel."""
        return self.lanes * self.vectors

    @property
    def cycle(self) -> float:
        """Seconds of a cycle in which two vectors are multiplied and added."""
        return 4 * self.lanes / self.gflops * 1e-9


EXTRAS = {"avx512bf16": "avx512_bf16"}  # features that some machines of a class have, and Linux's names of them
_V4 = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "fma", "avx2")
_V3 = ("avx2", "fma", "f16c")

TARGETS: dict[str, Target] = {
    "x86-64-v4": Target(
        "x86-64-v4", 16, 14, 2, 32 << 10, 1 << 20, ("-march=x86-64-v4", "-mprefer-vector-width=512"), _V4, 200.0, 20.0
    ),
    "x86-64-v3": Target("x86-64-v3", 8, 6, 2, 32 << 10, 1 << 20, ("-march=x86-64-v3",), _V3, 80.0, 20.0),
    "generic": Target("generic", 4, 4, 2, 32 << 10, 1 << 19, (), (), 20.0, 8.0),
}
_WIDEST = max(t.lanes for t in TARGETS.values())


def cpu_flags() -> frozenset[str]:
    """Instruction-set names of this machine as Linux spells them; empty where it does not say."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    for line in text.splitlines():
        if line.startswith(("flags", "Features")):
            return frozenset(line.split(":", 1)[1].split())
    return frozenset()


def target_named(arch: str) -> Target:
    """The `Target` row of an `--arch` value; `native` is the widest row that this machine can run."""
    if arch != "native":
        return TARGETS[arch]
    if platform.machine() not in ("x86_64", "AMD64"):
        return TARGETS["generic"]
    have = cpu_flags()
    found = next(t for t in TARGETS.values() if have.issuperset(t.features))
    extras = tuple(name for name, flag in EXTRAS.items() if flag in have and found.lanes == _WIDEST)
    return replace(found, extras=extras)


def default_cache_dir() -> Path:
    """Where compiled kernels are kept when no folder is named: $ONNXFUSE_CACHE_DIR, else the user's cache."""
    named = os.environ.get("ONNXFUSE_CACHE_DIR")
    if named:
        return Path(named)
    from platformdirs import user_cache_path  # noqa: PLC0415  keeps `onnxfuse --help` fast

    return Path(user_cache_path("onnxfuse"))
