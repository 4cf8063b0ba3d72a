// Row kernels as the CUDA backend would write them: one source, one specialization per -D list.
//
//   OP       0 softmax, 1 LayerNormalization, 2 residual + LayerNormalization, 3 bias + GELU (erf), 4 copy
//   HALF     1: fp16 in memory, fp32 in registers; 0: fp32
//   N        length of a row, a multiple of one 16-byte vector
//   TPR      threads of one block that share a row (a power of two, up to 1024)
//   THREADS  threads of a block; with TPR < THREADS a block has several rows
//   ROWS     rows that one thread works on at the same time
//   CLUSTER  blocks that share a row and exchange their sums through distributed shared memory (sm_90)
//   STREAM   1: loads and stores that say the data is used once
//   PACKED   1: fp16 rows wait in registers as fp16; 0: as fp32
//   EARLY    1: gamma and beta are read together with the row, not after its sums
//   REREAD   1: the row does not wait in registers; it is read a second time, from L2 (one row per block)
//   ERF      GELU only: 0 the library's erff, 1 a rational times an exponential (absolute error 1.5e-7)
//
// Without REREAD a row is read once and stays in registers between the passes. Accesses are 16 bytes wide.
#ifdef EMULATED  // a header that runs blocks on the CPU, threads as fibers
#include EMULATED
#define ARENA(name) OF_DYN_SMEM(float, name)
#define __ldcs(p) (*(p))
#define __stcs(p, v) (*(p) = (v))
#else
#define ARENA(name) extern __shared__ float name[]
#endif
#if HALF
#ifndef EMULATED
#include <cuda_fp16.h>
#endif
typedef __half T;
#else
typedef float T;
#endif

#define VEC (16 / (int)sizeof(T))
#define GROUPS (THREADS / TPR)
#define PART (N / VEC / CLUSTER)
#define CHUNKS ((PART + TPR - 1) / TPR)
#define WARPS (TPR > 32 ? TPR / 32 : 1)

struct alignas(16) Vec { T v[VEC]; };
#if PACKED
typedef T Kept;
#else
typedef float Kept;
#endif

__device__ __forceinline__ Vec load(const T* p) {
#if STREAM
  uint4 raw = __ldcs((const uint4*)p);
#else
  uint4 raw = *(const uint4*)p;
#endif
  return *(Vec*)&raw;
}

__device__ __forceinline__ void store(T* p, const Vec& x) {
#if STREAM
  __stcs((uint4*)p, *(const uint4*)&x);
#else
  *(uint4*)p = *(const uint4*)&x;
#endif
}

__device__ __forceinline__ float f32(float x) { return x; }
#if HALF
__device__ __forceinline__ float f32(__half x) { return __half2float(x); }
__device__ __forceinline__ void put(__half& d, float x) { d = __float2half_rn(x); }
#endif
__device__ __forceinline__ void put(float& d, float x) { d = x; }

__device__ __forceinline__ float larger(float a, float b) { return fmaxf(a, b); }
__device__ __forceinline__ float added(float a, float b) { return a + b; }

#if CLUSTER > 1
__device__ __forceinline__ void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;\n barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ float of_block(const float* mine, unsigned rank) {  // the same slot of another block
  unsigned here = (unsigned)__cvta_generic_to_shared(mine), there;
  float value;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(there) : "memory");
  return value;
}
#endif

// One value per row of this thread's group, by a barrier at most; `slot` differs between two calls of a kernel.
#define REDUCE(name, join, neutral)                                                                         \
  __device__ __forceinline__ void name(float (&x)[ROWS], int slot) {                                        \
    ARENA(arena);                                                                                           \
    _Pragma("unroll") for (int o = (TPR < 32 ? TPR : 32) / 2; o; o >>= 1)                                   \
      _Pragma("unroll") for (int r = 0; r < ROWS; ++r) x[r] = join(x[r], __shfl_xor_sync(~0u, x[r], o));    \
    if (TPR > 32) {                                                                                         \
      const int group = threadIdx.x / TPR, warp = threadIdx.x % TPR / 32, lane = threadIdx.x % 32;          \
      float* own = arena + (slot * GROUPS + group) * ROWS * WARPS;                                          \
      if (lane == 0)                                                                                        \
        _Pragma("unroll") for (int r = 0; r < ROWS; ++r) own[r * WARPS + warp] = x[r];                      \
      __syncthreads();                                                                                      \
      _Pragma("unroll") for (int r = 0; r < ROWS; ++r) {                                                    \
        x[r] = lane < WARPS ? own[r * WARPS + lane] : neutral;                                              \
        _Pragma("unroll") for (int o = WARPS / 2; o; o >>= 1)                                               \
          x[r] = join(x[r], __shfl_xor_sync(~0u, x[r], o));                                                 \
        x[r] = __shfl_sync(~0u, x[r], 0);                                                                   \
      }                                                                                                     \
    }                                                                                                       \
    ACROSS(join)                                                                                            \
  }
#if CLUSTER > 1  // a cluster has one group, of whole warps
#define ACROSS(join)                                                                        \
  float* shared = arena + 2 * GROUPS * ROWS * WARPS + slot * ROWS;                          \
  if (threadIdx.x == 0)                                                                     \
    _Pragma("unroll") for (int r = 0; r < ROWS; ++r) shared[r] = x[r];                      \
  cluster_barrier();                                                                        \
  _Pragma("unroll") for (int r = 0; r < ROWS; ++r) {                                        \
    x[r] = of_block(shared + r, 0);                                                         \
    _Pragma("unroll") for (int b = 1; b < CLUSTER; ++b) x[r] = join(x[r], of_block(shared + r, b)); \
  }
#else
#define ACROSS(join)
#endif
REDUCE(row_max, larger, -3.4e38f)
REDUCE(row_sum, added, 0.f)

__device__ __forceinline__ float erf_of(float x) {
#if ERF == 0
  return erff(x);
#else  // Abramowitz and Stegun 7.1.26
  const float a = fabsf(x), t = __fdividef(1.f, fmaf(0.3275911f, a, 1.f));
  const float p = t * fmaf(t, fmaf(t, fmaf(t, fmaf(t, 1.061405429f, -1.453152027f), 1.421413741f), -0.284496736f),
                           0.254829592f);
  return copysignf(fmaf(-p, __expf(-a * a), 1.f), x);
#endif
}
__device__ __forceinline__ float gelu(float x) { return 0.5f * x * (1.f + erf_of(x * 0.70710678f)); }

#if CLUSTER > 1
#define SHAPE __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS)
#else
#define SHAPE __launch_bounds__(THREADS)
#endif

#if OP <= 2 && REREAD
__device__ __forceinline__ void values(const T* x, const T* residual, float (&v)[VEC]) {
  const Vec a = *(const Vec*)x;
#pragma unroll
  for (int i = 0; i < VEC; ++i) v[i] = f32(a.v[i]);
#if OP == 2
  const Vec b = *(const Vec*)residual;
#pragma unroll
  for (int i = 0; i < VEC; ++i) v[i] += f32(b.v[i]);
#endif
}

extern "C" __global__ void SHAPE kernel(const T* __restrict__ x, const T* __restrict__ residual,
                                        const T* __restrict__ gamma, const T* __restrict__ beta,
                                        T* __restrict__ y, long long rows) {
  const long long begin = (long long)blockIdx.x * N;
  float v[VEC], one[1], two[1];
#if OP == 0
  float most = -3.4e38f, sum = 0.f;
#pragma unroll 4
  for (int at = threadIdx.x; at < PART; at += TPR) {
    values(x + begin + at * VEC, residual, v);
    float here = v[0];
#pragma unroll
    for (int i = 1; i < VEC; ++i) here = fmaxf(here, v[i]);
    if (here > most) {
      sum *= __expf(most - here);
      most = here;
    }
#pragma unroll
    for (int i = 0; i < VEC; ++i) sum += __expf(v[i] - most);
  }
  one[0] = most;
  row_max(one, 0);
  two[0] = sum * __expf(most - one[0]);
  row_sum(two, 1);
  const float scale = __fdividef(1.f, two[0]);
#else  // sums of differences from the first value: no large mean is squared
  const float base = f32(x[begin]) + (OP == 2 ? f32(residual[begin]) : 0.f);
  float sum = 0.f, squares = 0.f;
#pragma unroll 4
  for (int at = threadIdx.x; at < PART; at += TPR) {
    values(x + begin + at * VEC, residual + begin + at * VEC, v);
#pragma unroll
    for (int i = 0; i < VEC; ++i) {
      const float d = v[i] - base;
      sum += d;
      squares = fmaf(d, d, squares);
    }
  }
  one[0] = sum;
  two[0] = squares;
  row_sum(one, 0);
  row_sum(two, 1);
  const float off = one[0] * (1.f / N), mean = base + off;
  const float scale = rsqrtf(fmaf(-off, off, two[0] * (1.f / N)) + 1e-5f);
#endif
#pragma unroll 4
  for (int at = threadIdx.x; at < PART; at += TPR) {
    values(x + begin + at * VEC, residual + begin + at * VEC, v);
    Vec out;
#if OP == 0
#pragma unroll
    for (int i = 0; i < VEC; ++i) put(out.v[i], __expf(v[i] - one[0]) * scale);
#else
    const Vec g = *(const Vec*)(gamma + at * VEC), b = *(const Vec*)(beta + at * VEC);
#pragma unroll
    for (int i = 0; i < VEC; ++i) put(out.v[i], fmaf((v[i] - mean) * scale, f32(g.v[i]), f32(b.v[i])));
#endif
    store(y + begin + at * VEC, out);
  }
}
#elif OP <= 2
extern "C" __global__ void SHAPE kernel(const T* __restrict__ x, const T* __restrict__ residual,
                                        const T* __restrict__ gamma, const T* __restrict__ beta,
                                        T* __restrict__ y, long long rows) {
  const int lane = threadIdx.x % TPR, group = threadIdx.x / TPR;
  const int part = blockIdx.x % CLUSTER * PART;
  const long long first = (long long)(blockIdx.x / CLUSTER) * GROUPS * ROWS + group;
  Kept kept[ROWS][CHUNKS][VEC];
  float total[ROWS];
#if EARLY && OP
  Vec gs[CHUNKS], bs[CHUNKS];
#pragma unroll
  for (int c = 0; c < CHUNKS; ++c)
    if (const int at = c * TPR + lane; PART % TPR == 0 || at < PART) {
      gs[c] = *(const Vec*)(gamma + (part + at) * VEC);
      bs[c] = *(const Vec*)(beta + (part + at) * VEC);
    }
#endif
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const long long row = first + r * GROUPS;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
      const int at = c * TPR + lane;
      if ((PART % TPR == 0 || at < PART) && row < rows) {
        const long long where = row * N + (part + at) * VEC;
        Vec a = load(x + where);
#if OP == 2
        Vec b = load(residual + where);
#pragma unroll
        for (int i = 0; i < VEC; ++i) put(kept[r][c][i], f32(a.v[i]) + f32(b.v[i]));
#else
#pragma unroll
        for (int i = 0; i < VEC; ++i) put(kept[r][c][i], f32(a.v[i]));
#endif
      } else {
#pragma unroll
        for (int i = 0; i < VEC; ++i) put(kept[r][c][i], OP == 0 ? -6e4f : 0.f);
      }
    }
  }
#if OP == 0
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    total[r] = -3.4e38f;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c)
#pragma unroll
      for (int i = 0; i < VEC; ++i) total[r] = fmaxf(total[r], f32(kept[r][c][i]));
  }
  row_max(total, 0);
  float peak[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    peak[r] = total[r];
    total[r] = 0.f;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c)
#pragma unroll
      for (int i = 0; i < VEC; ++i) {
        const float e = __expf(f32(kept[r][c][i]) - peak[r]);
        total[r] += e;
        if (!PACKED) put(kept[r][c][i], e);  // packed values are too short for this: computed again below
      }
  }
  row_sum(total, 1);
#else
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    total[r] = 0.f;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c)
#pragma unroll
      for (int i = 0; i < VEC; ++i) total[r] += f32(kept[r][c][i]);
  }
  row_sum(total, 0);
  float mean[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    mean[r] = total[r] * (1.f / N);
    total[r] = 0.f;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c)
#pragma unroll
      for (int i = 0; i < VEC; ++i) {
        const float d = f32(kept[r][c][i]) - mean[r];
        if (PART % TPR == 0 || c * TPR + lane < PART) total[r] = fmaf(d, d, total[r]);
      }
  }
  row_sum(total, 1);
#endif
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const long long row = first + r * GROUPS;
#if OP == 0
    const float scale = __fdividef(1.f, total[r]);
#else
    const float scale = rsqrtf(total[r] * (1.f / N) + 1e-5f);
#endif
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
      const int at = c * TPR + lane;
      if ((PART % TPR == 0 || at < PART) && row < rows) {
        const int column = (part + at) * VEC;
        Vec out;
#if OP == 0
#pragma unroll
        for (int i = 0; i < VEC; ++i)
          put(out.v[i], (PACKED ? __expf(f32(kept[r][c][i]) - peak[r]) : f32(kept[r][c][i])) * scale);
#else
#if EARLY
        const Vec &g = gs[c], &b = bs[c];
#else
        const Vec g = *(const Vec*)(gamma + column), b = *(const Vec*)(beta + column);
#endif
#pragma unroll
        for (int i = 0; i < VEC; ++i)
          put(out.v[i], fmaf((f32(kept[r][c][i]) - mean[r]) * scale, f32(g.v[i]), f32(b.v[i])));
#endif
        store(y + row * N + column, out);
      }
    }
  }
#if CLUSTER > 1
  cluster_barrier();  // nobody leaves while its shared memory is being read
#endif
}
#else  // pointwise: ROWS vectors per thread, THREADS * ROWS vectors per block
extern "C" __global__ void SHAPE kernel(const T* __restrict__ x, const T* __restrict__ residual,
                                        const T* __restrict__ gamma, const T* __restrict__ beta,
                                        T* __restrict__ y, long long rows) {
  const long long all = rows * (N / VEC), first = (long long)blockIdx.x * THREADS * ROWS + threadIdx.x;
  Vec a[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r)
    if (first + r * THREADS < all) a[r] = load(x + (first + r * THREADS) * VEC);
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const long long at = first + r * THREADS;
    if (at < all) {
#if OP == 3
      const Vec b = *(const Vec*)(beta + (unsigned)at % (N / VEC) * VEC);
#pragma unroll
      for (int i = 0; i < VEC; ++i) put(a[r].v[i], gelu(f32(a[r].v[i]) + f32(b.v[i])));
#endif
      store(y + at * VEC, a[r]);
    }
  }
}
#endif
