// Y = LayerNorm(X[M, 3072] W[3072, 768] + b + R) * g + beta, rows of 768, eps 1e-12. W is packed [768 / 32][3072][32].
// The depth goes in chunks, and each chunk of X is packed just before its panels stream by: packed rows, sums (kept in Y) and
// panels stay in L2 together. The last phase normalises rows.
#include "gemm_tile.h"
#include "math.h"

namespace onnxfuse {
namespace {

constexpr i64 DEPTH = 3072, COLUMNS = 768, PANEL = 2 * LANES, PANELS = COLUMNS / PANEL;
#ifndef TWIN_CHUNK
#define TWIN_CHUNK 768
#endif
constexpr i64 CHUNK = TWIN_CHUNK;
constexpr i64 CHUNKS = DEPTH / CHUNK;
constexpr i64 ROWS_A_TASK = 8;

struct Run_ {
  const float *x, *weights, *bias, *residual, *gain, *beta;
  float *y, *packed;
  i64 rows;
};

template <int Rows> void tile(const Run_& r, i64 chunk, i64 m, i64 n, const float* panel, const char* ahead, i64 stride) {
  const float* left = r.packed + m * CHUNK;
  const float* bias = r.bias + n;
  const float* residual = r.residual + m * COLUMNS + n;
  float* y = r.y + m * COLUMNS + n;
  auto keep = [=](int i, int j, vf sum) HOLE { store(y + i * COLUMNS + j * LANES, sum); };
  if (chunk == 0)
    gemm_tile<Rows, 2>(
        1, CHUNK, packed_left<Rows>(left), panel, ahead, stride,
        [=](int i, int j) HOLE { return load(bias + j * LANES) + load(residual + i * COLUMNS + j * LANES); }, keep);
  else
    gemm_tile<Rows, 2>(
        1, CHUNK, packed_left<Rows>(left), panel, ahead, stride,
        [=](int i, int j) HOLE { return load(y + i * COLUMNS + j * LANES); }, keep);
}

void normalise(float* row, const float* gain, const float* beta) {
  vf sum[4] = {};
  for (i64 n = 0; n < COLUMNS; n += 4 * LANES)
    for (int j = 0; j < 4; j++) sum[j] += load(row + n + j * LANES);
  float mean = reduce_add((sum[0] + sum[1]) + (sum[2] + sum[3])) * (1.0f / COLUMNS);
  vf square[4] = {};
  for (i64 n = 0; n < COLUMNS; n += 4 * LANES)
    for (int j = 0; j < 4; j++) {
      vf d = load(row + n + j * LANES) - mean;
      square[j] += d * d;
    }
  float variance = reduce_add((square[0] + square[1]) + (square[2] + square[3])) * (1.0f / COLUMNS);
  float scale = rsqrt_(variance + 1e-12f);
  for (i64 n = 0; n < COLUMNS; n += LANES) store(row + n, (load(row + n) - mean) * scale * load(gain + n) + load(beta + n));
}

const char* run(Host* host, const Tensor* inputs) {
  auto in = [&](int i) { return static_cast<const float*>(inputs[i].data); };
  Run_ r = {in(0), in(1), in(2), in(3), in(4), in(5), nullptr, nullptr, inputs[0].dims[0]};
  const i64 dims[2] = {r.rows, COLUMNS};
  r.y = static_cast<float*>(host->output(host, 0, dims, 2));
  r.packed = static_cast<float*>(host->scratch(host, (r.rows * CHUNK + LANES) * sizeof(float)));
  if (!r.y || !r.packed) return "no memory";
  RowTiles tiles(r.rows, 13);

  const i64 stride = (PANEL * 4 + tiles.count - 1) / tiles.count;
  for (i64 chunk = 0; chunk < CHUNKS; chunk++) {
    auto pack = [&](size_t t) {
      i64 m = tiles.begin(t);
      pack_rows(r.x + m * DEPTH + chunk * CHUNK, DEPTH, (int)(tiles.begin(t + 1) - m), CHUNK, r.packed + m * CHUNK);
    };
    parallel(host, tiles.count, pack);
    auto panels = [&](size_t task) {
      i64 n = task * PANEL;
      const float* b = r.weights + n * DEPTH + chunk * CHUNK * PANEL;
      const char* ahead = reinterpret_cast<const char*>(b + DEPTH * PANEL);
      for (i64 t = 0; t < tiles.count; t++, ahead += CHUNK * stride) {
        i64 m = tiles.begin(t);
        with_rows((int)(tiles.begin(t + 1) - m), [&](auto count) HOLE { tile<count.value>(r, chunk, m, n, b, ahead, stride); });
      }
    };
    parallel(host, PANELS, panels);
  }

  auto rows = [&](size_t task) {
    for (i64 m = (i64)task * ROWS_A_TASK; m < ((i64)task + 1) * ROWS_A_TASK && m < r.rows; m++)
      normalise(r.y + m * COLUMNS, r.gain, r.beta);
  };
  parallel(host, (r.rows + ROWS_A_TASK - 1) / ROWS_A_TASK, rows);
  return nullptr;
}

const int FLOATS[6] = {1, 1, 1, 1, 1, 1};

}  // namespace
}  // namespace onnxfuse

extern "C" const onnxfuse::Kernel twin_gemm_residual_layernorm = {
    "twin_gemm_residual_layernorm", 6, 1, onnxfuse::FLOATS, onnxfuse::FLOATS, onnxfuse::run};
