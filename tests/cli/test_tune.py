"""`tune` with the real compiler and runtime: kernels slower than predicted are found, and the plan changes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxfuse.config import BEST, Options
from onnxfuse.errors import AnsweredNo, UsageError
from onnxfuse.ir.kernel import Kernel
from onnxfuse.measure.database import FILE, Database
from onnxfuse.pipeline import optimize
from onnxfuse.pipeline.calls import Calls
from onnxfuse.pipeline.tune import Tuned, tune
from onnxfuse.render.cpp import render
from onnxfuse.render.source import Source
from onnxfuse.report.result import Result
from tests.caches import own_cache
from tests.calls import on_cpu
from tests.cli.conftest import Onnxfuse
from tests.models.planted import Slow

WHOLE = ("Softplus_0", "Exp_1", "Tanh_2", "Neg_3")


def slow_together(kernel: Kernel, symbol: str, name: str, flags: tuple[str, ...]) -> Source:
    """Renders a kernel; one with both functions takes far longer than anybody predicts."""
    right = render(kernel, symbol, name, flags)
    both = "exp" in right.text and "tanh" in right.text
    return Slow("", turns=1_000_000)(kernel, symbol, name, flags) if both else right


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tuned")
    own_cache(made / "cache")
    return made


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        chain (float[64, 256] x) => (float[64, 256] y) { a = Softplus (x)  b = Exp (a)  c = Tanh (b)  y = Neg (c) }"""
    )
    for number, node in enumerate(proto.graph.node):
        node.name = f"{node.op_type}_{number}"
    onnx.save(proto, folder / "chain.onnx")
    return folder / "chain.onnx"


def never(*args: Any, **named: Any) -> Any:
    raise AssertionError("it was measured again")


CALLS = on_cpu(render=slow_together)
SETTLED = replace(CALLS, time_samples=never, profile_models=never)


def built(model: Path, folder: Path, calls: Calls = SETTLED, **changes: Any) -> Result:
    options = {"cache_dir": str(folder / "cache"), "gain": False, "overwrite": True, **changes}
    return optimize(model, folder / "out.onnx", calls=calls, **options)


def groups(result: Result) -> set[tuple[str, ...]]:
    return {g.nodes for g in result.groups}


@pytest.fixture(scope="module")
def before(model: Path, folder: Path) -> Result:
    return built(model, folder, strategy=BEST)


@pytest.fixture(scope="module")
def tuned(model: Path, folder: Path, before: Result) -> Tuned:
    return tune(model, options=Options(cache_dir=str(folder / "cache")), seconds=240.0, threads=1, calls=CALLS)


def test_predictions_are_wrong(before: Result) -> None:
    assert groups(before) == {WHOLE}


def test_what_is_slow_is_found(tuned: Tuned) -> None:
    assert tuned.changed
    worst = max(tuned.samples, key=lambda s: s.measured_us - s.predicted_us)
    assert not worst.left and worst.measured_us > 5 * worst.predicted_us
    assert any(s.left for s in tuned.samples), "the nodes of the runtime were not measured"
    taken = [r for r in tuned.alternatives if r.taken]
    assert len(taken) == 1 and taken[0].low > 1.2 and taken[0].instead_of == ("Softplus Exp Tanh Neg",)


def test_the_next_build_has_the_plan_without_measuring(tuned: Tuned, model: Path, folder: Path) -> None:
    made = built(model, folder)
    assert WHOLE not in groups(made) and any("as `tune` measured" in n for n in made.notes)
    assert made.verify is not None and made.verify.ok
    assert not any({"Exp_1", "Tanh_2"} <= {*g} for g in groups(made))
    assert groups(built(model, folder, strategy="anchors")) == {WHOLE}


def test_measured_prices_decide_where_a_strategy_asks(tuned: Tuned, model: Path, folder: Path) -> None:
    made = built(model, folder, strategy=BEST)
    assert WHOLE not in groups(made)
    whole = next(c for c in made.candidates if c.nodes == WHOLE)
    assert whole.measured and whole.code == "E-COST" and "its own time measured" in whole.reason


def test_the_lock_file_replays_elsewhere(tuned: Tuned, model: Path, folder: Path, tmp_path: Path) -> None:
    here = built(model, folder)
    lock = {"lock": tuned.lock, "check": True, "cache_dir": own_cache(tmp_path / "cache")}
    there = built(model, folder, **lock)
    assert (groups(there), there.domain) == (groups(here), here.domain)
    text = json.loads(Path(tuned.lock).read_text())
    assert text["alternatives"] and text["groups"]
    with pytest.raises(AnsweredNo, match="does not fit"):
        built(model, folder, min_group=3, **lock)


def test_other_options_are_not_tuned(tuned: Tuned, model: Path, folder: Path) -> None:
    assert groups(built(model, folder, min_group=1)) == {WHOLE}


def test_a_second_run_measures_nothing(tuned: Tuned, model: Path, folder: Path) -> None:
    known = Database(folder / "cache" / FILE)
    assert known.path == Path(tuned.database)
    options = Options(cache_dir=str(folder / "cache"), overwrite=True)
    again = tune(model, options=options, seconds=240.0, threads=1, calls=replace(CALLS, time_samples=never))
    assert again.samples == () and not again.changed


def test_what_exists_is_not_replaced(tuned: Tuned, model: Path) -> None:
    with pytest.raises(UsageError, match=r"chain\.fuse\.lock exists"):
        tune(model, calls=SETTLED)


def test_a_build_without_a_database_makes_none(model: Path, tmp_path: Path) -> None:
    """Nor does it look for a compiler to learn what prices would be called."""
    calls = on_cpu(find_toolchain=never)
    optimize(model, calls=calls, strategy=BEST, cache_dir=str(tmp_path), stop_after="plan")
    assert not (tmp_path / FILE).exists()


def test_the_verb_says_what_it_measured(onnxfuse: Onnxfuse, model: Path, folder: Path, tmp_path: Path) -> None:
    cache = own_cache(tmp_path / "cache")
    said = onnxfuse("tune", str(model), "--cache-dir", cache, "--threads", "1", "--budget", "60", "--json",
                    "--lock", str(tmp_path / "chain.lock"))  # fmt: skip
    assert said.code == 0, said.err
    assert said.json["command"] == "tune" and said.json["samples"] and (tmp_path / "chain.lock").exists()
    explained = onnxfuse("explain", str(model), "--cache-dir", cache, "--strategy", "best")
    assert explained.code in (0, 2)
