"""Figures that a page repeats are those of the tables they come from; a table lists each decision record once."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

from benchmarks import results

ROOT = Path(__file__).resolve().parents[2]
PERFORMANCE = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
README = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
NETWORKS = (
    "bert-base", "gpt2", "mobilebert", "vit-b-16", "swin-t", "convnext-t", "resnet-50", "mobilenet-v2", "segformer-b0",
)  # fmt: skip


ROW = re.compile(r"^\| ([a-z0-9-]+) +\| +([\d.]+) \| +([\d.]+) \| +([\d.]+)x \|", re.MULTILINE)


def section_of(section: str) -> tuple[dict[str, tuple[float, float, float]], str]:
    """The first table of a section with all nine, by network: ms of the runtime and of onnxfuse, ratio; what follows.

    Where `make bench` has measured all nine, that is the table made from its document.
    """
    text = PERFORMANCE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    paragraphs = text.split("\n\n")
    for number, each in enumerate(paragraphs):
        found = {name: tuple(map(float, figures)) for name, *figures in ROW.findall(each)}
        if tuple(found) == NETWORKS:
            return found, "\n\n".join(paragraphs[number + 1 :])  # type: ignore[return-value]  # three figures each
    raise AssertionError(f"{section} has no table of the nine networks")


SECTIONS = [section_of(name) for name in ("AMD Zen 5", "Intel Xeon with AMX")]
MACHINES = [found for found, _ in SECTIONS]
MEANS = [math.prod(ratio for *_, ratio in each.values()) ** (1 / len(NETWORKS)) for each in MACHINES]
LEAST = {name: min(each[name][0] / each[name][1] for each in MACHINES) for name in NETWORKS}


def test_ratios_are_quotients_of_the_times_beside_them() -> None:
    for each in MACHINES:
        for name, (runtime, ours, ratio) in each.items():
            assert abs(runtime / ours - ratio) < 0.011, name


def test_geometric_means_are_those_of_the_tables() -> None:
    for (_, text), mean in zip(SECTIONS, MEANS, strict=True):
        said = re.search(r"Geometric means? (?:of minima: )?([\d.]+\d)x", text)
        assert said is not None and abs(float(said[1]) - mean) < 0.0051


def test_the_readme_repeats_the_lower_figure_of_both_machines() -> None:
    begin = re.search(
        r"\*\*BERT-base runs ([\d.]+) times as fast, ResNet-50 ([\d.]+) times and MobileBERT ([\d.]+)", README
    )
    detail = re.search(
        r"nine networks run ([\d.]+) to ([\d.]+) times as fast \(ResNet-50 ([\d.]+), BERT-base ([\d.]+), MobileBERT"
        r" ([\d.]+), SegFormer-B0 ([\d.]+)\), ([\d.]+) in the geometric mean on a Zen 5 and ([\d.]+) on",
        README,
    )
    assert begin is not None and detail is not None
    three = ("bert-base", "resnet-50", "mobilebert")
    assert begin.groups() == tuple(f"{LEAST[name]:.1f}" for name in three)
    named = ("resnet-50", "bert-base", "mobilebert", "segformer-b0")
    wanted = [min(LEAST.values()), max(LEAST.values()), *(LEAST[name] for name in named), *MEANS]
    assert detail.groups() == tuple(f"{figure:.1f}" for figure in wanted)


def test_the_readme_repeats_figures_of_the_page_that_has_their_command() -> None:
    models = PERFORMANCE.split("\n## Models with sizes unknown at build time\n")[1].split("\n## ")[0]
    said = re.search(
        r"run ([\d.]+) times as fast on two cores \(\[(\d+) models\]\(.*?\): ([\d.]+) to ([\d.]+)\)", README
    )
    made = re.search(
        r"Together (\d+) models .*?: ([\d.]+)x of .*?,\s([\d.]+)x to ([\d.]+)x by shape", models, re.DOTALL
    )
    assert said is not None and made is not None and "`onnxfuse profile MODEL OUT" in models
    count, mean, low, high = made.groups()
    assert said.groups() == (mean, count, low, f"{float(high):.1f}")
    loading = PERFORMANCE.split("\n## Loading\n")[1].split("\n## ")[0]
    (original,) = re.findall(r"^\| bert-base \| original \| ([\d.]+) s \| 1.00 \| (\d+) MB", loading, re.MULTILINE)
    fused = re.findall(r"^\|  \| with the library \| ([\d.]+) s \| [\d.]+ \| (\d+) MB", loading, re.MULTILINE)[0]
    words = re.search(r"loads in ([\d.]+) s .* needs (\d+) MB .* takes ([\d.]+) s and (\d+) MB", README)
    assert words is not None and "`python -m benchmarks.loading" in loading
    assert words.groups() == (fused[0], fused[1], *original)


def test_tables_are_those_of_the_documents_that_they_name() -> None:
    """`python scripts/bench.py --pages` makes them, each with machine, versions, revision and date of its figures."""
    named = results.sources(PERFORMANCE)
    assert named, "no table is made from a document"
    assert sorted(named) == sorted(f"benchmarks/results/{path.name}" for path in results.FOLDER.glob("*.json"))
    assert results.made(PERFORMANCE) == PERFORMANCE
    for name in named:
        document = json.loads((ROOT / name).read_text(encoding="utf-8"))
        assert document["revision"] and document["date"] in PERFORMANCE and document["revision"] in PERFORMANCE


def test_each_decision_record_is_listed_once() -> None:
    folder = ROOT / "docs/decisions"
    listed = re.findall(r"^\| \[(\d{4})\]\((.+?)\)", (folder / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(name for _, name in listed) == sorted(path.name for path in folder.glob("0*.md"))
    assert all(name.startswith(number) for number, name in listed)
