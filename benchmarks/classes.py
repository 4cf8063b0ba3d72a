"""Small models of each class of kernels that was once slower than ONNX Runtime, measured in turns with it.

    python -m benchmarks.classes [PART ...] [--threads 1 2] [--seconds 1.0] [--all] [--open] [--cache DIR]

PART is a part of the names of classes. Prints a line for each size and number of threads, and finally how many are
slower with their whole 95 % interval. Builds use the defaults except for `--no-gain`, so that groups are refused by
prediction only. With `--open` each is also built for sizes not known then, and run at the same sizes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import onnx

from models.classes import CLASSES, Size
from models.opened import opened
from onnxfuse import optimize
from onnxfuse.errors import DeviceError
from onnxfuse.measure.gain import GainResult, measure_gain

LONGEST = 20.0  # seconds of a repeated measurement


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement; None where no kernel was built."""

    name: str
    size: Size
    threads: int
    kernels: int
    gained: GainResult | None
    open: bool = False

    @property
    def loses(self) -> bool:
        """Whether it is slower than the runtime, as far as the interval tells."""
        return self.gained is not None and self.gained.ratio.high < 1.0

    def __str__(self) -> str:
        size = "x".join(map(str, self.size)) if isinstance(self.size, tuple) else str(self.size)
        what = f"{self.name:38} {size:>18}{' open' * self.open} {self.threads} threads {self.kernels} kernels"
        if self.gained is None:
            return what
        (at,), r = self.gained.sizes, self.gained.ratio
        return (
            f"{what} {at.before_ms:9.4f} {at.after_ms:9.4f} ms {r.value:6.2f}x ({r.low:.2f} to {r.high:.2f})"
            f"{' loses' * self.loses}{' busy' * r.busy}"
        )


def measure(
    parts: Sequence[str], counts: Sequence[int], seconds: float, folder: Path, cache: str | None, least: int, both: bool
) -> Iterator[Row]:
    """Rows of the classes whose names contain one of the parts."""
    wanted = {name: row for name, row in CLASSES.items() if any(part in name for part in parts)}
    for name, row in wanted.items():
        for size in row.sizes:
            path, out = folder / "model.onnx", folder / "fused.onnx"
            models: list[tuple[onnx.ModelProto, Mapping[str, int]]] = [(row.build(size), {})]
            if both:
                models.append(opened(models[0][0]))
            for model, sizes in models:
                onnx.save(model, path)
                made = optimize(path, out, gain=False, verify=False, overwrite=True, cache_dir=cache, min_group=least)
                for count in counts:
                    gained = None
                    if made.output.library is not None:
                        gained = _raced(path, out, Path(made.output.library), sizes, count, seconds)
                    yield Row(name, size, count, made.kernels, gained, bool(sizes))


def _raced(
    original: Path, made: Path, library: Path, sizes: Mapping[str, int], threads: int, seconds: float
) -> GainResult:
    """Both in turns; longer if too few runs fit."""
    race = partial(measure_gain, original, made, library=library, kernels={}, sizes=(sizes,), threads=threads)
    while True:
        try:
            return race(seconds=seconds)
        except DeviceError:
            if seconds > LONGEST:
                raise
            seconds *= 2


def main() -> None:
    """Print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=[""], metavar="PART")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--cache", default=None, help="the folder in which kernels are kept")
    parser.add_argument("--all", action="store_true", help="also what is predicted to lose (--min-group 1)")
    parser.add_argument("--open", action="store_true", help="also built for sizes not known then")
    asked = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as top:
        cache = asked.cache or str(Path(top, "cache"))
        least = 1 if asked.all else 2
        for row in measure(asked.parts, asked.threads, asked.seconds, Path(top), cache, least, asked.open):
            sys.stdout.write(f"{row}\n")
            sys.stdout.flush()
            rows.append(row)
    lost = sum(row.loses for row in rows)
    sys.stdout.write(f"{len(rows)} measured, {lost} slower than ONNX Runtime\n")


if __name__ == "__main__":
    main()
