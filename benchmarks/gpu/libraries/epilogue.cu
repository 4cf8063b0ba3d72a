// bias + GELU as a kernel of its own beside a product, in both forms; see rows.cu for the fast one.
#include <cuda_fp16.h>
struct alignas(16) Vec { __half v[8]; };
extern "C" __global__ void __launch_bounds__(256) bias_gelu(const __half* __restrict__ x, const __half* __restrict__ bias,
                                                           __half* __restrict__ y, long long vectors, int width) {
  const long long at = blockIdx.x * 256ll + threadIdx.x;
  if (at >= vectors) return;
  Vec a = *(const Vec*)(x + at * 8), b = *(const Vec*)(bias + (unsigned)at % (unsigned)(width / 8) * 8);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float v = __half2float(a.v[i]) + __half2float(b.v[i]);
    a.v[i] = __float2half_rn(0.5f * v * (1.f + erff(v * 0.70710678f)));
  }
  *(Vec*)(y + at * 8) = a;
}
