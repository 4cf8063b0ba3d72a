"""Small graphs, one for each way in which symbols may be small or equal at run time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper, parser

from tests.models.fused import Feeds

SIZES = (1, 2, 7, 64)
HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
# Weights that graphs may read, by name: deviation 1 over what is summed.
WEIGHTS = {
    "w": (8, 8), "v": (8, 4), "k": (4, 3, 3, 3), "k2": (4, 4, 3, 3), "p": (4, 4, 1, 1), "c": (6, 1, 5), "c2": (6, 6, 3),
    "b": (8,), "d": (4, 1, 2, 2), "table": (130, 8),
    "dw": (6, 1, 1, 5), "dj": (16, 1, 5, 5),
    "k32": (32, 32, 3, 3), "p2": (4, 8, 1, 1), "d1": (4, 3, 1), "long": (1100, 16),
}  # fmt: skip
TWICE, ONES = (np.array([1, 1, 2, 2], np.float32), np.array([1], np.int64))
CONSTANTS = {"twice": TWICE, "one": ONES, "two": np.array([2], np.int64), "zero": np.array([0], np.int64)}
CONSTANTS |= {"most": np.array([1 << 40], np.int64), "minus": np.array([-1], np.int64), "none": np.array(0, np.int64)}
CONSTANTS |= {"unit": np.array(1, np.int64), "eight": np.array([8], np.int64), "four": np.array([4], np.int64)}
CONSTANTS |= {"three": np.array([3], np.int64), "seven": np.array(7, np.float32), "rest": np.array([-1, 4], np.int64)}
CONSTANTS |= {"more": np.array([0, 0, 0, 8], np.int64), "middle": np.array([65], np.int64)}
CONSTANTS |= {"five": np.array([5], np.int64), "back": np.array([-3], np.int64), "many": np.array([100], np.int64)}


@dataclass(frozen=True, slots=True)
class Case:
    """A graph as text: its inputs, whose extents may be symbols, and its nodes.

    Where one symbol `follows` another, it is larger by one in some of the feeds.
    """

    name: str
    inputs: str
    outputs: str
    nodes: str
    follows: tuple[str, str] | None = None

    def model(self) -> onnx.ModelProto:
        """The model, with those of WEIGHTS and CONSTANTS that it reads."""
        made = parser.parse_model(f"{HEAD}g ({self.inputs}) => ({self.outputs}) {{ {self.nodes} }}")
        read = {name for node in made.graph.node for name in node.input}
        random = np.random.default_rng(5)
        for name, shape in WEIGHTS.items():
            values = random.normal(size=shape) / max(1, int(np.prod(shape[1:]))) ** 0.5
            if name in read:
                made.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))
        made.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in CONSTANTS.items() if k in read)
        return made

    def feeds(self) -> list[Feeds]:
        """Inputs for every combination of SIZES with at most two sizes besides 1."""
        made = self.model()
        shapes = {
            each.name: (each.type.tensor_type.elem_type, [d.dim_param or d.dim_value for d in _dims(each)])
            for each in made.graph.input
        }
        symbols = sorted({d for _, shape in shapes.values() for d in shape if isinstance(d, str)})
        out = []
        for number, known in enumerate(self._sizes(symbols)):
            random = np.random.default_rng(number)
            feed: Feeds = {}
            for name, (kind, shape) in shapes.items():
                extents = tuple(known[d] if isinstance(d, str) else d for d in shape)
                ids = random.integers(0, 2, extents) if name == "mask" else random.integers(0, 100, extents)
                feed[name] = random.normal(size=extents).astype(np.float32) if kind == TensorProto.FLOAT else ids
            out.append(feed)
        return out

    def _sizes(self, symbols: list[str]) -> Iterator[dict[str, int]]:
        for sizes in product(SIZES, repeat=len(symbols)):
            known = dict(zip(symbols, sizes, strict=True))
            if len({*sizes, 1}) < 4:
                yield known
            if self.follows and known[self.follows[0]] == 1:
                yield {**known, self.follows[0]: known[self.follows[1]] + 1}


def _dims(value: onnx.ValueInfoProto) -> list[onnx.TensorShapeProto.Dimension]:
    return list(value.type.tensor_type.shape.dim)


_NEAREST = 'mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"'
_STRIDED = "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]"
_SAME = "kernel_shape = [3, 3], pads = [1, 1, 1, 1]"
_IMAGE = "float[n, 3, h, w_] x"
_LEVELS = f"""a0 = Conv <{_STRIDED}> (x, k)  a = Relu (a0)  b0 = Conv <{_STRIDED}> (a, k2)  b_ = Relu (b0)
    up = Resize <{_NEAREST}> (b_, , twice)"""
LENGTH = "s = Shape (x)  t = Gather (s, one)"

SQUEEZED = (
    Case("squeeze-without-axes", "float[n, t] x", "float[?] y", "r = Relu (x)  q = Squeeze (r)  y = Exp (q)"),
    Case("squeeze-a-symbol", "float[n, t] x", "float[n] y", "r = Relu (x)  q = Squeeze (r, one)  y = Exp (q)"),
    Case("squeeze-then-numbers", "float[n, 1, t] x", "float[?] y",
         """half = Constant <value_float = 0.5> ()  q = Squeeze (x)  r = Sigmoid (q)  m = Mul (r, half)
         y = Add (half, m)"""),
    Case("squeeze-behind-a-sum", "float[n, 8] x", "float[?] y",
         "r = Abs (x)  m = ReduceSum <keepdims = 1> (r, one)  q = Squeeze (m)  y = Sqrt (q)"),
)  # fmt: skip

RESHAPED = (
    Case("reshape-zero-rest", "float[n, t, 8] x", "float[n, r] y",
         "f = Relu (x)  e = Constant <value_ints = [0, -1]> ()  g_ = Reshape (f, e)  y = Exp (g_)"),
    Case("reshape-two-zeros-rest", "float[n, t, 8] x", "float[n, t, 2, r] y",
         "f = Relu (x)  e = Constant <value_ints = [0, 0, 2, -1]> ()  g_ = Reshape (f, e)  y = Exp (g_)"),
    Case("reshape-rest-first", "float[n, t, 8] x", "float[r, 8] y",
         "f = Relu (x)  e = Constant <value_ints = [-1, 8]> ()  g_ = Reshape (f, e)  m = MatMul (g_, w)  y = Exp (m)"),
    Case("reshape-zero-rest-product", "float[n, t, 8] x", "float[n, r, 4] y",
         "f = Relu (x)  e = Constant <value_ints = [0, -1, 4]> ()  g_ = Reshape (f, e)  y = Softmax <axis = 1> (g_)"),
    Case("reshape-rest-is-computed", "float[n, t, 8] x", "float[n, r] y",
         f"""{LENGTH}  f = Relu (x)  m = Mul (t, eight)  e = Concat <axis = 0> (minus, m)  g_ = Reshape (f, e)
         y = Exp (g_)"""),
    Case("reshape-padded-to-a-multiple", "float[n, t] x", "float[r, 4] y",
         """s = Shape <start = 1> (x)  a = Mod (s, four)  o = Add (a, two)  m = Mod (o, four)  g_ = Sub (four, m)
         e = Concat <axis = 0> (zero, two, zero, g_)  q = Pad (x, e)  f = Relu (q)  h = Reshape (f, rest)
         y = Exp (h)"""),
    Case("reshape-heads-and-back", "float[n, t, 8] x", "float[n, t, 8] y",
         f"""{LENGTH}  q = Gather (s, zero)  e = Concat <axis = 0> (q, t, two, four)  f = Relu (x)
         g_ = Reshape (f, e)  h = Transpose <perm = [0, 2, 1, 3]> (g_)  i = Exp (h)
         j = Transpose <perm = [0, 2, 1, 3]> (i)  o = Concat <axis = 0> (q, t, eight)  y = Reshape (j, o)"""),
    Case("flatten-two-symbols", "float[n, t, 8] x", "float[r, 8] y",
         "f = Relu (x)  g_ = Flatten <axis = 2> (f)  m = MatMul (g_, w)  a = Add (m, b)  y = Tanh (a)"),
)  # fmt: skip

BROADCAST = (
    Case("broadcast-first",
         "float[n, 8] x, float[m, 8] z", "float[?, 8] y",
         "a = Add (x, z)  r = Relu (a)  y = Exp (r)"),
    Case("broadcast-last",
         "float[8, n] x, float[8, m] z", "float[8, ?] y",
         "a = Add (x, z)  r = Relu (a)  y = Exp (r)"),
    Case("broadcast-middle", "float[n, t, 8] x, float[n, u, 8] z", "float[n, ?, 8] y",
         "r = Relu (x)  e = Exp (z)  a = Add (r, e)  y = Tanh (a)"),
    Case("broadcast-both-ways", "float[n, 1, 8] x, float[1, m, 8] z", "float[n, m, 8] y",
         "a = Add (x, z)  r = Relu (a)  y = ReduceSum <keepdims = 0> (r, one)"),
    Case("broadcast-three", "float[n, 8] x, float[m, 8] z, float[8] q", "float[?, 8] y",
         "a = Add (x, z)  c_ = Mul (a, q)  y = Sigmoid (c_)"),
    Case("broadcast-rank", "float[n, t, 8] x, float[u, 8] z", "float[n, ?, 8] y",
         "a = Sub (x, z)  r = Abs (a)  y = Sqrt (r)"),
    Case("broadcast-where", "float[n, t] x, float[m, 1] z", "float[?, t] y",
         "g_ = Greater (x, z)  e = Exp (x)  c_ = Where (g_, e, z)  y = Tanh (c_)"),
    Case("broadcast-batches-of-products", "float[a_, n, 8] x, float[b_, 8, 4] z", "float[?, n, 4] y",
         "r = Relu (x)  m = MatMul (r, z)  y = Tanh (m)"),
    Case("broadcast-behind-products", "float[n, 8] x, float[m, 8] z", "float[?, 8] y",
         "i = MatMul (x, w)  j = MatMul (z, w)  a = Add (i, j)  y = Relu (a)"),
    Case("broadcast-expand", "float[n, 8] x, float[m, 8] z", "float[?, 8] y",
         "s = Shape (z)  r = Relu (x)  e = Expand (r, s)  y = Exp (e)"),
    Case("broadcast-of-sums", "float[n, t] x, float[n, u] z", "float[n, ?] y",
         "m = ReduceMax <axes = [1], keepdims = 1> (x)  d_ = Sub (z, m)  e = Exp (d_)  a = Add (e, x)  y = Neg (a)"),
    Case("concat-of-symbols", "float[n, t] x, float[m, t] z", "float[?, t] y",
         "r = Relu (x)  e = Exp (z)  c_ = Concat <axis = 0> (r, e)  y = Tanh (c_)"),
    Case("concat-of-equal-symbols", "float[n, t] x, float[m, u] z", "float[?, t] y",
         "r = Relu (x)  e = Exp (z)  c_ = Concat <axis = 0> (r, e)  y = Tanh (c_)"),
)  # fmt: skip

WINDOWS = (
    Case("window-over-joined-channels", "float[n, 8, h, w_] x, float[n, 8, h, w_] z", "float[n, 16, h, w_] y",
         """a = Concat <axis = 1> (x, z)
         y = Conv <kernel_shape = [5, 5], auto_pad = "SAME_UPPER", group = 16> (a, dj)"""),
    Case("values-made-before-a-convolution", _IMAGE, "float[n, 4, a, b] y",
         f"t = Tanh (x)  m = Conv <{_STRIDED}> (t, k)  y = Relu (m)"),
    Case("pixels-before-a-convolution", "float[n, h, w_, 3] x", "float[n, 4, h, w_] y",
         f"t = Transpose <perm = [0, 3, 1, 2]> (x)  e = Exp (t)  m = Conv <{_SAME}> (e, k)  y = Relu (m)"),
    Case("pool-strided", _IMAGE, "float[n, 3, a, b] y",
         f"r = Relu (x)  m = MaxPool <{_STRIDED}> (r)  y = Exp (m)"),
    Case("pool-without-pads", _IMAGE, "float[n, 3, a, b] y",
         "r = Relu (x)  m = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)  y = Exp (m)"),
    Case("pool-counted-without-pads", _IMAGE, "float[n, 3, a, b] y",
         """r = Relu (x)  m = AveragePool <kernel_shape = [2, 2], strides = [2, 2], count_include_pad = 1> (r)
         y = Exp (m)"""),
    Case("pool-ceil", _IMAGE, "float[n, 3, a, b] y",
         "r = Relu (x)  m = MaxPool <kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1> (r)  y = Exp (m)"),
    Case("pool-average-edges", _IMAGE, "float[n, 3, a, b] y",
         f"r = Relu (x)  m = AveragePool <{_STRIDED}, count_include_pad = 0> (r)  y = Exp (m)"),
    Case("pool-same-upper", _IMAGE, "float[n, 3, a, b] y",
         'r = Relu (x)  m = AveragePool <kernel_shape = [3, 3], strides = [2, 2], auto_pad = "SAME_UPPER"> (r)'
         "  y = Exp (m)"),
    Case("pool-same-lower", _IMAGE, "float[n, 3, a, b] y",
         'r = Relu (x)  m = MaxPool <kernel_shape = [4, 2], strides = [3, 3], auto_pad = "SAME_LOWER"> (r)'
         "  y = Exp (m)"),
    Case("pool-same-counted", _IMAGE, "float[n, 3, a, b] y",
         """r = Relu (x)  m = AveragePool <kernel_shape = [5, 4], strides = [2, 3], auto_pad = "SAME_UPPER",
         count_include_pad = 1> (r)  y = Exp (m)"""),
    Case("conv-same-lower", _IMAGE, "float[n, 4, a, b] y",
         'm = Conv <kernel_shape = [3, 3], strides = [2, 5], auto_pad = "SAME_LOWER"> (x, k)  y = Relu (m)'),
    Case("conv-by-size", "float[n, 32, h, w_] x", "float[n, 32, a, b] y",
         "m = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, k32)  y = Relu (m)"),
    Case("conv-by-size-dilated", "float[1, 32, h, w_] x", "float[1, 32, a, b] y",
         "m = Conv <kernel_shape = [3, 3], dilations = [6, 6], pads = [6, 6, 6, 6]> (x, k32)  y = Relu (m)"),
    Case("conv-same-twice", _IMAGE, "float[n, 4, a, b] y",
         """a0 = Conv <kernel_shape = [3, 3], strides = [2, 2], auto_pad = "SAME_UPPER"> (x, k)  a_ = Relu (a0)
         b0 = Conv <kernel_shape = [3, 3], strides = [2, 2], auto_pad = "SAME_UPPER"> (a_, k2)  y = Relu (b0)"""),
    Case("pool-global", _IMAGE, "float[n, 4, a, b] y",
         "c_ = Conv (x, k)  r = Relu (c_)  m = GlobalAveragePool (r)  y = Mul (r, m)"),
    Case("conv-same-upper", _IMAGE, "float[n, 4, a, b] y",
         'm = Conv <kernel_shape = [3, 3], strides = [2, 2], auto_pad = "SAME_UPPER"> (x, k)  y = Relu (m)'),
    Case("waves-without-pads", "float[n, 1, t] x", "float[n, 6, r] y",
         "a = Conv <kernel_shape = [5], strides = [3]> (x, c)  b_ = Relu (a)  y = Exp (b_)"),
    Case("depthwise-of-any-width", "float[n, 6, h, w_] x", "float[n, 6, a, b] y",
         """m = Conv <kernel_shape = [1, 5], strides = [1, 2], pads = [0, 2, 0, 1], group = 6> (x, dw)
         y = Relu (m)"""),
    Case("resize-nearest", _IMAGE, "float[n, 3, a, b] y",
         f"r = Relu (x)  m = Resize <{_NEAREST}> (r, , twice)  y = Exp (m)"),
    Case("resize-linear", _IMAGE, "float[n, 3, a, b] y",
         'r = Relu (x)  m = Resize <mode = "linear", coordinate_transformation_mode = "half_pixel"> (r, , twice)'
         "  y = Exp (m)"),
    Case("resize-align-corners", _IMAGE, "float[n, 3, a, b] y",
         'r = Relu (x)  m = Resize <mode = "linear", coordinate_transformation_mode = "align_corners"> (r, , twice)'
         "  y = Exp (m)"),
    Case("resize-to-another", "float[n, 3, h] x, float[n, 3, i] z", "float[n, 3, i] y",
         f"s = Shape (z)  r = Relu (x)  m = Resize <{_NEAREST}> (r, , , s)  a = Add (m, z)  y = Exp (a)"),
    Case("ones-resized", "float[n, 3, h] x, float[n, 3, i] z", "float[n, 3, i] y",
         f"""s = Shape (x)  t = Shape (z)  o = ConstantOfShape <value = float[1] {{1}}> (s)
         m = Resize <{_NEAREST}> (o, , , t)  a = Add (m, z)  y = Exp (a)"""),
    Case("transposed", "float[n, 4, h, i] x", "float[n, 1, a, b] y",
         "r = Relu (x)  m = ConvTranspose <kernel_shape = [2, 2], strides = [2, 2]> (r, d)  y = Sigmoid (m)"),
    Case("transposed-same-upper", "float[n, 4, t] x", "float[n, 3, r] y",
         'm = ConvTranspose <kernel_shape = [1], strides = [2], auto_pad = "SAME_UPPER"> (x, d1)  y = Relu (m)'),
    Case("reflected", "float[n, t] x", "float[n, r] y",
         'e = Constant <value_ints = [0, 1, 0, 1]> ()  a = Abs (x)  q = Pad <mode = "reflect"> (a, e)  y = Exp (q)'),
    Case("split-evenly", "float[n, t] x", "float[n, ?] y",
         "r = Relu (x)  i, j = Split <axis = 1> (r)  a = Add (i, j)  y = Exp (a)"),
)  # fmt: skip

LEVELS = (
    Case("levels-added", _IMAGE, "float[n, 4, a_, c_] y",
         f"{_LEVELS}  l = Conv <kernel_shape = [1, 1]> (a, p)  y = Add (l, up)"),
    Case("levels-concatenated", _IMAGE, "float[n, 8, a_, c_] y", f"{_LEVELS}  y = Concat <axis = 1> (a, up)"),
    Case("levels-to-size", _IMAGE, "float[n, 4, a_, c_] y",
         f"""a0 = Conv <{_STRIDED}> (x, k)  a = Relu (a0)  b0 = Conv <{_STRIDED}> (a, k2)  b_ = Relu (b0)
         s = Shape (a)  up = Resize <{_NEAREST}> (b_, , , s)  l = Conv <{_SAME}> (a, k2)  o = Add (l, up)
         y = Relu (o)"""),
    Case("levels-put-together", _IMAGE, "float[n, 4, a_, c_] y",
         f"{_LEVELS}  q = Concat <axis = 1> (a, up)  m = Conv <kernel_shape = [1, 1]> (q, p2)  y = Relu (m)"),
    Case("levels-added-twice", _IMAGE, "float[n, 4, a_, c_] y",
         f"""{_LEVELS}  l = Add (a, up)  t = Resize <{_NEAREST}> (up, , twice)  o = Resize <{_NEAREST}> (l, , twice)
         q = Concat <axis = 1> (t, o)  f = Slice (q, zero, four, one)  m = Conv <{_SAME}> (f, k2)  y = Relu (m)"""),
    Case("chain-of-strides", _IMAGE, "float[n, 4, a_, c_] y",
         f"""a0 = Conv <{_STRIDED}> (x, k)  a = Relu (a0)  b0 = Conv <{_STRIDED}> (a, k2)  b_ = Relu (b0)
         c0 = Conv <{_STRIDED}> (b_, k2)  y = Relu (c0)"""),
    Case("chain-of-waves", "float[n, 1, t] x", "float[n, 6, r] y",
         """a0 = Conv <kernel_shape = [5], strides = [3], pads = [2, 2]> (x, c)  a = Relu (a0)
         b0 = Conv <kernel_shape = [3], strides = [2], pads = [1, 1]> (a, c2)  y = Tanh (b0)"""),
)  # fmt: skip

CACHED = (
    Case("past-and-one", "float[n, 2, p, 8] past, float[n, 2, 1, 8] x", "float[n, 2, 1, 8] y, float[n, 2, q, 8] now",
         """now = Concat <axis = 2> (past, x)  t = Transpose <perm = [0, 1, 3, 2]> (now)  m = MatMul (x, t)
         e = Softmax <axis = -1> (m)  y = MatMul (e, now)"""),
    Case("past-and-several", "float[n, 2, p, 8] past, float[n, 2, s_, 8] x", "float[n, 2, s_, 8] y",
         """now = Concat <axis = 2> (past, x)  t = Transpose <perm = [0, 1, 3, 2]> (now)  m = MatMul (x, t)
         e = Softmax <axis = -1> (m)  y = MatMul (e, now)"""),
    Case("past-under-a-mask", "float[n, 2, p, 8] past, float[n, 2, 1, 8] x, float[n, 1, 1, q] m_",
         "float[n, 2, 1, 8] y",
         """now = Concat <axis = 2> (past, x)  t = Transpose <perm = [0, 1, 3, 2]> (now)  m = MatMul (x, t)
         a = Add (m, m_)  e = Softmax <axis = -1> (a)  y = MatMul (e, now)""", follows=("q", "p")),
    Case("past-cut-off", "float[n, p, 8] past, float[n, 1, 8] x", "float[n, q, 8] y",
         """now = Concat <axis = 1> (past, x)  r = Relu (now)  z = Slice (r, one, most, one)  y = Exp (z)"""),
)  # fmt: skip

NAMED = (
    Case("equal-places-unequal-sizes", "float[n, 8] x, float[m, 8] z", "float[n, 8] y, float[m, 8] u",
         """i = MatMul (x, w)  i1 = Relu (i)  i2 = CumSum (i1, none)  i3 = Exp (i2)  i4 = Tanh (i3)
         j = MatMul (z, w)  j1 = Relu (j)  j2 = CumSum (j1, none)  j3 = Exp (j2)  j4 = Tanh (j3)
         y = MatMul (i4, w)  u = MatMul (j4, w)"""),
    Case("equal-places-in-levels", _IMAGE, "float[n, 4, i, j] y, float[n, 4, l, m] u",
         f"""{_LEVELS}  q = Relu (up)  y = Sigmoid (q)  d_ = Conv <{_STRIDED}> (b_, k2)  u = Tanh (d_)"""),
)  # fmt: skip

INDEXED = (
    Case("positions", "float[n, t, 8] x", "float[n, t, 8] y",
         f"""{LENGTH}  l = Squeeze (t, zero)  r = Range (none, l, unit)  p_ = Gather (table, r)  a = Add (x, p_)
         y = Relu (a)"""),
    Case("lengths", "float[n, t] x, int64[n, 1] mask", "float[n, t] y",
         f"""{LENGTH}  l = Squeeze (t, zero)  r = Range (none, l, unit)  g_ = Less (r, mask)
         f = Cast <to = 1> (g_)  m = Mul (x, f)  y = Exp (m)"""),
    Case("relative", "float[n, t, t] x", "float[n, t, t] y",
         f"""{LENGTH}  l = Squeeze (t, zero)  r = Range (none, l, unit)  i = Unsqueeze (r, zero)
         j = Unsqueeze (r, one)  o = Sub (i, j)  q = Abs (o)  e = ReduceMax <keepdims = 0, axes = [1]> (table)
         g_ = Gather (e, q)  a = Add (x, g_)  y = Exp (a)"""),
    Case("masked-view", "float[n, 2, t, t] x, int64[n, t] mask", "float[n, 2, t, t] y",
         """s = Shape (mask)  i = Gather (s, zero)  j = Gather (s, one)  e = Concat <axis = 0> (i, one, one, j)
         q = Equal (mask, zero)  v_ = Reshape (q, e)  z = Shape (x)  wide = Expand (v_, z)
         low = Constant <value_float = -10000.0> ()  o = Where (wide, low, x)  y = Softmax <axis = -1> (o)"""),
    Case("first-half", "float[n, t] x", "float[n, r] y",
         f"{LENGTH}  h = Div (t, two)  e = Relu (x)  q = Slice (e, zero, h, one)  y = Exp (q)"),
    Case("as-long-as-another", "float[n, t] x, float[n, u] z", "float[n, r] y",
         "s = Shape (z)  h = Gather (s, one)  e = Relu (x)  q = Slice (e, zero, h, one)  y = Exp (q)"),
    Case("reversed", "float[n, t] x", "float[n, r] y",
         """low = Constant <value_ints = [-1000000]> ()  e = Relu (x)  q = Slice (e, minus, low, one, minus)
         y = Exp (q)"""),
    Case("zeros-of-a-shape", "float[n, t, 8] x", "float[n, 2, 8] y",
         """s = Shape (x)  i = Gather (s, zero)  e = Concat <axis = 0> (i, two, eight)
         z = ConstantOfShape (e)  m = ReduceSum <keepdims = 1> (x, one)  a = Add (z, m)  y = Exp (a)"""),
    Case("zeros-in-halves", "float[n, t, 8] x", "float[2, n, 8] y, float[2, n, 8] u",
         """s = Shape (x)  i = Gather (s, zero)  e = Concat <axis = 0> (four, i, eight)  z = ConstantOfShape (e)
         y = Slice (z, zero, two, zero)  u = Slice (z, two, four, zero)"""),
    Case("zeros-alone", "float[n, t, 8] x", "float[2, n, 8] y",
         """s = Shape (x)  i = Gather (s, zero)  e = Concat <axis = 0> (two, i, eight)  y = ConstantOfShape (e)"""),
    Case("halves-of-an-input", "float[4, n, t] x", "float[2, n, t] y, float[2, n, t] u",
         "y = Slice (x, zero, two, zero)  u = Slice (x, two, four, zero)"),
    Case("cut-from-a-long-table", "float[n, 100, 16] x", "float[n, 100, 16] y",
         "p_ = Slice (long, zero, many)  a = Add (x, p_)  y = Relu (a)"),
    Case("tiled", "float[n, t] x", "float[n, r] y",
         f"{LENGTH}  e = Concat <axis = 0> (one, t)  r_ = Relu (x)  q = Tile (r_, e)  y = Exp (q)"),
)  # fmt: skip

POOLED = (
    Case("pooled-by-a-mask", "float[n, t, 8] x, float[n, t, 1] mask", "float[n, 8] y",
         """low = Constant <value_float = 1e-5> ()  h = MatMul (x, w)  e = Add (h, b)
         u = ReduceMean <axes = [-1]> (e)  o = Sub (e, u)  q = Mul (o, o)  d_ = ReduceMean <axes = [-1]> (q)
         f = Add (d_, low)  r_ = Sqrt (f)  a = Div (o, r_)  i = Mul (a, mask)
         y = ReduceSum <keepdims = 0> (i, one)"""),
)  # fmt: skip

# What is rounded up, or taken from the end, of sizes: windows of images, shifts of relative places, frames of audio.
_FILLED = f"""{LENGTH}  r0 = Mod (t, four)  r1 = Sub (four, r0)  r = Mod (r1, four)
              e = Concat <axis = 0> (zero, zero, zero, r)  a = Pad (x, e)"""
_FOURS = "f = Constant <value_ints = [0, -1, 4]> ()"
ROUNDED = (
    Case("windows-filled-up", "float[n, t] x", "float[n, t] y",
         f"""{_FILLED}  {_FOURS}  b_ = Reshape (a, f)  s_ = Softmax <axis = -1> (b_)  v_ = Shape (x)
         u = Reshape (s_, v_)  y = Exp (u)"""),
    Case("windows-rolled", "float[n, t] x", "float[n, q, 4] y",
         f"""{_FILLED}  i = Slice (a, two, most, one)  j = Slice (a, zero, two, one)  o = Concat <axis = 1> (i, j)
         {_FOURS}  b_ = Reshape (o, f)  y = Exp (b_)"""),
    Case("shift-of-relative-places", "float[n, t, 8] x", "float[n, t, t] y",
         f"""{LENGTH}  n_ = Shape <end = 1> (x)  h = Sub (middle, t)  i = Add (t, middle)  i1 = Sub (i, one)
         r = Slice (table, h, i1, zero)  rt = Transpose (r)  m = MatMul (x, rt)  l = Shape <start = 2> (m)
         e = Constant <value_ints = [0, 0, 1, 0, 0, 0]> ()  a = Pad (m, e)  l1 = Add (l, one)
         f = Concat <axis = 0> (n_, l1, t)  b_ = Reshape (a, f)  u = Slice (b_, one, most, one)
         f2 = Concat <axis = 0> (n_, t, l)  v_ = Reshape (u, f2)  z = Slice (v_, zero, t, two)
         y = Softmax <axis = -1> (z)"""),
    Case("reflected-to-a-multiple", "float[n, t] x", "float[n, q, 4] y",
         f"""i = Slice (x, zero, most, one, two)  s = Shape <start = 1> (i)  m = Add (s, three)  d_ = Div (m, four)
         o = Mul (d_, four)  r = Sub (o, s)  e = Concat <axis = 0> (zero, zero, zero, r)
         a = Pad <mode = "reflect"> (i, e)  {_FOURS}  b_ = Reshape (a, f)  y = Exp (b_)"""),
    Case("divided-towards-zero", "float[n, 1, t] x", "float[m, q] y",
         """s = Shape <start = 2> (x)  i = Conv <strides = [4]> (x, c)  d_ = Sub (s, five)  h = Div (d_, four)
         q = Add (h, one)  f = Concat <axis = 0> (minus, q)  b_ = Reshape (i, f)  y = Exp (b_)"""),
    Case("slice-to-less-than-nothing", "float[n, t] x", "float[n, q] y",
         f"""{LENGTH}  h = Div (t, four)  i = Sub (h, one)  e = Relu (x)  a = Slice (e, zero, i, one)  y = Exp (a)"""),
    Case("slice-from-less-than-nothing", "float[n, t] x", "float[n, q] y",
         f"""{LENGTH}  h = Sub (t, three)  e = Relu (x)  a = Slice (e, h, most, one)  y = Exp (a)"""),
    Case("slice-of-the-last", "float[n, t] x", "float[n, q] y",
         "e = Relu (x)  a = Slice (e, back, most, one)  y = Exp (a)"),
    Case("gathered-from-behind", "float[n, t] x", "float[n] y",
         f"""{LENGTH}  h = Sub (t, two)  i = Squeeze (h)  e = Relu (x)  a = Gather <axis = 1> (e, i)  y = Exp (a)"""),
    Case("counted-down", "float[n, t] x", "float[q] y",
         f"""{LENGTH}  h = Squeeze (t)  i = Neg (h)  m = Squeeze (minus)  r = Range (h, i, m)
         a = Cast <to = 1> (r)  y = Tanh (a)"""),
)  # fmt: skip

CASES = (*SQUEEZED, *RESHAPED, *BROADCAST, *WINDOWS, *LEVELS, *CACHED, *NAMED, *INDEXED, *POOLED, *ROUNDED)

# What is wrong today, and why. What is mended is to be taken out.
FAILS: dict[str, str] = {}
# How many nodes that have a row may be left, where it is not 0. What has no axes may change its rank; small products,
# pools and what the runtime splits as fast stay with it.
LEFT: dict[str, int] = {
    "squeeze-without-axes": 1, "squeeze-then-numbers": 1, "squeeze-behind-a-sum": 1, "reshape-rest-first": 1,
    "flatten-two-symbols": 1, "broadcast-behind-products": 2, "pool-strided": 1, "pool-without-pads": 1,
    "pool-counted-without-pads": 1,
    "pool-ceil": 1, "pool-average-edges": 1, "pool-same-upper": 1, "pool-same-lower": 1, "pool-same-counted": 1,
    "split-evenly": 2, "past-and-one": 1, "past-under-a-mask": 2, "equal-places-unequal-sizes": 2,
    "gathered-from-behind": 3,
}  # fmt: skip
# Where no kernel is made, since nobody has done it yet; what is mended is to be taken out.
UNFUSED: set[str] = set()
