"""Invalid files are refused or copied: no crash with a bug's exit code, and no hang."""

from __future__ import annotations

import time

import pytest

from onnxfuse import optimize
from onnxfuse.errors import OnnxFuseError
from tests.robust.mutations import models, mutated

SECONDS = 20.0  # of one model, on a machine that does other things too
FEW, MANY, EACH = range(0, 240, 40), range(1000, 5000, 250), 40


@pytest.mark.parametrize("at", range(5))
def test_the_models_are_right_before_they_are_changed(at: int) -> None:
    result = optimize(list(models())[at].SerializeToString(), stop_after="render", min_group=1, strict=True)
    assert result.kernels


def run(first: int, count: int) -> list[str]:
    """What was gone around in the models of some seeds; every other end is an error of the right kind."""
    bugs: list[str] = []
    for seed in range(first, first + count):
        start = time.process_time()
        try:
            result = optimize(mutated(seed).SerializeToString(), stop_after="render", min_group=1)
            bugs += [f"{seed}: {r.reason}" for r in result.refusals if r.code == "E-INTERNAL"]
        except OnnxFuseError as problem:
            assert problem.exit_code == 3, f"{seed}: {problem}"
        assert time.process_time() - start < SECONDS, f"{seed} takes long"
    return bugs


@pytest.mark.parametrize("first", FEW)
def test_no_change_is_a_bug(first: int) -> None:
    assert not run(first, EACH)


@pytest.mark.slow
@pytest.mark.parametrize("first", MANY)
def test_hundreds_of_mutations_do_not_end_the_build(first: int) -> None:
    assert not run(first, 250)
