"""Function bodies: layouts undone and applied, shapes computed from the body's own inputs, unique names."""

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

from onnxfuse.emit.body import Body
from onnxfuse.emit.names import identity
from onnxfuse.ir.dtype import BF16, F16
from onnxfuse.ir.index import Index
from onnxfuse.ir.layout import Layout, PadHigh, Permute, Reshape, channels_last, panels
from tests.emit import plans
from tests.emit.plans import model, random

ONE = "one = Constant<value = int64[1] {1}>()"
# Attention without scale: two symbols in one shape (B*3, S, S), others that the operand has at the same place.
HEADS = """<ir_version: 8, opset_import: ["": OPSET]>
g (float[B,S,12] x, float[B,S,12] z) => (float[B,S,12] y) {
  s = Shape(x)
  i0 = Constant<value = int64[1] {0}>()
  i1 = Constant<value = int64[1] {1}>()
  b = Gather(s, i0)
  l = Gather(s, i1)
  h = Constant<value = int64[2] {3, 4}>()
  t = Concat<axis = 0>(b, l, h)
  r = Reshape(x, t)
  p = Transpose<perm = [0, 2, 1, 3]>(r)
  q = Transpose<perm = [0, 2, 3, 1]>(r)
  scores = MatMul(p, q)
  three = Constant<value = int64[1] {3}>()
  bh = Mul(b, three)
  s3 = Concat<axis = 0>(bh, l, l)
  e3 = Reshape(scores, s3)
  n3 = Neg(e3)
  s4 = Concat<axis = 0>(b, three, l, l)
  e4 = Reshape(n3, s4)
  o = MatMul(e4, p)
  ot = Transpose<perm = [0, 2, 1, 3]>(o)
  twelve = Constant<value = int64[1] {12}>()
  s5 = Concat<axis = 0>(b, l, twelve)
  oo = Reshape(ot, s5)
  y = Add(oo, z)
}"""


def one_body(proto, made: str, layouts=None, dtypes=None) -> Body:
    graph = plans.graph_of(proto)
    (fused,) = plans.bodied(graph, [plans.group(graph, made)], layouts, dtypes)
    return fused.body


def ops_of(body: Body) -> list[str]:
    return [n.op for n in body.nodes]


@pytest.mark.parametrize("opset", [7, 13, 14, 22])
def test_symbolic_reshapes_are_spelled_from_the_inputs(opset, tmp_path):
    proto = model(HEADS.replace("OPSET", str(opset)))
    emitted = plans.fused(proto, ["r p q scores e3 n3 e4 o ot oo y"])
    written = plans.written(emitted, tmp_path / "m.onnx")
    (node,) = written.graph.node  # nothing reads the shape arithmetic any more
    assert list(node.input) == ["x", "z"], "a shape chain is no input"
    feeds = {"x": random(2, 5, 12), "z": random(2, 5, 12, seed=1)}
    plans.assert_same(proto, tmp_path / "m.onnx", feeds)
    if opset >= 14:  # before, Reshape cannot say an extent of zero
        plans.assert_same(proto, tmp_path / "m.onnx", {k: v[:0] for k, v in feeds.items()})


def test_a_reshape_copies_or_infers_what_it_can():
    body = one_body(model(HEADS.replace("OPSET", "17")), "r p q scores e3 n3 e4 o ot oo y")
    targets = [n.attrs["value"].load().tolist() for n in body.nodes if n.op == "Constant" and n.attrs["value"].size > 1]
    assert [0, 0, 3, 4] in targets and [0, 0, 12] in targets


def test_names_of_the_model_do_not_appear():
    """The same computation elsewhere, under other names, has the same body."""
    text = HEADS.replace("OPSET", "17")
    other = text.replace("(x", "(first").replace(" x,", " first,").replace("scores", "other").replace(" q", " k")
    other = other.replace("p, q", "p, k")
    here, there = one_body(model(text), "r p q scores"), one_body(model(other), "r p k other")
    assert here.text == there.text and identity("kernel", here) == identity("kernel", there)
    assert identity("other kernel", here) != identity("kernel", here)


def test_channels_last_between_convolutions(tmp_path):
    """The value between two groups is stored transposed; its symbolic batch needs no shape to say so."""
    proto = model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[N,8,9,9] x) => (float[N,4,9,9] y) {
          a = Conv<pads = [1, 1, 1, 1]>(x, w1, b1)
          b = Relu(a)
          c = Conv<pads = [1, 1, 1, 1]>(b, w2)
          d = Relu(c)
          y = Neg(d)
        }""",
        {"w1": random(6, 8, 3, 3), "b1": random(6), "w2": random(4, 6, 3, 3, seed=1)},
    )
    nhwc = channels_last(4)
    packed = Layout((Permute((2, 3, 1, 0)), Reshape((Index.of(72), Index.of(6))), *panels(72, 6, 16)))
    emitted = plans.fused(proto, ["a b", "c d"], {"b": nhwc, "w1": packed})
    written = plans.written(emitted, tmp_path / "m.onnx")
    plans.assert_same(proto, tmp_path / "m.onnx", {"x": random(2, 8, 9, 9)})
    (info,) = [v for v in written.graph.value_info if v.name == "b"]
    dims = [d.dim_param or d.dim_value for d in info.type.tensor_type.shape.dim]
    assert dims == ["N", 9, 9, 6]
    assert "Shape" not in [n.op_type for f in written.functions for n in f.node]


@pytest.mark.parametrize("opset", [7, 9, 10, 11, 13, 17, 22])
@pytest.mark.parametrize("columns", [32, 19])
def test_packed_panels(opset, columns, tmp_path):
    """Weights in column panels of 16, the last one padded or not; an output padded to whole vectors."""
    proto = model(
        f"""<ir_version: 8, opset_import: ["": {opset}]>
        g (float[M,24] x) => (float[M,{columns}] y) {{
          m = MatMul(x, w)
          a = Add(m, b)
          r = Relu(a)
          y = Neg(r)
        }}""",
        {"w": random(24, columns), "b": random(columns)},
    )
    padded = Layout((PadHigh((0, -columns % 16)),)) if columns % 16 else Layout((Permute((1, 0)),))
    layouts = {"w": Layout(panels(24, columns, 16)), "r": padded}
    plans.written(plans.fused(proto, ["m a r", "y"], layouts), tmp_path / "m.onnx")
    plans.assert_same(proto, tmp_path / "m.onnx", {"x": random(5, 24)})


def test_layouts_of_symbolic_activations(tmp_path):
    """Rows and batch in one axis: the symbolic extents are derived in both bodies."""
    proto = model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[B,S,6] x) => (float[B,S,6] y) {
          a = Relu(x)
          b = Tanh(a)
          c = Neg(b)
          y = Add(c, x)
        }"""
    )
    graph = plans.graph_of(proto)
    b, s, c = graph.types["b"].shape
    layouts = {"b": Layout((Permute((1, 0, 2)), Reshape((s * b, c))))}
    written = plans.written(plans.fused(proto, ["a b", "c y"], layouts), tmp_path / "m.onnx")
    plans.assert_same(proto, tmp_path / "m.onnx", {"x": random(3, 4, 6)})
    (info,) = [v for v in written.graph.value_info if v.name == "b"]
    assert [d.dim_param or d.dim_value for d in info.type.tensor_type.shape.dim] == ["B*S", 6]


def test_a_symbol_that_only_a_product_shows(tmp_path):
    """The one input has the extent B*3; B itself is divided out of it."""
    proto = model(
        f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[B,4] x) => (float[B,3,4] y) {{
          {ONE}
          three = Constant<value = int64[1] {{3}}>()
          s = Shape(x)
          i0 = Constant<value = int64[1] {{0}}>()
          n = Gather(s, i0)
          reps = Concat<axis = 0>(three, one)
          t = Tile(x, reps)
          k = Constant<value = int64[2] {{3, 4}}>()
          to = Concat<axis = 0>(n, k)
          r = Reshape(t, to)
          u = Exp(r)
          e = Expand(u, to)
          y = Neg(e)
        }}"""
    )
    plans.written(plans.fused(proto, ["r u e y"]), tmp_path / "m.onnx")
    plans.assert_same(proto, tmp_path / "m.onnx", {"x": random(5, 4)})


def test_ranges_and_fills_over_symbols(tmp_path):
    """Positions and a mask that come from nothing but extents, in one body; int32 bounds of a Slice too."""
    proto = model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[B,S] x) => (float[B,S] y) {
          s = Shape(x)
          i1 = Constant<value = int64 {1}>()
          i0 = Constant<value = int64 {0}>()
          n = Gather(s, i1)
          pos = Range(i0, n, i1)
          posf = Cast<to = 1>(pos)
          ones = ConstantOfShape<value = float[1] {2.0}>(s)
          k = Mul(ones, posf)
          zero32 = Constant<value = int32[1] {0}>()
          ax32 = Constant<value = int32[1] {1}>()
          nu = Gather(s, ax32)
          n32 = Cast<to = 6>(nu)
          cut = Slice(x, zero32, n32, ax32)
          y = Add(k, cut)
        }"""
    )
    body = one_body(proto, "pos posf ones k cut y")
    assert body.inputs == ("in0",)
    plans.written(plans.fused(proto, ["pos posf ones k cut y"]), tmp_path / "m.onnx")
    plans.assert_same(proto, tmp_path / "m.onnx", {"x": random(3, 7)})


@pytest.mark.parametrize("opset", [7, 13])
def test_extents_with_quotients(opset, tmp_path):
    """A strided Conv makes S//2-like extents; the body spells them by Div (they cannot be negative)."""
    proto = model(
        f"""<ir_version: 8, opset_import: ["": {opset}]>
        g (float[1,2,S] x) => (float[1,T] y) {{
          c = Conv<strides = [2], pads = [1, 1]>(x, w)
          r = Relu(c)
          one = Constant<value = int64[2] {{1, -1}}>()
          f = Reshape(r, one)
          y = Neg(f)
        }}""",
        {"w": random(3, 2, 3)},
    )
    layouts = {"r": Layout((Permute((0, 2, 1)), Reshape(_flat(proto, "r"))))}
    plans.written(plans.fused(proto, ["c r", "f y"], layouts), tmp_path / "m.onnx")
    for n in (7, 8):
        plans.assert_same(proto, tmp_path / "m.onnx", {"x": random(1, 2, n)})


def _flat(proto, value: str):
    a, b, c = plans.graph_of(proto).types[value].shape
    return (a, b * c)


def test_an_output_that_is_read_inside_and_one_that_is_read_outside(tmp_path):
    proto = model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[N,3] x) => (float[N,3] y, float[N,3] e) {
          e = Exp(x)
          t = Tanh(e)
          y = Add(t, e)
        }"""
    )
    body = one_body(proto, "e t y")
    assert ops_of(body) == ["Exp", "Tanh", "Add"] and body.nodes[1].inputs == ("out0",)
    plans.written(plans.fused(proto, ["e t y"]), tmp_path / "m.onnx")
    plans.assert_same(proto, tmp_path / "m.onnx", {"x": random(2, 3)})


def test_a_scalar_constant_stays_a_scalar(tmp_path):
    """Gather by a scalar drops an axis; by a vector of one element it would not."""
    proto = model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[N,3,4] x) => (float[N,4] y) {
          i = Constant<value = int64 {1}>()
          k = Gather<axis = 1>(x, i)
          y = Exp(k)
        }"""
    )
    plans.written(plans.fused(proto, ["k y"]), tmp_path / "m.onnx")
    plans.assert_same(proto, tmp_path / "m.onnx", {"x": random(2, 3, 4)})


def test_operators_without_a_function_body_give_a_reason():
    proto = model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[2,600] x, int64[2] t) => (float[A,B] y, float[2,600] z) {
          n = Neg(x)
          y = Reshape(n, t)
          z = Add(n, big)
        }""",
        {"big": random(2, 600)},
    )
    graph = plans.graph_of(proto)
    told = plans.refusal(graph, plans.group(graph, "n y"))
    assert told.code == "E-OPSET" and "t is no input of the kernel" in told.reason and told.nodes


def test_operators_of_another_opset_are_refused():
    """A rewrite may not use what the model's opset lacks: the operator, an attribute, or an element type."""
    proto = model(
        """<ir_version: 8, opset_import: ["": 11]>
        g (float[N,3] x, int64[N,3] i) => (float[N,3] y, int64[N,3] j) {
          a = Exp(x)
          y = Tanh(a)
          k = Add(i, i)
          j = Mul(k, i)
        }"""
    )
    graph = plans.graph_of(proto)
    swaps = {
        ("a", "Gelu"): "Gelu is not in opset 11",
        ("a", "Shape"): "takes no float32 as shape",
        ("k", "Max"): "takes no int64",
    }
    for (value, op), reason in swaps.items():
        nodes = [n if n.outputs[0] != value else type(n)(op, n.inputs, n.outputs, name=n.name) for n in graph.nodes]
        changed = graph.with_nodes(nodes)
        told = plans.refusal(changed, plans.group(changed, "a y" if value == "a" else "k j"))
        assert told.code == "E-OPSET" and reason in told.reason
        assert op != "Gelu" or told.unlock == "an opset of 20 or newer"


def half_model(kind: int):
    proto = model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[N,8] x) => (float[N,5] y) {
          h = Cast<to = KIND>(x)
          m = MatMul(h, w)
          e = Exp(m)
          s = Mul(e, m)
          y = Cast<to = 1>(s)
        }""".replace("KIND", str(kind))
    )
    weight = numpy_helper.from_array(random(8, 5), "w")
    proto.graph.initializer.append(weight)
    if kind == TensorProto.FLOAT16:
        proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(random(8, 5).astype(np.float16), "w"))
    else:
        bits = (random(8, 5).view(np.uint32) >> 16).astype(np.uint16)
        made = TensorProto(name="w", data_type=kind, dims=[8, 5], raw_data=bits.tobytes())
        proto.graph.initializer[0].CopyFrom(made)
    return proto


def test_float16_is_left_to_the_runtime(tmp_path):
    proto = half_model(TensorProto.FLOAT16)
    body = one_body(proto, "m e s")
    assert ops_of(body) == ["MatMul", "Exp", "Mul"] and body.dtypes == (F16, F16, F16)
    plans.written(plans.fused(proto, ["m e s"], {"w": Layout(panels(8, 5, 4))}), tmp_path / "m.onnx")
    plans.assert_same(proto, tmp_path / "m.onnx", {"x": random(3, 8)}, tolerance=2e-3)


def test_bfloat16_is_cast_up(tmp_path):
    """ONNX Runtime has next to no bfloat16 kernels on CPU: the original does not run there, the fused model does."""
    proto = half_model(TensorProto.BFLOAT16)
    with pytest.raises(Exception, match="NOT_IMPLEMENTED"):
        plans.outputs(proto, {"x": random(3, 8)})
    emitted = plans.fused(proto, ["m e s"], {"w": Layout(panels(8, 5, 4))})
    plans.written(emitted, tmp_path / "m.onnx")
    (have,) = plans.outputs(tmp_path / "m.onnx", {"x": random(3, 8)})
    bits = (random(8, 5).view(np.uint32) >> 16).astype(np.uint32) << 16
    m = random(3, 8) @ bits.view(np.float32)
    np.testing.assert_allclose(have, np.exp(m) * m, rtol=0.1, atol=0.05 * np.abs(np.exp(m) * m).max())


def test_a_weight_in_another_element_type(tmp_path):
    """A kernel may want float32 weights as bfloat16: the body widens them again."""
    proto = model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[N,8] x) => (float[N,5] y) { m = MatMul(x, w)
          y = Tanh(m) }""",
        {"w": np.array(BF16_EXACT, np.float32).reshape(8, 5)},
    )
    emitted = plans.fused(proto, ["m y"], {"w": Layout(panels(8, 5, 4))}, {"w": BF16})
    written = plans.written(emitted, tmp_path / "m.onnx")
    assert [t.data_type for t in written.graph.initializer] == [TensorProto.BFLOAT16]
    plans.assert_same(proto, tmp_path / "m.onnx", {"x": random(3, 8)})


BF16_EXACT = [(i % 7 - 3) / 4 for i in range(40)]
