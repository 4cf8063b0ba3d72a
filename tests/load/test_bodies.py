"""Subgraphs of If, Loop and Scan as graphs: captured values, and types that hold in every iteration."""

from __future__ import annotations

from onnx import parser

from onnxfuse.config import Options
from onnxfuse.ir.graph import Graph
from onnxfuse.load import LoadedSubgraph, load, simplify_shapes

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
LOOP = """g (int64 k, float[n, 4] x, float[n, 4] z) => (float[a, b] y, float[c, d] v) {{
    yes = Constant <value = bool {{1}}> ()
    y, v = Loop (k, yes, x, z) <
        body = l (int64 i, bool go, float[p, 4] h, float[q, 4] j) => (bool on, {outputs}) {{
            on = Identity (go) {nodes} }}> }}"""


def loaded(text: str, **changes: object) -> Graph:
    return load(parser.parse_model(HEAD + text).SerializeToString(), Options(**changes))  # type: ignore[arg-type]


def bodies(graph: Graph) -> dict[str, Graph]:
    found: tuple[LoadedSubgraph, ...] = graph.source.bodies
    return {f"{body.node}/{body.attribute}": body.graph for body in found}


def carried(outputs: str, nodes: str) -> dict[str, str]:
    """The types of what a Loop carries on, two tensors that begin as float32[n, 4]."""
    (body,) = bodies(loaded(LOOP.format(outputs=outputs, nodes=nodes))).values()
    return {name: repr(body.types[name]) for name in ("h", "j")}


def test_a_branch_reads_values_and_constants_from_outside():
    graph = loaded("""g (bool c, float[n, 4] x) => (float[n, 4] y) <float[4] w = {1, 2, 3, 4}> {
        h = Relu (x)  s = Shape (x)
        y = If (c) <then_branch = a () => (float[n, 4] t) { m = Mul (h, w)  r = Reshape (m, s)  t = Neg (r) },
                    else_branch = e () => (float[n, 4] u) <float[4] own = {1, 1, 1, 1}> { u = Add (h, own) }> }""")
    found = bodies(graph)
    assert list(found) == ["If_0/then_branch", "If_0/else_branch"]
    then, other = found.values()
    assert (then.inputs, other.inputs) == (("h", "s"), ("h",))
    assert then.constants["w"] is graph.constants["w"]
    assert dict(then.source.captured) == {"w": graph.constants["w"]} and not other.source.captured
    assert repr(then.types["t"]) == repr(other.types["u"]) == "float32[n, 4]"
    assert [n.name for n in other.nodes] == ["If_0/else_branch/Add_0"]


def test_loop_carried_values_that_do_not_change_keep_their_shape():
    assert carried("float[p, 4] o, float[q, 4] e", "o = Relu (h) e = Add (o, j)") == {
        "h": "float32[n, 4]",
        "j": "float32[n, 4]",
    }


def test_an_extent_that_grows_is_any_extent():
    assert carried("float[r, 4] o, float[q, 4] e", "o = Concat <axis = 0> (h, j) e = Relu (j)") == {
        "h": "float32[?h_0, 4]",
        "j": "float32[n, 4]",
    }


def test_what_follows_from_a_value_that_grows_is_any_extent_too():
    assert carried("float[r, 4] o, float[q, 4] e", "o = Concat <axis = 0> (h, x) e = Relu (h)") == {
        "h": "float32[?h_0, 4]",
        "j": "float32[?j_0, 4]",
    }


def test_a_rank_that_changes_is_not_known():
    assert carried(
        "float[r, 4] o, float[1, q, 4] e", "o = Relu (h) a = Constant <value_ints = [0]> () e = Unsqueeze (j, a)"
    ) == {
        "h": "float32[n, 4]",
        "j": "None",
    }


def test_declared_names_of_a_loop_prove_nothing():
    """Inside, p is declared for each iteration anew; the operator without a row gives some extent."""
    found = carried(
        "float[n, 4] o, float[q, 4] e",
        "s = NonZero (h) t = Transpose (s) u = Cast <to = 1> (t) "
        "w = Constant <value = float[2, 4] {1, 1, 1, 1, 1, 1, 1, 1}> () o = MatMul (u, w) e = Relu (j)",
    )
    assert found["h"].startswith("float32[?") and found["j"] == "float32[n, 4]"


def test_a_scan_slices_its_sequences():
    graph = loaded("""g (float[n, 4] x, float[s, n, 4] e, float[n, 4, s] f) => (float[n, 4] y, float[s, n, 4] all) {
        y, all = Scan <num_scan_inputs = 2, scan_input_axes = [0, -1],
            body = l (float[a, b] h, float[c, d] u, float[k, m] v) => (float[a, b] o, float[c, d] q) {
                p = Add (h, u) o = Tanh (p) q = Mul (o, v) }> (x, e, f) }""")
    (body,) = bodies(graph).values()
    assert {repr(body.types[name]) for name in ("h", "u", "v", "o", "q")} == {"float32[n, 4]"}


def test_a_body_in_a_body_knows_what_is_around_both():
    graph = loaded("""g (int64 k, bool c, float[n, 4] x) => (float[n, 4] y) <float[4] w = {1, 2, 3, 4}> {
        y = Loop (k, c, x) <body = l (int64 i, bool go, float[n, 4] h) => (bool on, float[n, 4] o) {
            on = Identity (go)  r = Relu (h)
            o = If (c) <then_branch = a () => (float[n, 4] t) { t = Mul (r, w) },
                        else_branch = e () => (float[n, 4] u) { u = Add (r, x) }> }> }""")
    (body,) = bodies(graph).values()
    then, other = bodies(body).values()
    assert then.source.captured["w"] is graph.constants["w"]
    assert other.inputs == ("r", "x") and repr(other.types["u"]) == "float32[n, 4]"
    assert other.nodes[0].name == "Loop_0/body/If_0/else_branch/Add_0"


def test_names_that_shadow_outer_ones_are_renamed():
    graph = loaded("""g (bool c, float[n, 4] x) => (float[n, 4] y) {
        h = Relu (x)
        y = If (c) <then_branch = a () => (float[n, 4] t) { h = Exp (x)  t = Neg (h) },
                    else_branch = e () => (float[n, 4] u) { u = Neg (h) }> }""")
    then, other = bodies(graph).values()
    assert [n.outputs for n in then.nodes] == [("h_2",), ("t",)] and then.inputs == ("x",) and other.inputs == ("h",)


def test_a_body_that_is_not_understood_is_named():
    graph = loaded("""g (int64 k, float[n, 4] x) => (float[n, 4] y) {
        yes = Constant <value = bool {1}> ()
        y = Loop (k, yes, x) <body = l (int64 i, bool go, float[n, 4] h) => (bool on, float[n, 4] o) <bool go = {1}> {
            on = Identity (go)  r = Relu (h)
            o = If (go) <then_branch = a () => (float[n, 4] t) { t = Neg (r) },
                         else_branch = e () => (float[n, 4] u) { u = Exp (r) }> }> }""")
    assert not graph.source.bodies
    (closed,) = graph.source.closed
    inner = [f"Loop_0/body/If_0/{name}" for name in ("then_branch/Neg_0", "else_branch/Exp_0")]
    assert closed.nodes == ("Loop_0/body/Identity_0", "Loop_0/body/Relu_0", "Loop_0/body/If_0", *inner)
    assert "an input of it is an initializer too" in closed.reason and closed.unlock.startswith("take it out")


def test_numbers_of_a_branch_do_not_leave_it():
    """The slice in one branch succeeds only where its extent is that of x: that says nothing about the other."""
    graph = loaded("""g (bool c, float[n] x, float[n] z) => (float[m] y) <float[9] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}> {
        s = Shape (x)  nought = Constant <value_ints = [0]> ()
        y = If (c) <then_branch = a () => (float[m] t) { v = Slice (w, nought, s)  t = Add (x, v) },
                    else_branch = e () => (float[m] u) { v = Slice (w, nought, s)  u = Neg (v) }> }""")
    then, other = bodies(graph).values()
    assert repr(then.types["t"]) == "float32[n]"
    assert repr(other.types["v"]) == "float32[min(9, n)]"


def test_bodies_lose_shape_arithmetic_too():
    graph = loaded("""g (bool c, float[2, 4] x) => (float[8] y) {
        y = If (c) <then_branch = a () => (float[8] t) { s = Size (x)  o = Constant <value_ints = [0]> ()
                                                        z = Unsqueeze (s, o)  t = Reshape (x, z) },
                    else_branch = e () => (float[8] u) { q = Exp (x)  u = Flatten (q) }> }""")
    then, _ = bodies(graph).values()
    assert [n.op for n in simplify_shapes(then).nodes] == ["Reshape"]
