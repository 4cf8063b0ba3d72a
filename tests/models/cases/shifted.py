"""Scores by relative position, which the next row finds one place further on, in the forms that exporters write."""

from __future__ import annotations

from tests.models.size_cases import Case

# n and t as tensors of one element, 2*t, 2*t - 1, and the scores of all distances: n x t x (2*t - 1).
SCORES = """n_ = Shape <end = 1> (x)  t_ = Shape <start = 1, end = 2> (x)  d_ = Add (t_, t_)  w_ = Sub (d_, one)
    f = Sub (middle, t_)  l = Add (middle, t_)  g_ = Sub (l, one)  p_ = Slice (table, f, g_, zero)
    q_ = Transpose <perm = [1, 0]> (p_)  m = MatMul (x, q_)"""
_IN_FRONT = "o = Constant <value_ints = [0, 0, 1, 0, 0, 0]> ()"

SHIFTED = (
    Case("shift-by-a-pad", "float[n, t, 8] x", "float[n, t, t] y",
         f"""{SCORES}  {_IN_FRONT}  a = Pad (m, o)  s1 = Concat <axis = 0> (n_, d_, t_)  r = Reshape (a, s1)
         u = Slice (r, one, most, one)  s2 = Concat <axis = 0> (n_, t_, w_)  v_ = Reshape (u, s2)
         z = Slice (v_, zero, t_, two)  e = Mul (z, seven)  y = Softmax <axis = -1> (e)"""),
    Case("shift-by-a-joined-column", "float[n, t, 8] x", "float[n, t, t] y",
         f"""{SCORES}  s0 = Concat <axis = 0> (n_, t_, one)  o = ConstantOfShape (s0)  a = Concat <axis = 2> (o, m)
         s1 = Concat <axis = 0> (n_, d_, t_)  r = Reshape (a, s1)  u = Slice (r, one, most, one)
         s2 = Concat <axis = 0> (n_, t_, w_)  v_ = Reshape (u, s2)  z = Slice (v_, zero, t_, two)
         e = Mul (z, seven)  y = Softmax <axis = -1> (e)"""),
    Case("shift-by-sizes-of-the-scores", "float[n, t, 8] x, float[n, t, t] z", "float[n, t, t] y",
         f"""{SCORES}  s0 = Concat <axis = 0> (n_, t_, one)  o = ConstantOfShape (s0)  a = Concat <axis = 2> (o, m)
         k_ = Shape <start = 2> (m)  k1 = Add (k_, one)  s1 = Concat <axis = 0> (n_, k1, t_)  r = Reshape (a, s1)
         u = Slice (r, one, most, one)  s2 = Shape (m)  v_ = Reshape (u, s2)  h = Div (k_, two)  h1 = Add (h, one)
         c_ = Slice (v_, zero, h1, two)  e = Add (z, c_)  y = Softmax <axis = -1> (e)"""),
    Case("shift-without-a-column", "float[n, t, 8] x", "float[n, t, t] y",
         """n_ = Shape <end = 1> (x)  t_ = Shape <start = 1, end = 2> (x)  d_ = Add (t_, t_)  w_ = Sub (d_, one)
         p_ = Slice (table, zero, d_, zero)  q_ = Transpose <perm = [1, 0]> (p_)  m = MatMul (x, q_)
         s1 = Concat <axis = 0> (n_, d_, t_)  r = Reshape (m, s1)  u = Slice (r, one, most, one)
         s2 = Concat <axis = 0> (n_, t_, w_)  v_ = Reshape (u, s2)  z = Slice (v_, zero, t_, two)
         e = Mul (z, seven)  y = Softmax <axis = -1> (e)"""),
)  # fmt: skip
