"""The results of the probes in one file, and the tables of the README from it.

python -m benchmarks.gpu.collect RESULT.json --from FOLDER [FOLDER ...]    (folders of the probes' files)
python -m benchmarks.gpu.collect RESULT.json                              (prints the tables)
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

DIGITS = 4
FIELDS = ("op", "half", "n", "rows", "tried", "worst_error", "eager_us", "eager_fraction", "compile_us",
          "compile_fraction", "gb_s", "library_gb_s", "slowest_us")  # fmt: skip
CHOICE = ("tpr", "threads", "rows", "cluster", "stream", "packed", "erf", "early", "reread", "registers", "spilled",
          "error", "us", "fraction")  # fmt: skip


def rounded(value: Any) -> Any:
    """Floats with so many digits."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {key: rounded(each) for key, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list) else value


def row_kernels(documents: Iterable[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Rows of the same shape joined over the files: of each kind of schedule the fastest that was seen."""
    found: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = {"small": {}, "large": {}}
    for document in documents:
        for kind, rows in found.items():
            for row in document.get(kind, []):
                key = (row["op"], row["half"], row.get("n"), row.get("rows"))
                into = rows.setdefault(key, {name: row[name] for name in FIELDS if name in row} | {"choices": []})
                into["tried"] = into.get("tried", 0) + (row.get("tried", 0) if into["choices"] else 0)
                into["choices"] += row.get("choices") or row["best"]
    for rows in found.values():
        for row in rows.values():
            row["choices"] = _distinct(row["choices"])
    return {kind: [*rows.values()] for kind, rows in found.items()}


def _distinct(choices: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    best: dict[tuple[Any, ...], dict[str, Any]] = {}
    for each in sorted(choices, key=lambda one: one["us"]):
        key = (each["tpr"], each["cluster"], each.get("reread", 0))
        best.setdefault(key, {name: each[name] for name in CHOICE if name in each})
    return [*best.values()]


def merged(folders: Sequence[Path]) -> dict[str, Any]:
    """All files of these folders; of a probe that ran twice, the later folder's, but for rows of different shapes."""
    result: dict[str, Any] = {}
    rows, networks, compiled = [], {}, {}
    for folder in folders:
        for path in sorted(folder.glob("*.json")):
            document = json.loads(path.read_text(encoding="utf-8"))
            if path.stem.startswith("rows"):
                rows.append(document)
            elif path.stem.startswith("runtime"):
                networks |= {(r["network"], r["precision"], r["batch"]): r for r in document["rows"]}
            elif path.stem.startswith("c."):
                compiled |= {(r["network"], r["precision"], r["batch"], r["mode"]): r for r in document["rows"]}
            elif path.stem in ("machine", "boundary", "images", "epilogue", "custom_op", "emulated"):
                result[path.stem] = document
    kernels = {"row_kernels": row_kernels(rows)}
    return result | kernels | {"networks": [*networks.values()], "compiled": [*compiled.values()]}


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Markdown."""
    lines = [f"| {' | '.join(heads)} |", f"| --- |{' ---: |' * (len(heads) - 1)}"]
    lines += [f"| {' | '.join(f'{c:.3g}' if isinstance(c, float) else str(c) for c in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def _schedule(choice: Mapping[str, Any]) -> str:
    if choice["tpr"] == 1:
        return f"1 of {choice['threads']}"
    text = f"{choice['tpr']} x {choice['cluster']}" if choice["cluster"] > 1 else f"{choice['tpr']}"
    return text + (" twice" if choice.get("reread") else "") + f" of {choice['threads']}"


def large_table(result: Mapping[str, Any]) -> str:
    """Fractions of the copy by width."""
    rows = []
    for row in sorted(result["row_kernels"]["large"], key=lambda r: (r["op"], -r["half"], r.get("n", 0))):
        if row["op"] != "copy":
            best = row["choices"][0]
            vectors = -(-row["n"] * (2 if row["half"] else 4) // 16 // best["cluster"] // best["tpr"])
            vectors = (1 if best["tpr"] == 1 else vectors) * best["rows"]
            rows.append((
                f"{row['op']} {'fp16' if row['half'] else 'fp32'}", row["n"], f"{best['fraction']:.2f}",
                _schedule(best), vectors, best["registers"], f"{row['eager_fraction']:.2f}",
                f"{row['compile_fraction']:.2f}" if "compile_fraction" in row else "", f"{best['error']:.0e}",
            ))  # fmt: skip
    heads = ("operator", "width", "ours", "threads of a row", "vectors each", "registers", "eager", "compile", "error")
    return table(heads, rows)


def small_table(result: Mapping[str, Any]) -> str:
    """Microseconds in a graph, in L2."""
    rows = [
        (f"{r['op']} {'fp16' if r['half'] else 'fp32'}", f"{r['rows']} x {r['n']}", f"{r['choices'][0]['us']:.2f}",
         _schedule(r["choices"][0]), r["choices"][0].get("early", 0), f"{r['slowest_us']:.2f}", f"{r['eager_us']:.2f}",
         f"{r['compile_us']:.2f}")
        for r in result["row_kernels"]["small"]
    ]  # fmt: skip
    return table(("operator", "shape", "ours", "threads of a row", "early", "worst choice", "eager", "compile"), rows)


def network_table(result: Mapping[str, Any]) -> str:
    """Milliseconds and kernels of networks."""
    compiled: defaultdict[tuple[Any, ...], dict[str, Any]] = defaultdict(dict)
    for r in result["compiled"]:
        compiled[r["network"], r["precision"], r["batch"]][r["mode"]] = r
    rows = []
    for r in sorted(result["networks"], key=lambda one: (one["precision"], one["batch"], one["network"])):
        c = compiled[r["network"], r["precision"], r["batch"]]
        b = r["boundaries"]
        modes = [c.get(mode, {}) for mode in ("reduce-overhead", "max-autotune")]
        rows.append((
            r["network"], r["precision"], r["batch"], *(f"{r[f'{k}_ms']['min']:.2f}" for k in ("stream", "graph")),
            f"{b['device_us'] / 1e3:.2f}", b["nodes"], b["kernels"], b["copies"] + b["sets"],
            *(f"{m['compile_ms']['min']:.2f}" if "compile_ms" in m else "" for m in modes), modes[0].get("kernels", ""),
        ))  # fmt: skip
    heads = ("network", "kind", "batch", "ORT", "ORT graph", "busy", "nodes", "kernels", "copies, fills", "compile",
             "max-autotune", "its kernels")  # fmt: skip
    return table(heads, rows)


def operator_table(result: Mapping[str, Any], precision: str, batch: int) -> str:
    """Kernels of each operator over all networks."""
    total: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for row in result["networks"]:
        if (row["precision"], row["batch"]) == (precision, batch):
            for op, counts in row["boundaries"]["operators"].items():
                total[op].update({k: v for k, v in counts.items() if v})
    rows = []
    for op, c in sorted(total.items(), key=lambda item: -item[1]["kernel"]):
        n = max(1, c["nodes"])
        rows.append((op, c["nodes"], c["on_cpu"], c["kernel"], f"{c['kernel'] / n:.2f}",
                     f"{(c['copy'] + c['set']) / n:.2f}", f"{c['device_us'] / n:.2f}"))  # fmt: skip
    return table(("operator", "nodes", "on the CPU", "kernels", "a node", "copies, fills a node", "us a node"), rows)


def main() -> None:
    """Write the file, or print the tables of one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path)
    parser.add_argument("--from", dest="folders", type=Path, nargs="*", default=[])
    asked = parser.parse_args()
    if asked.folders:
        parts = rounded(merged(asked.folders))
        lines = []
        for key, part in parts.items():
            many = isinstance(part, list)
            text = ",\n  ".join(json.dumps(each) for each in part) if many else json.dumps(part)
            lines.append(f'"{key}": [\n  {text}\n]' if many else f'"{key}": {text}')
        asked.result.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    result = json.loads(asked.result.read_text(encoding="utf-8"))
    for each in (large_table(result), small_table(result), network_table(result), operator_table(result, "f16", 1)):
        sys.stdout.write(each + "\n")


if __name__ == "__main__":
    main()
