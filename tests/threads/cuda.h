// What kernels of threads are spelled with. All assembly is here; EMULATED, it is done by host code (emulated.h).
typedef long long i64;
typedef unsigned long long u64;

struct f16 {
  unsigned short bits;
};

template <class T, int N>
struct alignas(sizeof(T) * N) wide {
  T at[N];
};

#ifdef EMULATED
#include "emulated.h"
#else
#define SHARED(name) extern __shared__ __align__(16) unsigned char name[]

__device__ inline float to_float(f16 x) {
  float made;
  asm("cvt.f32.f16 %0, %1;" : "=f"(made) : "h"(x.bits));
  return made;
}
__device__ inline f16 to_half(float x) {
  f16 made;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(made.bits) : "f"(x));
  return made;
}

template <int BYTES>
__device__ inline void copy_bytes(void* to, const void* from) {
  const unsigned there = (unsigned)__cvta_generic_to_shared(to);
  if constexpr (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(there), "l"(from) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(there), "l"(from), "n"(BYTES) : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

__device__ inline unsigned pair(const f16* at) { return at[0].bits | (unsigned)at[1].bits << 16; }
__device__ inline void mma_m16n8k16_float16(float* c, const f16* a, const f16* b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(pair(a)), "r"(pair(a + 2)), "r"(pair(a + 4)), "r"(pair(a + 6)), "r"(pair(b)), "r"(pair(b + 2)));
}
#endif

template <class T>
__device__ inline T get(const T* at) {
  return *at;
}
__device__ inline float get(const f16* at) { return to_float(*at); }
template <class T>
__device__ inline void put(T* at, T x) {
  *at = x;
}
__device__ inline void put(f16* at, float x) { *at = to_half(x); }

template <int N, class T>
__device__ inline wide<T, N> load_wide(const T* from) {
  return *reinterpret_cast<const wide<T, N>*>(from);
}
template <int N, class T>
__device__ inline void store_wide(T* to, const wide<T, N>& x) {
  *reinterpret_cast<wide<T, N>*>(to) = x;
}
template <int N, class T>
__device__ inline void copy_async(T* to, const T* from) {
  copy_bytes<N * sizeof(T)>(to, from);
}

__device__ inline float exp_(float x) { return expf(x); }
__device__ inline float sqrt_(float x) { return sqrtf(x); }
__device__ inline float div_(float a, float b) { return a / b; }
__device__ inline float max_nan(float a, float b) { return a > b || a != a ? a : b; }
__device__ inline float min_nan(float a, float b) { return a < b || a != a ? a : b; }

// What all lanes of a warp have, combined, in each of them.
#define OF_WARP(NAME, COMBINED)                                      \
  template <class T>                                                 \
  __device__ inline T NAME##_of_warp(T a) {                          \
    for (int other = 16; other; other /= 2) {                        \
      const T b = __shfl_xor_sync(0xffffffffu, a, other);            \
      a = COMBINED;                                                  \
    }                                                                \
    return a;                                                        \
  }
OF_WARP(sum, a + b)
OF_WARP(prod, a * b)
OF_WARP(max, max_nan(a, b))
OF_WARP(min, min_nan(a, b))
