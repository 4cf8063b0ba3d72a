"""Shapes of the results of If, Loop and Scan, and of sequences and optionals."""

from __future__ import annotations

import pytest
from onnx import parser

from onnxfuse.config import Options
from onnxfuse.ir.graph import Graph
from onnxfuse.load import load

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
YES = "yes = Constant <value = bool {1}> ()"


def loaded(text: str) -> Graph:
    return load(parser.parse_model(HEAD + text).SerializeToString(), Options())


def shape(text: str, value: str = "y") -> str:
    return repr(loaded(text).types[value])


def loop(nodes: str, outputs: str, count: str = "k", ends: str = "y, v") -> str:
    """A Loop over x and z, both float32[n, 4], and what comes out of it in front of Identity."""
    return f"""g (int64 k, float[n, 4] x, float[n, 4] z) => (float[a, b] out) {{
        {YES}  five = Constant <value = int64 {{5}}> ()  s = Shape (x)  nought = Constant <value = int64 {{0}}> ()
        rows = Gather (s, nought)
        {ends} = Loop ({count}, yes, x, z) <
            body = l (int64 i, bool go, float[p, q] h, float[r, t] j) => (bool on, {outputs}) {{
                on = Identity (go)  {nodes} }}>
        out = Identity (y) }}"""


def test_what_keeps_its_shape_has_it_behind_a_loop() -> None:
    assert shape(loop("o = Relu (h)  e = Add (o, j)", "float[p, q] o, float[r, t] e")) == "float32[n, 4]"


def test_what_grows_has_its_rank_and_the_other_extents() -> None:
    text = loop("o = Concat <axis = 0> (h, j)  e = Relu (j)", "float[p, q] o, float[r, t] e")
    assert shape(text) == "float32[?y_0, 4]" and shape(text, "v") == "float32[n, 4]"


def test_names_of_one_iteration_are_none_behind_the_loop() -> None:
    """What the body calls its own size is another one at the end than at the beginning."""
    text = loop("o = Concat <axis = 0> (h, j)  e = Relu (o)", "float[p, q] o, float[r, t] e")
    graph = loaded(text)
    assert repr(graph.types["y"]) == "float32[?y_0, 4]" and repr(graph.types["v"]) == "float32[?v_0, 4]"


@pytest.mark.parametrize(("count", "first"), [("five", "5"), ("rows", "n"), ("k", "?all_0")])
def test_what_all_iterations_give_is_as_long_as_there_are_iterations(count: str, first: str) -> None:
    text = loop("o = Relu (h)  e = Add (o, j)  w = MatMul (o, m)", "float[p, q] o, float[r, t] e, float[c, d] w", count)
    text = text.replace("y, v =", "y, v, all =").replace(f"{YES}", f"{YES} m = Constant <value_ints = [0]> ()", 1)
    text = text.replace("m = Constant <value_ints = [0]> ()", "m = Transpose (z)")
    found = shape(text, "all")
    # without any iteration the runtime makes up the other extents: only what it knows itself is told
    assert found.startswith(f"float32[{first}, ") and (count != "five" or found == "float32[5, n, n]")


def test_a_condition_of_the_body_may_end_it_earlier() -> None:
    text = loop("o = Relu (h)  e = Add (o, j)  w = Neg (o)", "float[p, q] o, float[r, t] e, float[c, d] w", "five")
    text = text.replace("y, v =", "y, v, all =").replace("on = Identity (go)", "on = Not (go)")
    assert shape(text, "all").startswith("float32[?all_0, ")


def test_a_branch_gives_what_both_give() -> None:
    text = """g (bool c, float[n, 4] x, float[k, 4] z) => (float[a, b] y, float[d, e] v) {
        y, v = If (c) <then_branch = a () => (float[p, q] t, float[r, s] u) { t = Relu (x)  u = Exp (x) },
                       else_branch = e () => (float[p, q] w, float[r, s] j) { w = Neg (x)  j = Neg (z) }> }"""
    assert shape(text) == "float32[n, 4]" and shape(text, "v") == "float32[?v_0, 4]"


def test_a_scan_gives_states_and_sequences() -> None:
    text = """g (float[n, 4] x, float[7, n, 4] e) => (float[a, b] y, float[c, d, f] all) {
        y, all = Scan <num_scan_inputs = 1, scan_output_axes = [1],
            body = l (float[a, b] h, float[c, d] u) => (float[a, b] o, float[c, d] q) {
                o = Add (h, u)  q = Tanh (o) }> (x, e) }"""
    assert shape(text) == "float32[n, 4]" and shape(text, "all") == "float32[n, 7, 4]"


def test_a_loop_in_a_loop() -> None:
    text = f"""g (int64 k, float[n, 4] x) => (float[a, b] y) {{
        {YES}
        y = Loop (k, yes, x) <body = l (int64 i, bool go, float[p, q] h) => (bool on, float[p, q] o) {{
            on = Identity (go)
            r = Loop (i, go, h) <body = m (int64 j, bool goes, float[s, t] w) => (bool to, float[s, t] z) {{
                to = Identity (goes)  z = Sin (w) }}>
            o = Relu (r) }}> }}"""
    graph = loaded(text)
    (body,) = graph.source.bodies
    assert repr(graph.types["y"]) == repr(body.graph.types["r"]) == "float32[n, 4]"


SEQUENCES: tuple[tuple[str, str], ...] = (
    ("s = SequenceConstruct (x, z)  y = SequenceAt (s, at)", "float32[?y_0, 4]"),
    ("s = SequenceConstruct (x, x)  e = SequenceErase (s)  y = SequenceAt (e, at)", "float32[n, 4]"),
    ("e = SequenceEmpty ()  s = SequenceInsert (e, x)  y = SequenceAt (s, at)", "float32[n, 4]"),
    ("s = SequenceConstruct (x, z)  y = ConcatFromSequence <axis = 0> (s)", "float32[?y_0, 4]"),
    ("s = SequenceConstruct (x, x)  y = ConcatFromSequence <axis = 1, new_axis = 1> (s)", "float32[n, ?y_1, 4]"),
    ("s = SplitToSequence <axis = 1, keepdims = 0> (x)  y = SequenceAt (s, at)", "float32[n]"),
    ("s = SplitToSequence <axis = 0> (x)  y = SequenceAt (s, at)", "float32[1, 4]"),
    ("o = Optional (x)  y = OptionalGetElement (o)", "float32[n, 4]"),
    (
        "s = SequenceConstruct (x)  o = Optional (s)  e = OptionalGetElement (o)  y = SequenceAt (e, at)",
        "float32[n, 4]",
    ),
)


@pytest.mark.parametrize(("nodes", "wanted"), SEQUENCES)
def test_what_a_sequence_holds(nodes: str, wanted: str) -> None:
    head = "at = Constant <value = int64 {0}> ()"
    assert (
        shape(f"g (float[n, 4] x, float[k, 4] z) => (float[a, b] out) {{ {head} {nodes}  out = Identity (y) }}")
        == wanted
    )


def test_a_sequence_that_a_loop_fills() -> None:
    text = f"""g (int64 k, float[n, 4] x) => (float[a, b] out) {{
        {YES}  none = SequenceEmpty ()
        s, h = Loop (k, yes, none, x) <
            body = l (int64 i, bool go, seq(float[p, q]) had, float[p, q] v)
                => (bool on, seq(float[p, q]) has, float[p, q] w) {{
                on = Identity (go)  w = Relu (v)  has = SequenceInsert (had, w) }}>
        y = ConcatFromSequence <axis = 0> (s)
        out = Relu (y) }}"""
    assert shape(text) == "float32[?y_0, 4]"


def test_declared_element_shapes_of_sequence_inputs_are_not_trusted() -> None:
    """The runtime takes elements of other shapes than the model declares, of other ranks too."""
    graph = loaded("""g (seq(float[n, 4]) s) => (float[a, b] out) {
        at = Constant <value = int64 {0}> ()  y = SequenceAt (s, at)  out = Relu (y) }""")
    assert graph.types["y"] is None
