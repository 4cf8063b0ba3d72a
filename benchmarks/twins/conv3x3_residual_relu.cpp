// Y = relu(conv3x3(X, W) + b + R), channels last, padding 1, stride 1. W is packed [channels / 32][9][channels][32].
// A tile is a run of pixels of one image row, so that its left side is one pointer plus constants; only the pixels at the
// image's edge have pointers of their own, to a row of zeros. Taps above and below the image are left out.
#include "gemm_tile.h"
#include "math.h"

namespace onnxfuse {
namespace {

alignas(64) const float ZEROS[256] = {};

// `Side` pixels square, `Channels` in and out, tiles of `Pixels` pixels, `LINES` image rows a task.
template <int Side, int Channels, int Pixels, int Lines, bool PanelTasks> struct Conv {
  static constexpr i64 PANEL = 2 * LANES, PANELS = Channels / PANEL, PANEL_SIZE = 9 * Channels * PANEL, TILES = Side / Pixels;
  static_assert(Side % Pixels == 0 && Side % Lines == 0 && Channels % PANEL == 0, "shapes");

  static void tile(const Tensor* inputs, float* out, i64 row, i64 column, i64 n, const char* ahead, i64 stride) {
    auto in = [&](int i) { return static_cast<const float*>(inputs[i].data); };
    i64 above = row == 0, below = row == Side - 1, at = (row * Side + column) * Channels;
    const float* x = in(0) + at + (above - 1) * Side * Channels - Channels;
    const float* panel = in(1) + n * (9 * Channels) + above * 3 * Channels * PANEL;
    const float* bias = in(2) + n;
    const float* residual = in(3) + at + n;
    float* y = out + at + n;
    bool left_edge = column == 0, right_edge = column + Pixels == Side;
    gemm_tile<Pixels, 2>(
        9 - 3 * (above + below), Channels,
        [=](i64 s) HOLE {
          i64 dx = s % 3;
          const float* p = x + s / 3 * Side * Channels + dx * Channels;
          const float* start = left_edge && dx == 0 ? ZEROS : p;
          const float* end = right_edge && dx == 2 ? ZEROS : p + (Pixels - 1) * Channels;
          return [=](int i, i64 k) HOLE { return i == 0 ? start[k] : i == Pixels - 1 ? end[k] : p[i * Channels + k]; };
        },
        panel, ahead, stride, [=](int i, int j) HOLE { return load(bias + j * LANES) + load(residual + i * Channels + j * LANES); },
        [=](int i, int j, vf sum) HOLE { store(y + i * Channels + j * LANES, max_(sum, vf{})); });
  }

  static const char* run(Host* host, const Tensor* inputs) {
    const i64 dims[4] = {1, Side, Side, Channels};
    float* out = static_cast<float*>(host->output(host, 0, dims, 4));
    if (!out) return "no memory";
    const i64 share = Lines * TILES, stride = PanelTasks ? (PANEL * 4 + share - 1) / share : 0;
    auto body = [&](size_t task) {
      i64 lines = task % (Side / Lines) * Lines, first = PanelTasks ? task / (Side / Lines) : 0;
      for (i64 p = first; p < (PanelTasks ? first + 1 : PANELS); p++) {
        const char* ahead = reinterpret_cast<const char*>(static_cast<const float*>(inputs[1].data) + (p + 1) * PANEL_SIZE);
        for (i64 row = lines; row < lines + Lines; row++)
          for (i64 t = 0; t < TILES; t++, ahead += 9 * Channels * stride) tile(inputs, out, row, t * Pixels, p * PANEL, ahead, stride);
      }
    };
    parallel(host, (Side / Lines) * (PanelTasks ? PANELS : 1), body);
    return nullptr;
  }
};

const int FLOATS[4] = {1, 1, 1, 1};

}  // namespace
}  // namespace onnxfuse

extern "C" const onnxfuse::Kernel twin_conv_56x64 = {
    "twin_conv_56x64", 4, 1, onnxfuse::FLOATS, onnxfuse::FLOATS, onnxfuse::Conv<56, 64, 14, 2, false>::run};
extern "C" const onnxfuse::Kernel twin_conv_14x256 = {
    "twin_conv_14x256", 4, 1, onnxfuse::FLOATS, onnxfuse::FLOATS, onnxfuse::Conv<14, 256, 14, 14, true>::run};
