"""Row kernels of every shape against the machine's own copy, torch and torch.compile; which parameters are fastest.

python -m benchmarks.gpu.rows OUT.json [--seconds 240] [--widths 768 4096] [--halves 1 0] [--reread] [--no-small]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from ctypes import c_longlong
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.gpu.driver import LOCAL_BYTES, REGISTERS, Compiler, CudaError, Driver, pointer

SOURCE = Path(__file__).with_name("rows.cu").read_text(encoding="utf-8")
OPS = ("softmax", "layernorm", "residual_layernorm", "bias_gelu", "copy")
MOVED = (2, 2, 3, 2, 2)  # tensors read and written
WIDTHS = (64, 128, 256, 512, 768, 1024, 2048, 3072, 4096, 8192, 16384, 32768, 65536)
COMPILED = (256, 768, 4096, 32768)  # widths at which torch.compile is measured
LONG = 8192  # from here on every operator tries every choice
POINTWISE = (1024, 3072)  # widths at which bias + GELU is measured: it has no rows
BEYOND_L2 = 256 << 20  # bytes of one tensor
SMALL = (  # rows and width as networks have them: (operator, rows, width)
    (0, 1536, 128), (0, 12288, 128), (0, 2352, 200), (1, 128, 768), (1, 1024, 768), (1, 3136, 96), (1, 196, 384),
    (2, 128, 768), (2, 1024, 768), (2, 128, 512), (3, 128, 3072), (3, 1024, 3072), (3, 3136, 384),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Choice:
    """The parameters of rows.cu."""

    op: int
    half: int
    n: int
    tpr: int
    threads: int
    rows: int = 1
    cluster: int = 1
    stream: int = 0
    packed: int = 0
    erf: int = 0
    early: int = 0
    reread: int = 0

    @property
    def vectors(self) -> int:
        """Vectors of a row."""
        return self.n * (2 if self.half else 4) // 16

    @property
    def chunks(self) -> int:
        """Vectors that a thread holds of one row."""
        return -(-self.vectors // self.cluster // self.tpr)

    @property
    def defines(self) -> tuple[str, ...]:
        """For the compiler."""
        return tuple(f"{name.upper()}={value}" for name, value in asdict(self).items())

    @property
    def shared(self) -> int:
        """Bytes of the arena."""
        groups, warps = self.threads // self.tpr, max(1, self.tpr // 32)
        return 4 * (2 * groups * self.rows * warps + 2 * self.rows)

    def grid(self, rows: int) -> int:
        """Blocks."""
        if self.op >= 3:
            return -(-rows * self.vectors // (self.threads * self.rows))
        return -(-rows // (self.threads // self.tpr * self.rows)) * self.cluster


def choices(op: int, half: int, n: int, *, small: bool = False) -> Iterator[Choice]:
    """What is worth trying."""
    streams = (0,) if small else (0, 1)
    if op >= 3:
        for threads in (128, 256, 512):
            for rows in (1, 2, 4, 8):
                for stream in streams:
                    for erf in (0, 1) if op == 3 else (0,):
                        yield Choice(op, half, n, 1, threads, rows, 1, stream, 0, erf)
        return
    for tpr, threads, rows, cluster in _shapes(n * (2 if half else 4) // 16):
        one = Choice(op, half, n, tpr, threads, rows, cluster)
        floats = one.chunks * rows * (8 if half else 4)
        for packed in (0, 1) if half else (0,):
            if _registers(floats // 2 if packed else floats, threads):
                for stream in streams:
                    for early in (0, 1) if small and op else (0,):
                        yield Choice(op, half, n, tpr, threads, rows, cluster, stream, packed, 0, early)
    yield from again(op, half, n)


def again(op: int, half: int, n: int) -> Iterator[Choice]:
    """Long rows that are read twice."""
    for tpr in (256, 512, 1024):
        if op < 3 and n * (2 if half else 4) // 16 >= 2 * tpr and n >= LONG:
            for stream in (0, 1):
                yield Choice(op, half, n, tpr, tpr, 1, 1, stream, 0, 0, 0, 1)


def _registers(kept: int, threads: int) -> bool:
    """Whether so many registers for values leave the others enough."""
    return kept <= min(96, 65536 // max(threads, 256) - 24)


def _shapes(vectors: int) -> Iterator[tuple[int, int, int, int]]:
    """Threads of a row, of a block, rows of a thread, blocks of a row."""
    for tpr in (4, 8, 16, 32, 64, 128, 256, 512, 1024):
        chunks = -(-vectors // tpr)
        if chunks > 16 or tpr > vectors:
            continue
        for threads in {128, 256} if tpr <= 32 else {tpr, max(tpr, 256)}:
            for rows in (1, 2, 4):
                if (threads >= tpr and chunks * rows <= (16 if vectors >= 2048 else 8)) or rows == 1:
                    yield tpr, threads, rows, 1
    for cluster in (2, 4, 8):
        for tpr in (128, 256, 512, 1024):
            for rows in (1, 2, 4):
                chunks = -(-vectors // cluster // tpr)
                if vectors % cluster == 0 and vectors >= 1024 and vectors // cluster >= tpr and chunks * rows <= 16:
                    yield tpr, tpr, rows, cluster


def reference(op: int, x: Tensor, r: Tensor, g: Tensor, b: Tensor) -> Tensor:
    """In float64."""
    x, r, g, b = (each.double() for each in (x, r, g, b))
    if op == 0:
        return torch.softmax(x, -1)
    if op == 3:
        return functional.gelu(x + b)
    return x if op == 4 else functional.layer_norm(x + r if op == 2 else x, x.shape[-1:], g, b, 1e-5)


def plain(op: int) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """As a user of torch writes it."""
    if op == 0:
        return lambda x, r, g, b: torch.softmax(x, -1)
    if op == 3:
        return lambda x, r, g, b: functional.gelu(x + b)
    if op == 2:
        return lambda x, r, g, b: functional.layer_norm(x + r, x.shape[-1:], g, b, 1e-5)
    return lambda x, r, g, b: functional.layer_norm(x, x.shape[-1:], g, b, 1e-5)


def microseconds(work: Callable[[], Any], repeats: int = 10, warm: int = 2) -> float:
    """The median by events, one pair for each run, all queued before the first is read."""
    for _ in range(warm):
        work()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for begin, end in events:
        begin.record()
        work()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) * 1e3 for begin, end in events)


def in_graph(work: Callable[[], Any], copies: int = 64) -> float:
    """Microseconds of one of so many runs in a row inside a CUDA graph."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(copies):
            work()
    return microseconds(graph.replay, 15) / copies


class Data:
    """Tensors of one width; the output is poisoned before each check."""

    def __init__(self, half: int, n: int, rows: int) -> None:
        kind = torch.float16 if half else torch.float32
        random = torch.Generator("cuda").manual_seed(n + half)
        self.rows, self.n = rows, n
        self.x, self.r = (torch.randn((rows, n), generator=random, device="cuda", dtype=kind) for _ in range(2))
        self.g, self.b = (torch.randn(n, generator=random, device="cuda", dtype=kind) for _ in range(2))
        self.y = torch.empty_like(self.x)

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """In the order of the kernels."""
        return self.x, self.r, self.g, self.b

    def error(self, op: int, y: Tensor) -> float:
        """The largest error of some rows, over the largest value of the reference; infinity where one is missing."""
        some = torch.linspace(0, self.rows - 1, min(self.rows, 64), device="cuda").long()
        wanted = reference(op, self.x[some], self.r[some], self.g, self.b)
        error = (y[some].double() - wanted).abs().max() / wanted.abs().max()
        return float(error) if bool(torch.isfinite(y).all()) else float("inf")


def sweep(compiler: Compiler, driver: Driver, data: Data, given: Sequence[Choice], timer: Any) -> list[dict[str, Any]]:
    """Every choice that fits, fastest first."""
    found = []
    images = compiler.compile_all([(SOURCE, "sm_90", each.defines) for each in given], os.cpu_count() or 2)
    for choice, (image, _) in zip(given, images, strict=True):
        function = driver.load(image)
        facts = {"registers": function.attribute(REGISTERS), "spilled": function.attribute(LOCAL_BYTES)}
        values = [pointer(each) for each in (*data.inputs, data.y)]
        launch = function.launcher(
            choice.grid(data.rows), choice.threads, choice.shared, *values, c_longlong(data.rows)
        )

        def work(launch: Any = launch) -> None:
            launch(torch.cuda.current_stream().cuda_stream)

        data.y.fill_(float("nan"))
        try:
            work()
            torch.cuda.synchronize()
            error = data.error(choice.op, data.y)
            found.append({**asdict(choice), **facts, "error": error, "us": timer(work)})
        except CudaError as refused:
            found.append({**asdict(choice), **facts, "failed": str(refused), "us": float("inf")})
        function.unload()
    return sorted(found, key=lambda each: each["us"])


def peers(data: Data, op: int, timer: Any, compiled: bool) -> dict[str, Any]:
    """Microseconds of torch, and of torch.compile where asked."""
    call = plain(op)
    row: dict[str, Any] = {"eager_us": timer(lambda: call(*data.inputs))}
    if compiled:
        torch._dynamo.reset()
        made = torch.compile(call, dynamic=False)
        row["compile_error"] = data.error(op, made(*data.inputs))
        row["compile_us"] = timer(lambda: made(*data.inputs))
    return row


def large(
    compiler: Compiler, driver: Driver, widths: Sequence[int], halves: Sequence[int], twice: bool, deadline: float
) -> list[dict[str, Any]]:
    """Tensors beyond L2: fractions are of the fastest copy of the same run."""
    rows = []
    for half in halves:
        data = Data(half, 1024, BEYOND_L2 // 1024 // (2 if half else 4))
        ours = sweep(compiler, driver, data, [*choices(4, half, 1024)], microseconds)
        library = microseconds(lambda data=data: data.y.copy_(data.x))
        copy = 2 * BEYOND_L2 / min(ours[0]["us"], library) * 1e-3
        rows.append(
            {"op": "copy", "half": half, "gb_s": copy, "library_gb_s": 2 * BEYOND_L2 / library * 1e-3, "best": ours[:4]}
        )
        say(f"copy half={half}: {copy:.0f} GB/s, library {rows[-1]['library_gb_s']:.0f}")
        for n in widths:
            data = Data(half, n, BEYOND_L2 // n // (2 if half else 4))
            likely: list[Choice] = []
            for op in range(4):
                if time.monotonic() > deadline:
                    say("out of time")
                    return rows
                if op == 3 and n not in POINTWISE:
                    continue
                row = {"op": OPS[op], "half": half, "n": n, "rows": data.rows}
                given = [replace(each, op=op) for each in likely] if likely else [*choices(op, half, n)]
                given = [*again(op, half, n)] if twice else given
                found = sweep(compiler, driver, data, given, microseconds)
                likely = _likely(found) if op == 0 and n < LONG else likely
                row |= {"tried": len(found), "worst_error": max(each.get("error", 0) for each in found)}
                row |= {"choices": [_fraction(each, op, copy) for each in found[:6] + _families(found)]}
                peer = peers(data, op, microseconds, n in COMPILED)
                row |= peer | {
                    name.replace("_us", "_fraction"): MOVED[op] * BEYOND_L2 / us * 1e-3 / copy
                    for name, us in peer.items() if name.endswith("_us")
                }  # fmt: skip
                rows.append(row)
                say(_line(row))
            del data
            torch.cuda.empty_cache()
    return rows


def _likely(found: Sequence[dict[str, Any]], most: int = 16) -> list[Choice]:
    """The fastest choices: those that are tried for the other operators of the same width."""
    names = [each.name for each in fields(Choice)]
    return [Choice(**{name: each[name] for name in names}) for each in found[:most]]


def _families(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The fastest of each kind of schedule: so many threads of a row, so many blocks."""
    best: dict[tuple[int, int, int], dict[str, Any]] = {}
    for each in found:
        best.setdefault((each["tpr"], each["cluster"], each["reread"]), each)
    return [each for each in best.values() if each not in found[:6]]


def _fraction(each: dict[str, Any], op: int, copy: float) -> dict[str, Any]:
    return each | {"fraction": MOVED[op] * BEYOND_L2 / each["us"] * 1e-3 / copy}


def _line(row: dict[str, Any]) -> str:
    best = row["choices"][0] if "choices" in row else row["best"]
    shape = " ".join(
        f"{name}={best[name]}"
        for name in ("tpr", "threads", "rows", "cluster", "stream", "packed", "erf", "early", "reread")
    )
    return (
        f"{row['op']} half={row['half']} n={row['n']}: {best.get('fraction', 0):.3f} {best['us']:.2f} us ({shape} "
        f"regs={best['registers']} spilled={best['spilled']} err={best.get('error', -1):.1e}); "
        f"eager {row['eager_us']:.2f} "
        f"{row.get('eager_fraction', 0):.3f}, compile {row.get('compile_us', 0):.2f} "
        f"{row.get('compile_fraction', 0):.3f}"
    )


def small(compiler: Compiler, driver: Driver, deadline: float) -> list[dict[str, Any]]:
    """The sizes of networks, in L2: time of one kernel in a graph of many."""
    rows = []
    for half in (1, 0):
        for op, count, n in SMALL:
            if time.monotonic() > deadline:
                return rows
            data = Data(half, n, count)
            found = sweep(compiler, driver, data, [*choices(op, half, n, small=True)], in_graph)
            row = {"op": OPS[op], "half": half, "n": n, "rows": count, "best": found[0], "slowest_us": found[-1]["us"]}
            row["choices"] = found[:6]
            row |= peers(data, op, in_graph, True)
            rows.append(row)
            say(_line(row) + f" rows={count}")
    return rows


def say(line: str) -> None:
    """Progress, for a person."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--widths", type=int, nargs="*", default=WIDTHS)
    parser.add_argument("--halves", type=int, nargs="*", default=(1, 0))
    parser.add_argument("--reread", action="store_true", help="long rows: only those choices that read them twice")
    parser.add_argument("--no-small", action="store_true")
    asked = parser.parse_args()
    torch.zeros(1, device="cuda")
    compiler, driver = Compiler(), Driver()
    deadline = time.monotonic() + asked.seconds
    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "nvrtc": compiler.version,
        "torch": torch.__version__,
    }
    parts: dict[str, Callable[[], Any]] = {
        "small": lambda: [] if asked.no_small else small(compiler, driver, deadline),
        "large": lambda: large(compiler, driver, asked.widths, asked.halves, asked.reread, deadline),
    }
    for name, work in parts.items():
        result[name] = work()
        asked.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
