"""A kernel whose result is 1 % too large is found, by comparing groups and by comparing whole models."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxfuse.verify import verify_models
from onnxfuse.verify.compare import FLOORS
from tests.calls import on_cpu
from tests.models.fused import built, errors
from tests.models.planted import Planted
from tests.models.test_networks import needs_compiler

pytestmark = needs_compiler
NETWORKS = ("tiny-bert", "tiny-resnet.decomposed", "tiny-mobilenet")
KERNELS = 5  # of each network, in which a fault is planted where time does not count


@pytest.mark.parametrize(
    ("name", "number"),
    [
        pytest.param(n, k, marks=() if (n, k) == (NETWORKS[0], 2) else pytest.mark.slow)
        for n in NETWORKS
        for k in range(KERNELS)
    ],
)
def test_a_wrong_kernel_is_dropped(name: str, number: int, tmp_path: Path) -> None:
    planted = Planted(number)
    right = built(name, tmp_path)
    made = built(name, tmp_path, calls=on_cpu(render=planted), verify=True, overwrite=True)
    wrong = [group for group in right.result.groups if group.kernel == planted.name]
    assert wrong
    found = {node for refusal in made.result.refusals if refusal.code == "E-NUMERICS" for node in refusal.nodes}
    assert found == {node for group in wrong for node in group.nodes}
    assert made.result.verify is not None and made.result.verify.ok is True
    assert planted.name not in {group.kernel for group in made.result.groups}
    fused = [sum(len(group.nodes) for group in each.result.groups) for each in (made, right)]
    assert 0 < fused[0] < fused[1]  # there may be more kernels: parts of a wrong one that are right
    assert max(errors(made).values()) <= FLOORS["float32"]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == NETWORKS[1] else pytest.mark.slow) for n in NETWORKS]
)
def test_a_wrong_kernel_is_seen_in_the_result(name: str, tmp_path: Path) -> None:
    planted = Planted(0)
    made = built(name, tmp_path, calls=on_cpu(render=planted))
    verdict = verify_models(made.original, made.fused, library=made.library)
    assert verdict.ok is False
    by_way = {run.name: run.ok for run in verdict.runs}
    assert by_way == {how: how.startswith("without") for how in by_way} and len(by_way) == 4
