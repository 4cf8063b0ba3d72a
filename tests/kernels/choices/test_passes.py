"""Scheduling passes: a fault in one is found right after it, and the pass is named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from onnx import parser

from onnxfuse import optimize
from onnxfuse.ir.kernel import Kernel, Loop
from onnxfuse.render import cpp
from onnxfuse.schedule.cpu import scheduler
from onnxfuse.schedule.passes import driver
from onnxfuse.schedule.passes.driver import NESTS, Pass, Step, through, verified
from onnxfuse.target import CPUS, Cpu
from tests.kernels.cases.row import softmax_chain
from tests.kernels.compiled import Case, forget, kernel_of
from tests.kernels.test_planted_faults import in_phases, is_vector, longer, only_first

SMALL = replace(CPUS["x86-64-v4"], l3_bytes=1, l2_gbps=1.0)  # whose caches hold no output, and are slow
CASE = Case("g", softmax_chain(20, 304))
MODEL = """<ir_version: 8, opset_import: ["" : 17]> g (float[8, 64] x) => (float[8, 64] y) {
    a = Exp(x)\n y = Softmax<axis = 1>(a) }"""


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Kernels are not taken from those that were made before."""
    forget()
    yield monkeypatch
    forget()


def too_far(kernel: Kernel, *_: Any) -> Kernel:
    """A kernel of which vectors leave their buffers."""
    return in_phases(kernel, only_first(Loop, longer, is_vector))


def with_planted(at: int) -> tuple[Pass[Cpu], ...]:
    """The passes with one that spoils kernels before the one at this place."""
    return (*scheduler.PASSES[:at], Pass("planted", too_far), *scheduler.PASSES[at:])


@pytest.mark.parametrize("at", range(len(scheduler.PASSES) + 1))
def test_a_pass_that_spoils_a_kernel_is_blamed(at: int, fresh: pytest.MonkeyPatch) -> None:
    fresh.setattr(scheduler, "PASSES", with_planted(at))
    with pytest.raises(AssertionError, match=r"^schedule: planted: phase 0: reads in0\["):
        kernel_of(CASE, SMALL)


def test_loop_nests_that_are_wrong_are_blamed(fresh: pytest.MonkeyPatch) -> None:
    real = scheduler._nests
    fresh.setattr(scheduler, "_nests", lambda *given, **settings: too_far(real(*given, **settings)))
    with pytest.raises(AssertionError, match=rf"^schedule: {NESTS}: phase 0: reads in0\["):
        kernel_of(CASE, SMALL)


def test_each_pass_is_seen_where_it_changed_something(fresh: pytest.MonkeyPatch) -> None:
    passes, seen = scheduler.PASSES, list[Sequence[Step]]()
    fresh.setattr(scheduler, "PASSES", ())
    nests = kernel_of(CASE, SMALL)
    assert isinstance(nests, Kernel)
    made = through(passes, nests, SMALL, seen.append)
    assert through(passes[1:], made, SMALL, seen.append) == made
    first, again = ([name for name, _ in steps] for steps in seen)
    assert first == [NESTS, *(step.name for step in passes)]
    assert again == [NESTS], "there is nothing left to do for passes that are through"


def test_a_pass_that_raises_for_what_it_was_given_is_not_blamed(fresh: pytest.MonkeyPatch) -> None:
    def stumbles(kernel: Kernel, _: Any) -> Kernel:
        raise LookupError("there is no such axis")

    fresh.setattr(scheduler, "PASSES", ())
    nests = kernel_of(CASE, SMALL)
    assert isinstance(nests, Kernel)
    last = Pass("last", stumbles)
    with pytest.raises(AssertionError, match=r"^schedule: planted: phase 0: reads in0\["):
        through((Pass("planted", too_far), last), nests, SMALL, verified)
    with pytest.raises(LookupError):
        through((last,), nests, SMALL, verified)


def test_a_build_names_the_step_and_leaves_the_group_to_the_runtime(fresh: pytest.MonkeyPatch) -> None:
    """One that is strict ends."""
    fresh.setattr(scheduler, "PASSES", with_planted(1))
    model = parser.parse_model(MODEL).SerializeToString()
    (bug,) = (r for r in optimize(model, stop_after="render").refusals if r.code == "E-INTERNAL")
    assert "schedule: planted: phase 0: reads in0[" in bug.reason
    with pytest.raises(AssertionError, match=r"^schedule: planted: "):
        optimize(model, stop_after="render", strict=True)


def test_candidates_that_are_only_priced_are_verified_in_strict_builds(fresh: pytest.MonkeyPatch) -> None:
    model = parser.parse_model(MODEL).SerializeToString()
    real, seen = driver.verify, set[Kernel]()

    def counted(kernel: Kernel) -> tuple[str, ...]:
        seen.add(kernel)
        return real(kernel)

    fresh.setattr(driver, "verify", counted)
    counts = []
    for strict in (False, True):
        seen.clear()
        forget()
        result = optimize(model, strategy="exhaustive", stop_after="schedule", min_group=1, strict=strict)
        counts.append(len(seen))
        assert result.kernels == 1
    assert 1 == counts[0] < counts[1]


def test_equal_groups_are_verified_and_spelled_once(fresh: pytest.MonkeyPatch) -> None:
    """Two groups of one model that differ in names only; a pass that is planted afterwards is found all the same."""
    twins = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[8, 64] x, float[8, 64] z) => (float[8, 64] y, float[8, 64] w) {
        a = Exp(x)\n y = Softmax<axis = 1>(a)\n b = Exp(z)\n w = Softmax<axis = 1>(b) }"""
    model = parser.parse_model(twins).SerializeToString()
    real, seen = driver.verify, list[Kernel]()
    fresh.setattr(driver, "verify", lambda kernel: (seen.append(kernel), real(kernel))[1])
    cpp._text.cache_clear()
    result = optimize(model, stop_after="render", strategy="dnnfusion")
    assert (result.kernels, result.distinct_kernels) == (2, 1)
    assert len(seen) == 1
    assert cpp._text.cache_info().misses == 1
    fresh.setattr(scheduler, "PASSES", with_planted(1))
    assert any(r.code == "E-INTERNAL" for r in optimize(model, stop_after="render", strategy="dnnfusion").refusals)
