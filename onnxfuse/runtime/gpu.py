"""Whether models can be run on a GPU here: a driver, a device, and a runtime that has the provider for it."""

from __future__ import annotations

import onnxruntime as ort

from onnxfuse.errors import DeviceError
from onnxfuse.target import cuda_driver

PROVIDER = "CUDAExecutionProvider"
OLDEST = 13000  # the line of CUDA that code is made with
ELSEWHERE = "optimize --target cuda builds without a GPU; scripts/gpu_check.sh measures and compares on one"


def require_gpu(verb: str) -> None:
    """Raises DeviceError with what is missing for a verb to run models on a GPU, and where there is one, too.

    Models are compared and measured on the CPU: on a GPU the check script does so.
    """
    raise DeviceError(f"{verb}: {_missing()}", hint=ELSEWHERE)


def _missing() -> str:
    """What a machine lacks, the first thing first."""
    driver = cuda_driver()
    if driver is None:
        return "there is no GPU here: no CUDA driver"
    if not driver.devices:
        return "there is no GPU here: the CUDA driver has no device"
    if driver.version < OLDEST:
        return f"the CUDA driver knows CUDA {driver.version // 1000}.{driver.version % 1000 // 10}, kernels need 13.0"
    if PROVIDER not in ort.get_available_providers():
        return f"this ONNX Runtime has no {PROVIDER}: install onnxruntime-gpu"
    return f"{driver.devices[0].name} is here, but this verb runs models on the CPU alone"
