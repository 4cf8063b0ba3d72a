// Kernels that run both on a device and in an emulator on the CPU (EMULATED names its header): one source for both.
//
// softmax_h: one row per block, fp16, shared memory and shuffles. ln_gelu: one row per warp, fp32, residual + layer
// normalization + GELU, an atomic. mma_gemm: m16n8k16 of the matrix units, whose lanes the emulator plays by exchange.
#ifdef EMULATED
#include EMULATED
__device__ inline void mma(float (&d)[4], const __half2 (&a)[4], const __half2 (&b)[2], const float (&c)[4]) {
  const unsigned lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  auto bits = [](__half2 h) { uint32_t r; std::memcpy(&r, &h, 4); return (uint64_t)r; };
  auto half2 = [](uint64_t r) { __half2 x; const uint32_t low = (uint32_t)r; std::memcpy(&x, &low, 4); return x; };
  float left[2][16], right[2][16];  // rows g and g + 8; columns 2t and 2t + 1
  for (unsigned s = 0; s < 4; ++s)
    for (int part = 0; part < 2; ++part) {
      const uint64_t v = cuemu::xchg(~0u, bits(a[2 * part]) | bits(a[2 * part + 1]) << 32, g * 4 + s);
      const __half2 top = half2(v), low = half2(v >> 32);
      left[0][8 * part + 2 * s] = top.x; left[0][8 * part + 2 * s + 1] = top.y;
      left[1][8 * part + 2 * s] = low.x; left[1][8 * part + 2 * s + 1] = low.y;
    }
  for (unsigned j = 0; j < 2; ++j)
    for (unsigned s = 0; s < 4; ++s) {
      const uint64_t v = cuemu::xchg(~0u, bits(b[0]) | bits(b[1]) << 32, (2 * t + j) * 4 + s);
      const __half2 p = half2(v), q = half2(v >> 32);
      right[j][2 * s] = p.x; right[j][2 * s + 1] = p.y; right[j][8 + 2 * s] = q.x; right[j][9 + 2 * s] = q.y;
    }
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 2; ++j) {
      float sum = c[i * 2 + j];
      for (int k = 0; k < 16; ++k) sum += left[i][k] * right[j][k];
      d[i * 2 + j] = sum;
    }
}
#else
#include <cuda_fp16.h>
#define OF_DYN_SMEM(T, name) extern __shared__ T name[]
__device__ inline void mma(float (&d)[4], const __half2 (&a)[4], const __half2 (&b)[2], const float (&c)[4]) {
  const unsigned *x = (const unsigned*)a, *y = (const unsigned*)b;
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}
#endif

struct __align__(16) H8 { __half2 v[4]; };
__device__ __forceinline__ float wmax(float x) {
  for (int o = 16; o; o >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, o));
  return x;
}
__device__ __forceinline__ float wsum(float x) {
  for (int o = 16; o; o >>= 1) x += __shfl_xor_sync(0xffffffffu, x, o);
  return x;
}

extern "C" __global__ void softmax_h(const __half* x, const __half* bias, __half* y, int n, float scale) {
  OF_DYN_SMEM(float, row);  // n values of the row, then one of each warp
  float* red = row + n;
  const int t = threadIdx.x, w = t >> 5, l = t & 31;
  const H8 *xr = (const H8*)(x + (size_t)blockIdx.x * n), *br = (const H8*)bias;
  float m = -3.4e38f;
  for (int i = t; i < n / 8; i += blockDim.x) {
    H8 a = xr[i], b = br[i];
    for (int k = 0; k < 4; k++) {
      float2 f = __half22float2(a.v[k]), g = __half22float2(b.v[k]);
      const float p = f.x * scale + g.x, q = f.y * scale + g.y;
      row[i * 8 + 2 * k] = p;
      row[i * 8 + 2 * k + 1] = q;
      m = fmaxf(m, fmaxf(p, q));
    }
  }
  m = wmax(m);
  if (l == 0) red[w] = m;
  __syncthreads();
  m = wmax(l < (int)(blockDim.x >> 5) ? red[l] : -3.4e38f);
  float s = 0.f;
  for (int i = t; i < n / 8; i += blockDim.x)
    for (int k = 0; k < 8; k++) {
      const float e = __expf(row[i * 8 + k] - m);
      row[i * 8 + k] = e;
      s += e;
    }
  s = wsum(s);
  __syncthreads();
  if (l == 0) red[w] = s;
  __syncthreads();
  const float r = 1.f / wsum(l < (int)(blockDim.x >> 5) ? red[l] : 0.f);
  H8* yr = (H8*)(y + (size_t)blockIdx.x * n);
  for (int i = t; i < n / 8; i += blockDim.x) {
    H8 o;
    for (int k = 0; k < 4; k++) o.v[k] = __floats2half2_rn(row[i * 8 + 2 * k] * r, row[i * 8 + 2 * k + 1] * r);
    yr[i] = o;
  }
}

extern "C" __global__ void ln_gelu(const float* x, const float* res, const float* g, const float* b, float* y, float* acc,
                                   int rows, int n, float eps) {
  OF_DYN_SMEM(float, tot);
  const int w = threadIdx.x >> 5, l = threadIdx.x & 31, r = blockIdx.x * 4 + w;
  float s = 0.f, q = 0.f;
  float4 v[8];
  if (r < rows) {
    const float4 *xr = (const float4*)(x + (size_t)r * n), *rr = (const float4*)(res + (size_t)r * n);
#pragma unroll
    for (int i = 0; i < 8; i++)
      if (const int c = l + 32 * i; c < n / 4) {
        float4 a = xr[c], d = rr[c];
        a.x += d.x; a.y += d.y; a.z += d.z; a.w += d.w;
        v[i] = a;
        s += a.x + a.y + a.z + a.w;
      }
  }
  const float mu = wsum(s) / n;
  if (r < rows)
#pragma unroll
    for (int i = 0; i < 8; i++)
      if (const int c = l + 32 * i; c < n / 4) {
        const float4 a = v[i];
        const float d0 = a.x - mu, d1 = a.y - mu, d2 = a.z - mu, d3 = a.w - mu;
        q += d0 * d0 + d1 * d1 + d2 * d2 + d3 * d3;
      }
  const float rs = rsqrtf(wsum(q) / n + eps);
  if (l == 0) tot[w] = r < rows ? mu : 0.f;
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(acc, tot[0] + tot[1] + tot[2] + tot[3]);
  if (r < rows) {
    float4* yr = (float4*)(y + (size_t)r * n);
    const float4 *gg = (const float4*)g, *bb = (const float4*)b;
#pragma unroll
    for (int i = 0; i < 8; i++)
      if (const int c = l + 32 * i; c < n / 4) {
        const float4 a = v[i], G = gg[c], B = bb[c];
        float4 o;
        float z = (a.x - mu) * rs * G.x + B.x;
        o.x = 0.5f * z * (1.f + erff(z * 0.70710678f));
        z = (a.y - mu) * rs * G.y + B.y;
        o.y = 0.5f * z * (1.f + erff(z * 0.70710678f));
        z = (a.z - mu) * rs * G.z + B.z;
        o.z = 0.5f * z * (1.f + erff(z * 0.70710678f));
        z = (a.w - mu) * rs * G.w + B.w;
        o.w = 0.5f * z * (1.f + erff(z * 0.70710678f));
        yr[c] = o;
      }
  }
}

// One warp for a tile of 16 x 8; A by rows, B by columns.
extern "C" __global__ void mma_gemm(const __half* A, const __half* B, float* C, int N, int K) {
  const int r0 = blockIdx.x / (N / 8) * 16, c0 = blockIdx.x % (N / 8) * 8;
  const unsigned l = threadIdx.x & 31, g = l >> 2, t = l & 3;
  float acc[4] = {0, 0, 0, 0};
  for (int k = 0; k < K; k += 16) {
    const __half2 a[4] = {*(const __half2*)(A + (r0 + g) * K + k + 2 * t), *(const __half2*)(A + (r0 + g + 8) * K + k + 2 * t),
                          *(const __half2*)(A + (r0 + g) * K + k + 2 * t + 8),
                          *(const __half2*)(A + (r0 + g + 8) * K + k + 2 * t + 8)};
    const __half2 b[2] = {*(const __half2*)(B + (c0 + g) * K + k + 2 * t), *(const __half2*)(B + (c0 + g) * K + k + 2 * t + 8)};
    float d[4];
    mma(d, a, b, acc);
    for (int i = 0; i < 4; i++) acc[i] = d[i];
  }
  C[(r0 + g) * N + c0 + 2 * t] = acc[0];
  C[(r0 + g) * N + c0 + 2 * t + 1] = acc[1];
  C[(r0 + g + 8) * N + c0 + 2 * t] = acc[2];
  C[(r0 + g + 8) * N + c0 + 2 * t + 1] = acc[3];
}
