"""How far `best` is from the best of all covers: small regions of real networks, priced exhaustively.

A region is a run of nodes between narrow cuts that no group of `best` crosses. Every legal group in it is scheduled and
priced, and the cover of least price is compared with the groups of `best`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.tables import table  # noqa: E402
from onnxfuse import optimize  # noqa: E402
from onnxfuse.config import BEST  # noqa: E402
from onnxfuse.ops.rows import ROWS  # noqa: E402
from onnxfuse.pipeline.calls import Calls  # noqa: E402
from onnxfuse.plan.kinds import Kind, decoded_weights, kind_of  # noqa: E402
from onnxfuse.plan.legal import Set, members, set_of  # noqa: E402
from onnxfuse.plan.price import PriceMemo  # noqa: E402
from onnxfuse.plan.search.exhaustive import legal_sets  # noqa: E402
from onnxfuse.plan.search.region import regions_of  # noqa: E402
from onnxfuse.plan.search.scope import Scope  # noqa: E402
from onnxfuse.plan.search.select import PricedGroup, cheapest  # noqa: E402
from onnxfuse.plan.search.space import Space  # noqa: E402
from scripts.ablation import Watch, files  # noqa: E402

OUT = ROOT / "docs" / "gap.md"
NETWORKS = (
    "mobilenet-v2", "efficientnet-b0", "t5-encoder.dynamic", "crnn.dynamic", "ocr-recognizer.dynamic", "resnet-50",
    "segformer-b0", "swin-t", "pyramid.dynamic", "yolov8.dynamic", "convnext-t",
)  # fmt: skip
HEAD = """# The gap to exhaustive search

Written by `python scripts/gap.py --write`. A row is a region of a network: a run of nodes between narrow cuts that no
group of `--strategy best` crosses; equal regions are listed once. *groups* are those that `best` made of it, *tried*
all legal sets of its nodes that have a kernel, connected or not, *least* the groups of the cover of least price among
them, and *gap* the predicted time of the former over that of the latter, as the mean over numbers of cores and sizes.
`best` leaves what it would win by less than 3 %, which is within the error of predictions.

"""
HEADS = ("network", "operators", "groups", "tried", "least", "gap")


@dataclass(frozen=True, slots=True)
class Gap:
    """One region: its operators, the groups of `best` and those of the cheapest cover, and the ratio of their times."""

    network: str
    operators: tuple[str, ...]
    groups: int
    tried: int
    least: int
    ratio: float


def space_of(model: Path | bytes) -> tuple[Space, list[Set]]:
    """A network as `best` plans it, with prices that no budget limits, and the groups of that plan."""
    watch = Watch()
    calls = replace(Calls(), plan=watch)
    optimize(model, calls=calls, strategy=BEST, stop_after="plan")
    assert watch.asked is not None
    made, options, legality, costing = watch.asked
    weights = decoded_weights(made.graph, ROWS)
    kinds = {i: kind_of(made.graph, n, ROWS, weights) for i, n in enumerate(made.graph.nodes)}
    grouped = {n.name for g in made.groups for n in g.nodes}
    free = {i: k for i, k in kinds.items() if isinstance(k, Kind) and made.graph.nodes[i].name in grouped}
    scope = Scope.of(made.graph, free, ROWS, options, legality)
    at = {n.name: i for i, n in enumerate(scope.nodes)}
    groups = [set_of(at[n.name] for n in g.nodes) for g in made.groups]
    return Space(scope, replace(costing, memo=PriceMemo(sys.maxsize))), groups


def gaps(name: str, model: Path | bytes, most: int, seen: set[object]) -> Iterator[Gap]:
    """The regions of two to `most` nodes whose groups all have prices; `seen` has those that were listed before."""
    space, groups = space_of(model)
    prices = space.prices
    assert prices is not None
    for region in regions_of(space.scope, groups, most):
        made = [g for g in groups if g & region]
        form = prices.forms.of(members(region), space.scope.group(members(region)), prices.layouts)
        small = 2 <= region.bit_count() <= most and not region & ~space.legal.free
        if not small or sum(made) != region or form in seen:
            continue
        seen.add(form)
        unit = [space.seconds(g) for g in made]
        if any(u is None for u in unit):
            continue
        whole = [sum(parts) for parts in zip(*(u for u in unit if u is not None), strict=True)]
        tried = {s: p for s in legal_sets(space, region) if (p := space.seconds(s)) is not None}
        choices = [
            PricedGroup(s, sum(a / b for a, b in zip(p, whole, strict=True)) / len(whole)) for s, p in tried.items()
        ]
        found = cheapest(region, choices, space.legal)
        assert found is not None, "gap: the groups of best are among the choices"
        operators = tuple(space.scope.nodes[i].op for i in members(region))
        yield Gap(name, operators, len(made), len(tried), len(found.choices), 1 / found.price)


def text_of(found: list[Gap]) -> str:
    """The page."""
    ratios = sorted(g.ratio for g in found)
    mean, optimal = sum(ratios) / len(ratios), sum(r < 1 + 1e-9 for r in ratios)
    said = (
        f"{len(found)} regions: in {optimal} of them `best` has the cover of least price; the mean gap is {mean:.3f}, "
    )
    said += f"the median {ratios[len(ratios) // 2]:.3f}, the largest {ratios[-1]:.3f}.\n\n"
    rows = [(g.network, " ".join(g.operators), g.groups, g.tried, g.least, f"{g.ratio:.3f}") for g in found]
    return HEAD + said + table(HEADS, rows) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("models", nargs="*", default=NETWORKS, help="files, or names of networks")
    parser.add_argument("--most", type=int, default=8, help="nodes of a region, at most 10")
    parser.add_argument("--regions", type=int, default=50, help="regions in all")
    parser.add_argument("--write", action="store_true", help=f"write {OUT.relative_to(ROOT)}")
    arguments = parser.parse_args()
    seen: set[object] = set()
    every = (g for path in files(arguments.models) for g in gaps(path.stem, path, arguments.most, seen))
    found: list[Gap] = []
    for gap in islice(every, arguments.regions):
        found.append(gap)
        print(gap, file=sys.stderr, flush=True)
    if not found:
        parser.error(f"no region of 2 to {arguments.most} nodes whose groups all have prices")
    text = text_of(found)
    print(text)
    if arguments.write:
        OUT.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
