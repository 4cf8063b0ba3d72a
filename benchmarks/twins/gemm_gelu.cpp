// Y[M, 3072] = gelu_erf(X[M, 768] W[768, 3072] + b), M static (128) or read at run time. W is packed [3072 / 32][768][32].
#include "gemm_tile.h"
#include "math.h"

namespace onnxfuse {
namespace {

constexpr i64 DEPTH = 768, COLUMNS = 3072, PANEL = 2 * LANES, PANELS = COLUMNS / PANEL;
constexpr i64 BLOCK = 256;  // rows whose packed left side stays in L2 beside the weight panels

template <int Rows> void tile(const float* left, const float* panel, const char* ahead, i64 stride, const float* bias, float* y) {
  gemm_tile<Rows, 2>(
      1, DEPTH, packed_left<Rows>(left), panel, ahead, stride,
      [=](int, int j) HOLE { return load(bias + j * LANES); },
      [=](int i, int j, vf sum) HOLE { store(y + i * COLUMNS + j * LANES, gelu_erf(sum)); });
}

const char* gemm_gelu(Host* host, const Tensor* inputs, i64 rows) {
  const float* x = static_cast<const float*>(inputs[0].data);
  const float* weights = static_cast<const float*>(inputs[1].data);
  const float* bias = static_cast<const float*>(inputs[2].data);
  const i64 dims[2] = {rows, COLUMNS};
  float* y = static_cast<float*>(host->output(host, 0, dims, 2));
  float* packed = static_cast<float*>(host->scratch(host, (rows * DEPTH + LANES) * sizeof(float)));
  if (!y || !packed) return "no memory";
  RowTiles tiles(rows, 13);

  auto pack = [&](size_t t) {
    i64 m = tiles.begin(t);
    pack_rows(x + m * DEPTH, DEPTH, (int)(tiles.begin(t + 1) - m), DEPTH, packed + m * DEPTH);
  };
  parallel(host, tiles.count, pack);

  i64 blocks = (rows + BLOCK - 1) / BLOCK;
  auto panel = [&](size_t task) {
    i64 block = task / PANELS, n = task % PANELS * PANEL;
    i64 begin = block * tiles.count / blocks, end = (block + 1) * tiles.count / blocks;
    const float* b = weights + n * DEPTH;
    const i64 stride = (PANEL * 4 + end - begin - 1) / (end - begin);
    const char* ahead = reinterpret_cast<const char*>(b + PANEL * DEPTH);
    for (i64 t = begin; t < end; t++, ahead += DEPTH * stride) {
      i64 m = tiles.begin(t);
      with_rows((int)(tiles.begin(t + 1) - m), [&](auto count) HOLE {
        tile<count.value>(packed + m * DEPTH, b, ahead, stride, bias + n, y + m * COLUMNS + n);
      });
    }
  };
  parallel(host, blocks * PANELS, panel);
  return nullptr;
}

const int FLOATS[3] = {1, 1, 1};

}  // namespace
}  // namespace onnxfuse

extern "C" const onnxfuse::Kernel twin_gemm_gelu = {
    "twin_gemm_gelu", 3, 1, onnxfuse::FLOATS, onnxfuse::FLOATS,
    [](onnxfuse::Host* host, const onnxfuse::Tensor* inputs) { return onnxfuse::gemm_gelu(host, inputs, 128); }};
extern "C" const onnxfuse::Kernel twin_gemm_gelu_dynamic = {
    "twin_gemm_gelu_dynamic", 3, 1, onnxfuse::FLOATS, onnxfuse::FLOATS,
    [](onnxfuse::Host* host, const onnxfuse::Tensor* inputs) { return onnxfuse::gemm_gelu(host, inputs, inputs[0].dims[0]); }};
