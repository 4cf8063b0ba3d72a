"""cuBLASLt's epilogues: which GELU they compute, and what they cost against a product and a kernel.

python -m benchmarks.gpu.libraries.epilogue OUT.json
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
from ctypes import byref, c_float, c_int, c_longlong, c_size_t, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.gpu.driver import Compiler, CudaError, Driver, library, pointer
from benchmarks.gpu.rows import in_graph

NONE, RELU, BIAS, RELU_BIAS, GELU, GELU_BIAS = 1, 2, 4, 6, 32, 36
EPILOGUES = {"plain": NONE, "bias": BIAS, "relu_bias": RELU_BIAS, "gelu": GELU, "gelu_bias": GELU_BIAS}
HALF, SINGLE, COMPUTE_32F = 2, 0, 68  # CUDA_R_16F, CUDA_R_32F, CUBLAS_COMPUTE_32F
TRANSPOSE_A, EPILOGUE, BIAS_POINTER = 3, 7, 8  # CUBLASLT_MATMUL_DESC_...
WORKSPACE = 32 << 20
SHAPES = ((128, 3072, 768), (128, 768, 3072), (197, 3072, 768), (1024, 3072, 768), (1576, 3072, 768), (3136, 384, 96),
          (25088, 384, 96), (128, 512, 128))  # fmt: skip  # rows, columns, depth
SOURCE = Path(__file__).with_name("epilogue.cu").read_text(encoding="utf-8")


class _Found(ctypes.Structure):
    _fields_ = (("algorithm", c_uint64 * 8), ("workspace", c_size_t), ("status", c_int), ("waves", c_float),
                ("reserved", c_int * 4))  # fmt: skip


class Lt:
    """The functions of cuBLASLt that an epilogue needs."""

    def __init__(self) -> None:
        library("libcublas.so.13", ctypes.RTLD_GLOBAL)
        self.lib = library("libcublasLt.so.13")
        self.handle = c_void_p()
        self._check(self.lib.cublasLtCreate(byref(self.handle)))
        self.workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device="cuda")

    def _check(self, code: int) -> None:
        if code:
            raise CudaError(f"cublasLt status {code}")

    def product(self, x: Tensor, w: Tensor, y: Tensor, epilogue: int, bias: Tensor | None, beta: float = 0.0) -> Any:
        """A call that computes y = x w (+ beta y) by rows; cuBLASLt sees columns: y' = w' x'."""
        (m, k), n, lib = x.shape, w.shape[1], self.lib
        description, preference = c_void_p(), c_void_p()
        self._check(lib.cublasLtMatmulDescCreate(byref(description), COMPUTE_32F, SINGLE))
        self._set(lib.cublasLtMatmulDescSetAttribute, description, EPILOGUE, c_int(epilogue))
        if bias is not None:
            self._set(lib.cublasLtMatmulDescSetAttribute, description, BIAS_POINTER, pointer(bias))
        layouts = []
        kinds = [SINGLE if each.dtype == torch.float32 else HALF for each in (w, x, y)]
        for kind, (rows, columns) in zip(kinds, ((n, k), (k, m), (n, m)), strict=True):
            layout = c_void_p()
            create = lib.cublasLtMatrixLayoutCreate
            self._check(create(byref(layout), kind, c_uint64(rows), c_uint64(columns), c_longlong(rows)))
            layouts.append(layout)
        self._check(lib.cublasLtMatmulPreferenceCreate(byref(preference)))
        self._set(lib.cublasLtMatmulPreferenceSetAttribute, preference, 1, c_size_t(WORKSPACE))
        a, b, c = layouts
        found, count = (_Found * 8)(), c_int()
        ask = lib.cublasLtMatmulAlgoGetHeuristic
        self._check(ask(self.handle, description, a, b, c, c, preference, 8, found, byref(count)))
        if not count.value:
            raise CudaError("no algorithm")
        one, two = c_float(1.0), c_float(beta)

        def call(choice: int = 0) -> None:
            stream = c_void_p(torch.cuda.current_stream().cuda_stream)
            self._check(lib.cublasLtMatmul(
                self.handle, description, byref(one), pointer(w), a, pointer(x), b, byref(two), pointer(y), c,
                pointer(y), c, byref(found[choice]), pointer(self.workspace), c_size_t(WORKSPACE), stream,
            ))  # fmt: skip

        call.count = count.value  # type: ignore[attr-defined]
        return call

    def _set(self, function: Any, what: c_void_p, attribute: int, value: Any) -> None:
        self._check(function(what, attribute, byref(value), c_size_t(ctypes.sizeof(value))))


def fastest(call: Any) -> float:
    """Microseconds by the best of the algorithms that cuBLASLt offers."""
    times = []
    for choice in range(call.count):
        try:
            times.append(in_graph(lambda choice=choice: call(choice), 32))
        except CudaError:
            continue
    return min(times)


def which_gelu(lt: Lt, kind: torch.dtype) -> dict[str, Any]:
    """The largest error of the epilogue against both forms, on values all over the interesting range."""
    size = 256
    x = torch.eye(size, device="cuda", dtype=torch.float16)
    w = torch.linspace(-6, 6, size * size, device="cuda").reshape(size, size).half()
    y = torch.full_like(w, float("nan"), dtype=kind)
    lt.product(x, w, y, GELU, None)()
    torch.cuda.synchronize()
    exact = w.double()
    erf, tanh = functional.gelu(exact), functional.gelu(exact, approximate="tanh")
    return {
        "against_erf": float((y.double() - erf).abs().max()),
        "against_tanh": float((y.double() - tanh).abs().max()),
        "rounded_erf_differs": int((y != erf.to(kind)).sum()),
        "rounded_tanh_differs": int((y != tanh.to(kind)).sum()),
        "values": size * size,
        "erf_to_tanh": float((erf - tanh).abs().max()),
    }


def costs(lt: Lt, driver: Driver, compiler: Compiler) -> list[dict[str, Any]]:
    """Microseconds in a graph: product alone, with epilogues, and with a kernel after it."""
    kernel = driver.load(compiler.compile(SOURCE)[0], "bias_gelu")
    rows = []
    for m, n, k in SHAPES:
        x, w, bias = (torch.randn(shape, device="cuda").half() for shape in ((m, k), (k, n), (n,)))
        w /= k**0.5
        y, z = torch.empty((m, n), device="cuda", dtype=torch.float16), torch.empty((m, n), device="cuda").half()
        row: dict[str, Any] = {"rows": m, "columns": n, "depth": k}
        for name, epilogue in EPILOGUES.items():
            row[f"{name}_us"] = fastest(lt.product(x, w, y, epilogue, bias if epilogue & BIAS else None))
        row["residual_us"] = fastest(lt.product(x, w, y, NONE, None, beta=1.0))
        plain = lt.product(x, w, y, NONE, None)
        vectors = m * n // 8
        after = kernel.launcher(
            -(-vectors // 256), 256, 0, pointer(y), pointer(bias), pointer(z), c_longlong(vectors), c_int(n)
        )

        def both(choice: int, plain: Any = plain, after: Any = after) -> None:
            plain(choice)
            after(torch.cuda.current_stream().cuda_stream)

        both.count = plain.count  # type: ignore[attr-defined]
        row["plain_then_kernel_us"] = fastest(both)
        row["kernel_us"] = in_graph(lambda after=after: after(torch.cuda.current_stream().cuda_stream), 32)
        wanted = functional.gelu(x.double() @ w.double() + bias.double())
        both(0)
        row["kernel_error"] = float((z.double() - wanted).abs().max())
        lt.product(x, w, y, GELU_BIAS, bias)()
        row["epilogue_error"] = float((y.double() - wanted).abs().max())
        rows.append(row)
        sys.stderr.write(" ".join(f"{key}={value:.4g}" for key, value in row.items()) + "\n")
    return rows


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    asked = parser.parse_args()
    torch.manual_seed(0)
    torch.zeros(1, device="cuda")
    lt = Lt()
    result: dict[str, Any] = {}
    for name, kind in (("fp16 output", torch.float16), ("fp32 output", torch.float32)):
        try:
            result[name] = which_gelu(lt, kind)
        except CudaError as problem:
            result[name] = {"failed": str(problem)}
    sys.stderr.write(f"{result}\n")
    result["costs"] = costs(lt, Driver(), Compiler())
    asked.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
