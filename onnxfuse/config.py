"""Every knob of a build, as a frozen value."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from onnxfuse.target import ARCHS


def _files(*folders: str) -> list[str]:
    """The names of the modules in a folder of the package."""
    return sorted(module.name for module in iter_modules([str(Path(__file__).parent.joinpath(*folders))]))


CPU = "cpu"
BACKENDS = tuple(name for name in _files("backends") if name != "row")
"""The names of the backends: the files of `backends/`, except `row.py`."""


NVRTC, NVCC = "nvrtc", "nvcc"
DEVICE_COMPILERS = (NVRTC, NVCC)

VERIFIER = "onnxfuse.verify.child"  # the module of the process that runs models for `verify/`

# Sections of `optimize --help`, in their order.
FILES, MACHINE, MODEL, FUSION = "Files", "Machine", "Model and inputs", "What is fused"
CHECKS, MEASURING, LIMITS, STEPWISE = "Checks", "Measurement", "Limits and cache", "Step by step"
SECTIONS = (FILES, MACHINE, MODEL, FUSION, CHECKS, MEASURING, LIMITS, STEPWISE)


def _option(
    section: str,
    default: Any,
    help: str,
    *,
    many: bool = False,
    choices: tuple[str, ...] = (),
    metavar: str = "",
    flag: str = "",
    read: bool = False,
) -> Any:
    """A field of `Options` with what the command line needs to make a flag of it.

    `flag` is the flag's other name; `read` says that it names a file that is only read.
    """
    about = {"help": help, "many": many, "choices": choices, "metavar": metavar, "flag": flag, "read": read}
    return field(default=default, metadata=about | {"section": section})


# Each a function of `plan/strategies/`. All but the first three ask for prices.
USUAL = "anchors"  # by fixed rules, and what others have to beat
BEST = "best"  # the cheapest cover from what all others propose
EXHAUSTIVE = "exhaustive"  # likewise, and from every legal group of small regions
SEARCHES = (BEST, EXHAUSTIVE)
STRATEGIES = (*_files("plan", "strategies"), *SEARCHES)
PRECISIONS = ("fp32", "bf16", "fp16")
STEPS = ("load", "rewrite", "plan", "lower", "schedule", "render", "build", "emit", "verify", "guide", "gain")


@dataclass(frozen=True, slots=True)
class Options:
    """Every knob of `optimize`; the command line makes one flag of each field (`min_group` is `--min-group`)."""

    output: str | None = _option(
        FILES, None, "the model to write (default: STEM.fused.onnx beside the input; - for stdout)", metavar="FILE"
    )
    lib: str | None = _option(
        FILES, None, "the library to write (default: libNAME.so beside the model)", metavar="FILE"
    )
    manifest: str | None = _option(
        FILES, None, "the manifest to write (default: NAME.fuse.json beside the model)", metavar="FILE"
    )
    overwrite: bool = _option(FILES, False, "replace outputs that exist")
    dry_run: bool = _option(STEPWISE, False, "plan only: compile nothing, write nothing")
    target: str = _option(MACHINE, CPU, "processor that the kernels run on", choices=BACKENDS)
    arch: tuple[str, ...] = _option(
        MACHINE,
        (),
        "instruction set of the kernels, or GPU (default: native; sm_80, sm_90 and sm_100); of several the best that "
        "a machine has is used. With --target cuda, CPUs named beside get kernels of the same groups",
        many=True,
        choices=ARCHS,
    )
    cuda_graph: bool = _option(
        MACHINE, False, "plan for runs that are replayed as CUDA graphs, where kernel launches cost a third"
    )
    toolchain: str = _option(
        MACHINE,
        "auto",
        "the C++ compiler; nvrtc or nvcc: the compiler of CUDA kernels",
        choices=("auto", "gcc", "clang", "zig", *DEVICE_COMPILERS),
    )
    nvcc: str | None = _option(
        MACHINE, None, "compile CUDA kernels with this nvcc (default: NVRTC, which needs no toolkit)", metavar="PATH"
    )
    dim: tuple[str, ...] = _option(MODEL, (), "give a symbolic dimension a value", many=True, metavar="NAME=N")
    input_shape: tuple[str, ...] = _option(MODEL, (), "give an input a static shape", many=True, metavar="NAME:D,D,...")
    constant_initializers: bool = _option(
        MODEL, False, "treat initializers that are also inputs as constants, which callers of the result cannot change"
    )
    strategy: str | None = _option(
        FUSION,
        None,
        "how groups are chosen (default: as `tune` found it for this model on this machine, else best; GPUs: anchors)",
        choices=STRATEGIES,
    )
    plan_budget: int = _option(
        FUSION,
        48,
        "most candidate groups that are scheduled to predict their times (0: the groups of anchors), by tune 8 times "
        "as many",
    )
    min_group: int = _option(FUSION, 2, "smallest number of operators worth a kernel (1 fuses single operators too)")
    enable: tuple[str, ...] = _option(FUSION, (), "switch a rewrite rule on", many=True, metavar="RULE")
    disable: tuple[str, ...] = _option(FUSION, (), "switch a rewrite rule off", many=True, metavar="RULE")
    skip_node: tuple[str, ...] = _option(
        FUSION, (), "leave nodes whose name matches to ONNX Runtime", many=True, metavar="REGEX"
    )
    fast_math: bool = _option(FUSION, False, "allow rewrites that assume facts about the data")
    precision: str = _option(
        FUSION,
        "fp32",
        "storage type of float32 weights of products, with bf16 also of values between kernels; sums stay float32",
        choices=PRECISIONS,
    )
    winograd: bool | None = _option(
        FUSION,
        None,
        "use Winograd's algorithm for 3x3 convolutions where it is predicted to be faster (on by default)",
    )
    verify: bool | None = _option(CHECKS, None, "compare the result with the original (on by default)")
    rtol: float | None = _option(CHECKS, None, "relative tolerance of verification instead of the computed one")
    atol: float | None = _option(CHECKS, None, "absolute tolerance of verification instead of the computed one")
    inputs: str | None = _option(
        MODEL,
        None,
        "inputs to run with instead of random ones: an .npz file or an ONNX test_data_set folder",
        metavar="FILE",
        read=True,
    )
    seed: int = _option(MODEL, 0, "seed of the random inputs")
    require_fusion: int = _option(CHECKS, 0, "fail (exit 1) when fewer kernels than this are made")
    save_as_external_data: bool = _option(FILES, False, "write weights beside the model, whatever their size")
    custom_ops_library: tuple[str, ...] = _option(
        MODEL, (), "custom-op library that the model needs", many=True, metavar="FILE", read=True
    )
    cache_dir: str | None = _option(LIMITS, None, "folder of the cache of compiled kernels", metavar="DIR")
    no_cache: bool = _option(LIMITS, False, "neither read nor write the cache of compiled kernels")
    jobs: int = _option(LIMITS, 0, "number of compilers that run in parallel (0: one per core)")
    gain: bool | None = _option(
        MEASURING,
        None,
        "measure the result against the original, and leave out what is slower (on by default, not with --arch)",
    )
    dim_hint: tuple[str, ...] = _option(
        MEASURING,
        (),
        "sizes of a symbolic dimension at which the gain is measured and times are predicted",
        many=True,
        metavar="NAME=N,N",
    )
    profile_guided: bool = _option(
        MEASURING, False, "measure parts of the model, and leave to ONNX Runtime what is slower as kernels"
    )
    min_gain: float = _option(
        MEASURING, 0.03, "smallest share of their time that leaving kernels out must save", metavar="SHARE"
    )
    lock: str | None = _option(
        CHECKS, None, "repeat the choices of a lock file; with --profile-guided, the lock file to write", metavar="FILE"
    )
    check: bool = _option(CHECKS, False, "fail (exit 1) if the lock file was made for another build")
    time_budget: float | None = _option(LIMITS, None, "time limit, such as 90 (seconds) or 5m", metavar="SECONDS")
    memory_budget: str | None = _option(LIMITS, None, "memory limit, such as 8GB", metavar="BYTES")
    stop_after: str | None = _option(STEPWISE, None, "stop after this step and write nothing", choices=STEPS)
    print_step: str | None = _option(STEPWISE, None, "print the result of this step", choices=STEPS, flag="print")

    @property
    def verifies(self) -> bool:
        """Whether the build ends with a comparison of the result with the original, where both run."""
        return self.verify is not False and self.stop_after is None and not self.dry_run


def strategy_of(options: Options) -> str:
    """The strategy of a build that plans: on GPUs, plans by price were not raced."""
    return options.strategy or (BEST if options.target == CPU else USUAL)


def option_fields() -> tuple[Any, ...]:
    """The fields of `Options`, for the command line and the docs."""
    return fields(Options)
