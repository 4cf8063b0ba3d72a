"""`--dim` and `--input-shape` set named dimensions; error messages name the existing ones."""

from __future__ import annotations

import pytest

from onnxfuse.errors import UsageError
from onnxfuse.ir.graph import Graph
from onnxfuse.ir.index import symbols_of
from tests.load.models import graph_of, parse, text

TWO = """g (float[batch, 3, height, width] x, float[batch, length] mask) => (float[batch, L] y, float[A, B] z)
{ y = Flatten(x)\n z = Relu(mask) }"""


def types(graph: Graph) -> list[str]:
    return [text(graph.types[v]) for v in ("x", "mask", "y", "z")]


def test_a_name_gets_a_value_wherever_it_occurs():
    graph = graph_of(TWO, dim=("batch=8", "width=16"))
    assert types(graph) == [
        "float32[8, 3, height, 16]",
        "float32[8, length]",
        "float32[8, 48*height]",
        "float32[8, length]",
    ]
    assert graph.source.dims == {"batch": 8, "width": 16}


@pytest.mark.parametrize("given", ["x:2,3,8,16", "x:2x3x8x16", "x:[2, 3, 8, 16]", "x:(2,3,8,16)"])
def test_an_input_gets_a_shape(given: str):
    graph = graph_of(TWO, input_shape=(given,))
    assert types(graph) == ["float32[2, 3, 8, 16]", "float32[2, length]", "float32[2, 384]", "float32[2, length]"]


def test_names_with_colons_and_scalars():
    model = parse("g (float[N] x, float y) => (float[N] z) { z = Add(x, y) }")
    model.graph.input[0].name = model.graph.node[0].input[0] = "in:0"
    assert text(graph_of(model, input_shape=("in:0:7", "y:[]")).types["z"]) == "float32[7]"


def test_unnamed_dimensions_and_unknown_ranks_get_values():
    model = parse("g (float[?, 4] x, float[] y) => (float[] z, float[] v) { z = Relu(x)\n v = Relu(y) }")
    assert text(graph_of(model).types["z"]) == "float32[?x_0, 4]" and graph_of(model).types["v"] is None
    graph = graph_of(model, input_shape=("x:3,4", "y:5,n"))
    assert (text(graph.types["z"]), text(graph.types["v"])) == ("float32[3, 4]", "float32[5, n]")


def test_two_dimensions_get_one_name():
    model = parse("g (float[?, 4] x, float[M, 4] y) => (float[?, ?] z) { z = Add(x, y) }")
    assert text(graph_of(model).types["z"]) == "float32[common(?x_0, M), 4]"
    graph = graph_of(model, input_shape=("x:rows,4", "y:rows,4"))
    assert text(graph.types["z"]) == "float32[rows, 4]"
    assert text(graph_of(model, input_shape=("x:rows,4", "y:rows,4"), dim=("rows=6",)).types["z"]) == "float32[6, 4]"


def test_sloppy_names_are_no_names():
    model = parse("g (float[A, B] x, float[A, B] y) => (float[A, B] z) { z = Concat<axis = 0>(x, y) }")
    for info in model.graph.input:
        for dim, name in zip(info.type.tensor_type.shape.dim, ("?", "None"), strict=True):
            dim.dim_param = name
    graph = graph_of(model)
    assert text(graph.types["x"]) == "float32[?x_0, ?x_1]" and text(graph.types["y"]) == "float32[?y_0, ?y_1]"
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    assert text(graph_of(model).types["x"]) == "float32[?x_0, ?x_1]"


def test_a_name_that_is_a_number_is_a_name():
    """The runtime takes any size there."""
    model = parse("g (float[N, M] x) => (float[N, M] z) { z = Relu(x) }")
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.shape.dim[0].dim_param = "0"
        info.type.tensor_type.shape.dim[1].dim_param = "2 + 1"
    (name, other) = graph_of(model).types["z"].shape  # type: ignore[union-attr]  # it has one
    assert name.constant is None and other.constant is None


def test_names_that_are_expressions():
    model = parse("g (float[N, 4] x, float[M, 4] y) => (float[P, 4] z) { z = mine.F(x, y) }", imports=', "mine": 1')
    dims = [v.type.tensor_type.shape.dim[0] for v in (*model.graph.input, *model.graph.output)]
    for dim, name in zip(dims, ("batch*(length + 1)", "length // 2", "batch"), strict=True):
        dim.dim_param = name
    graph = graph_of(model)
    assert [text(graph.types[v]) for v in "xyz"] == [
        "float32[batch + batch*length, 4]",
        "float32[(length)//2, 4]",
        "float32[?z_0, 4]",  # what a model says of its outputs is proven by nothing
    ]
    assert text(graph_of(model, input_shape=("x:6,4",)).types["x"]) == "float32[6, 4]"


def test_expressions_that_contradict_each_other_are_names():
    """To the runtime all of them are: it runs the model at any size."""
    model = parse("g (float[N, 4] x, float[M, 4] y) => (float[P, 4] z) { z = Add(x, y) }")
    dims = [v.type.tensor_type.shape.dim[0] for v in model.graph.input]
    for names, read in {("2*n", "n + 1"): ("2*n", "n + 1"), ("2*n", "n + n"): ("2*n", "2*n")}.items():
        for dim, name in zip(dims, names, strict=True):
            dim.dim_param = name
        shapes = [graph_of(model).types[v].shape[0] for v in "xy"]  # type: ignore[union-attr]  # they have one
        assert tuple(map(repr, shapes)) == read
        assert all(len(symbols_of(e)) == 1 for e in shapes)
        assert {s.name for e in shapes for s in symbols_of(e)} == (set(names) if names[1] == "n + 1" else {"n"})


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"dim": ("batsh=8",)}, "batch"),
        ({"dim": ("batch",)}, "NAME=N"),
        ({"dim": ("batch=x",)}, "NAME=N"),
        ({"dim": ("=4",)}, "NAME=N"),
        ({"dim": ("batch=2", "batch=3")}, "another flag sets it to 2"),
        ({"input_shape": ("x:2,3,8,16", "mask:4,5")}, "another flag sets it to 2"),
        ({"input_shape": ("x:2,3,8",)}, "4"),
        ({"input_shape": ("x:2,4,8,16",)}, "fixes it at 3"),
        ({"input_shape": ("masc:2,3",)}, "mask"),
        ({"input_shape": ("x",)}, "NAME:D,D"),
        ({"input_shape": ("x:2,3,8,-1",)}, "NAME:D,D"),
    ],
)
def test_mistakes(flags: dict[str, tuple[str, ...]], said: str):
    with pytest.raises(UsageError) as caught:
        graph_of(TWO, **flags)
    assert said in str(caught.value) and caught.value.hint
