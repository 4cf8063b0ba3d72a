"""Amounts of Pad and bounds of Slice that follow from sizes."""

from __future__ import annotations

from tests.models.size_cases import LENGTH, Case

_CEIL = f"{LENGTH}  m = Add (t, three)  q = Div (m, four)  o = Mul (q, four)  r = Sub (o, t)"
AMOUNTS = (
    Case("pad-to-a-multiple", "float[n, t] x", "float[n, q_, 4] y",
         f"""{_CEIL}  e = Concat <axis = 0> (zero, zero, zero, r)  a = Pad (x, e)
         f = Constant <value_ints = [0, -1, 4]> ()  b_ = Reshape (a, f)  y = Exp (b_)"""),
    Case("pad-to-a-multiple-before", "float[n, t] x", "float[n, q_] y",
         f"{_CEIL}  e = Concat <axis = 0> (zero, r, zero, zero)  a = Relu (x)  b_ = Pad (a, e, seven)  y = Exp (b_)"),
    Case("pad-up-to", "float[n, t] x", "float[n, q] y",
         f"""{LENGTH}  d_ = Sub (eight, t)  m = Max (d_, zero)  e = Concat <axis = 0> (zero, zero, zero, m)
         a = Pad (x, e)  y = Exp (a)"""),
    Case("pad-up-to-and-cut", "float[n, t] x", "float[n, q] y",
         f"""{LENGTH}  d_ = Sub (eight, t)  e = Concat <axis = 0> (zero, zero, zero, d_)  r = Relu (x)  a = Pad (r, e)
         o = Max (t, eight)  f = Concat <axis = 0> (zero, zero, zero, o)  b_ = Pad (a, f)  y = Exp (b_)"""),
    Case("pad-frames-and-cut-them", "float[n, t] x", "float[q, 8] y",
         f"""{LENGTH}  m = Max (t, eight)  p_ = Sub (m, t)  e = Concat <axis = 0> (zero, zero, zero, p_)
         a = Pad (x, e)  o = Add (m, three)  i = Div (o, four)  j = Mul (i, four)  l = Sub (j, m)
         f = Concat <axis = 0> (zero, four, zero, l)  u = Add (f, more)  b_ = Pad (a, u)
         g_ = Reshape (b_, rest)  c_ = Div (t, four)  d_ = Max (c_, one)  h_ = Add (d_, one)
         v_ = Slice (g_, zero, d_, zero)  w_ = Slice (g_, one, h_, zero)  z = Concat <axis = 1> (v_, w_)
         y = Exp (z)"""),
    Case("pad-reflect-by-half", "float[n, t] x", "float[n, q] y",
         f"""{LENGTH}  h = Div (t, two)  e = Concat <axis = 0> (zero, h, zero, zero)  a = Abs (x)
         b_ = Pad <mode = "reflect"> (a, e)  y = Exp (b_)"""),
    Case("pad-edge-by-a-size", "float[n, t] x, float[m] z", "float[n, q] y",
         """s = Shape (z)  e = Concat <axis = 0> (zero, s, zero, one)  a = Abs (x)  b_ = Pad <mode = "edge"> (a, e)
         y = Exp (b_)"""),
    Case("slice-from-half", "float[n, t] x", "float[n, q] y",
         f"{LENGTH}  h = Div (t, two)  e = Relu (x)  a = Slice (e, h, t, one)  y = Exp (a)"),
    Case("slice-from-another", "float[n, t] x, float[n, u] z", "float[n, q] y",
         """s = Shape (z)  h = Gather (s, one)  e = Relu (x)  a = Slice (e, h, most, one)  y = Exp (a)"""),
    Case("slice-between-others", "float[n, t] x, float[u, v_] z", "float[n, q] y",
         """s = Shape (z)  h = Gather (s, zero)  i = Gather (s, one)  e = Relu (x)  a = Slice (e, h, i, one)
         y = Exp (a)"""),
    Case("slice-by-twos", "float[n, t] x, float[u] z", "float[n, q] y",
         "s = Shape (z)  e = Relu (x)  a = Slice (e, one, s, one, two)  y = Exp (a)"),
)  # fmt: skip
