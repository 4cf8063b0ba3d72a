"""What convolutions of ResNet-50 take by cuDNN's C interface with bias, residual and ReLU fused, channels last.

    python -m benchmarks.gpu.libraries.convolutions RESULT.json

Beside it torch's, which are the same library's: plain ones, channels first (with cuDNN's own changes of layout, as in
ONNX Runtime's provider) and channels last. float16, and float32 rounded to TF32. Sums over the network are what its
convolutions would take. Each result is compared with float64 on the GPU. Microseconds in a CUDA graph.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.gpu.driver import library
from benchmarks.gpu.jobs.with_torch import drawn, microseconds, side

# Channels in, side of the image, channels out, side of the window, stride, how many, whether a residual is added.
SHAPES = (
    (3, 224, 64, 7, 2, 1, False), (64, 56, 64, 1, 1, 1, False), (256, 56, 64, 1, 1, 2, False),
    (64, 56, 64, 3, 1, 3, False), (64, 56, 256, 1, 1, 3, True), (64, 56, 256, 1, 1, 1, False),
    (256, 56, 128, 1, 1, 1, False), (512, 28, 128, 1, 1, 3, False), (128, 56, 128, 3, 2, 1, False),
    (128, 28, 128, 3, 1, 3, False), (128, 28, 512, 1, 1, 4, True), (256, 56, 512, 1, 2, 1, False),
    (512, 28, 256, 1, 1, 1, False), (1024, 14, 256, 1, 1, 5, False), (256, 28, 256, 3, 2, 1, False),
    (256, 14, 256, 3, 1, 5, False), (256, 14, 1024, 1, 1, 6, True), (512, 28, 1024, 1, 2, 1, False),
    (1024, 14, 512, 1, 1, 1, False), (2048, 7, 512, 1, 1, 2, False), (512, 14, 512, 3, 2, 1, False),
    (512, 7, 512, 3, 1, 2, False), (512, 7, 2048, 1, 1, 3, True), (1024, 14, 2048, 1, 2, 1, False),
)  # fmt: skip
NHWC, FLOAT, HALF = 1, 0, 2  # of cudnnTensorFormat_t and cudnnDataType_t
CROSS_CORRELATION, CONVERTING_MATH, RELU, IMPLICIT_PRECOMP_GEMM = 1, 2, 1, 1
NUMBERS = {torch.float16: HALF, torch.float32: FLOAT}
TRIED = 4  # algorithms
Row = dict[str, Any]
Pointer = ctypes.c_void_p


class Performance(ctypes.Structure):
    """cudnnConvolutionFwdAlgoPerf_t."""

    _fields_ = (
        ("algo", ctypes.c_int), ("status", ctypes.c_int), ("time", ctypes.c_float), ("memory", ctypes.c_size_t),
        ("determinism", ctypes.c_int), ("math", ctypes.c_int), ("reserved", ctypes.c_int * 3),
    )  # fmt: skip


class Cudnn:
    """A handle on the stream of graphs."""

    def __init__(self) -> None:
        self.lib, self.handle = library("libcudnn.so"), Pointer()
        self.call("cudnnCreate", ctypes.byref(self.handle))
        self.call("cudnnSetStream", self.handle, Pointer(side().cuda_stream))

    def call(self, name: str, *arguments: Any) -> None:
        """Raises RuntimeError with the status."""
        status = getattr(self.lib, name)(*arguments)
        if status:
            raise RuntimeError(f"{name}: status {status}")

    def made(self, kind: str, setting: str, *arguments: Any) -> Pointer:
        """A descriptor."""
        found = Pointer()
        self.call(f"cudnnCreate{kind}Descriptor", ctypes.byref(found))
        self.call(setting, found, *arguments)
        return found


@dataclass(frozen=True)
class Job:
    """A convolution and its tensors, channels last in memory."""

    x: torch.Tensor
    w: torch.Tensor
    bias: torch.Tensor
    residual: torch.Tensor | None
    stride: int

    @property
    def padding(self) -> int:
        """On each side."""
        return int(self.w.shape[-1]) // 2

    def plain(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        """By torch, without bias."""
        return F.conv2d(x, w, None, self.stride, self.padding)

    def wanted(self) -> torch.Tensor:
        """In float64."""
        y = self.plain(self.x.double(), self.w.double()) + self.bias.double()[:, None, None]
        return torch.relu(y if self.residual is None else y + self.residual.double())


def job(shape: tuple[Any, ...], batch: int, dtype: torch.dtype) -> Job:
    """Tensors of a shape."""
    channels, extent, filters, window, stride, _, added = shape
    last = {"memory_format": torch.channels_last}
    w = drawn(filters, channels, window, window, dtype=dtype) * (channels * window**2) ** -0.5
    x, bias = drawn(batch, channels, extent, extent, dtype=dtype).contiguous(**last), drawn(filters, dtype=dtype)
    size = -(-extent // stride)
    residual = drawn(batch, filters, size, size, dtype=dtype).contiguous(**last) if added else None
    return Job(x, w.contiguous(**last), bias, residual, stride)


def fused(cudnn: Cudnn, each: Job) -> Iterator[tuple[int, Callable[[], Any], torch.Tensor]]:
    """Some algorithms of the library, those first that it expects to be fast: number, call, and what it writes."""
    number = NUMBERS[each.x.dtype]
    y = torch.empty_like(each.wanted().to(each.x.dtype), memory_format=torch.channels_last)

    def tensor(t: torch.Tensor) -> Pointer:
        return cudnn.made("Tensor", "cudnnSetTensor4dDescriptor", NHWC, number, *t.shape)

    places = [tensor(each.x), tensor(y), tensor(each.bias[None, :, None, None])]
    of_x, of_y, of_bias = places
    of_w = cudnn.made("Filter", "cudnnSetFilter4dDescriptor", number, NHWC, *each.w.shape)
    steps = (each.padding, each.padding, each.stride, each.stride, 1, 1)
    how = cudnn.made("Convolution", "cudnnSetConvolution2dDescriptor", *steps, CROSS_CORRELATION, FLOAT)
    cudnn.call("cudnnSetConvolutionMathType", how, CONVERTING_MATH)
    act = cudnn.made("Activation", "cudnnSetActivationDescriptor", RELU, 1, ctypes.c_double(0.0))
    said, count = (Performance * 8)(), ctypes.c_int()
    cudnn.call(
        "cudnnGetConvolutionForwardAlgorithm_v7", cudnn.handle, of_x, of_w, how, of_y, 8, ctypes.byref(count), said
    )
    one, other = ctypes.c_float(1.0), ctypes.c_float(0.0 if each.residual is None else 1.0)
    z = y if each.residual is None else each.residual
    for found in [s for s in said[: count.value] if s.status == 0][:TRIED]:
        space = torch.empty(max(found.memory, 1), dtype=torch.uint8, device="cuda")
        cudnn.call("cudnnSetConvolutionMathType", how, found.math)
        call = partial(
            cudnn.call, "cudnnConvolutionBiasActivationForward", cudnn.handle, ctypes.byref(one), of_x,
            Pointer(each.x.data_ptr()), of_w, Pointer(each.w.data_ptr()), how, found.algo, Pointer(space.data_ptr()),
            ctypes.c_size_t(found.memory), ctypes.byref(other), of_y, Pointer(z.data_ptr()), of_bias,
            Pointer(each.bias.data_ptr()), act, of_y, Pointer(y.data_ptr()),
        )  # fmt: skip
        yield found.algo, partial(_held, call, space), y


def _held(call: Callable[[], Any], space: torch.Tensor) -> None:
    """A call whose workspace lives as long as it."""
    assert space.numel()
    call()


def measured(cudnn: Cudnn, shape: tuple[Any, ...], batch: int, dtype: torch.dtype) -> Row:
    """Microseconds and errors of one convolution."""
    each = job(shape, batch, dtype)
    row: Row = {"shape": shape, "batch": batch, "dtype": str(dtype).removeprefix("torch.")}
    wanted = each.wanted()
    first = each.x.contiguous(), each.w.contiguous()
    row["first"] = microseconds([partial(each.plain, *first)])
    row["last"] = microseconds([partial(each.plain, each.x, each.w)])
    for algorithm, call, y in fused(cudnn, each):
        try:
            call()
            torch.cuda.synchronize()
            error = float((y.double() - wanted).norm() / wanted.norm())
            row.setdefault("fused", []).append([algorithm, microseconds([call]), error])
        except RuntimeError as problem:
            row.setdefault("problems", []).append(f"{algorithm}: {problem}")
    return row


def main() -> None:
    """Writes all rows, and sums over the network."""
    out = Path(sys.argv[1])
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    cudnn, rows = Cudnn(), list[Row]()
    for dtype in (torch.float16, torch.float32):
        for batch in (1, 8):
            for shape in SHAPES:
                try:
                    rows.append(measured(cudnn, shape, batch, dtype))
                except RuntimeError as problem:
                    rows.append({"shape": shape, "batch": batch, "dtype": str(dtype), "problem": str(problem)[:200]})
                row = rows[-1]
                sys.stdout.write(f"{json.dumps(row)[:240]}\n")
            mine = [r for r in rows if r["batch"] == batch and r["dtype"] == str(dtype).removeprefix("torch.")]
            sums = {
                key: sum(r["shape"][5] * r[key] for r in mine if key in r) for key in ("first", "last")
            } | {"fused": sum(r["shape"][5] * min(t for _, t, _ in r["fused"]) for r in mine if "fused" in r),
                 "expected": sum(r["shape"][5] * r["fused"][0][1] for r in mine if "fused" in r)}  # fmt: skip
            sys.stdout.write(f"{dtype} batch {batch}: {json.dumps(sums)}\n")
            sys.stdout.flush()
        out.write_text(json.dumps(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
