"""Verification in four modes: correct results pass, wrong ones are found, and undecided is reported."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxfuse import verify
from onnxfuse.errors import BudgetError, DeviceError, ModelError
from onnxfuse.runtime import engine, feed_limits
from onnxfuse.verify import compare, nodes, original, trial, verify_culprits, verify_groups, verify_models
from onnxfuse.verify.verdicts import Verdict, verdict_on
from tests.runtime import twice

WAYS = [f"{used} library, {how} optimizations" for used in ("with", "without") for how in ("all", "no")]


def one_node(path: Path, op: str, *, inputs: int = 1, kind: int = TensorProto.FLOAT, **attributes: Any) -> Path:
    """A model `y = op(x0, ...)` of matrices."""
    names = [f"x{i}" for i in range(inputs)]
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 8]) for name in names]
    node = helper.make_node(op, names, ["y"], **attributes)
    graph = helper.make_graph([node], "g", given, [helper.make_tensor_value_info("y", kind, None)])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


# ---- whole models ----


def test_a_right_library_passes_in_four_ways(files: Path, good: Path):
    verdict = verify_models(files / "plain.onnx", files / "fused.onnx", library=good)
    assert verdict.ok is True
    assert [run.name for run in verdict.runs] == WAYS
    assert all(run.ok for run in verdict.runs)
    assert verdict.inputs == 9  # two, sizes of 1 and 2, another and larger ones
    assert verdict.max_error is not None
    assert verdict.limit is not None
    assert verdict.max_error <= verdict.limit < 1e-3
    assert json.loads(json.dumps(verdict.to_json()))["ok"] is True


def test_one_percent_is_found(files: Path, wrong: Path):
    verdict = verify_models(files / "plain.onnx", files / "fused.onnx", library=wrong)
    assert verdict.ok is False
    assert [run.ok for run in verdict.runs] == [False, False, True, True]
    assert verdict.tolerance == pytest.approx(0.028, abs=0.005)  # three kernels, one percent each
    assert "with library, all optimizations: output y: error 0.02" in verdict.message


def test_the_tolerance_that_would_pass_passes(files: Path, wrong: Path):
    plain, fused = files / "plain.onnx", files / "fused.onnx"
    tolerance = verify_models(plain, fused, library=wrong).tolerance
    assert tolerance is not None
    assert verify_models(plain, fused, library=wrong, rtol=tolerance).ok is True
    assert verify_models(plain, fused, library=wrong, rtol=0.99 * tolerance).ok is False
    assert verify_models(plain, fused, library=wrong, atol=10.0).ok is True


def test_two_plain_models(files: Path, tmp_path: Path):
    other = onnx.load(files / "plain.onnx")
    other.graph.node[-1].op_type = "Identity"
    onnx.save(other, tmp_path / "other.onnx")
    assert verify_models(files / "plain.onnx", files / "plain.onnx").ok is True
    verdict = verify_models(files / "plain.onnx", tmp_path / "other.onnx")
    assert (verdict.ok, len(verdict.runs)) == (False, 2)


def test_a_crash_is_an_answer(files: Path, crashing: Path):
    verdict = verify_models(files / "plain.onnx", files / "fused.onnx", library=crashing)
    assert verdict.ok is False
    assert verdict.message.startswith(WAYS[0])
    assert "SIGSEGV" in verdict.message


def test_a_model_that_does_not_open_is_an_answer(files: Path, tmp_path: Path):
    broken = onnx.load(files / "plain.onnx")
    broken.graph.node[-1].op_type = "NoSuchOperator"
    onnx.save(broken, tmp_path / "broken.onnx")
    verdict = verify_models(files / "plain.onnx", tmp_path / "broken.onnx")
    assert verdict.ok is False
    assert "NoSuchOperator" in verdict.message
    asked_in_vain = verify_models(tmp_path / "broken.onnx", files / "plain.onnx")
    assert asked_in_vain.ok is None
    assert "NoSuchOperator" in asked_in_vain.message


def asking_for_more(path: Path, source: onnx.ModelProto) -> Path:
    """The model with another input, a sequence, for which there are no random values."""
    more = onnx.ModelProto()
    more.CopyFrom(source)
    more.graph.input.append(helper.make_tensor_sequence_value_info("parts", TensorProto.FLOAT, [2]))
    more.graph.node.append(helper.make_node("SequenceLength", ["parts"], ["count"]))
    more.graph.output.append(helper.make_tensor_value_info("count", TensorProto.INT64, []))
    onnx.save(more, path)
    return path


def test_what_cannot_be_run_is_loaded_at_least(files: Path, tmp_path: Path, good: Path):
    plain, fused = (onnx.load(files / f"{name}.onnx") for name in ("plain", "fused"))
    original, right = asking_for_more(tmp_path / "a.onnx", plain), asking_for_more(tmp_path / "b.onnx", fused)
    verdict = verify_models(original, right, library=good)
    assert verdict.ok is None
    assert "sequence" in verdict.message and "loaded with and without its library" in verdict.message
    assert [run.name for run in verdict.runs] == WAYS
    fused.functions[0].node[0].op_type = "NoSuchOperator"
    broken = verify_models(original, asking_for_more(tmp_path / "c.onnx", fused), library=good)
    assert broken.ok is False and [run.ok for run in broken.runs] == [True, True, False, False]
    assert "without library" in broken.message and "NoSuchOperator" in broken.message


def test_what_is_no_model_is_an_error_of_either_side(files: Path, tmp_path: Path):
    (tmp_path / "text.onnx").write_text("text", encoding="utf-8")
    (tmp_path / "empty.onnx").write_bytes(b"")
    for name in ("text", "empty"):
        with pytest.raises(ModelError, match="not an ONNX model"):
            verify_models(files / "plain.onnx", tmp_path / f"{name}.onnx")


def test_the_message_names_the_run(files: Path, wrong: Path):
    verdict = verify_models(files / "plain.onnx", files / "fused.onnx", library=wrong, seed=3)
    assert re.search(r"with library, all optimizations: output y: error .* on x \d+x\d+ \(seed 3\)", verdict.message)


def test_outputs_must_be_as_many(files: Path, tmp_path: Path):
    more = onnx.load(files / "plain.onnx")
    more.graph.output.append(onnx.ValueInfoProto(name="f0"))
    onnx.save(more, tmp_path / "more.onnx")
    verdict = verify_models(files / "plain.onnx", tmp_path / "more.onnx")
    assert verdict.ok is False
    assert "outputs are y, f0 instead of y" in verdict.message


def test_random_numbers_cannot_be_compared(tmp_path: Path):
    path = one_node(tmp_path / "random.onnx", "RandomNormalLike")
    verdict = verify_models(path, path)
    assert verdict.ok is None
    assert verdict.unsteady == ("y",)
    assert "does not reproduce" in verdict.message


@pytest.mark.parametrize(("kind", "ways"), [("int64", 2), ("float", 3)])
def test_inputs_that_no_rounding_moves_are_not_run_again(
    kind: str, ways: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Without optimizations, with them, and on the neighbours of floats."""
    path, ran = tmp_path / "m.onnx", list[int]()
    onnx.save(
        onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        m ({kind}[4] x) => (float[4] y) {{ a = Cast <to = 1> (x) y = Exp (a) }}"""),
        path,
    )
    _, run = engine.saturates(), engine.run  # a process asks that once, by a run
    monkeypatch.setattr(engine, "run", lambda *arguments: (ran.append(1), run(*arguments))[1])
    skeleton = feed_limits.skeleton(path)
    found = original.original(str(path), skeleton, (), trial.InputRequest(skeleton, None, 0, {}), 0.0)
    assert len(ran) == ways * len(found.sets)
    assert [len(each) for each in found.own] == [1] * len(found.sets)


def test_integer_outputs_must_be_equal(tmp_path: Path):
    most = one_node(tmp_path / "most.onnx", "ArgMax", kind=TensorProto.INT64, axis=1)
    least = one_node(tmp_path / "least.onnx", "ArgMin", kind=TensorProto.INT64, axis=1)
    assert verify_models(most, most).ok is True
    verdict = verify_models(most, least)
    assert (verdict.ok, verdict.limit, verdict.tolerance) == (False, 0.0, None)


def test_inputs_from_a_file(files: Path, tmp_path: Path):
    np.savez(tmp_path / "in.npz", x=np.full((2, 2), -0.5, np.float32))  # 2 x + 1 = 0: three times one is not seen
    plain, other = files / "plain.onnx", onnx.load(files / "plain.onnx")
    other.graph.node[-1].op_type = "Abs"
    onnx.save(other, tmp_path / "abs.onnx")
    np.savez(tmp_path / "negative.npz", x=np.full((2, 2), -5.0, np.float32))
    given = verify_models(plain, tmp_path / "abs.onnx", inputs=tmp_path / "negative.npz")
    assert (given.ok, given.inputs) == (True, 1)
    assert verify_models(plain, tmp_path / "abs.onnx").ok is False


def test_limits_of_time_and_what_is_no_model(files: Path, tmp_path: Path):
    with pytest.raises(BudgetError):
        verify_models(files / "plain.onnx", files / "plain.onnx", time_limit=0.01)
    (tmp_path / "text.onnx").write_text("text", encoding="utf-8")
    with pytest.raises(ModelError, match="not an ONNX model"):
        verify_models(tmp_path / "text.onnx", files / "plain.onnx")


def test_without_a_runtime_there_is_no_answer(files: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(verify.importlib.util, "find_spec", lambda name: None)
    verdict = verify_models(files / "plain.onnx", files / "plain.onnx")
    assert (verdict.ok, verdict.message) == (None, "onnxruntime is not installed")


# ---- the judgement alone ----


def measured(
    errors: list[float],
    own: list[float],
    floor: float = 2e-5,
    exact: bool = False,
    kernels: list[float] | None = None,
    **more: Any,
) -> Verdict:
    """Of a run with these errors; before it, where they are given, one with kernels, of a model of codes."""
    names = [f"y{i}" for i in range(len(errors))]
    told = [way("with kernels", kernels, own)] if kernels is not None else []
    return verdict_on(
        {"outputs": names, "exact": [exact] * len(names), "own": [[each] for each in own], "floor": floor,
         "sensitivity": [0.0] * len(own), "quantized": kernels is not None, "perturbed": [0.0] * len(own),
         "sets": 1, "shapes": ["x 2x3"], "seed": 0, "runs": [*told, way("way", errors, own)]}, **more
    )  # fmt: skip


def way(name: str, errors: list[float], own: list[float]) -> dict[str, Any]:
    found = [
        {"error": e, "max_abs": e, "rms": 1.0, "reason": "" if np.isfinite(e) else "NaN elsewhere"} for e in errors
    ]
    kernels = name.startswith("with")
    facts = {
        "name": name,
        "with_library": kernels,
        "like_reference": not kernels,
        "message": "",
        "own": own,
        "true": None,
    }
    return facts | {"distances": found, "largest": found}


@pytest.mark.parametrize(
    ("error", "own", "ok"), [(1e-5, 0.0, True), (3e-5, 0.0, False), (3e-5, 4e-6, True), (5e-5, 4e-6, False)]
)
def test_ten_times_the_originals_own_difference_or_the_floor(error: float, own: float, ok: bool):
    assert measured([error], [own]).ok is ok


def test_the_output_nearest_its_limit_is_shown():
    verdict = measured([1e-3, 1.5e-5], [1e-3, 0.0])
    assert (verdict.ok, verdict.max_error, verdict.limit, verdict.tolerance) == (True, 1.5e-5, 2e-5, 1e-3)


def test_an_unsteady_output_is_left_out():
    verdict = measured([1.0, 1e-6], [0.5, 0.0])
    assert (verdict.ok, verdict.unsteady) == (True, ("y0",))
    assert measured([1.0], [compare.REPRODUCED * 1.01]).ok is None


def test_differences_of_quantized_values_are_reported():
    verdict = measured([1e-6, 0.0], [0.2, 0.0], kernels=[0.3, 1e-5])
    assert (verdict.ok, verdict.informational, verdict.max_error, verdict.limit) == (True, True, 0.3, 0.4)
    assert measured([0.0], [0.0], kernels=[0.51]).ok is False
    assert measured([1e-6], [0.01], kernels=[0.03]).ok is False


@pytest.mark.parametrize(("error", "own", "ok"), [(1e-4, 0.0, False), (1e-4, 2e-5, True), (0.4, 0.2, True)])
def test_the_model_of_codes_without_kernels_is_judged_by_the_originals_own_difference(
    error: float, own: float, ok: bool
):
    assert measured([error], [own], kernels=[0.0]).ok is ok
    assert measured([0.6], [own], kernels=[0.0]).ok is False


def test_nan_of_quantized_kernels_must_be_in_the_same_places():
    verdict = measured([0.0, 0.0], [0.2, 0.0], kernels=[0.3, np.inf])
    assert (verdict.ok, verdict.message) == (False, "with kernels: output y1: NaN elsewhere on x 2x3 (seed 0)")


def test_a_tolerance_is_asked_of_kernels_of_codes_too():
    assert measured([0.0], [0.0], kernels=[0.3], rtol=0.1).ok is False
    assert measured([0.0], [0.0], kernels=[0.3], rtol=0.4).ok is True


def test_tolerances_do_not_soften_integers():
    assert measured([0.1], [0.0], exact=True, rtol=1.0).ok is False
    assert measured([0.1], [0.0], rtol=0.05).ok is False
    assert measured([0.1], [0.0], rtol=0.05, atol=0.06).ok is True


# ---- each fused node against its body ----


def test_fused_nodes_agree_with_their_bodies(files: Path, good: Path):
    results = verify_groups(files / "fused.onnx", good)
    assert [(each.name, each.op_type, each.ok) for each in results] == [(f"fused{i}", "Twice", True) for i in range(3)]


def test_a_planted_percent_is_found_in_each_group(files: Path, wrong: Path):
    results = verify_groups(files / "fused.onnx", wrong)
    assert [each.ok for each in results] == [False] * 3
    assert all(each.error == pytest.approx(0.01, rel=1e-3) for each in results)  # not of the groups before it
    assert all(each.limit is not None and each.limit < 1e-4 for each in results)


def test_a_crashing_kernel_is_a_result_for_each_node(files: Path, crashing: Path):
    results = verify_groups(files / "fused.onnx", crashing)
    assert sorted((each.name, each.ok) for each in results) == [(f"fused{i}", False) for i in range(3)]
    assert all("SIGSEGV" in each.message for each in results)


def test_the_bound_follows_the_reduction_length(files: Path, good: Path):
    short, long = (verify_groups(files / "fused.onnx", good, reductions={"Twice": n})[0] for n in (1, 10_000))
    assert short.limit is not None
    assert long.limit is not None
    assert long.limit > 3 * short.limit


def test_weights_and_external_data(tmp_path: Path, wrong: Path):
    """Only the second node is fed by the graph; the first one's input is a weight in a file of its own."""
    model = twice.model(nodes=2)
    model.graph.node[0].input[0] = "weight"
    weight = onnx.numpy_helper.from_array(np.ones((30, 40), np.float32), "weight")
    model.graph.initializer.append(weight)
    model.graph.node.insert(1, helper.make_node("Add", ["f0", "x"], ["sum"], name="add"))
    model.graph.node[2].input[0] = "sum"
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    results = verify_groups(tmp_path / "m.onnx", wrong, dims={"batch": 30, "features": 40})
    assert [each.ok for each in results] == [False, False]
    assert all(each.error == pytest.approx(0.01, rel=1e-3) for each in results)


def test_nodes_that_are_known_are_left_out(files: Path, good: Path):
    results = verify_groups(files / "fused.onnx", good, skip=["fused0", "fused2"])
    assert [each.name for each in results] == ["fused1"]


def test_values_that_do_not_fit_at_once_are_captured_in_turns(
    files: Path, wrong: Path, monkeypatch: pytest.MonkeyPatch
):
    def found(limit: int) -> tuple[int, list[tuple[str, float]]]:
        opened = []
        monkeypatch.setattr(nodes, "_CAPTURED_BYTES", limit)
        monkeypatch.setattr(nodes, "_with_outputs", lambda *a: (opened.append(a), tapped(*a))[1])
        made = nodes.measure(
            lambda _: None, str(files / "fused.onnx"), str(wrong), [""], (), None, 0, {}, {}, {}, [], []
        )
        return len(opened), [(each["name"], each["error"]) for each in made]

    tapped = nodes._with_outputs
    monkeypatch.chdir(files)
    once, thrice = found(1 << 20), found(1)
    assert (once[0], thrice[0]) == (1, 3)
    assert once[1] == thrice[1]
    assert all(error == pytest.approx(0.01, rel=1e-3) for _, error in once[1])


def test_a_kernel_that_refuses_what_its_body_takes_is_at_fault(tmp_path: Path, good: Path):
    onnx.save(twice.model(rank=3), tmp_path / "m.onnx")
    (result,) = verify_groups(tmp_path / "m.onnx", good)
    assert (result.ok, result.error) == (False, None)
    assert "must be a matrix" in result.message


def test_a_kernel_is_not_at_fault_where_its_body_does_not_run(
    tmp_path: Path, good: Path, monkeypatch: pytest.MonkeyPatch
):
    def refusing(*_: Any, **__: Any) -> Any:
        raise DeviceError("runtime: no")

    onnx.save(twice.model(), tmp_path / "m.onnx")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(nodes, "_run", refusing)
    (result,) = nodes.measure(lambda _: None, "m.onnx", str(good), [""], (), None, 0, {}, {}, {}, [], [])
    assert result["ok"] is None and "the body does not run" in result["message"]


# ---- which kernels are at fault ----


def two_kernels(path: Path) -> Path:
    """A model of two operator types, of which the library has a kernel for one."""
    model = twice.model(nodes=3)
    function = onnx.FunctionProto()
    function.CopyFrom(model.functions[0])
    function.name = "Other"
    model.functions.append(function)
    model.graph.node[1].op_type = "Other"
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("broken", ["wrong", "crashing"])
def test_the_kernel_at_fault_is_found_by_bisection(
    broken: str, files: Path, tmp_path: Path, request: pytest.FixtureRequest
):
    model, library = two_kernels(tmp_path / "m.onnx"), request.getfixturevalue(broken)
    verdict = verify_models(files / "plain.onnx", model, library=library)
    assert verdict.ok is False
    assert verify_culprits(files / "plain.onnx", model, library, verdict, ("Other", "Twice")) == ("Twice",)


def test_a_model_without_fused_nodes_has_no_groups(files: Path, good: Path):
    assert verify_groups(files / "plain.onnx", good) == ()
