"""Nodes made by rewrites are attributed to the original nodes whose work they do, each to one."""

from __future__ import annotations

from collections import Counter

import pytest

from onnxfuse.pipeline import optimize
from tests.models.fused import model_bytes


@pytest.mark.parametrize("network", ["tiny-bert.decomposed", "tiny-bert", "tiny-vit"])
def test_every_product_of_attention_is_claimed_once(network: str) -> None:
    """Also where three products become one, and the scale of the scores goes into its weights."""
    made = optimize(model_bytes(network), stop_after="schedule")
    assert {"merged-products", "scale-into-weights"} <= {rule for rule, _ in made.rewrites}
    assert any("matmul" in node for group in made.groups for node in group.nodes)
    claims = Counter(node for group in made.groups for node in group.nodes)
    assert [node for node, count in claims.items() if "matmul" in node and count > 1] == []
