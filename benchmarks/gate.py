"""The accuracy of `--fail-if-slower`: a model against itself and against slower copies, on idle and on busy cores.

`python -m benchmarks.gate --runs 50 --rows benchmarks/gate.csv` prints each run, appends it to the file, and finally
prints a table of all runs in the file. Existing runs are not repeated, so it can be run in pieces. The network is a
chain of equal layers, and a slower copy has 5 or 10 % more of them. Cores are kept busy by one spinning process each.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import os
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.errors import OnnxFuseError
from onnxfuse.measure import ratios
from onnxfuse.measure.profile import profile_models
from onnxfuse.measure.ratios import Ratio
from onnxfuse.runtime import process
from onnxfuse.runtime.folders import work_folder

LAYERS = 40
_FOREVER = ("/bin/sh", "-c", "while :; do :; done")


def chain(path: Path, layers: int, width: int, rows: int) -> Path:
    """A model of equal layers, each a product and a maximum; all read the same weights."""
    weights = np.random.default_rng(0).standard_normal((width, width), np.float32) * np.float32((2.0 / width) ** 0.5)
    nodes, value = [], "x"
    for number in range(layers):
        nodes.append(helper.make_node("MatMul", [value, "w"], [f"product{number}"]))
        value = "y" if number == layers - 1 else f"value{number}"
        nodes.append(helper.make_node("Relu", [f"product{number}"], [value]))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, width]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], [numpy_helper.from_array(weights, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@contextmanager
def busy(cores: int) -> Iterator[None]:
    """Processes that keep a number of cores busy."""
    stop = threading.Event()
    with ThreadPoolExecutor(max(1, cores)) as pool:
        for _ in range(cores):
            pool.submit(process.run, _FOREVER, stop=stop)
        try:
            yield
        finally:
            stop.set()


@dataclass(frozen=True, slots=True)
class Row:
    """One run: what was asked, what was said. `load` is the load average before it, not without its own busy cores."""

    busy: int
    slower: int  # per cent
    size: str
    threads: int
    limit: float
    verdict: str  # or what it failed with
    value: float
    low: float
    high: float
    pairs: int
    disturbed: float
    seconds: float
    load: float

    @property
    def question(self) -> tuple[int, int, str, int, float]:
        """The key of rows that are counted together."""
        return self.busy, self.slower, self.size, self.threads, self.limit


COLUMNS = tuple(each.name for each in fields(Row))


def read(path: Path) -> list[Row]:
    """The rows of a file; none if it does not exist."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as stream:
        kinds = {each.name: {"int": int, "float": float, "str": str}[str(each.type)] for each in fields(Row)}
        return [Row(**{name: kinds[name](text) for name, text in row.items()}) for row in csv.DictReader(stream)]


def add(path: Path, row: Row) -> None:
    """Append a row; the first one is preceded by the names of the columns."""
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        if new:
            writer.writerow(COLUMNS)
        writer.writerow(astuple(row))


def table(rows: Sequence[Row]) -> str:
    """Counts of verdicts by question, and how often the interval contained the true ratio."""
    words = (ratios.SLOWER, ratios.NOT_SLOWER, ratios.INCONCLUSIVE)
    lines = [
        "| busy cores | slower by | runs | slower | not slower | inconclusive | failed | truth held | seconds, median |"
    ]
    lines += ["| ---: " * 9 + "|"]
    for question in dict.fromkeys(row.question for row in rows):
        of = [row for row in rows if row.question == question]
        counts = Counter(row.verdict for row in of)
        said = [counts.pop(word, 0) for word in words]
        held = sum(row.low <= 1.0 + row.slower / 100 <= row.high for row in of)
        seconds = f"{statistics.median(row.seconds for row in of):.0f}"
        cells = [question[0], f"{question[1]} %", len(of), *said, counts.total(), held, seconds]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def asked(pair: Sequence[Path], question: tuple[int, int, str, int, float], duration: float) -> Row:
    """The verdict about the second model."""
    limit, load, begin = question[-1], os.getloadavg()[0], time.monotonic()
    nothing = Ratio(math.nan, math.nan, math.nan, 0)
    try:
        found = profile_models(pair, threads=question[3], duration=duration, limit=limit).slower or nothing
        said = ratios.verdict(found, limit)
    except OnnxFuseError as problem:
        found, said = nothing, type(problem).__name__
    measured = (round(each, 4) for each in (found.value, found.low, found.high))
    seconds = round(time.monotonic() - begin, 1)
    return Row(*question, said, *measured, found.pairs, round(found.disturbed, 2), seconds, round(load, 1))


def main(arguments: Sequence[str]) -> int:
    """Make the missing runs, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gate", description=__doc__)
    parser.add_argument("--rows", type=Path, required=True, metavar="FILE.csv")
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which no other run is begun")
    parser.add_argument("--limit", type=float, default=0.03)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--duration", type=float, default=3.0)
    parser.add_argument("--busy", type=int, nargs="+", default=[len(os.sched_getaffinity(0)), 0])
    parser.add_argument("--slower", type=int, nargs="+", default=[0, 5, 10], metavar="PERCENT")
    parser.add_argument("--size", type=int, nargs=2, default=[256, 64], metavar=("WIDTH", "ROWS"))
    given = parser.parse_args(arguments)
    until = time.monotonic() + given.seconds
    with work_folder() as folder:
        first = chain(Path(folder, "first.onnx"), LAYERS, *given.size)
        for cores, percent in itertools.product(given.busy, given.slower):
            second = chain(Path(folder, f"more{percent}.onnx"), LAYERS + LAYERS * percent // 100, *given.size)
            question = cores, percent, "x".join(map(str, given.size)), given.threads, given.limit
            with busy(cores):
                while time.monotonic() < until and sum(r.question == question for r in read(given.rows)) < given.runs:
                    row = asked((first, second), question, given.duration)
                    add(given.rows, row)
                    sys.stdout.write(" ".join(map(str, astuple(row))) + "\n")
                    sys.stdout.flush()
    sys.stdout.write(table(read(given.rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
