"""Inferred types and integers of real patterns, compared with a run; undecidable ones are unknown, never wrong."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from models.small.bert import bert
from onnxfuse.ir.graph import Graph, Node
from onnxfuse.ir.index import Index, Symbol
from onnxfuse.load import simplify_shapes
from onnxfuse.ops.rows import ROWS
from onnxfuse.ops.spec import define, view_of
from tests.load.models import disagreements, graph_of, parse, text


def shape_inputs(graph: Graph, node: Node) -> list[str]:
    """The inputs of a node that only shape its result."""
    row = ROWS.find(node, graph.opset)
    return [node.inputs[i] for i in row.shape_inputs if i < len(node.inputs) and node.inputs[i]] if row else []


@pytest.mark.parametrize("form", ["modern", "decomposed"])
def test_every_shape_of_a_dynamic_bert_is_known(form: str):
    model = bert(form=form)
    graph = graph_of(model)
    assert not graph.source.warnings and not graph.source.unproven
    assert [
        n.op for n in graph.nodes if not isinstance(define(ROWS, view_of(graph, n)), tuple) and n.op != "Shape"
    ] == []
    assert [i for n in graph.nodes for i in shape_inputs(graph, n) if i not in graph.known] == []
    assert text(graph.types["last_hidden_state"]) == "float32[batch, sequence, 64]"
    assert text(graph.types["pooler_output"]) == "float32[batch, 64]"
    extents = {repr(e) for t in graph.types.values() if t for e in t.shape if e.constant is None}
    assert extents <= {"batch", "sequence", "4*batch"}


@pytest.mark.parametrize("batch, sequence", [(1, 1), (2, 5), (3, 64)])
@pytest.mark.parametrize("form", ["modern", "decomposed"])
def test_a_dynamic_bert_runs_as_it_is_typed(form: str, batch: int, sequence: int):
    model = bert(layers=1, form=form)
    ids = np.random.default_rng(0).integers(0, 2, (batch, sequence))
    feeds = dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), ids)
    assert not disagreements(model, graph_of(model), feeds)


@pytest.mark.parametrize("form", ["modern", "decomposed"])
def test_a_bert_of_given_size_needs_no_shape_arithmetic(form: str):
    graph = simplify_shapes(graph_of(bert(form=form), dim=("batch=2", "sequence=16")))
    assert all(t is not None and t.static_shape is not None for t in graph.types.values())
    assert "Shape" not in {n.op for n in graph.nodes}
    assert [i for n in graph.nodes for i in shape_inputs(graph, n) if i not in graph.constants] == []


def test_what_the_model_declares_of_values_does_not_count():
    """The same types come out when all declarations are taken away."""
    model = bert(form="modern")
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    del bare.graph.value_info[:]
    assert dict(graph_of(model).types) == dict(graph_of(bare).types)


# Slices that end at the smaller of two extents ------------------------------------------------------------------------


def positions(use: str, more: str = "") -> onnx.ModelProto:
    """Rows of a table by position ids that are cut to the length of x, as BERT does it."""
    model = parse(
        f"""g (float[batch, seq, 8] x) => (float[batch, seq, 8] y{more})
        <int64[1] zero = {{0}}, int64[1] one = {{1}}>
        {{
            length = Shape<start = 1, end = 2>(x)
            cut = Slice(ids, zero, length, one, one)
            rows = Gather(table, cut)
            y = {use}
        }}"""
    )
    for name, array in (("ids", np.arange(32)[None]), ("table", np.ones((32, 8), np.float32))):
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def test_a_minimum_that_is_broadcast_against_its_extent_is_the_extent():
    graph = graph_of(positions("Add(rows, x)"))
    assert text(graph.types["cut"]) == "int64[1, seq]" and text(graph.types["rows"]) == "float32[1, seq, 8]"
    assert text(graph.types["y"]) == "float32[batch, seq, 8]"
    assert all(isinstance(define(ROWS, view_of(graph, n)), tuple) for n in graph.nodes if n.op != "Shape")
    assert graph.source.facts == (32 - Index.of(Symbol("seq")),)


def test_a_minimum_that_meets_nothing_stays_one():
    """y does not force rows to be as long as x: with more than 32 rows the model gives 32."""
    graph = graph_of(positions("Relu(x)", ", float[p, q, r] rows"))
    assert text(graph.types["cut"]) == "int64[1, min(32, seq)]" and graph.source.facts == ()
    assert text(graph.types["rows"]) == "float32[1, min(32, seq), 8]"


def test_a_minimum_that_is_multiplied_with_its_extent_is_the_extent():
    model = positions("MatMul(square, rows)")
    model.graph.input.append(helper.make_tensor_value_info("square", 1, ["batch", 5, "seq"]))
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 5
    graph = graph_of(model)
    assert text(graph.types["rows"]) == "float32[1, seq, 8]"
    assert text(graph.types["y"]) == "float32[batch@square_0, 5, 8]"  # the batches of x and square do not meet


def test_what_is_declared_of_a_minimum_is_proven_or_dropped():
    model = positions("Add(rows, x)")
    model.graph.value_info.append(helper.make_tensor_value_info("cut", 7, [1, "seq"]))
    assert graph_of(model).source.facts == (32 - Index.of(Symbol("seq")),)
    assert graph_of(model).source.unproven == ()
    model.graph.node[-1].CopyFrom(helper.make_node("Relu", ["x"], ["y"]))
    assert text(graph_of(model).types["cut"]) == "int64[1, min(32, seq)]"


def test_an_unused_broadcast_proves_no_extents():
    """The runtime may never run it."""
    model = positions("Relu(x)", ", float[p, q, r] rows")
    model.graph.node.append(helper.make_node("Add", ["rows", "x"], ["unused"]))
    assert text(graph_of(model).types["cut"]) == "int64[1, min(32, seq)]"


def test_what_a_minimum_proves_serves_other_slices():
    """The mask of a decoder: its columns are broadcast against past + seq, which therefore is at most 32, so that the

    rows past:past + seq are seq many.
    """
    model = parse(
        """g (float[past] p, float[batch, seq, total] x, float[seq] q) => (float[batch, seq, total] y)
        <int64[1] zero = {0}, int64[1] one = {1}>
        {
            np = Shape(p)
            ns = Shape(q)
            all = Add(np, ns)
            rows = Slice(mask, np, all, zero)
            cut = Slice(rows, zero, all, one)
            y = Add(x, cut)
        }"""
    )
    for dim in (
        model.graph.input[1].type.tensor_type.shape.dim[2],
        model.graph.output[0].type.tensor_type.shape.dim[2],
    ):
        dim.dim_param = "past + seq"
    model.graph.initializer.append(numpy_helper.from_array(np.tri(32, dtype=np.float32), "mask"))
    graph = graph_of(model)
    assert text(graph.types["cut"]) == "float32[seq, past + seq]"
    assert text(graph.types["y"]) == "float32[batch, seq, past + seq]"
    feeds = {"p": np.ones(4), "q": np.ones(3), "x": np.ones((2, 3, 7))}
    assert not disagreements(model, graph, {k: v.astype(np.float32) for k, v in feeds.items()})


@pytest.mark.parametrize(
    ("start", "end", "step", "extent"),
    [
        (0, 2**63 - 1, 1, "N"),
        (-(2**63), 2**63 - 1, 1, "N"),
        (-1, 2**63 - 1, 1, "1"),
        (0, 1, 1, "1"),
        (1, 2**63 - 1, 1, "N - 1"),
        (0, -1, 1, "N - 1"),
        (0, 2**63 - 1, 2, "(N + 1)//2"),
        (-1, -(2**63), -1, "N"),
        (-1, -(2**63), -2, "(N + 1)//2"),
        (0, 3, 1, "min(3, N)"),
        (-3, 2**63 - 1, 1, "-1*-1*min(-1*N + 3, 0) + N"),
    ],
)
def test_slices_of_a_symbol(start: int, end: int, step: int, extent: str):
    model = parse(
        f"""g (float[N, 2] x) => (float[M, 2] y)
        <int64[1] start = {{{start}}}, int64[1] end = {{{end}}}, int64[1] axis = {{0}}, int64[1] step = {{{step}}}>
        {{ y = Slice(x, start, end, axis, step) }}"""
    )
    model.graph.output[0].type.tensor_type.shape.dim[0].ClearField("dim_param")
    graph = graph_of(model)
    assert text(graph.types["y"]) == f"float32[{extent}, 2]"
    if "?" not in extent:
        for n in (1, 2, 5):
            assert not disagreements(model, graph, {"x": np.ones((n, 2), np.float32)})


# Gaps filled by others ------------------------------------------------------------------------------------------------


def test_operators_without_a_row_are_typed_by_onnx_with_our_extents():
    """ONNX cannot say that 12*batch rows come out of the reshape; TopK's inference, asked alone, passes them on."""
    graph = graph_of(
        """g (float[batch, 12, 7] x) => (float[A, B] y)
        <int64[2] target = {-1, 7}, int64[1] k = {3}>
        { t = Reshape(x, target)\n values, places = TopK(t, k)\n y = Relu(values) }"""
    )
    assert text(graph.types["values"]) == "float32[12*batch, 3]" and text(graph.types["places"]) == "int64[12*batch, 3]"
    assert text(graph.types["y"]) == "float32[12*batch, 3]" and not graph.source.unproven


def test_names_of_whole_model_inference_are_understood():
    """ONNX gives the rows of h a name of its own, and says that those of i have the same."""
    graph = graph_of(
        """g (float[N, 4] x, bool c) => (float[A, B] y)
        { h = Concat<axis = 0>(x, x)
          i = If(c) < then_branch = a () => (float[] o) { o = Relu(h) },
                      else_branch = b () => (float[] o) { o = Neg(h) } >
          y = Relu(i) }"""
    )
    assert text(graph.types["h"]) == "float32[2*N, 4]"
    assert text(graph.types["i"]) == text(graph.types["y"]) == "float32[2*N, 4]"


@pytest.mark.parametrize("mode", ["sizes", "scales"])
def test_resizing_by_symbols(mode: str):
    model = parse(
        """g (float[N, 3, H, W] x) => (float[A, B, C, D] y)
        <float[4] up = {1, 1, 2, 0.5}, int64[1] two = {2}>
        { s = Shape<start = 2, end = 3>(x)\n w = Shape<start = 3, end = 4>(x)\n n = Shape<start = 0, end = 2>(x)
          t = Mul(s, two)\n v = Div(w, two)\n sizes = Concat<axis = 0>(n, t, v)\n y = Resize(x, , up, ) }"""
    )
    if mode == "sizes":
        model.graph.node[-1].input[:] = ["x", "", "", "sizes"]
    else:
        model.graph.node[-1].input[:] = ["x", "", "up"]
    graph = graph_of(model)
    assert text(graph.types["y"]) == "float32[N, 3, 2*H, (W)//2]"
    assert not disagreements(model, graph, {"x": np.ones((1, 3, 5, 7), np.float32)})


@pytest.mark.parametrize(
    ("base", "exponent", "side"), [(16.0, 0.5, "4"), (3.0, 2.0, "9"), (15.0, 0.5, None), (2.0, 0.25, None)]
)
def test_sizes_that_are_powers(base: float, exponent: float, side: str | None):
    """A grid of positions has the square root of their number as its side: where that is whole, it is known."""
    model = parse(
        f"""g (float[N, 144] x) => (float[A, B, C] y)
        <float b = {{{base}}}, float e = {{{exponent}}}, int64[1] z = {{0}}>
        {{ p = Pow(b, e)\n i = Cast<to = 7>(p)\n u = Unsqueeze(i, z)\n rest = Constant<value = int64[1] {{-1}}>()
          n = Shape<start = 0, end = 1>(x)\n s = Concat<axis = 0>(n, u, rest)\n y = Reshape(x, s) }}"""
    )
    graph = graph_of(model)
    assert side is None or text(graph.types["y"]).startswith(f"float32[N, {side}, ")
    assert side is not None or "?" in text(graph.types["y"]), text(graph.types["y"])


def test_declared_types_are_the_last_resort():
    model = parse("g (float[N, 4] x) => (float[N, 4] y) { t = mine.F(x)\n y = Relu(t) }", imports=', "mine": 1')
    assert graph_of(model).types["t"] is None
    model.graph.value_info.append(helper.make_tensor_value_info("t", 1, ["N", 4]))
    graph = graph_of(model)
    assert text(graph.types["t"]) == "float32[?t_0, 4]" and graph.source.unproven == ("t",)


# Contradictions -------------------------------------------------------------------------------------------------------


def test_a_wrong_declaration_is_reported_and_overruled():
    model = parse("g (float[2, 3] x) => (float[6] y) { t = Relu(x)\n y = Flatten<axis = 0>(t) }")
    graph = graph_of(model)
    assert text(graph.types["y"]) == "float32[1, 6]"
    assert graph.source.warnings == ("Flatten Flatten_0: y is float32[1, 6], the model declares float32[6]",)


def test_a_declared_element_type_that_differs_makes_the_value_unknown():
    model = parse("g (float[2, 3] x) => (float16[2, 3] y) { y = Relu(x) }")
    graph = graph_of(model)
    assert graph.types["y"] is None and "declares float16[2, 3]" in graph.source.warnings[0]


def test_rows_that_contradict_onnx_are_not_believed(monkeypatch: pytest.MonkeyPatch):
    model = parse("g (float[2, 3] x) => (float[2, 3] y) { t = Transpose<perm = [1, 0]>(x)\n y = Transpose(t) }")
    assert text(graph_of(model).types["t"]) == "float32[3, 2]"
    monkeypatch.setitem(ROWS.rows, "Transpose", ROWS.rows["Relu"])
    graph = graph_of(model)
    assert graph.types["t"] is None and len(graph.source.warnings) == 1
    assert graph.source.warnings[0] == "Transpose Transpose_0: t is float32[2, 3] here, float32[3, 2] for ONNX"


def test_broadcasts_that_depend_on_values_have_the_common_extent():
    graph = graph_of("g (float[N] x, float[M] y) => (float[K] z) { t = Add(x, y)\n z = Mul(t, x) }")
    assert text(graph.types["t"]) == text(graph.types["z"]) == "float32[common(M, N)]"


def test_invalid_calls_are_unknown():
    model = parse("g (float[2, 3] x) => (float[2, 3] y) { t = Transpose<perm = [0, 1, 2]>(x)\n y = Relu(t) }")
    graph = graph_of(model)
    assert graph.types["t"] is None
    assert define(ROWS, view_of(graph, graph.nodes[0])).code == "E-INVALID"


FEATURES = {
    "Binarizer": "<threshold = 0.5>",
    "Imputer": "<imputed_value_floats = [0.5]>",
    "Normalizer": '<norm = "L1">',
    "Scaler": "<offset = [0.5], scale = [2.0]>",
}


@pytest.mark.parametrize("kind, op", [*(("float", op) for op in FEATURES), ("int64", "Scaler"), ("double", "Scaler")])
def test_what_prepares_features_keeps_their_shape(kind: str, op: str):
    """Else nothing behind it is fused: inference says nothing of these operators. Numbers become float32."""
    body = f"g ({kind}[N, 3] x) => (float[N, 3] f) {{ f = ai.onnx.ml.{op}{FEATURES[op]}(x) }}"
    model = parse(body, imports=', "ai.onnx.ml": 3')
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert text(graph_of(model).types["f"]) == "float32[N, 3]"
    for rows in (1, 7):
        x = np.arange(3 * rows).reshape(rows, 3).astype({"float": "f4", "double": "f8"}.get(kind, "i8"))
        (found,) = session.run(None, {"x": x})
        assert (found.dtype, found.shape) == (np.float32, (rows, 3))


def test_names_become_numbers_of_the_same_shape_in_every_version():
    """Inference gives no shape in version 1; all that reads letters through a table stood behind it unfused."""
    for version, table in (
        (1, 'classes_strings = ["a", "b"], default_int64 = -1'),
        (2, 'keys_strings = ["a", "b"], values_int64s = [0, 1], default_int64 = -1'),
    ):
        body = f"g (string[N, 3] x) => (int64[M, 3] f) {{ e = ai.onnx.ml.LabelEncoder<{table}>(x) f = Add(e, e) }}"
        graph = graph_of(parse(body, imports=f', "ai.onnx.ml": {version}'))
        assert text(graph.types["e"]) == text(graph.types["f"]) == "int64[?e_0, 3]", version


def test_an_operator_of_that_name_in_another_domain_has_a_shape_of_its_own():
    body = "g (int64[N, 3] x) => (int64[] f) { f = mine.LabelEncoder(x) s = mine.LabelEncoder() }"
    assert graph_of(parse(body, imports=', "mine": 1')).types["f"] is None


def test_an_imputer_of_whole_numbers_makes_whole_numbers():
    body = "g (int64[N, 3] x) => (int64[N, 3] f) { f = ai.onnx.ml.Imputer<imputed_value_int64s = [7]>(x) }"
    assert text(graph_of(parse(body, imports=', "ai.onnx.ml": 3')).types["f"]) == "int64[N, 3]"
