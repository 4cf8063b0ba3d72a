// The vocabulary of generated CUDA kernels. All inline assembly is here; with EMULATED, host code replaces it (emulated.h).
#pragma once
#ifdef EMULATED
#include "emulated.h"
#elif !defined(__CUDACC_RTC__)
#include <cstdint>
#else
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#define INT64_MIN (-9223372036854775807ll - 1)
#endif
typedef int64_t i64;

struct f16 {
  uint16_t bits;
};
struct bf16 {
  uint16_t bits;
};

template <class T, int N>
struct alignas(sizeof(T) * N) wide {
  T at[N];
};

#ifdef EMULATED
#include "emulated_code.h"
#else
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define SHARED(name) extern __shared__ __align__(1024) unsigned char name[]  // as swizzled buffers begin
#else
#define SHARED(name) extern __shared__ __align__(16) unsigned char name[]
#endif
#define ON_BOUNDARY(place, bytes)  // asserts alignment to so many bytes; only in the emulator

__device__ inline float bits_as_float(uint32_t x) { return __uint_as_float(x); }
__device__ inline uint32_t float_as_bits(float x) { return __float_as_uint(x); }
__device__ inline double bits_as_double(uint64_t x) { return __longlong_as_double((long long)x); }

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

// 2 to the power of x by the unit for it; 0 where that would be subnormal.
__device__ inline float power_of_two(float x) {
  float made;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(made) : "f"(x));
  return made;
}

// Loads before it stay there: without a branch that the assembler cannot decide (it is never taken), it moves them behind
// reductions, next to where they are used, and a thread waits for memory once more.
__device__ inline void loads_before() {
  unsigned none;
  asm volatile("{ .reg .pred p; L: mov.u32 %0, %%smid; setp.eq.u32 p, %0, -1; @p bra L; }" : "=r"(none)::"memory");
}

// Programmatic dependent launches. Until all kernels before this one have ended, and what they stored is seen, a thread
// waits here: not at all where the launch was an ordinary one. Loads of constant parameters cross the instruction alone, as if
// nothing were stored while a kernel runs; they do not cross a branch that the assembler cannot decide (it is never taken).
// Architectures before sm_90 have no such launches, and nothing to wait for.
__device__ inline void wait_for_kernel_before() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  unsigned none;
  asm volatile("{ .reg .pred p; L: griddepcontrol.wait; mov.u32 %0, %%smid; setp.eq.u32 p, %0, -1; @p bra L; }"
               : "=r"(none)::"memory");
#endif
}
// Asks for all elements of an array, by all threads of the grid together: they come to the second cache.
template <class T>
__device__ inline void fetch_ahead(const T* from, int count) {
  const i64 line = 128, bytes = count * (i64)sizeof(T), all = (i64)gridDim.x * blockDim.x * line;
  for (i64 at = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * line; at < bytes; at += all)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(reinterpret_cast<const char*>(from) + at)));
}
// Blocks of the next kernel may begin, if its launch allows that.
__device__ inline void let_next_kernel_begin() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
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

// Two elements of each matrix; each lane has the begin of a row.
template <int COUNT, bool TURNED>
__device__ inline void matrices(unsigned* to, const void* row) {
  const unsigned there = (unsigned)__cvta_generic_to_shared(row);
#define LDMATRIX(SHAPE, INTO, ...) asm volatile("ldmatrix.sync.aligned.m8n8." SHAPE ".shared.b16 " INTO : __VA_ARGS__ : "r"(there) : "memory")
  if constexpr (COUNT == 4 && TURNED)
    LDMATRIX("x4.trans", "{%0,%1,%2,%3}, [%4];", "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]));
  else if constexpr (COUNT == 4)
    LDMATRIX("x4", "{%0,%1,%2,%3}, [%4];", "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]));
  else if constexpr (TURNED)
    LDMATRIX("x2.trans", "{%0,%1}, [%2];", "=r"(to[0]), "=r"(to[1]));
  else
    LDMATRIX("x2", "{%0,%1}, [%2];", "=r"(to[0]), "=r"(to[1]));
#undef LDMATRIX
}

template <class T>
__device__ inline unsigned pair(const T* at) { return at[0].bits | (unsigned)at[1].bits << 16; }
#define MMA(NAME, T, TYPE)                                                                                     \
  __device__ inline void mma_m16n8k16_##NAME(float* c, const T* a, const T* b) {                               \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE                                        \
                 ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                                  \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                              \
                 : "r"(pair(a)), "r"(pair(a + 2)), "r"(pair(a + 4)), "r"(pair(a + 6)), "r"(pair(b)),           \
                   "r"(pair(b + 2)));                                                                          \
  }
MMA(float16, f16, "f16")
MMA(bfloat16, bf16, "bf16")
#undef MMA

// ---- boxes that the copy engine brings (sm_90 and later) ----

struct alignas(64) Map {  // a tensor map, made on the host
  unsigned char bytes[128];
};
template <int COUNT, int BOXES>
__device__ inline void begin_arrivals(i64* arrivals) {
  const unsigned first = (unsigned)__cvta_generic_to_shared(arrivals);
  for (int i = 0; i < COUNT; i++)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(first + 8 * i), "n"(BOXES) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
template <int ROWS, class T>
__device__ inline void copy_box(T* to, const Map& map, int column, int row, i64* arrival) {
  const unsigned there = (unsigned)__cvta_generic_to_shared(to), meets = (unsigned)__cvta_generic_to_shared(arrival);
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(meets), "n"(ROWS * 128) : "memory");
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
               ::"r"(there), "l"(&map), "r"(column), "r"(row), "r"(meets) : "memory");
}
__device__ inline void wait_arrival(i64* arrival, int turn) {
  unsigned done = 0;
  while (!done)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"((unsigned)__cvta_generic_to_shared(arrival)), "r"(turn & 1) : "memory");
}

// ---- products of four warps (wgmma, sm_90a alone) ----

// What this thread has stored in shared memory, or copied there, is seen by matrix units after the next barrier.
__device__ inline void tell_units() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ inline unsigned address_in_shared(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ inline void ready_registers() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING, int COUNT>
__device__ inline void wait_products(float (&sums)[COUNT]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
  if constexpr (PENDING == 0) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(sums[i])::"memory");  // nothing that reads them comes before
  }
}

template <class T, int N>
struct Wgmma;
#define SUMS_32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define SUMS_48 SUMS_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define SUMS_64 SUMS_48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define SUMS_96 SUMS_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define SUMS_128 SUMS_96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define ADDED_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define ADDED_16(i) ADDED_4(i), ADDED_4(i + 4), ADDED_4(i + 8), ADDED_4(i + 12)
#define ADDED_32 ADDED_16(0), ADDED_16(16)
#define ADDED_48 ADDED_32, ADDED_16(32)
#define ADDED_64 ADDED_48, ADDED_16(48)
#define ADDED_96 ADDED_64, ADDED_16(64), ADDED_16(80)
#define ADDED_128 ADDED_96, ADDED_16(96), ADDED_16(112)
#define WGMMA(T, TYPE, N, COUNT, A, B, ONE, DEEP)                                                                        \
  template <>                                                                                                            \
  struct Wgmma<T, N> {                                                                                                   \
    template <bool IS_DEEP>                                                                                              \
    static __device__ inline void add(float* d, uint64_t a, uint64_t b) {                                                \
      asm volatile("{ .reg .pred p; setp.ne.b32 p, %" ONE ", 0; wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." \
                   TYPE " {" SUMS_##COUNT "}, %" A ", %" B ", p, 1, 1, 0, %" DEEP "; }"                                   \
                   : ADDED_##COUNT                                                                                       \
                   : "l"(a), "l"(b), "r"(1), "n"(IS_DEEP ? 0 : 1));                                                      \
    }                                                                                                                    \
  };
#define WGMMAS(T, TYPE)                                     \
  WGMMA(T, TYPE, 64, 32, "32", "33", "34", "35")            \
  WGMMA(T, TYPE, 96, 48, "48", "49", "50", "51")            \
  WGMMA(T, TYPE, 128, 64, "64", "65", "66", "67")           \
  WGMMA(T, TYPE, 192, 96, "96", "97", "98", "99")           \
  WGMMA(T, TYPE, 256, 128, "128", "129", "130", "131")
WGMMAS(f16, "f16")
WGMMAS(bf16, "bf16")
#undef WGMMAS
#undef WGMMA
#endif

// Round to nearest even; NaN stays NaN.
__device__ inline float to_float(bf16 x) { return bits_as_float((uint32_t)x.bits << 16); }
__device__ inline bf16 to_bfloat(float x) {
  const uint32_t u = float_as_bits(x);
  return bf16{(uint16_t)(x != x ? u >> 16 | 0x40 : (u + 0x7fff + (u >> 16 & 1)) >> 16)};
}

// ---- memory ----

template <class T>
__device__ inline T get(const T* at) {
  return *at;
}
__device__ inline float get(const f16* at) { return to_float(*at); }
__device__ inline float get(const bf16* at) { return to_float(*at); }
__device__ inline uint8_t get(const bool* at) { return *reinterpret_cast<const uint8_t*>(at) != 0; }
template <class T, class V>
__device__ inline void put(T* at, V x) {
  *at = (T)x;
}
__device__ inline void put(f16* at, float x) { *at = to_half(x); }
__device__ inline void put(bf16* at, float x) { *at = to_bfloat(x); }
__device__ inline void put(bool* at, uint8_t x) { *at = x != 0; }

template <int N, class T>
__device__ inline wide<T, N> load_wide(const T* from) {
  ON_BOUNDARY(from, sizeof(wide<T, N>));
  return *reinterpret_cast<const wide<T, N>*>(from);
}
template <int N, class T>
__device__ inline void store_wide(T* to, const wide<T, N>& x) {
  ON_BOUNDARY(to, sizeof(wide<T, N>));
  *reinterpret_cast<wide<T, N>*>(to) = x;
}
template <int N, class T>
__device__ inline void copy_async(T* to, const T* from) {
  ON_BOUNDARY(to, sizeof(wide<T, N>));
  ON_BOUNDARY(from, sizeof(wide<T, N>));
  copy_bytes<N * sizeof(T)>(to, from);
}

// Matrices of 8 x 8 elements from shared memory to a fragment, by all lanes of a warp: lane 8 i + r has the begin of row r
// of matrix i, and gets two elements of each, side by side or (TURNED) above each other.
template <int COUNT, bool TURNED, class T>
__device__ inline void load_matrices(T* to, const T* row) {
  ON_BOUNDARY(row, 16);
  unsigned pairs[COUNT];
  matrices<COUNT, TURNED>(pairs, row);
#pragma unroll
  for (int i = 0; i < COUNT; i++) {
    to[2 * i].bits = (uint16_t)pairs[i];
    to[2 * i + 1].bits = (uint16_t)(pairs[i] >> 16);
  }
}

// Where an element of 16 bits lies in a swizzled buffer: pieces of eight trade places within lines of 64.
template <class I>
__device__ inline I swizzled(I at) { return at ^ (at >> 3 & 56); }

// A matrix in shared memory, for wgmma: lines of 128 bytes, swizzled. As the PTX manual names them, `leading` are bytes to
// the next 64 columns where these lie side by side, `stride` those to the next eight lines.
__device__ inline uint64_t described(const void* from, unsigned leading, unsigned stride) {
  ON_BOUNDARY(from, 16);
  const uint64_t address = (address_in_shared(from) & 0x3ffff) >> 4;
  return address | (uint64_t)(leading >> 4) << 16 | (uint64_t)(stride >> 4) << 32 | (uint64_t)1 << 62;
}

// 64 x N sums of the four warps += left right, DEPTH steps; a PITCH is from 64 columns to the next (WarpgroupMma).
template <int N, int DEPTH, int LEFT_PITCH, int RIGHT_PITCH, bool DEEP, class T>
__device__ inline void begin_products(float* sums, const T* left, const T* right) {
  ready_registers();
#pragma unroll
  for (int k = 0; k < DEPTH; k += 16) {
    const uint64_t a = described(left + k / 64 * LEFT_PITCH + k % 64, 16, 1024);
    const uint64_t b = DEEP ? described(right + k / 64 * RIGHT_PITCH + k % 64, 16, 1024)
                            : described(right + k * 64, 2 * RIGHT_PITCH, 1024);
    Wgmma<T, N>::template add<DEEP>(sums, a, b);
  }
  commit_products();
}

// ---- indices ----

template <class A, class B>
__device__ inline auto floor_div(A a, B b) { return a / b - (a % b < 0); }  // b > 0
template <class A, class B>
__device__ inline auto floor_mod(A a, B b) { return a % b + (a % b < 0 ? b : 0); }
template <class A, class B>
__device__ inline auto least(A a, B b) { return a < b ? a : b; }
template <class A, class B>
__device__ inline auto common(A a, B b) { return b == 1 ? a : b; }  // what two extents broadcast to
// An index loaded from a tensor: negative values count from the end; 0 where it is out of range, since a run on a stream
// cannot report a fault.
struct Run {
  int* fault;
};
template <class B>
__device__ inline i64 checked(i64 i, B extent, int*) {
  if (i < 0) i += extent;
  return i < 0 || i >= extent ? 0 : i;
}

// ---- functions of one element ----

template <class A, class B> struct same { static constexpr bool value = false; };
template <class A> struct same<A, A> { static constexpr bool value = true; };
template <class T> constexpr bool is_float = same<T, float>::value || same<T, double>::value;

template <class T> __device__ inline T once(T x) { return x; }
template <class T> __device__ inline uint8_t to_bool(T x) { return x ? 1 : 0; }
template <class T> __device__ inline bool eq(T a, T b) { return a == b; }
template <class T> __device__ inline bool ne(T a, T b) { return a != b; }
template <class T> __device__ inline bool lt(T a, T b) { return a < b; }
template <class T> __device__ inline bool le(T a, T b) { return a <= b; }
template <class T> __device__ inline bool gt(T a, T b) { return a > b; }
template <class T> __device__ inline bool ge(T a, T b) { return a >= b; }

template <class T> __device__ inline T max_(T a, T b) { return a > b ? a : b; }
template <class T> __device__ inline T min_(T a, T b) { return a < b ? a : b; }
template <class T> __device__ inline T maxnum_(T a, T b) { return max_(a, b); }  // where NaN may be left out
__device__ inline float maxnum_(float a, float b) { return fmaxf(a, b); }
template <class T> __device__ inline T max_nan(T a, T b) { return a > b || a != a ? a : b; }
template <class T> __device__ inline T min_nan(T a, T b) { return a < b || a != a ? a : b; }

// Integers wrap, which in C++ only unsigned ones do.
template <class T> __device__ inline T add_(T a, T b) { return (T)((uint64_t)a + (uint64_t)b); }
template <class T> __device__ inline T sub_(T a, T b) { return (T)((uint64_t)a - (uint64_t)b); }
template <class T> __device__ inline T mul_(T a, T b) { return (T)((uint64_t)a * (uint64_t)b); }
template <class T> __device__ inline T neg_(T a) { return (T)(0 - (uint64_t)a); }

template <class T> __device__ inline T shift_left_(T a, T b) {
  return b >= 0 && b < (T)(8 * sizeof(T)) ? (T)((uint64_t)a << (uint64_t)b) : (T)0;
}
template <class T> __device__ inline T shift_right_(T a, T b) {
  const T most = (T)(8 * sizeof(T) - 1);
  const bool inside = b >= 0 && b <= most;
  if constexpr ((T)-1 < 0) return (T)(a >> (inside ? b : most));
  else return inside ? (T)(a >> b) : (T)0;
}

template <class T> __device__ inline T div_(T a, T b) {
  if constexpr (is_float<T>) {
    return a / b;
  } else {
    if (b == 0) return 0;
    if ((T)-1 < 0 && b == (T)-1) return neg_(a);  // the smallest number has no negative
    return (T)(a / b);
  }
}
template <class T> __device__ inline T fmod_(T a, T b) {
  if constexpr (same<T, float>::value) return fmodf(a, b);
  else if constexpr (same<T, double>::value) return fmod(a, b);
  else return b == 0 || b == (T)-1 ? (T)0 : (T)(a % b);
}
// The sign of the divisor, as in Python.
template <class T> __device__ inline T mod_(T a, T b) {
  const T r = fmod_(a, b);
  return r != 0 && (r < 0) != (b < 0) ? (T)(r + b) : r;
}

#define OF_FLOATS(NAME, FLOAT, DOUBLE)                              \
  __device__ inline float NAME##_(float x) { return FLOAT(x); }     \
  __device__ inline double NAME##_(double x) { return DOUBLE(x); }
OF_FLOATS(floor, floorf, floor)
OF_FLOATS(ceil, ceilf, ceil)
OF_FLOATS(round, rintf, rint)
OF_FLOATS(sqrt, sqrtf, sqrt)
OF_FLOATS(rsqrt, rsqrtf, rsqrt)
OF_FLOATS(exp, expf, exp)
OF_FLOATS(log, logf, log)
OF_FLOATS(erf, erff, erf)
OF_FLOATS(tanh, tanhf, tanh)
OF_FLOATS(sin, sinf, sin)
OF_FLOATS(cos, cosf, cos)
OF_FLOATS(tan, tanf, tan)
OF_FLOATS(sinh, sinhf, sinh)
OF_FLOATS(cosh, coshf, cosh)
OF_FLOATS(asin, asinf, asin)
OF_FLOATS(acos, acosf, acos)
OF_FLOATS(atan, atanf, atan)
OF_FLOATS(asinh, asinhf, asinh)
OF_FLOATS(acosh, acoshf, acosh)
OF_FLOATS(atanh, atanhf, atanh)
#undef OF_FLOATS

template <class T> __device__ inline T abs_(T x) {
  if constexpr (same<T, float>::value) return fabsf(x);
  else if constexpr (same<T, double>::value) return fabs(x);
  else return x > 0 ? x : neg_(x);
}
template <class T> __device__ inline T sign_(T x) {
  if constexpr (is_float<T>) return x != x ? x : (T)((x > 0) - (x < 0));
  else return (T)((x > 0) - (x < 0));
}
template <class T> __device__ inline bool isinf_(T x) { return abs_(x) == (T)bits_as_float(0x7f800000u); }
template <class T> __device__ inline T reciprocal_(T x) { return (T)1 / x; }
template <class T> __device__ inline T sigmoid_(T x) { return (T)1 / ((T)1 + exp_(-x)); }
// No branch, so that those of several elements are under way at a time; exp of -inf is 0. The relative error of a float grows
// with -x, up to 1e-5 at -87, where the power is as small beside the sum that it is part of, which is at least 1.
template <class T> __device__ inline T exp_or_zero_(T x) { return exp_(x < (T)-87 ? (T)bits_as_float(0xff800000u) : x); }
__device__ inline float exp_or_zero_(float x) { return power_of_two(x * 1.44269504f); }
__device__ inline float fma_(float a, float b, float c) { return fmaf(a, b, c); }
__device__ inline double fma_(double a, double b, double c) { return fma(a, b, c); }
__device__ inline float rounded_mul_(float a, float b) { return __fmul_rn(a, b); }
__device__ inline float pow_(float a, float b) { return powf(a, b); }
__device__ inline double pow_(double a, double b) { return pow(a, b); }
// Of integers, whose power the device's pow may miss by a bit: 2.9999999999999996 for 3 to the power of 1.
template <class T> __device__ inline T pow_(T a, T b) { return (T)rint(pow((double)a, (double)b)); }
// The nearest integer from low up to high, which are integers themselves: low for NaN.
template <class T> __device__ inline T snap_(T x, T low, T high) { return min_(high, max_(round_(x), low)); }

// ---- conversions ----

// ONNX Cast: float to integer truncates, integers wrap, to bool is != 0, to f16 or bf16 rounds to nearest even.
template <class To, class V> __device__ inline auto convert(V x) {
  if constexpr (same<To, f16>::value) return to_float(to_half((float)x));
  else if constexpr (same<To, bf16>::value) return to_float(to_bfloat((float)x));
  else if constexpr (same<To, bool>::value) return (uint8_t)(x != 0);
  else if constexpr (is_float<V> && !is_float<To> && sizeof(To) < 4) return (To)(int32_t)x;
  else if constexpr (is_float<V> && same<To, uint32_t>::value) return (To)(int64_t)x;
  else return (To)x;
}
template <class To, class V> __device__ inline auto snapped(V x, V low, V high) { return convert<To>(snap_(x, low, high)); }
// The nearest integer plus a zero point, saturated: the least one for NaN.
template <class To, class V> __device__ inline To coded(V x, int zero) {
  constexpr bool is_signed = (To)-1 < 0;
  return (To)(int32_t)min_((V)(is_signed ? 127 : 255), max_(round_(x) + (V)zero, (V)(is_signed ? -128 : 0)));
}

// ---- warps ----

// The lanes of a warp, or of a subwarp of so many lanes, which is treated as a warp.
template <int LANES>
__device__ inline unsigned mask_of_warp() {
  if constexpr (LANES == 32) return 0xffffffffu;
  else return ((1u << LANES) - 1) << (threadIdx.x % 32 / LANES * LANES);
}
template <int LANES>
__device__ inline void sync_warp() { __syncwarp(mask_of_warp<LANES>()); }

// All-reduce of a warp by shuffles.
#define OF_WARP(NAME, COMBINED)                                                  \
  template <int LANES, class T>                                                  \
  __device__ inline T NAME##_of_warp(T a) {                                      \
    for (int other = LANES / 2; other; other /= 2) {                             \
      const T b = (T)__shfl_xor_sync(mask_of_warp<LANES>(), a, other);           \
      a = (T)(COMBINED);                                                         \
    }                                                                            \
    return a;                                                                    \
  }
OF_WARP(sum, a + b)
OF_WARP(prod, a * b)
OF_WARP(max, max_nan(a, b))
OF_WARP(maxnum, maxnum_(a, b))
OF_WARP(min, min_nan(a, b))
#undef OF_WARP
