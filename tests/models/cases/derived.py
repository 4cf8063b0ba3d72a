"""Sizes that several formulas stand for, that a formula makes nothing of, and that only the model says are equal."""

from __future__ import annotations

from tests.models.size_cases import Case

_FRAMES = "i = Conv <strides = [4]> (x, c)  n_ = Shape <end = 1> (x)  s = Shape <start = 2> (i)"
_BACK = "low = Constant <value_ints = [-9223372036854775807]> ()"

DERIVED = (
    Case("shift-of-places-behind-frames", "float[n, 1, t] x", "float[n, q, q] y",
         f"""{_FRAMES}  m = ReduceMean <axes = [1], keepdims = 0> (i)  m1 = Unsqueeze (m, two)  o = Sub (s, one)
         o1 = Squeeze (o)  l = Squeeze (s)  k_ = Neg (l)  j = Squeeze (minus)  r = Range (o1, k_, j)
         f = Cast <to = 1> (r)  g1 = Mul (m1, f)  e = Constant <value_ints = [0, 0, 1, 0, 0, 0]> ()
         a = Pad (g1, e)  p_ = Shape <start = 2> (a)  u1 = Concat <axis = 0> (n_, p_, s)  h = Reshape (a, u1)
         u = Slice (h, one, most, one)  p1 = Sub (p_, one)  u2 = Concat <axis = 0> (n_, s, p1)
         v_ = Reshape (u, u2)  z = Slice (v_, zero, s, two)  y = Softmax <axis = -1> (z)"""),
    Case("patches-of-a-square-image", "float[n, 3, h, h] x", "float[n, 4, q] y",
         """i = Conv <strides = [3, 3]> (x, k)  s = Shape <start = 2, end = 3> (x)  n_ = Shape <end = 1> (x)
         d_ = Div (s, three)  p_ = Pow (d_, two)  f = Concat <axis = 0> (n_, four, p_)
         r = Reshape <allowzero = 1> (i, f)  y = Softmax <axis = -1> (r)"""),
    Case("doubled-and-cut-to-what-it-was", "float[n, 1, t] x", "float[n, 6, q] y",
         f"""{_FRAMES}  j = Conv <strides = [2], pads = [1, 1]> (i, c2)  p_ = Shape <start = 2> (j)
         d_ = Mul (p_, two)  m = Min (s, d_)  a = Unsqueeze (j, three)  b_ = Concat <axis = 3> (a, a)
         f = Constant <value_ints = [0, 6, -1]> ()  u = Reshape (b_, f)  v_ = Slice (u, zero, m, two)
         o = Add (i, v_)  y = Tanh (o)"""),
    Case("halved-where-one-is-left", "float[n, 6, t] x", "float[n, 6, q] y",
         """n_ = Shape <end = 1> (x)  s = Shape <start = 2> (x)  r = Relu (x)
         m = AveragePool <kernel_shape = [2], strides = [2]> (r)  d_ = Sub (s, two)  h = Div (d_, two)
         q = Add (h, one)  six = Constant <value_ints = [6]> ()  f = Concat <axis = 0> (n_, six, q)
         b_ = Reshape (m, f)  y = Tanh (b_)"""),
    Case("marked-at-the-end-and-summed-backwards", "float[n, 1, t] x, int64[n, 1] mask", "float[n, q] y",
         f"""{_FRAMES}  {_BACK}  e = Concat <axis = 0> (n_, s)  z = ConstantOfShape (e)  l = Squeeze (n_)
         r = Range (none, l, unit)  r1 = Unsqueeze (r, one)  p_ = Concat <axis = 1> (r1, mask)
         o = ConstantOfShape <value = float[1] {{1}}> (n_)  a = ScatterND (z, p_, o)
         f = Slice (a, minus, low, one, minus)  g_ = CumSum (f, unit)  v_ = Slice (g_, minus, low, one, minus)
         y = Exp (v_)"""),
    Case("lands-on-an-axis-of-one", "float[1, t] x, int64[1, u] mask", "float[1, t] y",
         """m = Unsqueeze (mask, two)  d_ = Sub (m, m)  p_ = Concat <axis = 2> (d_, m)  s = Shape (mask)
         o = ConstantOfShape <value = float[1] {1}> (s)  r = Relu (x)  a = ScatterND (r, p_, o)  y = Exp (a)"""),
    Case("marked-are-those-of-another-mask", "float[n, t] x, float[n, t] z", "float[n, t] y",
         """o = Constant <value_float = 0.0> ()  g1 = Greater (x, o)  l = LessOrEqual (x, o)  g2 = Not (l)
         i = NonZero (g1)  j = NonZero (g2)  i1 = Transpose (i)  j1 = Transpose (j)  a = GatherND (z, i1)
         b_ = Mul (a, seven)  c_ = Tanh (b_)  r = Neg (x)  e = ScatterND (r, j1, c_)  y = Exp (e)"""),
    Case("a-value-joined-twice-and-summed", "float[n, 9] x, float[n] r, float[n, 3] m", "float[n] y",
         """a = Slice (x, zero, one, one)  b_ = Tanh (a)  c_ = Unsqueeze (r, one)  e = Concat <axis = 1> (b_, b_, c_)
         f = Mul (e, m)  y = ReduceSum <keepdims = 0> (f, one)"""),
    Case("peaks-of-a-heat-map", "float[n, 4, h, w_] x", "float[n, 4, h, w_] s, float[n, 4, h, w_] y",
         """a = Conv (x, p)  s = Sigmoid (a)  m = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (s)
         e = Equal (m, s)  f = Cast <to = 1> (e)  y = Mul (s, f)"""),
    Case("cells-of-an-image-that-was-pooled", "float[n, 4, h, w_] x", "float[n, 2, 2, p_, q] y",
         """r = Abs (x)  a = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)  b_ = Tanh (a)
         c_ = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (b_)  s = Shape <start = 2> (x)  d_ = Div (s, four)
         n_ = Shape <end = 1> (x)  e = Concat <axis = 0> (n_, two, two, d_)  f = Reshape <allowzero = 1> (c_, e)
         y = Softmax <axis = 1> (f)"""),
)  # fmt: skip

LEFT_DERIVED = {
    "halved-where-one-is-left": 1,  # its pooling is as fast in the runtime
    "cells-of-an-image-that-was-pooled": 2,  # what is in front of its Reshape is, on some machines
}
