"""Whether this machine can run models on a GPU: driver, device, and a runtime with the CUDA provider."""

from __future__ import annotations

import onnxruntime as ort

from onnxfuse.errors import DeviceError
from onnxfuse.target import cuda_driver

PROVIDER = "CUDAExecutionProvider"
OLDEST = 13000  # the CUDA version that code is compiled with
ELSEWHERE = "optimize --target cuda builds without a GPU; scripts/gpu_check.sh measures and compares on one"


def require_gpu(verb: str) -> None:
    """Always raises DeviceError: it says what the machine lacks, or that verbs run models on the CPU only.

    On a GPU, scripts/gpu_check.sh compares and measures.
    """
    raise DeviceError(f"{verb}: {_missing()}", hint=ELSEWHERE)


def _missing() -> str:
    """The first requirement that the machine does not meet."""
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
