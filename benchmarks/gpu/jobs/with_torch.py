"""A worker that times what torch does instead of a kernel: a line of JSON for each one that it reads.

Runs follow each other in a CUDA graph, on the same memory; matrices of products also from memory, as in a network.
`linear, gelu` and the like are as many kernels as torch makes of them, compiled by nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.gpu.jobs.served import served

RUNS, TURNS = 48, 5
COLD = 160 << 20  # bytes that no cache holds
MOST_COPIES = 256
MOST_RESERVED = 20 << 30  # bytes of graphs that are gone
TYPES = {"float16": torch.float16, "float32": torch.float32}

Call = Callable[[], Any]


@cache
def side() -> torch.cuda.Stream:
    """The stream on which everything is captured, and for which libraries have their workspaces."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's


def microseconds(calls: Sequence[Call], runs: int = RUNS) -> float:
    """Of a call, of so many in a CUDA graph, in turn."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    count = -(-runs // len(calls)) * len(calls)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # torch's
    times: list[float] = []
    with torch.cuda.stream(side()):
        for call in (*calls[:1], *calls[:1]):
            call()
        side().synchronize()
        graph.capture_begin()
        try:
            for n in range(count):
                calls[n % len(calls)]()
        finally:
            graph.capture_end()
        graph.replay()
        for _ in range(TURNS):
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / count * 1e3)
    return statistics.median(times)


def drawn(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Random numbers on the device."""
    return torch.randn(shape, device="cuda", dtype=dtype)


def product(how: Mapping[str, Any], dtype: torch.dtype) -> Iterator[tuple[str, Sequence[Call]]]:
    """The library's product, with a bias, and with what torch puts around it; matrices are as ONNX has them."""
    rows, depth, columns = (how[n] for n in ("rows", "depth", "columns"))
    x, w, bias = drawn(rows, depth, dtype=dtype), drawn(depth, columns, dtype=dtype), drawn(columns, dtype=dtype)
    made = x @ w
    gamma, beta = (drawn(depth, dtype=dtype) for _ in range(2))
    if how["epilogue"] == "norm gelu":
        yield "layernorm, linear, gelu", [lambda: F.gelu(torch.addmm(bias, F.layer_norm(x, (depth,), gamma, beta), w))]
        return
    yield "matmul", [lambda: torch.mm(x, w, out=made)]
    yield "linear", [lambda: torch.addmm(bias, x, w)]
    yield "linear, gelu", [lambda: F.gelu(torch.addmm(bias, x, w))]
    yield "gelu", [lambda: F.gelu(made)]
    copies = math.ceil(COLD / (w.numel() * w.element_size())) + 1
    if copies <= MOST_COPIES:
        others = [w.clone() for _ in range(copies)]
        yield "matmul fresh", [lambda other=other: torch.mm(x, other, out=made) for other in others]  # type: ignore[misc]  # bound as a default


def attention(how: Mapping[str, Any], dtype: torch.dtype) -> Iterator[tuple[str, Sequence[Call]]]:
    """scaled_dot_product_attention, without the movement around it: heads are views of projections."""
    batch, heads, queries, keys, depth = (how[n] for n in ("batch", "heads", "queries", "keys", "depth"))
    q, k, v = (drawn(batch, s, heads, depth, dtype=dtype).transpose(1, 2) for s in (queries, keys, keys))
    mask = None
    if how["mask"] == "keys":
        mask = drawn(batch, 1, 1, keys, dtype=dtype).expand(batch, heads, queries, keys)
    if how["mask"] == "bias":
        mask = drawn(1, heads, queries, keys, dtype=dtype).expand(batch, heads, queries, keys)
    causal = how["mask"] == "causal"
    yield "sdpa", [lambda: F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)]


def between(how: Mapping[str, Any], dtype: torch.dtype) -> Iterator[tuple[str, Sequence[Call]]]:
    """What lies between products, as torch does it eagerly."""
    op, shape = how["op"], how["shape"]
    x, r = drawn(*shape, dtype=dtype), drawn(*shape, dtype=dtype)
    last = shape[-1]
    gamma, beta = drawn(last, dtype=dtype), drawn(last, dtype=dtype)
    taps, stride = how.get("taps", 0), how.get("stride", 0)
    if op == "depthwise":
        channels = shape[1]
        w, bias = drawn(channels, 1, taps, taps, dtype=dtype), drawn(channels, dtype=dtype)
        yield op, [lambda: F.conv2d(x, w, bias, stride, taps // 2, 1, channels)]
        return
    if op == "enlarged":
        images = [drawn(1, n * n, shape[0], dtype=dtype) for n in how["sides"]]
        squares = [i.transpose(1, 2).reshape(1, shape[0], n, n) for i, n in zip(images, how["sides"], strict=True)]
        size = (how["sides"][0],) * 2
        yield op, [lambda: torch.cat([F.interpolate(s, size, mode="bilinear") for s in squares], 1)]
        return
    first, second = (drawn(shape[0], dtype=dtype) for _ in range(2))
    calls: dict[str, Call] = {
        "layernorm": lambda: F.layer_norm(x, (last,), gamma, beta),
        "residual_layernorm": lambda: F.layer_norm(x + r, (last,), gamma, beta),
        "softmax": lambda: torch.softmax(x, -1),
        "bias_gelu": lambda: F.gelu(x + beta),
        "add_relu": lambda: torch.relu(x + r),
        "permute": lambda: x.permute(*how["perm"]).contiguous(),
        "norm_of_transposed": lambda: F.layer_norm(x.t().contiguous(), (shape[0],), first, second),
        "maxpool": lambda: F.max_pool2d(x, taps, stride, (taps - 1) // 2),
        "average pool": lambda: F.avg_pool2d(x, taps, stride, (taps - 1) // 2, count_include_pad=False),
        "global_average": lambda: x.mean((2, 3), keepdim=True),
    }
    yield op, [calls[op]]


def timed(how: Mapping[str, Any]) -> dict[str, Any]:
    """Microseconds of each way, and what went wrong; float32 with TF32 and without."""
    make = {"product": product, "attention": attention}.get(how["op"], between)
    found: dict[str, Any] = {"times": {}}
    for allowed in (False, True) if how["dtype"] == "float32" and make is not between else (False,):
        torch.backends.cuda.matmul.allow_tf32 = allowed
        for name, calls in make(how, TYPES[how["dtype"]]):
            if allowed and name == "gelu":
                continue
            try:
                found["times"][f"{name} tf32" if allowed else name] = microseconds(calls)
            except RuntimeError as problem:
                found["problem"] = f"{name}: {problem}"[:300]
                torch.cuda.synchronize()  # fails where the context is lost
    if torch.cuda.memory_reserved() > MOST_RESERVED:
        torch.cuda.empty_cache()
    return found


def main() -> None:
    """A line for each job; the first one that is read begins with the device."""
    with torch.no_grad():
        served(timed, torch.cuda.synchronize)


if __name__ == "__main__":
    main()
