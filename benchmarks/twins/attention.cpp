// Attention on merged heads: QKV [1, 128, 2304] and an additive mask [1, 1, 1, 128] to [1, 128, 768]; 12 heads of 64.
// A task is one head and a block of its query rows: K^T and V go to panels once a task, then row tiles take
// Q K^T with scale and mask as epilogue, softmax and P V in turn, so that a tile's scores never leave L1.
#include "gemm_tile.h"
#include "math.h"

namespace onnxfuse {
namespace {

constexpr i64 HEADS = 12, SIZE = 64, KEYS = 128, MODEL = HEADS * SIZE, QKV = 3 * MODEL, PANEL = 2 * LANES;
#ifndef TWIN_SPLIT
#define TWIN_SPLIT 1
#endif
#ifndef TWIN_ROWS
#define TWIN_ROWS 13
#endif
constexpr i64 SPLIT = TWIN_SPLIT;  // blocks of query rows of a head

struct Workspace {
  alignas(64) float keys[KEYS / PANEL + 1][SIZE][PANEL];  // one panel of slack for the prefetch
  alignas(64) float values[SIZE / PANEL][KEYS][PANEL];
  alignas(64) float scores[16][KEYS];
};

void pack_head(const float* k, const float* v, Workspace& w) {
  for (i64 n = 0; n < KEYS; n += LANES)
    for (i64 d = 0; d < SIZE; d += LANES) {
      vf block[LANES];
      for (int i = 0; i < LANES; i++) block[i] = load(k + (n + i) * QKV + d);
      transpose(block);
      for (int i = 0; i < LANES; i++) store(&w.keys[n / PANEL][d + i][n % PANEL], block[i]);
    }
  for (i64 n = 0; n < KEYS; n++)
    for (i64 d = 0; d < SIZE; d += LANES) store(&w.values[d / PANEL][n][d % PANEL], load(v + n * QKV + d));
}

template <int Rows> void rows(const float* q, const float* mask, Workspace& w, float* y) {
  const float scale = 0.125f;
  for (i64 n = 0; n < KEYS; n += PANEL)
    gemm_tile<Rows, 2>(
        1, SIZE, [=](i64) HOLE { return [=](int i, i64 k) HOLE { return q[i * QKV + k]; }; }, w.keys[n / PANEL][0],
        reinterpret_cast<const char*>(q), 0, [](int, int) HOLE { return vf{}; },
        [&](int i, int j, vf sum) HOLE { store(&w.scores[i][n + j * LANES], sum * scale + load(mask + n + j * LANES)); });
  // Maxima and sums of all rows of the tile are reduced at once, one row a lane.
  constexpr int VECTORS = KEYS / LANES;
  static_assert(VECTORS == 8 && Rows <= LANES, "the trees below are written for 8 vectors a row");
  auto tree = [](const vf* z, auto f) HOLE { return f(f(f(z[0], z[1]), f(z[2], z[3])), f(f(z[4], z[5]), f(z[6], z[7]))); };
  vf part[LANES];
  alignas(64) float most[LANES], factor[LANES];
#pragma GCC unroll 1
  for (int i = 0; i < Rows; i++) {
    vf z[VECTORS];
#pragma GCC unroll 8
    for (int j = 0; j < VECTORS; j++) z[j] = load(&w.scores[i][j * LANES]);
    part[i] = tree(z, [](vf a, vf b) HOLE { return max_(a, b); });
  }
  for (int i = Rows; i < LANES; i++) part[i] = part[0];
  store(most, reduce_max_each(part));
#pragma GCC unroll 1
  for (int i = 0; i < Rows; i++) {
    vf z[VECTORS];
#pragma GCC unroll 8
    for (int j = 0; j < VECTORS; j++) {
      z[j] = exp_clamped(max_(splat<float>(-104.0f), load(&w.scores[i][j * LANES]) - most[i]));
      store(&w.scores[i][j * LANES], z[j]);
    }
    part[i] = tree(z, [](vf a, vf b) HOLE { return a + b; });
  }
  for (int i = Rows; i < LANES; i++) part[i] = part[0];
  store(factor, 1.0f / reduce_add_each(part));
  for (i64 d = 0; d < SIZE; d += PANEL)
    gemm_tile<Rows, 2>(
        1, KEYS, [&](i64) HOLE { return [&](int i, i64 k) HOLE { return w.scores[i][k]; }; }, w.values[d / PANEL][0],
        reinterpret_cast<const char*>(q), 0, [](int, int) HOLE { return vf{}; },
        [&](int i, int j, vf sum) HOLE { store(y + i * MODEL + d + j * LANES, sum * factor[i]); });
}

const char* run(Host* host, const Tensor* inputs) {
  const float* qkv = static_cast<const float*>(inputs[0].data);
  const float* mask = static_cast<const float*>(inputs[1].data);
  const i64 dims[3] = {1, KEYS, MODEL};
  float* y = static_cast<float*>(host->output(host, 0, dims, 3));
  if (!y) return "no memory";
  RowTiles tiles(KEYS / SPLIT, TWIN_ROWS);
  auto body = [&](size_t task) {
    i64 head = task / SPLIT, first = task % SPLIT * (KEYS / SPLIT);
    Workspace w;
    pack_head(qkv + MODEL + head * SIZE, qkv + 2 * MODEL + head * SIZE, w);
    for (i64 t = 0; t < tiles.count; t++) {
      i64 m = first + tiles.begin(t);
      with_rows((int)(tiles.begin(t + 1) - tiles.begin(t)), [&](auto count) HOLE {
        rows<count.value>(qkv + m * QKV + head * SIZE, mask, w, y + m * MODEL + head * SIZE);
      });
    }
  };
  parallel(host, HEADS * SPLIT, body);
  return nullptr;
}

const int FLOATS[2] = {1, 1};

}  // namespace
}  // namespace onnxfuse

extern "C" const onnxfuse::Kernel twin_attention = {"twin_attention", 2, 1, onnxfuse::FLOATS, onnxfuse::FLOATS, onnxfuse::run};
