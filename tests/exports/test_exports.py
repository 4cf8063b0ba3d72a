"""Parts of real exports of torch and transformers, and the form in which they should be planned.

`best` is the number of kernels of the form found by hand, no node left to the runtime. `now` is what there is: kernels,
nodes that are left, nodes of the rewritten graph. It may get better, and then says so; it may not get worse.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onnxfuse.config import BEST, Options
from onnxfuse.load import load
from onnxfuse.rewrite import rewrite
from tests.golden.case import GoldenCase, model_of, planned, read
from tests.plan.priced import planned as planned_by_price
from tests.rules.build import draw, run

CASES = sorted(Path(__file__).parent.glob("*.case"))


def case_of(path: Path) -> GoldenCase:
    return read(path, "best", "now")


def now(case: GoldenCase) -> tuple[int, int, int]:
    """Kernels, nodes that are left, nodes after rewriting."""
    made = planned(case)
    inside = {n.name for g in made.groups for n in g.nodes}
    return len(made.groups), sum(n.name not in inside for n in made.graph.nodes), len(made.graph.nodes)


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_each_export_is_planned_in_its_expected_form(path: Path) -> None:
    case = case_of(path)
    known = tuple(map(int, case.fields["now"].split()))
    found = now(case)
    assert found == known, f"now is {' '.join(map(str, found))}"
    assert found[0] + found[1] >= int(case.fields["best"]), "better than the best form found by hand: look at it"


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_rewriting_an_export_keeps_what_it_computes(path: Path) -> None:
    before = load(model_of(case_of(path)).SerializeToString(), Options())
    after, _ = rewrite(before, Options())
    rng = np.random.default_rng(1)
    for hidden in (0, 3):
        feeds = draw(before, rng)
        if "mask" in feeds:
            feeds["mask"] = np.ones_like(feeds["mask"])
            feeds["mask"][:, feeds["mask"].shape[1] - hidden :] = 0
        want, got = run(before, feeds), run(after, feeds)
        for name in before.outputs:
            scale = float(np.abs(want[name]).max(initial=1.0))
            np.testing.assert_allclose(got[name], want[name], 0, 2e-5 * scale)


# Forms that the groups of `anchors` do not reach, with what is in the way.
SHORT = {
    "attention_cosine": "norms of rows are no prologue of attention, nor an epilogue of the product that makes them",
    "attention_masked": "a mask of a few flops is stored rather than computed for every head",
    "attention_rotary": "one key head of two queries is copied; products this small stay with the runtime",
    "attention_sdpa": "as attention_masked",
    "block_dense": "what normalizes a joined image is no prologue of a convolution",
    "block_fire": "two convolutions have two anchors, and what they make is joined by a copy",
    "convolution_module": "LayerNorm alone is one operator; the gate behind Split is no epilogue of the Conv",
    "gate_gelu": "RMSNorm is a kernel of its own, and a product this small stays with the runtime",
    "gate_halves": "the halves of a product are no columns of one tile: the gate is a kernel of its own",
    "gate_silu": "products this small stay with the runtime",
    "head_average": "sums over an image read across the tiles of the convolution before it",
    "head_cosine": "a norm is no prologue of a product",
    "head_mean_pooled": "the sum of the mask is no elementwise producer of what divides by it",
    "mask_of_padding": "as attention_masked",
    "norm_rms": "a norm is no prologue of a product",
    "patch_merging": "the joined slices are stored before LayerNorm, which is one operator then",
    "squeeze_excite": "sums over images and the products of what they give are kernels of their own",
    "window_rolled": "windows that are rolled back are joined in two kernels",
}


def test_expected_forms_that_are_not_reached_are_listed() -> None:
    short = {p.stem for p in CASES if sum(now(case_of(p))[:2]) > int(case_of(p).fields["best"])}
    assert short == set(SHORT)


def test_there_are_many_of_them() -> None:
    assert len(CASES) >= 40


@pytest.mark.parametrize("name", SHORT)
def test_prices_reach_the_form_that_growth_does_not(name: str) -> None:
    """With prices, alternatives to the groups of `anchors` are taken: a call of a kernel is a large part of these."""
    case = case_of(Path(__file__).with_name(f"{name}.case"))
    made = planned_by_price(planned(case).graph, BEST, least=2)
    inside = {n.name for g in made.groups for n in g.nodes}
    left = [n.name for n in made.graph.nodes if n.name not in inside]
    assert len(made.groups) + len(left) <= int(case.fields["best"])
    assert left == []


def test_a_rule_that_is_off_shows() -> None:
    """Without the rules that they were written for, two forms have more nodes."""
    for name, rule in (("box_refined", "redundant-clip"), ("mask_of_padding", "where-false")):
        case = case_of(Path(__file__).with_name(f"{name}.case"))
        before = load(model_of(case).SerializeToString(), Options())
        with_, without = (rewrite(before, Options(disable=off))[0] for off in ((), (rule,)))
        assert len(with_.nodes) < len(without.nodes), name
