"""The figures of a measurement as Markdown tables, as in docs/performance.md."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.rendered.run import WORTH

Row = Mapping[str, Any]
_WORST = 6  # kernels of each network that are shown with their floors


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table that is readable as it stands; all columns but the first are right-aligned."""
    cells = [tuple(head), *(tuple(map(str, row)) for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = [
        "| "
        + " | ".join(c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        + " |"
        for row in cells
    ]
    rule = "| " + " | ".join("-" * (w - 1) + ":" if i else "-" * w for i, w in enumerate(widths)) + " |"
    return "\n".join([lines[0], rule, *lines[1:]])


def _ms(value: float) -> str:
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def _pair(ms: Row) -> str:
    return f"{_ms(ms['min'])} ({_ms(ms['median'])})"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def rendered(rows: Iterable[Row]) -> str:
    """Rendered kernels against hand-written ones."""
    head = ("case", "threads", "weights", "rendered ms", "twin ms", "twin / rendered", "medians", "A/A", "% of peak",
            "error", "note")  # fmt: skip
    lines = []
    for row in rows:
        ours, twin = ({k: row[side][f"{k}_ms"] for k in ("min", "median")} for side in ("rendered", "twin"))
        note = "WRONG" if not row["good"] else f"below {WORTH}" if row["ratio"] < WORTH else ""
        ratios = (_times(row["ratio"]), _times(row["ratio_of_medians"]), f"{row['spread']:.3f}")
        facts = (row["case"], row["threads"], row["weights"], _pair(ours), _pair(twin), *ratios)
        lines.append((*facts, f"{row['percent_of_peak']:.0f}", f"{row['error']:.0e}", note))
    return table(head, lines)


def rows(found: Iterable[Row]) -> str:
    """Chains over rows: the runtime's primitives and its one operator beside ours."""
    head = ("chain", "shape", "threads", "operator ms", "primitives ms", "fused ms", "over operator", "of medians",
            "over primitives", "A/A", "GB/s", "kernels")  # fmt: skip
    lines = []
    for row in found:
        times = tuple(_pair(row["ms"][engine]) for engine in ("operator", "primitives", "fused"))
        won = (row["speedup"]["operator"], row["of_medians"]["operator"], row["speedup"]["primitives"])
        facts = (row["chain"], "x".join(map(str, row["shape"])), row["threads"], *times, *map(_times, won))
        lines.append((*facts, f"{row['spread']:.3f}", f"{row['gbytes']:.0f}", row["kernels"] + row["left"]))
    return table(head, lines)


def latency(rows: Sequence[Row]) -> str:
    """Milliseconds, minimum and median, of every engine, and what was won by minima."""
    head = ("network", "threads", "ONNX Runtime ms", "fused", "without library", "unfused kernels",
            "speedup", "of medians", "without library", "fusion adds", "A/A")  # fmt: skip
    lines = []
    for row in rows:
        for each in row["latency"]:
            ms, won = each["ms"], each["speedup"]
            times = tuple(_pair(ms[engine]) for engine in ("runtime", "fused", "bodies", "unfused"))
            ratios = (won["fused"], each["of_medians"]["fused"], won["bodies"], won["fused"] / won["unfused"])
            lines.append((row["network"], each["threads"], *times, *map(_times, ratios), f"{each['spread']:.3f}"))
    return table(head, lines)


def beside_runtime(rows: Sequence[Row]) -> str:
    """The original in ONNX Runtime beside the result, least milliseconds, and what the result is made of."""
    head = ("network", "ONNX Runtime", "fused", "ratio", "of medians", "fusion adds", "A/A", "kernels (distinct)",
            "phases", "nodes left", "optimize s", "threads")  # fmt: skip
    lines = []
    for row in rows:
        s, cold = row["structure"], f"{row['optimize']['cold_s']:.1f}"
        counts = (f"{s['kernels']} ({s['distinct_kernels']})", s["phases"], s["nodes_left"], cold)
        for each in row["latency"]:
            ms, won = each["ms"], each["speedup"]
            times = (f"{ms['runtime']['min']:.2f}", f"{ms['fused']['min']:.2f}")
            ratios = (won["fused"], each["of_medians"]["fused"], won["fused"] / won["unfused"])
            lines.append(
                (row["network"], *times, *map(_times, ratios), f"{each['spread']:.3f}", *counts, each["threads"])
            )
    return table(head, lines)


def peers(rows: Sequence[Row]) -> str:
    """Every engine of a race with other engines; the last line has geometric means of what was won."""
    raced = [(row["network"], each) for row in rows for each in row.get("peers", ())]
    names = list(dict.fromkeys(name for _, each in raced for name in each["ms"]))
    wrong = list(dict.fromkeys(name for _, each in raced for name in each["error"]))
    others = [name for name in names if name != "fused"]
    lines = []
    for network, each in raced:
        cells = (f"{_pair(each['ms'][name])}" + _won(each, name) if name in each["ms"] else "-" for name in names)
        errors = (f"{each['error'][name]:.1e}" if name in each["error"] else "-" for name in wrong)
        lines.append((network, each["threads"], *cells, *errors))
    means = (geometric_mean([e["speedup"][name] for _, e in raced if name in e["speedup"]]) for name in others)
    blank = ("",) * len(wrong)
    last = dict(zip(others, map(_times, means), strict=True))
    lines.append(("geometric mean", "", *(last.get(name, "") for name in names), *blank))
    return table(("network", "threads", *names, *(f"error of {name}" for name in wrong)), lines)


def _won(each: Row, name: str) -> str:
    return "" if name == "fused" else f" [{_times(each['speedup'][name])}]"


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive ratios."""
    return math.exp(sum(map(math.log, values)) / len(values))


def structure(rows: Sequence[Row]) -> str:
    """Kernels and nodes of the builds, and their verdicts."""
    head = ("network", "nodes", "kernels", "distinct", "nodes left", "phases", "phase MB", "error", "limit", "right")
    lines = []
    for row in rows:
        s = row["structure"]
        size = "-" if s["phase_bytes"] is None else f"{s['phase_bytes'] / 1e6:.1f}"
        counts = (s["nodes_before"], s["kernels"], s["distinct_kernels"], s["nodes_left"], s["phases"], size)
        verdict = "not asked" if s["ok"] is None else "yes" if s["ok"] else "NO"
        errors = ("-" if s[key] is None else f"{s[key]:.1e}" for key in ("max_error", "limit"))
        lines.append((row["network"], *counts, *errors, verdict))
    return table(head, lines)


def costs(rows: Sequence[Row]) -> str:
    """Time and memory of optimizing and loading."""
    head = ("network", "file MB", "optimize s", "from cache s", "peak MB", "of file", "load ms", "fused", "bodies",
            "ratio")  # fmt: skip
    lines = []
    for row in rows:
        cost, load, size = row["optimize"], row["load_ms"], row["model_bytes"]
        built = (f"{cost['cold_s']:.1f}", f"{cost['cached_s']:.1f}", f"{cost['peak_bytes'] / 1e6:.0f}")
        loads = tuple(f"{load[name]:.0f}" for name in ("runtime", "fused", "bodies"))
        ratios = (f"{cost['memory_to_file']:.1f}x", *loads, _times(load["bodies"] / load["runtime"]))
        lines.append((row["network"], f"{size / 1e6:.1f}", *built, *ratios))
    return table(head, lines)


def floor(rows: Sequence[Row]) -> str:
    """Times of whole networks over their lower bounds."""
    head = (
        "network",
        "threads",
        "GFLOP",
        "compute ms",
        "memory ms",
        "floor ms",
        "fused ms",
        "fused / floor",
        "other nodes ms",
    )
    lines = []
    for row in rows:
        for each in row["latency"]:
            f = each["floor"]
            if f is not None:
                parts = (f"{f['gflop']:.2f}", *(_ms(f[key]) for key in ("compute_ms", "memory_ms", "ms")))
                least = (_ms(each["ms"]["fused"]["min"]), _times(f["time_over_floor"]), _ms(f["left_ms"]))
                lines.append((row["network"], each["threads"], *parts, *least))
    return table(head, lines)


def kernels(row: Row) -> str:
    """The kernels of a network that lose most against their lower bounds."""
    head = ("kernel", "nodes", "floor ms", "ms", "ms / floor")
    found = next((each["floor"] for each in row["latency"] if each["floor"] is not None), None)
    if found is None:
        return ""
    lines = []
    for each in found["kernels"][:_WORST]:
        ratio = _times(each["time_ms"] / each["floor_ms"]) if each["floor_ms"] else "-"
        ops = " ".join(each["ops"])
        name = ops if len(ops) <= 60 else f"{ops[:57]}..."
        lines.append((name, each["nodes"], _ms(each["floor_ms"]), _ms(each["time_ms"]), ratio))
    return table(head, lines)


def symbolic(rows: Mapping[str, Sequence[Row]]) -> str:
    """Builds with symbols beside builds without."""
    head = ("network", "threads", "static ms", "symbolic ms", "symbolic / static", "of medians", "A/A")
    lines = []
    for name, each in rows.items():
        for row in each:
            ratios = (_times(row["dynamic_over_static"]), _times(row["of_medians"]), f"{row['spread']:.3f}")
            lines.append((name, row["threads"], _pair(row["static"]), _pair(row["dynamic"]), *ratios))
    return table(head, lines)


def sizes(rows: Iterable[Row]) -> str:
    """Builds with symbols at several sizes, and what they win in the mean."""
    head = ("network", "size", "threads", "ONNX Runtime ms", "fused ms", "ratio", "of medians", "A/A")
    lines: list[tuple[object, ...]] = []
    found = list(rows)
    for row in found:
        size = " x ".join(map(str, row["sizes"].values()))
        ratios = (_times(row["speedup"]), _times(row["of_medians"]), f"{row['spread']:.3f}")
        lines.append((row["network"], size, row["threads"], _pair(row["runtime"]), _pair(row["fused"]), *ratios))
    mean = math.exp(sum(math.log(row["speedup"]) for row in found) / len(found)) if found else None
    return table(head, [*lines, ("geometric mean", "", "", "", "", _times(mean), "", "")])


def dynamic(rows: Iterable[Row]) -> str:
    """Builds as shipped at several sizes beside builds for one size each, and the means of both ratios."""
    head = ("network", "size", "kernels", "left", "for the size", "left", "ONNX Runtime ms", "fused ms", "ratio",
            "fused over for the size", "A/A")  # fmt: skip
    lines: list[tuple[object, ...]] = []
    found = list(rows)
    for row in found:
        size = " x ".join(map(str, row["sizes"].values()))
        counts = (row[f"{which}_{key}"] for which in ("shipped", "fixed") for key in ("kernels", "nodes_left"))
        ratios = (_times(row["speedup"]), f"{row['over_fixed']:.2f}", f"{row['spread']:.3f}")
        lines.append((row["network"], size, *counts, _pair(row["runtime"]), _pair(row["fused"]), *ratios))
    means = [
        math.exp(sum(math.log(row[key]) for row in found) / len(found)) if found else None
        for key in ("speedup", "over_fixed")
    ]
    return table(head, [*lines, ("geometric mean", *[""] * 7, *map(_times, means), "")])


def predictions(rows: Sequence[Row]) -> str:
    """How well predicted times of kernels agree with measured ones, by the class and by calibration."""
    head = ("network", "kernels", "rank", "median error", "90 %", "of total", "calibrated: rank", "median error",
            "90 %", "of total")  # fmt: skip
    lines = []
    for row in rows:
        cells: list[str] = []
        for kind in ("class", "calibrated"):
            found = row[kind]
            cells += [f"{found['rank']:.3f}", *(f"{100 * found[key]:.0f} %" for key in ("median_error", "p90_error"))]
            cells.append(f"{found['of_total']:.2f}x")
        lines.append((row["network"], len(row["kernels"]), *cells))
    return table(head, lines)


def ways(rows: Sequence[Row]) -> str:
    """The schedule chosen for each shape, and the fastest if it is another."""
    head = ("shape", "threads", "us", "predicted", "regret", "chosen", "fastest")
    lines = []
    for row in rows:
        chosen, fastest = row["ways"][0], min(row["ways"], key=lambda way: way["us"])
        other = fastest["way"] if fastest is not chosen else ""
        predicted = f"{chosen['predicted']:.0f}" if chosen["predicted"] is not None else "-"
        figures = (f"{chosen['us']:.0f}", predicted, f"{row['regret']:.2f}")
        lines.append((row["shape"], row["threads"], *figures, chosen["way"], other))
    return table(head, lines)


def mispredicted(row: Row) -> str:
    """The kernels whose predictions are off by most microseconds in a run of the network."""
    ordered = sorted(row["kernels"], key=lambda k: -k["nodes"] * abs(k["us"] - k["calibrated"]))[:_WORST]
    cells = ((k["kernel"], k["nodes"], *(f"{k[key]:.1f}" for key in ("us", "calibrated")), k["bound"]) for k in ordered)
    return table(("kernel", "nodes", "measured us", "predicted us", "bound"), cells)
