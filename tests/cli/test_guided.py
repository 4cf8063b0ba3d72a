"""--profile-guided and lock files: slower areas are not emitted, and not measured again. Times are simulated."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import pytest

from onnxfuse.config import Options
from onnxfuse.errors import AnsweredNo, DeviceError, UsageError
from onnxfuse.measure.profile import Latency, ModelProfile, Profile
from onnxfuse.measure.ratios import Ratio
from onnxfuse.pipeline import optimize
from onnxfuse.pipeline.calls import Calls
from onnxfuse.report.lock import Choice, Lock, lock_text, read_lock
from onnxfuse.report.result import Result
from tests.calls import on_cpu
from tests.cli.conftest import FIRST, SECOND, Onnxfuse, files, refused, two_chains
from tests.models.planted import Slow

Times = Callable[[tuple[str, ...]], float]


class Clock:
    """A `profile_models` that measures nothing: `times` gives the milliseconds of a build by its disabled kernels."""

    def __init__(self, times: Times, spread: float = 0.01) -> None:
        self.times, self.spread = times, spread
        self.asked: list[tuple[str, ...]] = []

    def __call__(self, paths: Sequence[Any], *, disabled: Sequence[tuple[str, ...]] = (), **rest: Any) -> Profile:
        if rest.get("per_op"):
            raise DeviceError("profile: a made-up clock sees no nodes")
        without, with_all = disabled
        assert with_all == () and len(paths) == 2
        self.asked.append(tuple(without))
        times = [self.times(tuple(side)) for side in disabled]
        models = tuple(ModelProfile("", None, Latency(ms, ms, ms, ms), 1.0, 9) for ms in times)
        slower = Ratio(times[1] / times[0], times[1] / times[0], times[1] / times[0], 9).widened(1.0 + self.spread)
        return Profile(models, slower.inverse, self.spread, 2, {}, {}, slower)


@pytest.fixture
def chains(here: Path) -> Path:
    return two_chains(here, "4, 32", "32, 8")


@pytest.fixture
def built(chains: Path, kernels: Path) -> Callable[..., Result]:
    def go(clock: Clock | None = None, out: str = "o.onnx", **changes: Any) -> Result:
        calls = Calls(profile_models=clock) if clock is not None else Calls(profile_models=never)
        return optimize(chains, out, calls=calls, cache_dir=str(kernels), gain=False, **changes)

    return go


def never(*args: Any, **rest: Any) -> Profile:
    raise AssertionError("nothing is to be measured")


def slow(kernel: str) -> Times:
    """10 ms with one kernel, 8 without."""
    return lambda disabled: 8.0 if any(name.startswith(kernel) for name in disabled) else 10.0


def test_what_is_slower_is_not_emitted(built: Callable[..., Result]):
    clock = Clock(slow("Tanh"))
    result = built(clock, profile_guided=True)
    assert [set(g.nodes) for g in result.groups] == [FIRST]
    assert refused(result) == SECOND
    (reason,) = {r.reason for r in result.refusals if r.code == "E-COST"}
    assert reason.startswith("the model takes 10 ms with Tanh") and reason.endswith("8 ms without")
    assert result.verify is not None and result.verify.ok
    whole, *rest = result.choices
    assert len(whole.kernels) == 2 and whole.kept, "the part at fault was found"
    assert {c.kernels[0].split("_")[0]: c.kept for c in rest} == {"Abs": True, "Tanh": False}
    assert len(clock.asked) == 4, "each area once, what is given up a second time"
    assert all(c.low is not None and c.low <= c.without_ms / c.with_ms <= (c.high or 0.0) for c in result.choices)


def test_everything_may_be_slower(built: Callable[..., Result]):
    """Only together: then all of it stays with the runtime, and the model is copied."""
    result = built(Clock(lambda disabled: 8.0 if len(disabled) == 2 else 10.0), profile_guided=True)
    assert (result.kernels, result.output.library) == (0, None)
    assert refused(result) == FIRST | SECOND
    assert result.output.lock is not None and read_lock(Path(result.output.lock)).domain == ""


@pytest.mark.parametrize(
    ("clock", "why"),
    [
        (Clock(lambda disabled: 10.0 - len(disabled) * 0.05), "it is less than the spread"),
        (Clock(slow("Tanh"), spread=0.3), "the machine was not steady"),
        (Clock(lambda disabled: 12.0 if disabled else 10.0), "kernels are faster"),
    ],
)
def test_what_is_not_proven_slower_stays(built: Callable[..., Result], clock: Clock, why: str):
    result = built(clock, profile_guided=True)
    assert result.kernels == 2 and not refused(result), why
    assert all(c.kept for c in result.choices)


def test_a_least_gain_is_asked_for(built: Callable[..., Result]):
    """As a share of what the kernels are predicted to take: these take some microseconds."""
    assert built(Clock(slow("Tanh")), profile_guided=True, min_gain=1e6).kernels == 2


def test_bodies_that_do_not_run_keep_their_kernels(built: Callable[..., Result]):
    def broken(*args: Any, **rest: Any) -> Profile:
        raise DeviceError("profile: no")

    result = optimize("chains.onnx", "b.onnx", calls=Calls(profile_models=broken), profile_guided=True, gain=False)
    assert result.kernels == 2 and result.choices == ()


def test_a_lock_file_replays_its_choices(built: Callable[..., Result]):
    first = built(Clock(slow("Tanh")), profile_guided=True)
    assert first.output.lock == "o.fuse.lock"
    written = [Path(name).read_bytes() for name in ("o.onnx", "libo.so", "o.fuse.json")]
    again = built(lock="o.fuse.lock", check=True, overwrite=True)
    assert (again.domain, again.kernels, refused(again)) == (first.domain, 1, SECOND)
    assert [Path(name).read_bytes() for name in ("o.onnx", "libo.so", "o.fuse.json")] == written
    assert again.choices == first.choices and again.output.lock is None


def test_a_lock_file_has_the_groups_of_a_plan_by_price(built: Callable[..., Result]):
    """What was measured here decides prices, and another build may predict others: the groups are not planned again."""
    clock = Clock(lambda disabled: 12.0 if disabled else 10.0)
    first = built(clock, profile_guided=True, lock="best.lock")
    lock = read_lock(Path("best.lock"))
    assert lock.groups is not None and {frozenset(g) for g in lock.groups} == {frozenset(g.nodes) for g in first.groups}
    groups = json.loads(Path("best.lock").read_text())
    groups["groups"] = groups["groups"][:1]  # as a plan might be that this build would not make
    Path("one.lock").write_text(json.dumps(groups))
    assert built(out="p.onnx", lock="one.lock").kernels == 1
    built(clock, profile_guided=True, lock="rules.lock", strategy="anchors", overwrite=True)
    assert read_lock(Path("rules.lock")).groups is None


def test_a_lock_file_says_what_it_is_of(built: Callable[..., Result]):
    built(Clock(slow("Tanh")), profile_guided=True, lock="kept.lock")
    d = json.loads(Path("kept.lock").read_text())
    assert d["schema_version"] == 2 and d["options"]["min_group"] == 2
    assert d["machine"]["cores"] >= 1 and d["machine"]["calibrated"] in (True, False)
    assert [set(c["nodes"]) for c in d["choices"] if not c["kept"]] == [SECOND]
    assert not Path("o.fuse.lock").exists()


def test_check_fails_where_a_lock_file_does_not_fit(built: Callable[..., Result], chains: Path):
    built(Clock(slow("Tanh")), profile_guided=True)
    with pytest.raises(AnsweredNo, match="--min-group has another value"):
        built(out="p.onnx", lock="o.fuse.lock", check=True, min_group=1)
    text = Path("o.fuse.lock").read_text()
    domain = read_lock(Path("o.fuse.lock")).domain
    Path("old.lock").write_text(text.replace(domain, "onnxfuse.000000000000"))
    with pytest.raises(AnsweredNo, match=r"the kernels are onnxfuse\.\w+, not onnxfuse\.0+"):
        built(out="p.onnx", lock="old.lock", check=True)
    Path("class.lock").write_text(text.replace('"target": "', '"target": "another-'))
    with pytest.raises(AnsweredNo, match="the machine class is"):
        built(out="p.onnx", lock="class.lock", check=True)
    proto = onnx.load(chains)
    proto.graph.node[3].name = "Renamed"
    onnx.save(proto, chains)
    with pytest.raises(AnsweredNo, match="the model has sha256"):
        built(out="p.onnx", lock="o.fuse.lock", check=True)
    assert files(Path()) >= {"o.onnx"} and not Path("p.onnx").exists()
    loose = built(out="p.onnx", lock="o.fuse.lock")  # what is still there is left out all the same
    assert any("was made for another build" in note for note in loose.notes)
    assert {"Abs_4", "Sigmoid_5"} <= refused(loose)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema_version": 1}', '{"schema_version": 3, "choices": []}'])
def test_what_is_no_lock_file_is_refused(built: Callable[..., Result], text: str):
    Path("bad.lock").write_text(text)
    with pytest.raises(UsageError, match=r"bad\.lock is"):
        built(lock="bad.lock")
    with pytest.raises(UsageError, match=r"nowhere\.lock, which does not exist \(--profile-guided or tune"):
        built(lock="nowhere.lock")


def test_options_that_do_not_go_together(built: Callable[..., Result]):
    for changes in ({"check": True}, {"check": True, "lock": "l", "profile_guided": True}):
        with pytest.raises(UsageError, match="check wants a lock file"):
            built(**changes)
    Path("o.fuse.lock").write_text("mine")
    with pytest.raises(UsageError, match="exists"):
        built(Clock(slow("Tanh")), profile_guided=True)
    assert Path("o.fuse.lock").read_text() == "mine"


def test_a_lock_is_written_and_read_as_it_is(tmp_path: Path):
    choice = Choice(("k_1",), ("a", "b"), 1.5, 1.25, 0.01, False)
    lock = Lock("0" * 64, {"min_group": 2}, "generic", "onnxfuse.0", (choice,))
    (tmp_path / "l").write_text(lock_text(lock, {"cpu": "x"}))
    assert read_lock(tmp_path / "l") == lock
    assert "sha256" in lock.differs("1" * 64, Options(), "generic")
    assert "machine class" in lock.differs("0" * 64, Options(), "x86-64-v4")


def test_a_kernel_that_really_is_slow_is_dropped_by_the_real_clock(built: Callable[..., Result], kernels: Path):
    """And the others are kept, though the machine may be busy; a lock file says so again without measuring."""
    calls = on_cpu(render=Slow("Tanh"))
    usual = {"profile_guided": True, "gain": False, "cache_dir": str(kernels)}
    result = optimize("chains.onnx", "o.onnx", calls=calls, **usual)
    assert [set(g.nodes) for g in result.groups] == [FIRST] and refused(result) == SECOND
    (lost,) = [c for c in result.choices if not c.kept and len(c.kernels) == 1]
    assert lost.kernels[0].startswith("Tanh") and lost.high is not None and lost.high < 0.9
    assert lost.with_ms > 2 * lost.without_ms, "with and without it are not the same build"
    assert result.verify is not None and result.verify.ok
    again = built(out="p.onnx", lock="o.fuse.lock", check=True)
    assert (again.domain, again.choices) == (result.domain, result.choices)


def test_a_slow_kernel_among_others_that_share_layouts_is_found(here: Path, kernels: Path):
    """Three convolutions in a row, images between them channels last, the second one really slow: the others stay."""
    names = {at: f"w{at}" for at in range(3)}
    widths = (8, 16, 24, 32)
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        convolutions (float[1, 8, 24, 24] x) => (float[1, 32, 24, 24] y)
        { a = Conv <pads = [1, 1, 1, 1]> (x, w0)  b = Relu (a)  c = Conv <pads = [1, 1, 1, 1]> (b, w1)  d = Tanh (c)
          e = Conv <pads = [1, 1, 1, 1]> (d, w2)  y = Relu (e) }"""
    )
    for at, name in names.items():
        weights = np.random.default_rng(at).normal(size=(widths[at + 1], widths[at], 3, 3)).astype(np.float32) / 9
        proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, name))
    onnx.save(proto, "c.onnx")
    calls = on_cpu(render=Slow("Conv_Tanh", turns=1_000_000))
    options = {"profile_guided": True, "gain": False, "cache_dir": str(kernels), "min_gain": 0.5}
    result = optimize("c.onnx", "o.onnx", calls=calls, **options)
    dropped = {op for c in result.choices if not c.kept for op in c.kernels}
    assert len(dropped) == 1 and next(iter(dropped)).startswith("Conv_Tanh")
    assert result.kernels == 2


def test_on_the_command_line(onnxfuse: Onnxfuse, chains: Path, kernels: Path):
    """Real measurements: whatever they find, the lock file brings the same build again."""
    done = onnxfuse("optimize", chains, "m.onnx", "--profile-guided", "--time-budget", "2m", "--cache-dir", kernels)
    assert done.code == 0 and "guide" in done.err
    again = onnxfuse("optimize", chains, "n.onnx", "--lock", "m.fuse.lock", "--check", "--cache-dir", kernels, "--json")
    assert again.code == 0 and again.json["choices"] == json.loads(Path("m.fuse.lock").read_text())["choices"]
    assert onnxfuse("optimize", chains, "o.onnx", "--lock", "m.fuse.lock", "--check", "--min-group", "1").code == 1
