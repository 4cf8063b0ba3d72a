// Y = clip(depthwise3x3(X, W) + b, 0, 6), channels last, padding 1. W is [9][channels].
// Nine weight vectors stay in registers while a run of output pixels slides over the image: each input vector is loaded once
// a run and feeds every output it touches.
#include "gemm_tile.h"
#include "math.h"

namespace onnxfuse {
namespace {

// `Run` output pixels at a time out of rows of `Side / Stride`; a task is `Lines` output rows of `Block` channels.
template <int Side, int Channels, int Stride, int Run, int Lines, int Block> struct Depthwise {
  static constexpr int OUT = Side / Stride, INPUTS = (Run - 1) * Stride + 3;
  static_assert(OUT % Run == 0 && OUT % Lines == 0 && Channels % Block == 0 && Block % LANES == 0, "shapes");

  // Output pixels [x, x + Run) of row y, LANES channels. LeftEdge, RightEdge: the run touches the border of the image.
  template <bool LeftEdge, bool RightEdge>
  static inline __attribute__((always_inline)) void pixels(const float* in, const float* w, vf bias, float* out, i64 y, i64 x) {
    vf sum[Run];
#pragma GCC unroll 16
    for (int i = 0; i < Run; i++) sum[i] = bias;
    for (i64 dy = 0; dy < 3; dy++) {
      i64 line = y * Stride + dy - 1;
      if (line < 0 || line >= Side) continue;
      const float* p = in + (line * Side + x * Stride - 1) * Channels;
      vf tap[3] = {load(w + dy * 3 * Channels), load(w + (dy * 3 + 1) * Channels), load(w + (dy * 3 + 2) * Channels)};
#pragma GCC unroll 32
      for (int i = 0; i < INPUTS; i++) {
        if ((LeftEdge && i == 0) || (RightEdge && x * Stride - 1 + i >= Side)) continue;
        vf v = once(load(p + i * Channels));
#pragma GCC unroll 3
        for (int dx = 0; dx < 3; dx++)
          if (i >= dx && (i - dx) % Stride == 0 && (i - dx) / Stride < Run) sum[(i - dx) / Stride] += v * tap[dx];
      }
    }
    vf six = splat<float>(6.0f);
#pragma GCC unroll 16
    for (int i = 0; i < Run; i++) store(out + (y * OUT + x + i) * Channels, min_(max_(sum[i], vf{}), six));
  }

  static const char* run(Host* host, const Tensor* inputs) {
    const float* in = static_cast<const float*>(inputs[0].data);
    const float* weights = static_cast<const float*>(inputs[1].data);
    const float* bias = static_cast<const float*>(inputs[2].data);
    const i64 dims[4] = {1, OUT, OUT, Channels};
    float* out = static_cast<float*>(host->output(host, 0, dims, 4));
    if (!out) return "no memory";
    auto body = [&](size_t task) {
      i64 lines = task % (OUT / Lines) * Lines, block = task / (OUT / Lines) * Block;
      for (i64 y = lines; y < lines + Lines; y++)
        for (i64 x = 0; x < OUT; x += Run)
          for (i64 c = block; c < block + Block; c += LANES) {
            vf b = load(bias + c);
            if (Run == OUT) pixels<true, true>(in + c, weights + c, b, out + c, y, 0);
            else if (x == 0) pixels<true, false>(in + c, weights + c, b, out + c, y, 0);
            else if (x + Run == OUT) pixels<false, true>(in + c, weights + c, b, out + c, y, OUT - Run);
            else pixels<false, false>(in + c, weights + c, b, out + c, y, x);
          }
    };
    parallel(host, (OUT / Lines) * (Channels / Block), body);
    return nullptr;
  }
};

const int FLOATS[3] = {1, 1, 1};

#ifndef DW1
#define DW1 112, 96, 2, 4, 4, 96
#endif
#ifndef DW2
#define DW2 14, 576, 1, 14, 14, 96
#endif

}  // namespace
}  // namespace onnxfuse

extern "C" const onnxfuse::Kernel twin_depthwise_112x96 = {
    "twin_depthwise_112x96", 3, 1, onnxfuse::FLOATS, onnxfuse::FLOATS, onnxfuse::Depthwise<DW1>::run};
extern "C" const onnxfuse::Kernel twin_depthwise_14x576 = {
    "twin_depthwise_14x576", 3, 1, onnxfuse::FLOATS, onnxfuse::FLOATS, onnxfuse::Depthwise<DW2>::run};
