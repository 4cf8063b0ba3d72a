"""Execution providers that sessions run in: the CPU's, and that of a GPU, or what this machine lacks for one."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from onnxfuse.errors import DeviceError
from onnxfuse.target import cuda_driver

CPU_NAME = "CPUExecutionProvider"
CUDA_NAME = "CUDAExecutionProvider"
NAMED = "ONNXFUSE_CUDA_PROVIDER"  # the environment variable by which libraries choose the provider of their kernels
_GRAPH = "enable_cuda_graph"  # the provider's option
OLDEST = 13000  # the CUDA version that code is compiled with
ABSENT = "onnxruntime is not installed"
INSTALL = "pip install onnxruntime"
ELSEWHERE = "optimize --target cuda builds without a GPU; scripts/gpu_check.sh measures and compares on one"


@dataclass(frozen=True, slots=True)
class Provider:
    """An execution provider: its name and options, and the device whose memory holds inputs and outputs.

    `bound` sessions are run by IO binding, inputs and outputs at fixed addresses; with `graph` runs are replayed as
    CUDA graphs.
    """

    name: str = CPU_NAME
    options: Mapping[str, str] = field(default_factory=dict)
    memory: str = "cpu"  # as `OrtValue` names devices
    bound: bool = False
    graph: bool = False

    @property
    def listed(self) -> list[str | tuple[str, dict[str, str]]]:
        """The argument `providers` of a session: this one, and the CPU's for nodes that it has no kernel for."""
        return [CPU_NAME] if self.name == CPU_NAME else [(self.name, dict(self.options)), CPU_NAME]

    @property
    def captures(self) -> bool:
        """Whether its sessions capture runs as CUDA graphs, unless a run is told not to."""
        return _GRAPH in self.options

    @property
    def uncaptured(self) -> Provider:
        """The same sessions, whose runs are told to run as usual."""
        return replace(self, graph=False)

    @property
    def ungraphed(self) -> Provider:
        """The same without CUDA graphs."""
        return replace(self, graph=False, options={k: v for k, v in self.options.items() if k != _GRAPH})

    @property
    def words(self) -> str:
        """How it is named in the results of verification."""
        return f"{self.name.removesuffix('ExecutionProvider')}{' graph' if self.graph else ''}"


CPU = Provider()


def gpu_provider(verb: str, *, graph: bool = False, exact: bool = False) -> Provider:
    """The provider of this machine's GPU; `exact` multiplies float32 as such, and not rounded to TF32.

    ONNXFUSE_CUDA_PROVIDER may name another one, as for libraries; where it is the CPU's, the driver's memory is that of
    the host. Raises DeviceError that says what the machine lacks.
    """
    missing = _missing()
    if missing:
        raise DeviceError(f"{verb}: {missing}", hint=ELSEWHERE)
    name = os.environ.get(NAMED) or CUDA_NAME
    if name == CPU_NAME:
        return Provider(bound=True)
    given = ({_GRAPH: "1"} if graph else {}) | ({"use_tf32": "0"} if exact else {})
    return Provider(name, given, "cuda", bound=True, graph=graph)


DEVICES: Mapping[str, Callable[..., Provider]] = {"cuda": gpu_provider}
"""The providers of targets whose kernels do not run in that of the CPU, as functions like `gpu_provider`."""


def provider_of(target: str, verb: str, *, graph: bool = False, exact: bool = False) -> Provider:
    """The provider that kernels of a target run in; the other arguments and errors are those of `gpu_provider`."""
    return DEVICES[target](verb, graph=graph, exact=exact) if target in DEVICES else CPU


def need_runtime(verb: str) -> None:
    """Raise DeviceError where ONNX Runtime is not installed."""
    if find_spec("onnxruntime") is None:
        raise DeviceError(f"{verb}: {ABSENT}", hint=INSTALL)


def _missing() -> str:
    """The first requirement that the machine does not meet; empty where it meets all."""
    driver, name = cuda_driver(), os.environ.get(NAMED) or CUDA_NAME
    if driver is None:
        return "there is no GPU here: no CUDA driver"
    if not driver.devices:
        return "there is no GPU here: the CUDA driver has no device"
    if driver.version < OLDEST:
        return f"the CUDA driver knows CUDA {driver.version // 1000}.{driver.version % 1000 // 10}, kernels need 13.0"
    if find_spec("onnxruntime") is None:
        return f"{ABSENT}: install onnxruntime-gpu"
    import onnxruntime as ort  # noqa: PLC0415  models are built where it is not installed

    if name not in ort.get_available_providers():
        return f"this ONNX Runtime has no {name}: install onnxruntime-gpu"
    return ""


@cache
def preload() -> None:
    """Loads the libraries of CUDA and cuDNN of Python packages, which the provider itself does not look for."""
    import onnxruntime as ort  # noqa: PLC0415  models are built where it is not installed

    if not hasattr(ort, "preload_dlls"):  # onnxruntime before 1.21
        return
    with redirect_stdout(io.StringIO()):  # it prints what it does not find; a session that lacks it says so
        ort.preload_dlls()
        for folder in (Path(name).resolve() for name in sys.path if name):  # packages elsewhere than the runtime's
            for place in (each for each in sorted(folder.glob("nvidia/*/lib")) if each.is_dir()):
                ort.preload_dlls(directory=str(place))
