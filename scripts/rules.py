"""Writes docs/rules.md: every rewrite with its law, numerics and conditions, from the tables of the engine.

With --fires, also where each fires in the small networks of models/ and what it saves there, which takes minutes;
otherwise that part of the page is kept, and only rules that it does not have yet are looked at.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from models.networks import NETWORKS, network
from onnxfuse.config import Options
from onnxfuse.load import load
from onnxfuse.rewrite import STEPS, StructuralRule, rewrite
from onnxfuse.rewrite.idioms import IDIOMS
from onnxfuse.rewrite.proofs.conditions import CONDITIONS
from scripts.ablation import row

OUT = Path(__file__).resolve().parents[1] / "docs" / "rules.md"
HEAD = """# Rewrites

Written by `python scripts/rules.py`. A rewrite fires where it lowers the cost (work, bytes, launches), then the number
of nodes, then the distance from the canonical form; among several at one node, the one that lowers it most.

| numerics | what differs | allowed |
| --- | --- | --- |
| exact | nothing (zeros may differ in sign) | always |
| reassociates | rounding | always |
| assumes | also results outside of the assumption | where it is proven, with `--fast-math`, or by `--enable RULE` |

`--disable RULE` switches any of them off. In a law, lower-case names are values, `@` is MatMul, and `**k` stands for
the attributes and further inputs of an operator.
"""
FIRES = "\n## Where they fire\n"
FIRES_HEAD = """
Written by `python scripts/rules.py --fires`: in the small networks of models/, which have the nodes of the full-size
ones, layer by layer. *nodes*, *kernels* (including nodes left to ONNX Runtime) and *predicted* time are what the rule
saves in all of these networks together: they are rewritten and planned again without it (`--strategy anchors`,
`--arch x86-64-v3`). A rule that others replace when it is off saves nothing by itself.
"""
IDLE = "In none of them fire: "
ARCH = ("x86-64-v3",)


def text(fires: str | None = None) -> str:
    """The whole page, with a new part about where rules fire, or the existing one."""
    if fires is None:
        page = OUT.read_text(encoding="utf-8") if OUT.exists() else ""
        fires = kept(page.partition(FIRES)[2].partition("\n## ")[0])
    parts = [HEAD, "## Rules\n", *_table(STEPS), FIRES + fires, "## Conditions\n"]
    parts += ["| condition | holds when |", "| --- | --- |"]
    parts += [f"| {name} | {(check.__doc__ or '').strip()} |" for name, check in CONDITIONS.items()]
    parts += [
        "\n## Patterns that are not rewritten\n",
        "ONNX Runtime fuses these itself, if the kernel library is not loaded.\n",
    ]
    parts += ["| fused as | pattern |", "| --- | --- |"]
    parts += [f"| {name} | `{chain!r}` |" for name, chain in IDIOMS]
    return "\n".join(parts) + "\n"


def _table(steps: tuple[StructuralRule, ...]) -> list[str]:
    rows = ["| rule | law | numerics | when |", "| --- | --- | --- | --- |"]
    for s in steps:
        conditions = [*s.when, *(f"assumes {a}" for a in s.assume)]
        rows.append(f"| {s.name} | `{s.law}` | {s.numerics} | {'; '.join(conditions)} |")
    return rows


# Where rules fire -----------------------------------------------------------------------------------------------------

SMALL = tuple(n.name for n in NETWORKS if n.name.startswith("tiny-"))


@dataclass(frozen=True, slots=True)
class Gain:
    """What a rule saves in some networks: nodes, kernels and nodes that are left, predicted seconds on one core."""

    nodes: int = 0
    kernels: int = 0
    seconds: float = 0.0

    def __add__(self, other: Gain) -> Gain:
        return Gain(self.nodes + other.nodes, self.kernels + other.kernels, self.seconds + other.seconds)


@cache
def fired(name: str) -> dict[str, int]:
    """How often each rule fires in a network."""
    graph = load(network(name).build().SerializeToString(), Options())
    return {f.rule: f.count for f in rewrite(graph, Options())[1]}


def gain(name: str, rule: str) -> Gain:
    """What a rule saves in a network."""
    model = network(name).build().SerializeToString()
    rows = [row(model, "anchors", 0, arch=ARCH, disable=off) for off in ((rule,), ())]
    kernels = [r.result.kernels + r.result.nodes_left for r in rows]
    seconds = [r.seconds[0] if r.seconds else 0.0 for r in rows]
    return Gain(nodes_saved(name, rule), kernels[0] - kernels[1], seconds[0] - seconds[1])


def nodes_saved(name: str, rule: str) -> int:
    """Number of additional nodes of a rewritten network without a rule."""
    graph = load(network(name).build().SerializeToString(), Options())
    without, with_ = (rewrite(graph, Options(disable=off))[0] for off in ((rule,), ()))
    return len(without.nodes) - len(with_.nodes)


def kept(part: str) -> str:
    """The part of the page about where rules fire, with those that it lacks, and without those that are gone."""
    rows = {line.split(" | ")[0][2:]: line for line in part.splitlines() if line.startswith("| ")}
    idle = part.partition(IDLE)[2].rstrip(".\n").split(", ")
    known = {step.name: rows.get(step.name, "") for step in STEPS if step.name in rows or step.name in idle}
    return fires(known=known) if {*known} != {step.name for step in STEPS} else part


def fires(names: Iterable[str] = SMALL, known: Mapping[str, str] | None = None) -> str:
    """The part of the page about where rules fire; of those that are `known`, this row, or none if they are idle."""
    counts = {name: fired(name) for name in names}
    rows = ["| rule | fires | in | nodes | kernels | predicted |", "| --- | ---: | --- | ---: | ---: | ---: |"]
    idle = []
    for step in STEPS:
        if known is not None and step.name in known:
            (rows if known[step.name] else idle).append(known[step.name] or step.name)
            continue
        where = {name: found[step.name] for name, found in counts.items() if step.name in found}
        if not where:
            idle.append(step.name)
            continue
        saved = sum((gain(name, step.name) for name in where), Gain())
        print(step.name, where, saved, file=sys.stderr, flush=True)
        cells = (sum(where.values()), said(where), saved.nodes, saved.kernels, f"{saved.seconds * 1e6:.1f} us")
        rows.append(f"| {step.name} | {' | '.join(map(str, cells))} |")
    last = f"{IDLE}{', '.join(idle)}."
    return FIRES_HEAD + "\n" + "\n".join(rows) + "\n\n" + last + "\n"


def said(where: Mapping[str, int]) -> str:
    """Networks with their counts."""
    return ", ".join(f"{name.removeprefix('tiny-')} {count}" for name, count in where.items())


def main() -> int:
    """Write the page; with --check, exit 1 when it is not current; with --fires, count and measure anew."""
    if "--check" in sys.argv[1:]:
        current = OUT.exists() and OUT.read_text(encoding="utf-8") == text()
        if not current:
            print("docs/rules.md is not current: run python scripts/rules.py", file=sys.stderr)
        return 0 if current else 1
    OUT.write_text(text(fires() if "--fires" in sys.argv[1:] else None), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
