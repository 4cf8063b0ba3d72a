"""The plans of all strategies for a network, also without rewriting and without layouts: kernels, phases and times.

    python scripts/ablation.py [MODEL.onnx | NAME ...] [--strategies a,b] [--budget N] [--measure] [--write]

Names are those of `python -m models --list`; without any, small networks are taken. Everything is planned and scheduled
here, in one process. `--measure` builds the models too, and runs all builds of a network in turns; `--write` writes
docs/ablation.md, in which other networks stay as they are.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import process_time
from typing import Any

import onnx
import onnxruntime as ort

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # for the rooms that are not installed

from benchmarks.tables import table  # noqa: E402
from models.networks import network  # noqa: E402
from onnxfuse.config import BEST, SEARCHES, STRATEGIES, Options  # noqa: E402
from onnxfuse.ir.graph import Graph  # noqa: E402
from onnxfuse.ir.group import Plan  # noqa: E402
from onnxfuse.measure.profile import profile_models  # noqa: E402
from onnxfuse.pipeline import optimize  # noqa: E402
from onnxfuse.pipeline.calls import Calls  # noqa: E402
from onnxfuse.plan import plan  # noqa: E402
from onnxfuse.plan.legality import Legality  # noqa: E402
from onnxfuse.plan.planner import predicted  # noqa: E402
from onnxfuse.plan.price import Costing, PriceMemo, Seconds  # noqa: E402
from onnxfuse.report.result import Result  # noqa: E402

SMALL = ("tiny-bert", "tiny-gpt2", "tiny-mobilenet", "tiny-resnet", "tiny-vit", "tiny-swin", "tiny-convnext")
# Layers of DNNFusion's table 5 (PLDI 2021): operators of its graph, kernels that it makes of them.
PUBLISHED = {
    "efficientnet-b0": (309, 97), "vgg-16": (51, 17), "mobilenet-v1-ssd": (202, 71), "yolo-v4": (398, 135),
    "c3d": (27, 16), "s3d": (272, 98), "u-net": (292, 82), "faster-r-cnn": (3640, 942), "mask-r-cnn": (3999, 981),
    "tinybert-4": (366, 74), "distilbert-base": (457, 109), "albert-base": (936, 225), "bert-base": (976, 216),
    "mobilebert": (2387, 510), "gpt2": (2533, 254),
}  # fmt: skip
SEARCHED = 400  # candidates: with as few as a build schedules, strategies that need prices stay without
OUT = ROOT / "docs" / "ablation.md"
HEAD = """# Ablation

Written by `python scripts/ablation.py --write`. A row is a strategy (`--strategy`); the strategy `none` is the one
without fusion. *without* names what else is switched off: rewriting, or layouts, where every image between kernels has
ONNX Runtime's layout, channels first. *left* are nodes that stay with ONNX Runtime: published strategies leave
contractions alone, and groups of one operator are no kernels by default. *predicted* is the time of kernels and of
these nodes, at most, on the cores of the target; *worst* is the largest ratio to the plan of `anchors`, without the
same, at any number of cores and size that prices are made of. Operators are those of the file as it is loaded, with
shapes and constants computed; DNNFusion's figures count what its exports hold, which of detectors of regions and of
GPT-2 is three to five times as much. *search* is the processor time of planning alone, in which so many candidates were
*scheduled*. *measured* is the least time of the builds run in turns.
"""


REWRITING, LAYOUTS = "rewriting", "layouts"
SWITCHED_OFF = ("", REWRITING, LAYOUTS)


@dataclass(frozen=True)
class Row:
    """A plan with its figures; seconds at each number of cores and size at which prices are predicted."""

    strategy: str
    without: str
    result: Result
    seconds: Seconds | None
    search: float
    scheduled: int
    shown: int


class Watch:
    """Plans as a build does, and keeps the last plan, of the main graph of a model, and what it was priced by."""

    def __init__(self, *, layouts: bool = True) -> None:
        self.layouts = layouts
        self.asked: tuple[Plan, Options, Legality, Costing] | None = None
        self.search = 0.0  # seconds of the processor

    def __call__(
        self,
        graph: Graph,
        rows: Any,
        options: Options,
        out: frozenset[str],
        legality: Legality,
        costing: Costing,
        **more: Any,
    ) -> Plan:
        """The plan, as `onnxfuse.plan` makes it."""
        began = process_time()
        made = plan(graph, rows, options, out, legality, costing, **more)
        made = made if self.layouts else replace(made, layouts={})
        self.search += process_time() - began
        self.asked = (made, options, legality, costing)
        return made


def switched(without: str) -> tuple[Watch, Calls]:
    """Calls of a build without rewriting or layouts."""
    watch = Watch(layouts=without != LAYOUTS)
    calls = replace(Calls(), plan=watch)
    return watch, replace(calls, rewrite=lambda graph, options, bugs: (graph, ())) if without == REWRITING else calls


def row(model: bytes, strategy: str, budget: int, *, without: str = "", **options: Any) -> Row:
    """The plan of one strategy, with further options."""
    watch, calls = switched(without)
    result = optimize(model, calls=calls, strategy=strategy, plan_budget=budget, stop_after="schedule", **options)
    assert watch.asked is not None
    made, options, legality, costing = watch.asked
    seconds = predicted(made, options, legality, replace(costing, memo=PriceMemo(sys.maxsize)))
    points = len(costing.machines)
    shown = costing.shown + (len(seconds) // points // 2 * points if seconds is not None else 0)
    return Row(strategy, without, result, seconds, watch.search, costing.memo.scheduled, shown)


HEADS = ("strategy", "without", "kernels", "left", "phases", "predicted", "worst", "search", "scheduled")


def shown(rows: Sequence[Row], measured: Sequence[float]) -> str:
    """The rows of one network as a table."""
    anchors = {r.without: r.seconds for r in rows if r.strategy == "anchors"}
    lines = [_cells(r, anchors.get(r.without)) for r in rows]
    if not measured:
        return table(HEADS, lines)
    times = [f"{ms:.4g} ms" for ms in measured]
    return table((*HEADS, "measured"), [(*line, ms) for line, ms in zip(lines, times, strict=True)])


def _cells(r: Row, unit: Seconds | None) -> tuple[object, ...]:
    """A row, relative to the seconds of the plan of `anchors`."""
    kernels = (r.result.kernels, r.result.nodes_left, r.result.phases)
    took = (f"{r.search:.2f} s", r.scheduled)
    name = (r.strategy, r.without or "-")
    if r.seconds is None or unit is None:
        return (*name, *kernels, "-", "-", *took)
    worst = max(a / b for a, b in zip(r.seconds, unit, strict=True))
    return (*name, *kernels, f"{r.seconds[r.shown] * 1e3:.4g} ms", f"{worst:.3f}", *took)


def measure(model: Path, rows: Sequence[Row], budget: int, threads: int) -> list[float]:
    """Least milliseconds of the original and of the builds of these rows, run in turns."""
    with tempfile.TemporaryDirectory() as folder:
        paths, libraries = [model], [None]
        for number, each in enumerate(rows):
            out, (_, calls) = Path(folder, f"{number}.onnx"), switched(each.without)
            made = optimize(model, out, calls=calls, strategy=each.strategy, plan_budget=budget, gain=False)
            paths.append(out)
            libraries.append(made.output.library)
        found = profile_models(paths, libraries=libraries, threads=threads, a_a=False)
    return [m.latency_ms.min for m in found.models]


def runtime_nodes(model: Path) -> int:
    """Nodes that ONNX Runtime itself has to run after all of its own optimizations."""
    with tempfile.TemporaryDirectory() as folder:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.optimized_model_filepath = str(Path(folder, "optimized.onnx"))
        ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        return len(onnx.load(options.optimized_model_filepath, load_external_data=False).graph.node)


def section(name: str, path: Path, arguments: argparse.Namespace) -> str:
    """The section of one network."""
    model = path.read_bytes()
    strategies = arguments.strategies.split(",")
    rows = []
    for without in SWITCHED_OFF:
        for strategy in strategies:
            rows.append(row(model, strategy, arguments.budget, without=without))
            print(name, *_cells(rows[-1], rows[-1].seconds), file=sys.stderr, flush=True)
    original, *measured = measure(path, rows, arguments.budget, arguments.threads) if arguments.measure else [0.0]
    before = rows[0].result.nodes_before
    published = PUBLISHED.get(name.removesuffix(".decomposed"))
    beside = f"; ONNX Runtime optimizes them to {runtime_nodes(path)} nodes"
    beside += f"; DNNFusion: {published[0]} operators, {published[1]} kernels" if published is not None else ""
    first = f"; the original takes {original:.4g} ms" if measured else ""
    return f"\n## {name}\n\n{before} operators{beside}{first}.\n\n{shown(rows, measured)}\n"


def written() -> dict[str, str]:
    """The existing sections of the page, by network."""
    text = OUT.read_text(encoding="utf-8") if OUT.exists() else ""
    return {part.split("\n", maxsplit=1)[0]: f"\n## {part}" for part in text.split("\n## ")[1:]}


def files(models: Iterable[str]) -> Iterator[Path]:
    """The models: files, and networks of `models/` by name, which are built in a temporary folder one by one."""
    with tempfile.TemporaryDirectory() as folder:
        for name in models:
            path = Path(name)
            if path.suffix != ".onnx":
                path = Path(folder, f"{name}.onnx")
                path.write_bytes(network(name).build().SerializeToString())
            yield path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("models", nargs="*", default=SMALL, help="files, or names of networks")
    parser.add_argument("--strategies", default=",".join((*(s for s in STRATEGIES if s not in SEARCHES), BEST)))
    parser.add_argument("--budget", type=int, default=SEARCHED, help="candidates that may be scheduled")
    parser.add_argument("--measure", action="store_true", help="build, and run in turns")
    parser.add_argument("--threads", type=int, default=1, help="of measured runs")
    parser.add_argument("--write", action="store_true", help=f"write {OUT.relative_to(ROOT)}")
    arguments = parser.parse_args()
    parts: dict[str, str] = written() if arguments.write else {}
    for path in files(arguments.models):
        parts[path.stem] = section(path.stem, path, arguments)
        print(parts[path.stem], flush=True)
        if arguments.write:
            OUT.write_text(HEAD + "".join(parts.values()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
