"""The rewritten model: what is kept, which weights are packed, names, and invariants."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.emit.checks import check
from onnxfuse.emit.model import copied, emit, state_library
from onnxfuse.ir.group import Plan
from onnxfuse.ir.layout import Layout, Permute, panels
from tests.emit import plans
from tests.emit.plans import model, random

LAYERS = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,24] x) => (float[N,24] y) {
  [first] a = MatMul(x, w0)
  [second] b = Relu(a)
  [third] c = MatMul(b, w1)
  [fourth] d = Relu(c)
  [last] y = MatMul(d, w1)
}"""
PANELS = Layout(panels(24, 24, 16))


def layers() -> onnx.ModelProto:
    return model(LAYERS, {"w0": random(24, 24), "w1": random(24, 24, seed=1), "unused": random(2)})


def names_of(tensors) -> list[str]:
    return [t.name for t in tensors]


def metadata(message) -> dict[str, str]:
    return {p.key: p.value for p in message.metadata_props}


def test_layers_that_differ_only_in_weights_share_a_function(tmp_path):
    proto = layers()
    emitted = plans.fused(proto, ["a b", "c d"], {"w0": PANELS, "w1": PANELS})
    written = plans.written(emitted, tmp_path / "m.onnx")
    (function,) = written.functions
    assert [n.op_type for n in written.graph.node] == [function.name, function.name, "MatMul"]
    assert [n.name for n in written.graph.node] == ["first/MatMul_Relu", "third/MatMul_Relu", "last"]
    origins = [json.loads(metadata(n)["onnxfuse.origin"]) for n in written.graph.node[:2]]
    assert origins == [["first", "second"], ["third", "fourth"]]
    assert json.loads(metadata(function)["onnxfuse.origin"]) == ["first", "second", "third", "fourth"]
    plans.assert_same(proto, tmp_path / "m.onnx", {"x": random(3, 24)})


def test_a_weight_is_stored_in_each_form_that_is_read(tmp_path):
    """w1 packed for the kernel, plain for the node that is left; w0 packed only; what nobody reads is gone."""
    emitted = plans.fused(layers(), ["a b", "c d"], {"w0": PANELS, "w1": PANELS})
    written = plans.written(emitted, tmp_path / "m.onnx")
    assert names_of(written.graph.initializer) == ["w0.packed", "w1.packed", "w1"]


def test_a_weight_with_two_readers_is_packed_once(tmp_path):
    proto = model(LAYERS.replace("w0", "w1"), {"w1": random(24, 24)})
    emitted = plans.fused(proto, ["a b", "c d"], {"w1": PANELS})
    written = plans.written(emitted, tmp_path / "m.onnx")
    assert names_of(written.graph.initializer) == ["w1.packed", "w1"]
    plans.assert_same(proto, tmp_path / "m.onnx", {"x": random(3, 24)})


def test_two_readers_with_two_layouts_get_two_forms(tmp_path):
    proto = model(LAYERS.replace("w0", "w1"), {"w1": random(24, 24)})
    graph = plans.graph_of(proto)
    groups = [plans.group(graph, "a b"), plans.group(graph, "c d"), plans.group(graph, "y")]
    made = [
        fused
        for g, layout in zip(groups, (PANELS, Layout((Permute((1, 0)),)), PANELS), strict=True)
        for fused in plans.bodied(graph, [g], {"w1": layout})
    ]
    written = plans.written(emit(Plan(graph, tuple(groups)), made, plans.LIBRARY), tmp_path / "m.onnx")
    assert names_of(written.graph.initializer) == ["w1.packed", "w1.packed_2"]
    assert len(written.functions) == 3
    plans.assert_same(proto, tmp_path / "m.onnx", {"x": random(3, 24)})


def test_what_the_model_says_of_itself_stays(tmp_path):
    """Names, types, order and symbols of inputs and outputs, metadata, producer; ours are added."""
    proto = layers()
    proto.producer_name, proto.doc_string = "someone", "a model"
    proto.metadata_props.add(key="author", value="someone")
    proto.metadata_props.add(key="onnxfuse.library", value="stale")
    proto.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "other name"
    written = plans.written(state_library(plans.fused(proto, ["a b"]), "ab" * 32), tmp_path / "m.onnx")
    assert list(written.graph.input) == list(proto.graph.input)
    assert list(written.graph.output) == list(proto.graph.output)
    assert (written.producer_name, written.doc_string) == ("someone", "a model")
    assert metadata(written) == {
        "author": "someone",
        "onnxfuse.library": "libm.so",
        "onnxfuse.library_sha256": "ab" * 32,
        "onnxfuse.manifest": "m.fuse.json",
        "onnxfuse.targets": "x86-64-v4 x86-64-v3",
    }


def test_extents_that_the_user_fixed_are_fixed_in_the_model(tmp_path):
    """Kernels for --dim N=3 hold for no other N."""
    written = plans.written(plans.fused(layers(), ["a b"], dim=("N=3",)), tmp_path / "m.onnx")
    for info in (*written.graph.input, *written.graph.output):
        assert [d.dim_value for d in info.type.tensor_type.shape.dim] == [3, 24]


BRANCHES = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,24] x, bool c) => (float[N,24] y, float[K] k) {
  a = MatMul(x, w)
  b = Relu(a)
  i = If(c)<
    then_branch = t () => (float[N,24] t1) { t1 = MatMul(b, w) },
    else_branch = e () => (float[N,24] e1) { e1 = Add(b, bias) }>
  f = Tanh(i)
  y = Neg(f)
  k = Identity(bias)
}"""


def test_an_output_without_a_shape_gets_that_of_its_kernel(tmp_path):
    """The runtime infers it from operators, not from kernels; hosts ask a session for it."""
    proto = layers()
    del proto.graph.node[-1]
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("d", TensorProto.FLOAT, None))
    written = plans.written(plans.fused(proto, ["a b", "c d"], {}), tmp_path / "m.onnx")
    assert [d.dim_param or d.dim_value for d in written.graph.output[0].type.tensor_type.shape.dim] == ["N", 24]


def test_what_subgraphs_read_stays_plain(tmp_path):
    """An initializer that a branch captures is stored plain beside its packed form; branches are copied as they are."""
    proto = model(BRANCHES, {"w": random(24, 24), "bias": random(24)})
    written = plans.written(plans.fused(proto, ["a b", "f y"], {"w": PANELS}), tmp_path / "m.onnx")
    assert names_of(written.graph.initializer) == ["w.packed", "bias", "w"]
    (branch,) = [n for n in written.graph.node if n.op_type == "If"]
    assert [a.g for a in branch.attribute] == [a.g for a in proto.graph.node[2].attribute]
    for chosen in (True, False):
        feeds = {"x": random(3, 24), "c": np.array(chosen)}
        plans.assert_same(proto, tmp_path / "m.onnx", feeds)


def test_a_captured_value_may_not_have_a_layout():
    graph = plans.graph_of(model(BRANCHES, {"w": random(24, 24), "bias": random(24)}))
    g = plans.group(graph, "a b")
    layouts = {"b": Layout((Permute((1, 0)),))}
    made = plans.bodied(graph, [g], layouts)
    with pytest.raises(AssertionError, match="b is left to the runtime but not plain"):
        emit(Plan(graph, (g,), layouts), made, plans.LIBRARY)
    with pytest.raises(AssertionError, match="not made in the layout of the plan"):
        emit(Plan(graph, (g,)), made, plans.LIBRARY)


def test_a_value_is_read_in_the_layout_it_is_made_in():
    graph = plans.graph_of(layers())
    one, two = plans.group(graph, "a b"), plans.group(graph, "c d")
    layouts = {"b": Layout((Permute((1, 0)),))}
    made = [*plans.bodied(graph, [one], layouts), *plans.bodied(graph, [two])]
    with pytest.raises(AssertionError, match="b is read in another layout"):
        emit(Plan(graph, (one, two), layouts), made, plans.LIBRARY)


def test_an_initializer_that_is_an_input_stays_both(tmp_path):
    """Its value may be fed: it is passed to the kernel as it is."""
    proto = layers()
    proto.graph.input.append(helper.make_tensor_value_info("w0", TensorProto.FLOAT, [24, 24]))
    written = plans.written(plans.fused(proto, ["a b", "c d"]), tmp_path / "m.onnx")
    assert [v.name for v in written.graph.input] == ["x", "w0"]
    assert sorted(names_of(written.graph.initializer)) == ["w0", "w1"]
    plans.assert_same(proto, tmp_path / "m.onnx", {"x": random(3, 24)})
    plans.assert_same(proto, tmp_path / "m.onnx", {"x": random(3, 24), "w0": random(24, 24, seed=7)})


def test_nodes_that_are_left_are_copied_bit_by_bit(tmp_path):
    """Attributes that a graph cannot hold, another domain's node without readers, doc strings."""
    proto = model(
        """<ir_version: 10, opset_import: ["": 17, "ai.onnx.ml": 3]>
        g (float[N,4] x) => (float[N,4] y, string[N] s) {
          a = Exp(x)
          b = Neg(a)
          [scaled] y = ai.onnx.ml.Scaler<offset = [0.5], scale = [2.0]>(b)
          [arg] k = ArgMax<axis = 1, keepdims = 0>(a)
          [map] s = ai.onnx.ml.LabelEncoder<keys_int64s = [0, 1, 2, 3], values_strings = ["p", "q", "r", "s"]>(k)
        }"""
    )
    proto.graph.node[2].doc_string = "kept"
    written = plans.written(plans.fused(proto, ["a b"]), tmp_path / "m.onnx")
    before = {n.name: n for n in proto.graph.node if n.name}
    after = {n.name: n for n in written.graph.node if n.name in before}
    assert before == after
    assert [list(o) for o in map(np.shape, plans.outputs(tmp_path / "m.onnx", {"x": random(2, 4)}))] == [[2, 4], [2]]


def test_a_node_that_a_rewrite_changed_is_spelled_anew(tmp_path):
    """Attributes as they are in the graph, those of the loaded node only where they are the same."""
    proto = model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[N,4] x) => (float[N,4] y) {
          a = LeakyRelu<alpha = 0.5>(x)
          y = Exp(a)
        }"""
    )
    graph = plans.graph_of(proto)
    old, rest = graph.nodes
    new = type(old)(old.op, old.inputs, old.outputs, {"alpha": 0.25}, old.name, origin=old.origin)
    changed = graph.with_nodes((new, rest))
    g = plans.group(changed, "y")
    emitted = emit(Plan(changed, (g,)), plans.bodied(changed, [g]), plans.LIBRARY)
    assert emitted.proto.graph.node[0].attribute[0].f == 0.25
    x = random(2, 4)
    plans.written(emitted, tmp_path / "m.onnx")
    want = np.exp(np.where(x < 0, 0.25 * x, x))
    np.testing.assert_allclose(plans.outputs(tmp_path / "m.onnx", {"x": x})[0], want, rtol=1e-6)


def test_constants_of_all_kinds_survive(tmp_path):
    """Large tensors in typed fields, strings, 4-bit integers."""
    proto = model(
        """<ir_version: 10, opset_import: ["": 21]>
        g (float[N,400] x) => (float[N,400] y, string[2] s, float[400] c, float[3,3] q) {
          c = Identity(big)
          a = Add(x, big)
          y = Neg(a)
          s = Identity(words)
          q = Cast<to = 1>(nibbles)
        }"""
    )
    typed = helper.make_tensor("big", TensorProto.FLOAT, [400], random(400))
    words = helper.make_tensor("words", TensorProto.STRING, [2], [b"one", b"two"])
    nibbles = helper.make_tensor("nibbles", TensorProto.INT4, [3, 3], [1, -2, 3, -4, 5, -6, 7, -8, 0])
    proto.graph.initializer.extend([typed, words, nibbles])
    written = plans.written(plans.fused(proto, ["a y"]), tmp_path / "m.onnx")
    assert sorted(names_of(written.graph.initializer)) == ["big", "nibbles", "words"]
    want = plans.outputs(proto, {"x": random(2, 400)}, optimize=False)
    for a, b in zip(want, plans.outputs(tmp_path / "m.onnx", {"x": random(2, 400)}), strict=True):
        np.testing.assert_array_equal(a, b)


def test_new_names_are_not_taken(tmp_path):
    """A packed weight avoids every name of the model, those of inner graphs too."""
    text = BRANCHES.replace("float[N,24] t1) { t1 =", 'float[N,24] "w.packed") { "w.packed" =')
    proto = model(text, {"w": random(24, 24), "bias": random(24)})
    written = plans.written(plans.fused(proto, ["a b"], {"w": PANELS}), tmp_path / "m.onnx")
    assert "w.packed_2" in names_of(written.graph.initializer)


def test_the_same_input_gives_the_same_bytes():
    made = [plans.fused(layers(), ["a b", "c d"], {"w0": PANELS}) for _ in range(2)]
    assert made[0].proto.SerializeToString() == made[1].proto.SerializeToString()
    assert [bytes(w.payload()) for w in made[0].weights] == [bytes(w.payload()) for w in made[1].weights]


def test_a_model_that_violates_an_invariant_is_rejected():
    proto = plans.fused(layers(), ["a b"]).proto
    broken = onnx.ModelProto()
    for spoil, message in (
        (lambda m: m.graph.node[0].input.append("nothing"), "reads nothing"),
        (lambda m: m.graph.node[0].input.append("x"), "does not fit its function"),
        (lambda m: m.graph.node[1].output.__setitem__(0, "b"), "b is defined twice"),
        (lambda m: m.functions[0].node[0].input.append("w0"), "reads an undefined value"),
        (lambda m: m.functions.append(m.functions[0]), "defined twice"),
        (lambda m: m.graph.output.add(name="none"), "the output none is not defined"),
    ):
        broken.CopyFrom(proto)
        spoil(broken)
        with pytest.raises(AssertionError, match=message):
            check(broken)


def test_a_copy_is_the_same_file(tmp_path):
    proto = layers()
    emitted = copied(plans.graph_of(proto).source)
    plans.written(emitted, tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").read_bytes() == proto.SerializeToString()


def test_quantization_annotations_of_removed_values_are_removed(tmp_path):
    proto = layers()
    for name in ("a", "b", "x"):
        note = proto.graph.quantization_annotation.add(tensor_name=name)
        note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="w0")
    written = plans.written(plans.fused(proto, ["a b"]), tmp_path / "m.onnx")
    assert [a.tensor_name for a in written.graph.quantization_annotation] == ["b", "x"]


def test_sparse_initializers_stay(tmp_path):
    proto = model(
        """<ir_version: 10, opset_import: ["": 17]>
        g (float[6] x) => (float[6] y) { a = Neg(x)
          b = Exp(a)
          y = Add(b, sp) }"""
    )
    values = numpy_helper.from_array(np.array([1.5, 2.5], np.float32), "sp")
    indices = numpy_helper.from_array(np.array([1, 4], np.int64), "sp_indices")
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [6]))
    written = plans.written(plans.fused(proto, ["a b"]), tmp_path / "m.onnx", full=False)
    assert list(written.graph.sparse_initializer) == list(proto.graph.sparse_initializer)
    plans.assert_same(proto, tmp_path / "m.onnx", {"x": random(6)})
