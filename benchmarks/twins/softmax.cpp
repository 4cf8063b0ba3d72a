// Y = softmax(X * scale + mask) over rows, as written in Mul, Add, ReduceMax, Sub, Exp, ReduceSum, Div; mask is [columns].
// Scale and mask are computed twice, for the maximum and for exp: cheaper than storing and loading them. Short rows go LANES
// at a time, so that their maxima and sums are reduced together; a long row brings the next one to L2 while it computes.
#include "gemm_tile.h"
#include "math.h"

namespace onnxfuse {
namespace {

ONNXFUSE_INLINE vf masked(const float* x, const float* mask, float scale) { return load(x) * scale + load(mask); }
ONNXFUSE_INLINE vf exp_below(vf z, float most) { return exp_clamped(max_(splat<float>(-104.0f), z - most)); }
ONNXFUSE_INLINE vf larger(vf a, vf b) { return max_(a, b); }
ONNXFUSE_INLINE vf plus(vf a, vf b) { return a + b; }

// f over z[0 .. Count) as a tree.
template <int Count, class F> ONNXFUSE_INLINE vf tree(const vf* z, F f) {
  if constexpr (Count == 1) return z[0];
  else return f(tree<Count / 2>(z, f), tree<Count / 2>(z + Count / 2, f));
}

template <int Columns> void short_rows(const float* x, const float* mask, float scale, float* y, int count) {
  constexpr int VECTORS = Columns / LANES;
  static_assert(Columns % LANES == 0 && (VECTORS & (VECTORS - 1)) == 0, "whole vectors, a power of two of them");
  vf part[LANES] = {};
  alignas(64) float most[LANES], factor[LANES];
#pragma GCC unroll 1
  for (int i = 0; i < count; i++) {
    vf z[VECTORS];
#pragma GCC unroll 16
    for (int j = 0; j < VECTORS; j++) z[j] = masked(x + i * Columns + j * LANES, mask + j * LANES, scale);
    part[i] = tree<VECTORS>(z, larger);
  }
  store(most, reduce_max_each(part));
#pragma GCC unroll 1
  for (int i = 0; i < count; i++) {
    vf z[VECTORS];
#pragma GCC unroll 16
    for (int j = 0; j < VECTORS; j++) {
      z[j] = exp_below(masked(x + i * Columns + j * LANES, mask + j * LANES, scale), most[i]);
      store(y + i * Columns + j * LANES, z[j]);
    }
    part[i] = tree<VECTORS>(z, plus);
  }
  store(factor, 1.0f / reduce_add_each(part));
#pragma GCC unroll 1
  for (int i = 0; i < count; i++)
#pragma GCC unroll 16
    for (int j = 0; j < VECTORS; j++) store(y + i * Columns + j * LANES, load(y + i * Columns + j * LANES) * factor[i]);
}

template <int Columns> void long_row(const float* x, const float* mask, float scale, float* y) {
  constexpr int WAYS = 4, STEP = WAYS * LANES;  // independent accumulators hide the latency of max and add
  static_assert(Columns % STEP == 0, "whole steps");
  vf top[WAYS], sum[WAYS] = {};
  for (int j = 0; j < WAYS; j++) top[j] = splat<float>(-__builtin_inff());
  for (i64 n = 0; n < Columns; n += STEP)
    for (int j = 0; j < WAYS; j++) top[j] = max_(masked(x + n + j * LANES, mask + n + j * LANES, scale), top[j]);
  float most = reduce_max(tree<WAYS>(top, larger));
  for (i64 n = 0; n < Columns; n += STEP)
    for (int j = 0; j < WAYS; j++) {
      prefetch_l2(x + Columns + n + j * LANES);
      __builtin_prefetch(y + Columns + n + j * LANES, 1, 2);
      vf e = exp_below(masked(x + n + j * LANES, mask + n + j * LANES, scale), most);
      store(y + n + j * LANES, e);
      sum[j] += e;
    }
  float factor = 1.0f / reduce_add(tree<WAYS>(sum, plus));
  for (i64 n = 0; n < Columns; n += STEP)
    for (int j = 0; j < WAYS; j++) store(y + n + j * LANES, load(y + n + j * LANES) * factor);
}

template <int Columns> const char* softmax(Host* host, const Tensor* inputs) {
  const float* x = static_cast<const float*>(inputs[0].data);
  const float scale = *static_cast<const float*>(inputs[1].data);
  const float* mask = static_cast<const float*>(inputs[2].data);
  const i64 rows = inputs[0].dims[0];
  float* y = static_cast<float*>(host->output(host, 0, inputs[0].dims, 2));
  if (!y) return "no memory";
  constexpr i64 ROWS = Columns > 1024 ? 8 : 6 * LANES;  // a task of about 10 us
  auto body = [&](size_t task) {
    i64 begin = (i64)task * ROWS, end = begin + ROWS < rows ? begin + ROWS : rows;
    if constexpr (Columns > 1024)
      for (i64 m = begin; m < end; m++) long_row<Columns>(x + m * Columns, mask, scale, y + m * Columns);
    else
      for (i64 m = begin; m < end; m += LANES)
        short_rows<Columns>(x + m * Columns, mask, scale, y + m * Columns, (int)(end - m < LANES ? end - m : LANES));
  };
  parallel(host, (rows + ROWS - 1) / ROWS, body);
  return nullptr;
}

const int FLOATS[3] = {1, 1, 1};

}  // namespace
}  // namespace onnxfuse

extern "C" const onnxfuse::Kernel twin_softmax_128 = {
    "twin_softmax_128", 3, 1, onnxfuse::FLOATS, onnxfuse::FLOATS, onnxfuse::softmax<128>};
extern "C" const onnxfuse::Kernel twin_softmax_4096 = {
    "twin_softmax_4096", 3, 1, onnxfuse::FLOATS, onnxfuse::FLOATS, onnxfuse::softmax<4096>};
