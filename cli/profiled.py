"""The printed lines of `profile`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from onnxfuse.errors import between, counted
from onnxfuse.measure.profile import Profile
from onnxfuse.measure.ratios import Ratio
from onnxfuse.report import remarks

from .show import bytes_text, milliseconds, table

_ROWS = 25
Fields = Mapping[str, Any]


def time_of(found: Ratio) -> str:
    """A ratio of times with its confidence interval."""
    return f"{found.value:.3f} ({between(found.low, found.high, '{:.3f}')})"


def lines_of(made: Fields, found: Profile, level: str, chosen: Mapping[str, int]) -> list[str]:
    """The lines of a document: latencies, comparison, memory, and nodes or kernels; `chosen` sizes were not given."""
    rows: list[tuple[str, ...]] = [("model", "min ms", "median ms", "p90 ms", "p99 ms", "load ms", "runs")]
    for model in made["models"]:
        times = (*(model["latency_ms"][key] for key in ("min", "median", "p90", "p99")), model["load_ms"])
        rows.append((model["path"], *map(milliseconds, times), str(model["runs"])))
    lines = list(table(rows, right=(1, 2, 3, 4, 5, 6)))
    lines.append(f"{counted(found.threads, 'thread')}; {_shapes(found.inputs)}")
    if chosen:
        sizes = ", ".join(f"{name}={extent}" for name, extent in chosen.items())
        lines.append(
            f"sizes     {sizes} by default; --dim {next(iter(chosen))}=N sets another, --inputs F has real ones"
        )
    lines += [f"note      {m['path']}: {m['note']}" for m in made["models"] if m["note"]]
    if found.ratio is not None:
        spread = f"; repetitions of the first differ by {found.spread * 100:.1f} %" if found.spread is not None else ""
        lines.append(f"speedup   {found.ratio.value:.2f}x (95 %: {between(found.ratio.low, found.ratio.high)}{spread})")
    if found.busy:
        lines.append("note      the machine is busy with other work, so the measurements are less certain")
    if level != "model":
        lines += ["", *_memory(made["models"]), "", _peaks(made["peaks"])]
        for model in made["models"]:
            lines += ["", model["path"], *(_op_lines(model) if level == "op" else _kernel_lines(model))]
            shown = model["ops"] if level == "op" else model["kernels"]
            lines += [*remarks.above(shown), *(f"note      {each}" for each in remarks.longer(model))]
    return lines


def size_lines(sizes: Sequence[Fields]) -> list[str]:
    """A line for each set of sizes."""
    names = [each["path"] for each in sizes[0]["models"]]
    rows: list[tuple[str, ...]] = [("sizes", *(f"{name} ms" for name in names), "speedup")]
    for each in sizes:
        dims = ", ".join(f"{name} {value}" for name, value in each["dims"].items())
        times = (milliseconds(m["min_ms"]) for m in each["models"])
        rows.append((dims, *times, "-" if each["speedup"] is None else f"{each['speedup']:.2f}x"))
    return ["", *table(rows, right=tuple(range(1, len(names) + 2)))]


def _shapes(inputs: Mapping[str, Sequence[int]]) -> str:
    return ", ".join(f"{name} {'x'.join(map(str, shape)) or 'scalar'}" for name, shape in inputs.items())


def _memory(models: Sequence[Fields]) -> Iterator[str]:
    """Memory of each model: of its process (measured), weights, live values (computed), and the runtime's arena."""
    rows = [("memory", "process", "weights", "values", "arena")]
    for m in models:
        found = m["memory"] or {}
        sizes = (m["peak_bytes"], *(found.get(key) for key in ("weight_bytes", "value_peak_bytes", "arena_bytes")))
        rows.append((m["path"], *("-" if each is None else bytes_text(each) for each in sizes)))
    yield from table(rows, right=(1, 2, 3, 4))
    yield "process: measured up to the first run; values: the most that are live at once, computed"


def _peaks(peaks: Fields) -> str:
    how = "the best of what was measured here" if peaks["measured"] else "of this machine class, not measured"
    best = f"{peaks['gflops']:.0f} GFLOP/s and {peaks['memory_gbps']:.0f} GB/s from memory"
    on = counted(peaks["threads"], "thread")
    return f"at best   {best} on {on}, {how}; `of best` is the share of what these allow in float32"


def _kernel_lines(model: Fields) -> list[str]:
    """The kernels of the library, and the total of all other nodes."""
    kernels, others = model["kernels"], [op for op in model["ops"] if not op["kernel"]]
    rows = [("ms", "share", "nodes", "GFLOP/s", "GB/s", "of best", "kernel", "stands for")]
    for each in kernels[:_ROWS]:
        rows.append((*_cost(each), str(each["nodes"]), *_rates(each), each["kernel"], _origin(each["origin"])))
    blank = ("-", "-", "-")
    if hidden := kernels[_ROWS:]:
        count = str(sum(k["nodes"] for k in hidden))
        rows.append((*_cost(_sum(hidden)), count, *blank, counted(len(hidden), "more kernel"), ""))
    if others:
        rows.append((*_cost(_sum(others)), str(len(others)), *blank, "ONNX Runtime's own", ""))
    return list(table(rows, right=(0, 1, 2, 3, 4, 5)))


def _op_lines(model: Fields) -> list[str]:
    rows = [("ms", "share", "GFLOP/s", "GB/s", "of best", "operator", "node", "stands for")]
    for op in sorted(model["ops"], key=lambda op: -float(op["time_ms"]))[:_ROWS]:
        rows.append((*_cost(op), *_rates(op), op["op_type"], op["name"], _origin(op["origin"])))
    hidden = len(model["ops"]) - _ROWS
    return [*table(rows, right=(0, 1, 2, 3, 4)), *([f"and {hidden} more"] if hidden > 0 else [])]


def _sum(those: Sequence[Fields]) -> Fields:
    return {key: sum(each[key] for each in those) for key in ("time_ms", "share")}


def _cost(each: Fields) -> tuple[str, str]:
    return milliseconds(each["time_ms"]), f"{each['share'] * 100:.1f} %"


def _rates(each: Fields) -> tuple[str, str, str]:
    return _figure(each["gflops"]), _figure(each["gbps"]), remarks.share(each)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _origin(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
