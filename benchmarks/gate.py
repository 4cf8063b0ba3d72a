"""How often `--fail-if-slower` is right: a model against itself and against slower copies, on idle and on busy cores.

`python -m benchmarks.gate --runs 50` prints a table. A copy is slower by equal layers: the network is a chain of equal
ones, and a copy has 5 or 10 % more of them, so that it is that much more of the same work, whatever the machine does.
Cores are kept busy by one process each that counts for ever.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.errors import OnnxFuseError
from onnxfuse.measure import ratios
from onnxfuse.measure.profile import profile_models
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
    """So many processes that never wait."""
    stop = threading.Event()
    with ThreadPoolExecutor(max(1, cores)) as pool:
        for _ in range(cores):
            pool.submit(process.run, _FOREVER, stop=stop)
        try:
            yield
        finally:
            stop.set()


def verdicts(pair: Sequence[Path], runs: int, limit: float, threads: int, duration: float) -> Counter[str]:
    """What is said of the second model, as often as it is asked; what fails counts under its own name."""
    found: Counter[str] = Counter()
    for _ in range(runs):
        try:
            seen = profile_models(pair, threads=threads, duration=duration, limit=limit).slower
        except OnnxFuseError as problem:
            found[type(problem).__name__] += 1
            continue
        assert seen is not None
        found[ratios.verdict(seen, limit)] += 1
    return found


def main(arguments: Sequence[str]) -> int:
    """Print how often each verdict was given."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gate", description=__doc__)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--limit", type=float, default=0.03)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--duration", type=float, default=3.0)
    parser.add_argument("--busy", type=int, nargs="+", default=[len(os.sched_getaffinity(0)), 0])
    parser.add_argument("--slower", type=int, nargs="+", default=[0, 5, 10], metavar="PERCENT")
    parser.add_argument("--size", type=int, nargs=2, default=[256, 64], metavar=("WIDTH", "ROWS"))
    given = parser.parse_args(arguments)
    sys.stdout.write("busy cores  slower by  slower  not slower  inconclusive  failed  seconds a run  load\n")
    with work_folder() as folder:
        first = chain(Path(folder, "first.onnx"), LAYERS, *given.size)
        for cores in given.busy:
            for percent in given.slower:
                layers = LAYERS + LAYERS * percent // 100
                second = chain(Path(folder, f"more{percent}.onnx"), layers, *given.size)
                begin = time.monotonic()
                with busy(cores):
                    said = verdicts((first, second), given.runs, given.limit, given.threads, given.duration)
                counts = [said.pop(word, 0) for word in (ratios.SLOWER, ratios.NOT_SLOWER, ratios.INCONCLUSIVE)]
                seconds = (time.monotonic() - begin) / given.runs
                line = f"{cores:10}  {percent:7} %  {counts[0]:6}  {counts[1]:10}  {counts[2]:12}"
                sys.stdout.write(f"{line}  {said.total():6}  {seconds:13.1f}  {os.getloadavg()[0]:.1f}\n")
                sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
