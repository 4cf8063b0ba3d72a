"""The table of networks that a check measured on a GPU, in the README beside it.

    python -m benchmarks.gpu.networks.table RESULT.json [--compiled EARLIER.json]

RESULT is what `gpu_check.sh full` wrote. EARLIER has times of torch.compile on the same networks, from another day.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.networks.full import NAMES
from benchmarks.gpu.networks.prepare import DECODING
from benchmarks.gpu.tables import PAGE, replaced

HEAD = (
    "| network | type, batch | runtime ms | kernels | built ms | kernels | runtime / built | its images channels last "
    "| without graphs | torch.compile ms | error before, after | when |\n| --- | --- " + "| ---: " * 9 + "| --- |\n"
)


def table(found: Mapping[str, Any], compiled: Mapping[str, float]) -> str:
    """The lines of a table, and of geometric means."""
    lines, ratios = "", dict[str, list[float]]()
    for kind in dict.fromkeys(key.split(" ", 1)[1] for key in found):
        for name in (*NAMES, DECODING):
            entry = found.get(f"{name} {kind}")
            if entry is None:
                continue
            lines += _line(name, kind, entry, compiled.get(f"{name} {kind}"))
            if name in NAMES and "graph" in entry.get("ratio", {}):
                ratios.setdefault(kind, []).append(entry["ratio"]["graph"])
    means = "; ".join(
        f"{kind.replace(' b', ', batch ')} {statistics.geometric_mean(r):.2f}" for kind, r in ratios.items()
    )
    return f"{HEAD}{lines}\nGeometric means of the networks but LLaMA's step, with graphs: {means}.\n"


def _line(name: str, kind: str, entry: Mapping[str, Any], compiled: float | None) -> str:
    cells = [name, kind.replace(" b", ", ")]
    before, after, ratio = entry.get("before", {}), entry.get("after", {}), entry.get("ratio", {})
    for side, times in (("before", before), ("after", after)):
        kernels = entry.get("kernels", {}).get(side, {}).get("count", "")
        cells += [f"{times['graph_ms']:.3f}" if "graph_ms" in times else "", str(kernels)]
    cells += [f"{ratio[way]:.2f}" if way in ratio else "" for way in ("graph", "nhwc", "stream")]
    cells.append(f"{compiled:.3f}" if compiled is not None else "")
    errors = [side.get("graph_error", side.get("stream_error")) for side in (before, after)]
    cells += [", ".join(f"{e:.0e}" for e in errors if e is not None), entry.get("measured", "")]
    return f"| {' | '.join(cells)} |\n"


def of_torch(path: Path | None) -> dict[str, float]:
    """The least milliseconds of each network by torch.compile, in whichever mode."""
    rows = json.loads(path.read_text())["compiled"] if path is not None else []
    found: dict[str, float] = {}
    for row in rows:
        if "compile_ms" in row:
            key = f"{row['network']} {row['precision']} b{row['batch']}"
            found[key] = min(row["compile_ms"]["min"], found.get(key, float("inf")))
    return found


def main(given: Sequence[str] | None = None) -> None:
    """The table, in the README."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path)
    parser.add_argument("--compiled", type=Path)
    options = parser.parse_args(given)
    found = json.loads(options.result.read_text())["full"]["networks"]
    made = table(found, of_torch(options.compiled))
    PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8"), "measured", made), encoding="utf-8")


if __name__ == "__main__":
    main()
