"""All schedule candidates of contractions of many shapes, measured in turns: the regret of the predicted choice.

The regret is the time of the chosen candidate over that of the fastest. Weights come from memory, as in a large
network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rendered.kernels import rendered
from benchmarks.rendered.models import Twin, convolution, product
from benchmarks.rendered.run import race
from benchmarks.twins.run import STREAM_BYTES, input_sets
from onnxfuse.build import EXPORTED
from onnxfuse.ir.kernel import RankedSchedules
from onnxfuse.schedule.cpu.candidates import CostRanking, ScheduleCandidate
from tests.kernels.pool_host import Pool

# Rows, depth, columns: few rows and many, few columns, deep sums, rows at distances of 4 KB.
PRODUCTS = (
    (128, 768, 768), (128, 768, 2304), (128, 768, 3072), (128, 3072, 768), (197, 768, 3072), (197, 3072, 768),
    (128, 512, 128), (128, 128, 512), (4, 1024, 4096), (8, 768, 3072), (16, 768, 768), (32, 1024, 1024),
    (64, 4096, 1024), (37, 640, 1000), (49, 3072, 768), (384, 768, 3072), (512, 768, 768), (512, 1024, 4096),
    (196, 384, 1536), (196, 1536, 384), (784, 192, 768), (784, 768, 192), (1024, 256, 64), (2048, 64, 64),
    (3136, 96, 384), (4096, 128, 512), (4096, 1024, 256), (128, 768, 30522),
)  # fmt: skip
# Side of the image, channels, filters, side of the kernel, stride.
CONVOLUTIONS = (
    (56, 64, 64, 3, 1), (28, 128, 128, 3, 1), (14, 256, 256, 3, 1), (7, 512, 512, 3, 1), (28, 256, 256, 3, 2),
    (56, 64, 256, 1, 1), (56, 256, 64, 1, 1), (28, 512, 128, 1, 1), (14, 256, 1024, 1, 1), (14, 1024, 256, 1, 1),
    (7, 512, 2048, 1, 1), (7, 2048, 512, 1, 1), (28, 512, 1024, 1, 2), (112, 16, 96, 1, 1), (56, 24, 144, 1, 1),
    (14, 384, 64, 1, 1), (7, 960, 160, 1, 1), (56, 32, 32, 3, 1),
)  # fmt: skip
QUICK = 9  # of so many shapes one is raced to see that it works


def cases() -> Iterator[tuple[str, Callable[[], Twin]]]:
    """The shapes by name."""
    for shape in PRODUCTS:
        yield "x".join(map(str, shape)), lambda shape=shape: product(*shape)
    for side, channels, filters, kernel, stride in CONVOLUTIONS:
        name = f"{side}x{side} {channels} to {filters}, {kernel}x{kernel}" + (f" stride {stride}" if stride > 1 else "")
        yield name, lambda shape=(side, channels, filters, kernel, stride): convolution(*shape)


def measure(name: str, twin: Twin, folder: Path, threads: Sequence[int], seconds: float) -> Iterator[dict[str, Any]]:
    """A row for each number of threads: microseconds of every way, predicted and measured, the one chosen first."""
    found: list[tuple[Sequence[ScheduleCandidate], tuple[RankedSchedules, ...]]] = []

    def chosen(
        ranking: CostRanking, ways: Sequence[ScheduleCandidate], *others: Any
    ) -> tuple[ScheduleCandidate, tuple[RankedSchedules, ...]]:
        best, choices = replace(ranking, run_weight_bytes=STREAM_BYTES).best(ways, *others)
        found.append((ways, choices))
        return best, choices

    kernel = rendered(f"{name} chosen", twin, folder, chosen)
    ((ways, choices),) = found
    names = [way for way, _ in choices[0].candidates] if choices else [ways[0].name]

    def forced(name: str) -> Any:
        return lambda ranking, ways, *others: (next(way for way in ways if way.name == name), ())

    built = [rendered(f"{name} {i}", twin, folder, forced(way)) for i, way in enumerate(names)]
    sets = input_sets(kernel.inputs, kernel.weight)
    for count in threads:
        with Pool(count) as pool:
            times = race(pool, [(pool.load(each.library, EXPORTED), sets) for each in built], seconds)
        us = [float(t.min()) * 1e6 for t in times]
        predicted = {way: seconds * 1e6 for way, seconds in choices[0].candidates} if choices else {}
        rows = [{"way": way, "us": t, "predicted": predicted.get(way)} for way, t in zip(names, us, strict=True)]
        yield {"shape": name, "threads": count, "ways": rows, "regret": us[0] / min(us)}


def rows(folder: Path, seconds: float, *, quick: bool) -> list[dict[str, Any]]:
    """All rows; `quick`: of a few shapes."""
    chosen = list(cases())[:: QUICK if quick else 1]
    return [row for name, twin in chosen for row in measure(name, twin(), folder, (1, 2), seconds)]


def mean_regret(found: Sequence[dict[str, Any]], threads: int) -> tuple[float, float]:
    """The geometric mean of the regrets on so many threads, and the largest."""
    regrets = [row["regret"] for row in found if row["threads"] == threads]
    return float(np.exp(np.mean(np.log(regrets)))), max(regrets)
