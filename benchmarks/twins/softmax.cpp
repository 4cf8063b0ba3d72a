// Y = softmax(X * scale + mask) over rows, as written in Mul, Add, ReduceMax, Sub, Exp, ReduceSum, Div; mask is [columns].
// A row is read once from memory: maximum, then exp and sum into the output, then the scaling, all while it is in L1.
#include "gemm_tile.h"
#include "math.h"

namespace onnxfuse {
namespace {

#ifndef TWIN_WAYS
#define TWIN_WAYS 4
#endif

template <int Columns> ONNXFUSE_INLINE void row(const float* x, const float* mask, float scale, float* y) {
  constexpr int WAYS = TWIN_WAYS;  // independent accumulators hide the latency of max and add
  constexpr int STEP = WAYS * LANES;
  static_assert(Columns % STEP == 0, "whole steps");
  vf top[WAYS];
  for (int j = 0; j < WAYS; j++) top[j] = splat<float>(-__builtin_inff());
  for (i64 n = 0; n < Columns; n += STEP)
    for (int j = 0; j < WAYS; j++) {
      vf z = load(x + n + j * LANES) * scale + load(mask + n + j * LANES);
      store(y + n + j * LANES, z);
      top[j] = max_(z, top[j]);
    }
  for (int j = 1; j < WAYS; j++) top[0] = max_(top[0], top[j]);
  float most = reduce_max(top[0]);
  vf sum[WAYS] = {};
  for (i64 n = 0; n < Columns; n += STEP)
    for (int j = 0; j < WAYS; j++) {
      vf e = exp_clamped(max_(splat<float>(-104.0f), load(y + n + j * LANES) - most));
      store(y + n + j * LANES, e);
      sum[j] += e;
    }
  for (int j = 1; j < WAYS; j++) sum[0] += sum[j];
  float factor = 1.0f / reduce_add(sum[0]);
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
  constexpr i64 ROWS = Columns > 1024 ? 8 : 96;  // a task of about 10 us
  auto body = [&](size_t task) {
    for (i64 m = (i64)task * ROWS; m < ((i64)task + 1) * ROWS && m < rows; m++) row<Columns>(x + m * Columns, mask, scale, y + m * Columns);
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
