"""Random inputs that a model accepts: indices in range, masks of 0 and 1, consistent extents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.errors import DeviceError, ModelError, UsageError
from onnxfuse.runtime import engine, feed_limits, feeds
from onnxfuse.verify import trial, verify_models

FLOAT, INT64, INT32 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32


def saved(
    folder: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, tuple[int, Sequence[Any]]],
    outputs: Sequence[str],
    **constants: Any,
) -> Path:
    given = [helper.make_tensor_value_info(name, kind, dims) for name, (kind, dims) in inputs.items()]
    wanted = [onnx.ValueInfoProto(name=name) for name in outputs]
    for value in wanted:
        value.type.tensor_type.elem_type = FLOAT
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = onnx.GraphProto(name="g", node=nodes, input=given, output=wanted, initializer=tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "m.onnx")
    return folder / "m.onnx"


def described(path: Path) -> dict[str, feeds.Input]:
    return {each.name: each for each in feeds.inputs_of(feed_limits.skeleton(path))}


def sets_of(
    session: Any, path: Path, inputs: str | None = None, *, seed: int = 0, **more: Any
) -> tuple[list[dict[str, Any]], list[list[Any]]]:
    """Inputs that the model takes, and its outputs, without other sizes where none are asked for."""
    wish = trial.InputRequest(feed_limits.skeleton(path), inputs, seed, {}, **{"larger": False} | more)
    found = trial.input_sets(session, wish)
    return found.values, found.results


def embedding(folder: Path) -> Path:
    """Ids through Cast and Unsqueeze into a table of 50, positions into 9, a mask, and an extent that is a sum."""
    nodes = [
        helper.make_node("Cast", ["ids"], ["ids64"], to=INT64),
        helper.make_node("Unsqueeze", ["ids64", "axis"], ["ids3"]),
        helper.make_node("Gather", ["table", "ids3"], ["words"]),
        helper.make_node("Gather", ["places", "positions"], ["where"], axis=1),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=FLOAT),
        helper.make_node("Concat", ["past", "fresh"], ["whole"], axis=1),
        helper.make_node("Mul", ["whole", "mask"], ["masked"]),
    ]
    inputs = {
        "ids": (INT32, ["batch", "seq"]),
        "positions": (INT64, ["seq"]),
        "attention_mask": (INT64, ["batch", "past + seq"]),
        "past": (FLOAT, ["batch", "past"]),
        "fresh": (FLOAT, ["batch", "seq"]),
    }
    tables = {"table": np.ones((50, 300), np.float32), "places": np.ones((4, 9), np.float32)}
    return saved(folder, nodes, inputs, ["words", "where", "masked"], axis=np.array([0]), **tables)


def test_indices_stay_in_range_and_extents_fit(tmp_path: Path):
    path = embedding(tmp_path)
    found = described(path)
    assert (found["ids"].role, found["ids"].limit) == ("index", 50)
    assert (found["positions"].role, found["positions"].limit) == ("index", 9)
    session = engine.open_session(str(path), engine.options())
    for seed in range(5):
        sets, _ = sets_of(session, path, seed=seed)
        for each in sets:
            assert each["ids"].dtype == np.int32
            assert set(np.unique(each["attention_mask"])) <= {0, 1}
            assert each["attention_mask"].any(axis=1).all()
            assert each["attention_mask"].shape[1] == each["past"].shape[1] + each["fresh"].shape[1]
        sizes = [each["ids"].shape for each in sets]
        assert len(sets) == 2
        assert all(a != b for a, b in zip(*sizes, strict=True))
        assert all(len(set(shape)) == len(shape) for shape in sizes)


def test_the_same_seed_gives_the_same_inputs(tmp_path: Path):
    wanted = list(described(embedding(tmp_path)).values())
    one, two, other = (feeds.random_sets(wanted, seed=seed, recipe=feeds.RECIPES[0], dims={}) for seed in (3, 3, 4))
    assert all(np.array_equal(one[0][name], two[0][name]) for name in one[0])
    assert not np.array_equal(one[0]["past"], other[0]["past"])


def test_given_dims_hold(tmp_path: Path):
    wanted = list(described(embedding(tmp_path)).values())
    sets = feeds.random_sets(wanted, seed=0, recipe=feeds.RECIPES[0], dims={"seq": 6, "past": 4})
    assert {each["ids"].shape[1] for each in sets} == {6}
    assert {each["attention_mask"].shape[1] for each in sets} == {10}


def test_indices_inside_functions_and_branches_are_found(tmp_path: Path):
    path = embedding(tmp_path)
    model = onnx.load(path)
    gather = model.graph.node[2]
    body = helper.make_node("Gather", ["t", "i"], ["o"])
    opsets = [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function("local", "Look", ["t", "i"], ["o"], [body], opsets))
    gather.CopyFrom(helper.make_node("Look", ["table", "ids3"], ["words"], domain="local"))
    model.opset_import.append(helper.make_opsetid("local", 1))
    branch = helper.make_graph(
        [helper.make_node("Gather", ["places", "positions"], ["picked"], axis=1)], "b", [],
        [helper.make_tensor_value_info("picked", FLOAT, None)],
    )  # fmt: skip
    model.graph.node[3].CopyFrom(helper.make_node("If", ["yes"], ["where"], then_branch=branch, else_branch=branch))
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    onnx.save(model, path)
    found = described(path)
    assert (found["ids"].limit, found["positions"].limit) == (50, 9)


@pytest.mark.parametrize("op", [{"op_type": "Gather", "axis": -1}, {"op_type": "ArrayFeatureExtractor"}], ids=str)
def test_an_index_into_a_symbolic_extent(op: dict[str, Any], tmp_path: Path):
    path = saved(
        tmp_path,
        [helper.make_node(inputs=["x", "i"], outputs=["y"], **op)],
        {"i": (INT64, [40]), "x": (FLOAT, ["n", "seq"])},
        ["y"],
    )
    assert described(path)["i"].limit == "seq"
    for each in feeds.random_sets(list(described(path).values()), seed=0, recipe=feeds.RECIPES[0], dims={}):
        assert 0 <= each["i"].min() <= each["i"].max() < each["x"].shape[1]


def test_unnamed_extents_are_matched_by_trial_runs(tmp_path: Path):
    path = saved(
        tmp_path,
        [helper.make_node("MatMul", ["a", "w"], ["aw"]), helper.make_node("Add", ["aw", "b"], ["y"])],
        {"a": (FLOAT, [None, 4]), "b": (FLOAT, [None, 8])},
        ["y"],
        w=np.ones((4, 8), np.float32),
    )
    session = engine.open_session(str(path), engine.options())
    sets, results = sets_of(session, path)
    assert results[0][0].shape != results[1][0].shape
    assert all(each["a"].shape[0] == each["b"].shape[0] for each in sets)


def test_the_second_set_repeats_two_values(tmp_path: Path):
    """What sums over them may cancel out; bytes are images and stay what they are."""
    path = embedding(tmp_path)
    model = onnx.load(path)
    model.graph.input.append(helper.make_tensor_value_info("image", TensorProto.UINT8, ["batch", 300]))
    model.graph.input.append(helper.make_tensor_value_info("counts", INT64, ["batch", 300]))
    onnx.save(model, path)
    first, second = feeds.random_sets(list(described(path).values()), seed=0, recipe=feeds.RECIPES[0], dims={"seq": 90})
    for name in ("ids", "counts"):
        assert len(np.unique(first[name])) > 5
        assert len(np.unique(second[name])) <= 2
        assert second[name].dtype == first[name].dtype
    assert len(np.unique(second["image"])) > 200


def test_slow_models_get_one_set_of_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = embedding(tmp_path)
    session = engine.open_session(str(path), engine.options())
    monkeypatch.setattr(trial, "LONG_RUN", 0.0)
    sets, results = sets_of(session, path)
    assert len(sets) == len(results) == 1
    np.savez(tmp_path / "in.npz", allow_pickle=False, **sets[0])
    assert len(sets_of(session, path, str(tmp_path / "in.npz"))[0]) == 1


def test_images_of_a_second_set_are_smaller_where_it_would_run_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    nodes = [helper.make_node("Sigmoid", ["x"], ["y"])]
    path = saved(tmp_path, nodes, {"x": (FLOAT, ["n", 3, "h", "w"])}, ["y"])
    session = engine.open_session(str(path), engine.options())
    usual, _ = sets_of(session, path)
    monkeypatch.setattr(trial, "predicted", lambda known, elements: 2 * trial.LONG_RUN * (elements > max(known)[0]))
    fewer, _ = sets_of(session, path)
    assert [v["x"].shape for v in usual[:2]] == [(2, 3, 37, 37), (3, 3, 67, 67)]
    assert [v["x"].shape for v in fewer[:2]] == [(2, 3, 37, 37), (3, 3, 17, 17)]


@pytest.mark.parametrize(
    ("shape", "first"),
    [
        (["n", "h", "w", 3], (2, 37, 37, 3)),
        (["n", "t", 40, 1], (2, 37, 40, 1)),
        (["n", "t", "h", "w", 2], (2, 37, 37, 37, 2)),
        (["n", "c", "h", "w"], (2, 3, 37, 37)),
        (["n", 8, "past", 64], (2, 8, 37, 64)),
        ([1, "h", "w", 3], (1, 37, 37, 3)),
    ],
)
def test_which_axis_of_an_image_has_the_channels(shape: list[Any], first: tuple[int, ...]):
    given = feeds.Input("x", np.dtype(np.float32), tuple(shape), "float")
    (values, _) = feeds.random_sets([given], seed=0, recipe=feeds.RECIPES[0], dims={})
    assert values["x"].shape == first


def test_an_image_with_channels_last_is_as_large_as_windows_without_padding_need(tmp_path: Path):
    """Both extents are: with 3 or 5 lines, which a second extent of other inputs may have, the second one fails."""
    nodes = [helper.make_node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2])]
    nodes += [helper.make_node("Conv", [a, "w"], [b], strides=[2, 2]) for a, b in ("tu", "uv")]
    nodes.append(helper.make_node("GlobalAveragePool", ["v"], ["y"]))
    w = np.ones((3, 3, 7, 7), np.float32)
    path = saved(tmp_path, nodes, {"x": (FLOAT, ["n", "h", "w", 3])}, ["y"], w=w)
    sets, _ = sets_of(engine.open_session(str(path), engine.options()), path)
    assert [v["x"].shape for v in sets] == [(2, 37, 37, 3), (3, 67, 67, 3)]


def test_more_outputs_come_behind_and_may_be_nan(tmp_path: Path):
    nodes = [helper.make_node("Sqrt", ["x"], ["a"]), helper.make_node("Identity", ["x"], ["y"])]
    path = saved(tmp_path, nodes, {"x": (FLOAT, ["n"])}, ["a", "y"])
    session = engine.open_session(str(path), engine.options())
    _, ((y, a), _) = sets_of(session, path, also=["a"])
    assert np.isnan(a).any()
    assert (y < 0).any()


def test_a_model_for_which_no_inputs_are_found_says_why(tmp_path: Path):
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    path = saved(tmp_path, nodes, {"x": (FLOAT, [7]), "shape": (INT64, [2])}, ["y"])
    session = engine.open_session(str(path), engine.options())
    with pytest.raises(DeviceError, match="cannot be run"):
        sets_of(session, path)


def test_samples_are_sought_without_large_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A batch stands before samples, of which a filter needs many: no more of one is tried than of the other."""
    nodes = [
        helper.make_node("Unsqueeze", ["x", "axis"], ["signal"]),
        helper.make_node("Conv", ["signal", "w"], ["y"], name="filter"),
    ]
    inputs = {"x": (FLOAT, ["batch", "samples"])}
    path = saved(tmp_path, nodes, inputs, ["y"], axis=np.array([1]), w=np.ones((4, 1, 500), np.float32))
    drawn, largest = feeds.drawn, []

    def noted(*given: Any, **more: Any) -> dict[str, Any]:
        values = drawn(*given, **more)
        largest.append(values["x"].shape[0])
        return values

    monkeypatch.setattr(feeds, "drawn", noted)
    found, _ = sets_of(engine.open_session(str(path), engine.options()), path)
    assert found[0]["x"].shape[1] >= 500 and max(largest) <= 512


def test_inputs_without_nan_in_the_outputs_are_preferred(tmp_path: Path):
    nodes = [helper.make_node("Sqrt", ["x"], ["a"]), helper.make_node("ReduceProd", ["a"], ["y"])]
    path = saved(tmp_path, nodes, {"x": (FLOAT, [40])}, ["y"])
    session = engine.open_session(str(path), engine.options())
    _, results = sets_of(session, path)
    assert all(np.isfinite(outputs[0]).all() for outputs in results)


def test_a_skeleton_has_no_weights_but_their_shapes(tmp_path: Path):
    bare = feed_limits.skeleton(embedding(tmp_path))
    assert bare.ByteSize() < 2000
    assert {tuple(each.dims) for each in bare.graph.initializer} == {(50, 300), (4, 9), (1,)}


def test_a_skeleton_has_all_but_the_weights(tmp_path: Path):
    """Small initializers, constants of any size in nodes, and those of inner graphs are values that shapes may need."""
    big, small = (
        np.arange(600, dtype=np.float32),
        np.arange(100, dtype=np.float64),
    )  # of 2.4 kB and 128 elements at most

    def large(name: str) -> onnx.TensorProto:
        return onnx.numpy_helper.from_array(big, name)

    fields = onnx.helper.make_tensor("fields", onnx.TensorProto.FLOAT, big.shape, big)
    ends = [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [600])]
    inner = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["i"], ["y"])], "inner", [], ends, [large("i")])
    nodes = [
        onnx.helper.make_node("Constant", [], ["c"], value=large("c")),
        onnx.helper.make_node("If", ["b"], ["z"], then_branch=inner, else_branch=inner),
    ]
    weights = [large("w"), fields, onnx.numpy_helper.from_array(small, "s")]
    graph = onnx.helper.make_graph(nodes, "g", [], [onnx.helper.make_tensor_value_info("z", 1, [600])], weights)
    whole = onnx.helper.make_model(graph)
    onnx.save(whole, tmp_path / "m.onnx")
    bare = feed_limits.skeleton(tmp_path / "m.onnx")
    assert [(t.name, t.data_location, len(t.raw_data), len(t.float_data)) for t in bare.graph.initializer] == [
        ("w", 1, 0, 0), ("fields", 1, 0, 0), ("s", 0, small.nbytes, 0),
    ]  # fmt: skip
    assert list(bare.graph.node) == list(whole.graph.node)


def test_files_that_are_no_models(tmp_path: Path):
    for name, data in (("empty.onnx", b""), ("text.onnx", b"hello, this is text")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ModelError, match="not an ONNX model"):
            feed_limits.skeleton(tmp_path / name)
    with pytest.raises(UsageError, match="cannot be read"):
        feed_limits.skeleton(tmp_path / "none.onnx")


# ---- inputs from files ----


def test_npz_and_data_set_folders(tmp_path: Path):
    wanted = list(described(embedding(tmp_path)).values())
    values = feeds.random_sets(wanted, seed=0, recipe=feeds.RECIPES[0], dims={})[0]
    np.savez(tmp_path / "in.npz", allow_pickle=False, **(values | {"ids": values["ids"].astype(np.int64)}))
    folder = tmp_path / "data" / "test_data_set_0"
    folder.mkdir(parents=True)
    for i, each in enumerate(wanted):
        (folder / f"input_{i}.pb").write_bytes(numpy_helper.from_array(values[each.name], "").SerializeToString())
    for source in (tmp_path / "in.npz", folder, folder.parent):
        (read,) = feeds.read_feeds(source, wanted)
        assert all(
            np.array_equal(read[name], values[name]) and read[name].dtype == values[name].dtype for name in values
        )


def test_files_that_do_not_fit(tmp_path: Path):
    wanted = list(described(embedding(tmp_path)).values())
    np.savez(tmp_path / "in.npz", ids=np.zeros(1))
    (tmp_path / "bad.npz").write_bytes(b"no archive")
    for name in ("in.npz", "bad.npz", "none.npz"):
        with pytest.raises(UsageError, match="inputs: "):
            feeds.read_feeds(tmp_path / name, wanted)


# ---- moved by one rounding ----


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(), (100,), (3, 5)])
def test_a_perturbation_is_one_rounding(dtype: type, shape: tuple[int, ...]):
    x = np.asarray(np.random.default_rng(0).standard_normal(shape)).astype(dtype)
    moved = feeds.nudged({"x": x}, 1)["x"]
    assert (moved.shape, moved.dtype) == (x.shape, x.dtype)
    apart = np.abs(moved.astype(np.float64) - x.astype(np.float64)) / np.abs(x.astype(np.float64))
    epsilon = float(ml_dtypes.finfo(dtype).eps)
    assert (apart > 0).all()
    assert (apart <= epsilon).all()
    further = feeds.nudged({"x": x}, 1, share=0.25)["x"]
    assert (type(further), further.shape, further.dtype) == (np.ndarray, x.shape, x.dtype)
    np.testing.assert_allclose(np.abs(further.astype(np.float64) / x.astype(np.float64) - 1), 0.25, atol=2 * epsilon)


def test_a_perturbation_keeps_integers_and_masks():
    given = {
        "int": np.arange(5),
        "mask": np.array([0.0, 1.0, 1.0], np.float32),
        "odd": np.array([np.inf, np.nan, 0.0, np.finfo(np.float32).max], np.float32),
    }
    moved = feeds.nudged(given, 0)
    assert all(np.array_equal(moved[name][:3], given[name][:3], equal_nan=name == "odd") for name in given)
    assert np.isfinite(moved["odd"][3])


def asking_for_text(path: Path, source: onnx.ModelProto) -> Path:
    """The model with another input, of strings that a table makes numbers of."""
    more = onnx.ModelProto()
    more.CopyFrom(source)
    more.opset_import.append(helper.make_opsetid("ai.onnx.ml", 2))
    table = {"keys_strings": ["a", "b"], "values_int64s": [3, 5], "default_int64": 7}
    more.graph.input.append(helper.make_tensor_value_info("words", TensorProto.STRING, ["n", 2]))
    more.graph.node.append(helper.make_node("LabelEncoder", ["words"], ["ids"], domain="ai.onnx.ml", **table))
    more.graph.node.append(helper.make_node("Identity", ["words"], ["said"]))
    more.graph.output.append(helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", 2]))
    more.graph.output.append(helper.make_tensor_value_info("said", TensorProto.STRING, ["n", 2]))
    onnx.save(more, path)
    return path


def test_a_model_that_reads_text_is_run_with_words_of_its_tables(files: Path, tmp_path: Path, good: Path, wrong: Path):
    plain, fused = (onnx.load(files / f"{name}.onnx") for name in ("plain", "fused"))
    original, made = asking_for_text(tmp_path / "a.onnx", plain), asking_for_text(tmp_path / "b.onnx", fused)
    for library, right in ((good, True), (wrong, False)):
        verdict = verify_models(original, made, library=library)
        assert verdict.ok is right and verdict.inputs
    (words,) = (each for each in feeds.inputs_of(feed_limits.skeleton(original)) if each.name == "words")
    drawn = feeds.random_sets([words], seed=0, recipe=feeds.RECIPES[0], dims={"n": 50})
    assert set(drawn[0]["words"].ravel()) == {"a", "b", "?"}
