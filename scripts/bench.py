"""`make bench`: measure machine, kernels and networks, print tables, and write them as a page and all figures as JSON.

    python scripts/bench.py [--quick] [--models tiny|demo|nine|full] [--threads 2] [--parts machine cost ...]
    python scripts/bench.py --show benchmarks/results/FILE.json
    python scripts/bench.py --pages

The figures of a machine are kept in benchmarks/results/, after each network and part; what was measured already, by the
same code with the same versions, is not measured again (`--again` does). `--pages` writes the tables of
docs/performance.md that are made from these files. How it is measured is written there, too. Nothing here fails
because of a time.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # for the rooms that are not installed

from benchmarks import costs, dynamic, machine, networks, peers, results, rows, sizes, tables, ways  # noqa: E402
from benchmarks.machine import Limits  # noqa: E402
from benchmarks.rendered.run import rows as rendered_rows  # noqa: E402
from benchmarks.results import write  # noqa: E402

USUAL = ("machine", "rendered", "rows", "networks", "sizes", "cost")
PARTS = (*USUAL, "dynamic")  # the last takes four builds of each network
OUT = ROOT / ".cache" / "bench"


def say(line: str) -> None:
    """Progress, for a person."""
    print(line, file=sys.stderr, flush=True)


def heading(text: str, body: str) -> None:
    print(f"\n## {text}\n\n{body}", flush=True)


def wait_for_quiet(most: float, patience: float) -> bool:
    """Wait until the load average is below `most`, at the longest `patience` seconds; whether it is."""
    start = time.monotonic()
    while os.getloadavg()[0] >= most and time.monotonic() - start < patience:
        time.sleep(5)
    return os.getloadavg()[0] < most


def measured_limits(counts: Sequence[int], seconds: float, before: dict[int, Limits]) -> dict[int, Limits]:
    """What so many threads reach now, or reached before if that was more."""
    now = {count: machine.limits(count, seconds) for count in counts}
    return {count: machine.best(before.get(count, each), each) for count, each in now.items()}


def summary(row: dict[str, Any]) -> str:
    """What was won, in a line, while the rest is measured."""
    won = (
        f"{each['speedup']['fused']:.2f}x on {each['threads']} threads (A/A {each['spread']:.3f})"
        for each in row["latency"]
    )
    return f"{row['network']}: {', '.join(won)}"


def measure_networks(asked: argparse.Namespace, limits: dict[int, Limits], document: dict[str, Any]) -> None:
    """A row per network that has none in the document, which is written after each; then those with symbols beside
    those without, where both were measured now.
    """
    effort = networks.Effort(tuple(asked.threads), *((1.0, 1, 1) if asked.quick else (5.0, 3, 4)))
    wanted = asked.network or list(networks.NETWORKS[asked.models])
    kept = {row["network"]: row for row in document.get("networks", ())}
    names = [name for name in wanted if name not in kept or asked.again]
    say(f"networks: {len(names)} to be measured, {len(wanted) - len(names)} were before")
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=OUT) as top:
        folders = {name: Path(top, name) for name in names}
        for name, folder in folders.items():
            folder.mkdir()
            measured = networks.measure(name, folder, effort, say)
            say(summary(measured.row))
            found = networks.beside(measured, "peers", raced_with_peers(name, measured, folder, effort))
            limits = measured_limits(list(limits), 1.0, limits)
            kept[name] = networks.with_floors(found, limits)
            order = sorted(kept, key=[*networks.NETWORKS[asked.models], *wanted, *kept].index)
            document |= {"networks": [kept[each] for each in order], "limits": machine.to_json(list(limits.values()))}
            write(document, asked.json)
        for static, dynamic in networks.pairs(names):
            say(f"{dynamic} beside {static}")
            found_symbolic = networks.symbolic(folders[static], folders[dynamic], effort)
            document["symbolic"] = {**document.get("symbolic", {}), dynamic: found_symbolic}


def raced_with_peers(name: str, measured: networks.Measured, folder: Path, effort: networks.Effort) -> list[Any]:
    """A race for each number of threads, where there are peers; they are asked about static shapes only."""
    if not peers.installed() or name.endswith(networks.DYNAMIC):
        return []
    inputs, model = folder / "inputs.npz", networks.model_of(name)
    return [peers.race(model, measured.built, inputs, count, effort) for count in effort.threads]


def show_machine(document: dict[str, Any]) -> None:
    heading("Machine", textwrap.indent(machine.show(document, machine.from_json(document["limits"])), "    "))


def show_rendered(rows: Sequence[Any]) -> None:
    heading("Rendered kernels against hand-written ones, minimum (median)", tables.rendered(rows))


def measured_rows(asked: argparse.Namespace) -> list[Any]:
    """Chains over rows on one thread and two."""
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=OUT) as top:
        shapes = rows.QUICK if asked.quick else rows.SHAPES
        return list(rows.measure(Path(top), (1, 2), 0.2 if asked.quick else 1.0, shapes))


def show_rows(found: Sequence[Any]) -> None:
    heading("Chains over rows beside ONNX Runtime's operators, minimum (median)", tables.rows(found))


def show_networks(found: Sequence[Any], symbolic: dict[str, Any]) -> None:
    heading("Latency, minimum (median); speedups are over ONNX Runtime, by minima", tables.latency(found))
    if symbolic:
        heading("Symbolic against static builds, same inputs", tables.symbolic(symbolic))
    if any(row.get("peers") for row in found):
        heading(
            "Beside other engines, minimum (median) and, in brackets, what ours wins by minima", tables.peers(found)
        )
    heading("What was built", tables.structure(found))
    heading("What it costs", tables.costs(found))
    heading("Against the floor", tables.floor(found))
    for row in found:
        worst = tables.kernels(row)
        if worst:
            heading(f"{row['network']}: kernels that lose most against their floors", worst)


def measured_sizes(asked: argparse.Namespace) -> list[Any]:
    """Networks with symbols at several sizes."""
    effort = networks.Effort(tuple(asked.threads), *((0.3, 1, 1) if asked.quick else (2.0, 1, 3)))
    OUT.mkdir(parents=True, exist_ok=True)
    found: list[Any] = []
    for name in [n for n in asked.network if n.endswith(networks.DYNAMIC)] or sizes.names_of(asked.models):
        with tempfile.TemporaryDirectory(dir=OUT) as folder:
            found += sizes.measure(name, Path(folder), OUT / "cache", effort, say)
    return found


def show_sizes(found: Sequence[Any]) -> None:
    heading("One build at several sizes, minimum (median)", tables.sizes(found))


def measured_dynamic(asked: argparse.Namespace) -> list[Any]:
    """Networks with dynamic sizes, as shipped and built for each size; what cannot be built is said."""
    effort = networks.Effort(tuple(asked.threads), *((0.3, 1, 1) if asked.quick else (2.0, 1, 3)))
    OUT.mkdir(parents=True, exist_ok=True)
    found: list[Any] = []
    for name in asked.network or dynamic.names_of(asked.models):
        with tempfile.TemporaryDirectory(dir=OUT) as folder:
            try:
                found += dynamic.measure(name, Path(folder), OUT / "cache", effort, say)
            except RuntimeError as problem:
                say(str(problem))
    return found


def show_dynamic(found: Sequence[Any]) -> None:
    heading("As shipped, and built for each size; minimum (median)", tables.dynamic(found))


def measure_costs(asked: argparse.Namespace) -> dict[str, Any]:
    """The machine as calibrated, and the cost model beside measurement."""
    names = asked.network or [name for name in networks.NETWORKS[asked.models] if "." not in name]
    say("ways through contractions")
    raced = ways.rows(OUT / "ways", 0.1 if asked.quick else 0.3, quick=asked.quick)
    calibration, found = costs.rows(names, 0.2 if asked.quick else 1.0, OUT / "cache", say)
    return {"calibration": asdict(calibration), "costs": found, "ways": raced}


def show_costs(document: dict[str, Any]) -> None:
    raced = document.get("ways", [])
    if raced:
        heading("Ways through contractions, predictions for 2 cores", tables.ways(raced))
        for count in (1, 2):
            mean, most = ways.mean_regret(raced, count)
            heading(f"Regret on {count} threads", f"geometric mean {mean:.3f}, at most {most:.2f}")
    about = ", ".join(f"{name} {value}" for name, value in document["calibration"].items())
    heading(f"The cost model beside measurement ({about})", tables.predictions(document["costs"]))
    for row in document["costs"]:
        heading(f"{row['network']}: kernels predicted worst", tables.mispredicted(row))


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", choices=tuple(networks.NETWORKS), help="default: nine, with --quick tiny")
    parser.add_argument(
        "--network", action="append", default=[], metavar="NAME", help="this one only (may be repeated)"
    )
    parser.add_argument("--threads", type=int, nargs="+", default=[2], metavar="N", help="of networks (default: 2)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(USUAL))
    parser.add_argument("--quick", action="store_true", help="short runs: to see that it works")
    parser.add_argument(
        "--show", type=Path, metavar="FILE", help="print the tables of a JSON document; measure nothing"
    )
    parser.add_argument("--again", action="store_true", help="measure anew what was measured before, too")
    parser.add_argument("--pages", action="store_true", help="write the tables of pages anew; measure nothing")
    parser.add_argument(
        "--patience", type=float, default=60.0, metavar="SECONDS", help="wait so long for an idle machine (default: 60)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="every figure (default: the file of this machine)")
    asked = parser.parse_args(argv)
    asked.models = asked.models or ("tiny" if asked.quick else "nine")
    return asked


MEASURE: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "rendered": lambda asked: {
        "rendered": list(rendered_rows((), (1, 2), 0.3 if asked.quick else 4.0, warm=asked.quick))
    },
    "rows": lambda asked: {"rows": measured_rows(asked)},
    "sizes": lambda asked: {"sizes": measured_sizes(asked)},
    "dynamic": lambda asked: {"dynamic": measured_dynamic(asked)},
    "cost": measure_costs,
}
SHOW: dict[str, Callable[[dict[str, Any]], None]] = {
    "rendered": lambda document: show_rendered(document["rendered"]),
    "rows": lambda document: show_rows(document["rows"]),
    "networks": lambda document: show_networks(document["networks"], document.get("symbolic", {})),
    "sizes": lambda document: show_sizes(document["sizes"]),
    "dynamic": lambda document: show_dynamic(document["dynamic"]),
    "cost": show_costs,
}


def show(document: dict[str, Any]) -> int:
    """The tables of a measurement."""
    show_machine(document)
    for part, shown in SHOW.items():
        if ("costs" if part == "cost" else part) in document:
            shown(document)
    return 0


def page_of(document: dict[str, Any]) -> str:
    """The tables of a measurement as a page, headed by machine, versions and date."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        show(document)
    return f"# Benchmarks\n{said.getvalue()}"


def main(argv: Sequence[str] | None = None) -> int:
    asked = arguments(argv)
    if asked.show:
        return show(json.loads(asked.show.read_text(encoding="utf-8")))
    if asked.pages:
        results.write_pages()
        return 0
    begin, seconds = time.monotonic(), 0.3 if asked.quick else 2.0
    if not asked.quick and not wait_for_quiet(0.5, asked.patience):
        say("bench: other work keeps this machine busy: times will be too long, and ratios too close to 1")
    about = {**machine.facts(), "quick": asked.quick}
    asked.json = asked.json or (OUT / "bench.json" if asked.quick else results.path_of(about))
    document = results.resumed(asked.json, about)
    before = {each.threads: each for each in machine.from_json(document.get("limits", ()))}
    limits = measured_limits(sorted({1, 2, *asked.threads}), seconds, before)
    document["limits"] = machine.to_json(list(limits.values()))
    show_machine(document)
    for part in asked.parts:
        key = "costs" if part == "cost" else part
        if part == "networks":
            measure_networks(asked, limits, document)
        elif part in MEASURE and (asked.again or key not in document):
            say(f"{part} ...")
            document |= MEASURE[part](asked)
        SHOW.get(part, lambda document: None)(document)
        write(document, asked.json)
    document |= {
        "load_average_after": os.getloadavg()[0],
        "seconds": document.get("seconds", 0.0) + time.monotonic() - begin,
    }
    write(document, asked.json)
    OUT.mkdir(parents=True, exist_ok=True)
    page = OUT / f"{asked.json.stem}.md"
    page.write_text(page_of(document), encoding="utf-8")
    results.write_pages()
    say(f"\nall figures: {asked.json}, tables: {page} ({document['seconds']:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
