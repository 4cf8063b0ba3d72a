// Vectors of LANES elements of any ONNX element type: loads, tails, casts, masks and fixed-order reductions, for any ISA.
//
// vec<T> is a native compiler vector, so + - * / & | ^ << >> and comparisons work on it as they stand; a comparison
// gives mask<T>: integers as wide as T, 0 or -1 per lane. bool is stored as uint8_t 0 or 1. f16 and bf16 exist in
// memory only: vec<f16> and vec<bf16> are vec<float> whose values the narrow type can hold. Scalar overloads of the
// same names serve generated scalar code. Several ISAs may be linked into one library: functions are internal to their
// translation unit, and what cannot be is of a namespace of its ISA, so that no linker merges code of two. Products and sums contract to fused multiply-adds (-ffp-contract=fast), where there are any.
#pragma once
#include <cstdint>
#include <cstring>

#include "agreed.h"
#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

#ifndef ONNXFUSE_ISA
#define ONNXFUSE_ISA sole
#endif

#define HOLE __attribute__((always_inline))  // of a lambda

#ifndef ONNXFUSE_LANES
#if defined(__AVX512F__)
#define ONNXFUSE_LANES 16
#elif defined(__AVX2__)
#define ONNXFUSE_LANES 8
#else
#define ONNXFUSE_LANES 4
#endif
#endif

#define ONNXFUSE_INLINE static inline __attribute__((always_inline))
#if ONNXFUSE_LANES == 16 && defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define ONNXFUSE_AVX512 1
#elif ONNXFUSE_LANES == 8 && defined(__AVX2__) && defined(__FMA__)
#define ONNXFUSE_AVX2 1
#endif

#if ONNXFUSE_LANES == 16
#define ONNXFUSE_LANE_NUMBERS 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
#elif ONNXFUSE_LANES == 8
#define ONNXFUSE_LANE_NUMBERS 0, 1, 2, 3, 4, 5, 6, 7
#else
#define ONNXFUSE_LANE_NUMBERS 0, 1, 2, 3
#endif

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi"  // no vector crosses a call: every function here is inlined
#pragma GCC diagnostic ignored "-Wignored-attributes"
#endif

namespace onnxfuse { inline namespace ONNXFUSE_ISA {

constexpr int LANES = ONNXFUSE_LANES;
static_assert(LANES == 4 || LANES == 8 || LANES == agreed::WIDEST, "ONNXFUSE_LANES is 4, 8 or 16");

struct f16 { uint16_t bits; };   // IEEE half, storage only
struct bf16 { uint16_t bits; };  // the upper half of a float, storage only

// ---- types ----

template <class T> struct compute_of { typedef T type; };  // what arithmetic on a stored T is done in
template <> struct compute_of<bool> { typedef uint8_t type; };
template <> struct compute_of<f16> { typedef float type; };
template <> struct compute_of<bf16> { typedef float type; };
template <class T> using compute = typename compute_of<T>::type;

template <int Bytes> struct int_of;
template <> struct int_of<1> { typedef int8_t type; typedef int8_t half; };
template <> struct int_of<2> { typedef int16_t type; typedef int8_t half; };
template <> struct int_of<4> { typedef int32_t type; typedef int16_t half; };
template <> struct int_of<8> { typedef int64_t type; typedef int32_t half; };
template <class T> using int_like = typename int_of<sizeof(compute<T>)>::type;

template <class T> struct vec_of {
  typedef T type __attribute__((vector_size(LANES * sizeof(T))));
  typedef T half __attribute__((vector_size(LANES / 2 * sizeof(T))));
  typedef T memory __attribute__((vector_size(LANES * sizeof(T)), aligned(alignof(T)), may_alias));
};
template <> struct vec_of<bool> : vec_of<uint8_t> {};
template <> struct vec_of<f16> : vec_of<float> {};
template <> struct vec_of<bf16> : vec_of<float> {};

template <class T> using vec = typename vec_of<T>::type;
template <class T> using mask = vec<int_like<T>>;
typedef vec<float> vf;
typedef vec<double> vd;
typedef vec<int32_t> vi;

// elem<V> is the element of a vector, and a scalar itself; is_vec<V> tells them apart.
template <class V> struct elem_of { typedef V type; static constexpr bool vector = false; };
#define ONNXFUSE_ELEMENT(T) \
  template <> struct elem_of<vec<T>> { typedef T type; static constexpr bool vector = true; };
ONNXFUSE_ELEMENT(float) ONNXFUSE_ELEMENT(double)
ONNXFUSE_ELEMENT(int8_t) ONNXFUSE_ELEMENT(int16_t) ONNXFUSE_ELEMENT(int32_t) ONNXFUSE_ELEMENT(int64_t)
ONNXFUSE_ELEMENT(uint8_t) ONNXFUSE_ELEMENT(uint16_t) ONNXFUSE_ELEMENT(uint32_t) ONNXFUSE_ELEMENT(uint64_t)
#undef ONNXFUSE_ELEMENT
template <class V> using elem = typename elem_of<V>::type;
template <class V> constexpr bool is_vec = elem_of<V>::vector;
// Wider than a register: the compiler would take comparisons and shuffles of such a vector apart lane by lane.
template <class V> constexpr bool is_wide = is_vec<V> && sizeof(elem<V>) == 8;

template <class A, class B> constexpr bool is_same = false;
template <class A> constexpr bool is_same<A, A> = true;
template <class T> constexpr bool is_float = is_same<T, float> || is_same<T, double>;

// ---- construction and bits ----

template <class T> ONNXFUSE_INLINE vec<T> splat(compute<T> x) { return x - vec<T>{}; }  // x + 0 would lose -0
template <class T> ONNXFUSE_INLINE vec<T> iota() { return vec<T>{ONNXFUSE_LANE_NUMBERS}; }

// The same bits as another type of the same size.
template <class To, class From> ONNXFUSE_INLINE To bits_as(From v) {
  static_assert(sizeof(To) == sizeof(From), "bits_as keeps the size");
  To r;
  memcpy(&r, &v, sizeof r);
  return r;
}

template <class V> ONNXFUSE_INLINE typename vec_of<elem<V>>::half lower_half(V v) {
  typename vec_of<elem<V>>::half r;
  memcpy(&r, &v, sizeof r);
  return r;
}
template <class V> ONNXFUSE_INLINE typename vec_of<elem<V>>::half upper_half(V v) {
  typename vec_of<elem<V>>::half r;
  memcpy(&r, reinterpret_cast<const char*>(&v) + sizeof r, sizeof r);
  return r;
}
template <class T> ONNXFUSE_INLINE vec<T> join_halves(typename vec_of<T>::half low, typename vec_of<T>::half high) {
  vec<T> r;
  memcpy(&r, &low, sizeof low);
  memcpy(reinterpret_cast<char*>(&r) + sizeof low, &high, sizeof high);
  return r;
}

// ---- comparisons, selection, masks ----

#define ONNXFUSE_COMPARE(name, op)                                                                   \
  template <class V> ONNXFUSE_INLINE auto name(V a, V b) {                                           \
    if constexpr (is_wide<V>) {                                                                      \
      typedef int_like<elem<V>> I;                                                                   \
      typedef typename vec_of<I>::half H;                                                            \
      return join_halves<I>((H)(lower_half(a) op lower_half(b)), (H)(upper_half(a) op upper_half(b))); \
    } else if constexpr (is_vec<V>) {                                                                \
      return (mask<elem<V>>)(a op b);                                                                \
    } else {                                                                                         \
      return a op b;                                                                                 \
    }                                                                                                \
  }
ONNXFUSE_COMPARE(lt, <)
ONNXFUSE_COMPARE(le, <=)
ONNXFUSE_COMPARE(gt, >)
ONNXFUSE_COMPARE(ge, >=)
ONNXFUSE_COMPARE(eq, ==)
ONNXFUSE_COMPARE(ne, !=)
#undef ONNXFUSE_COMPARE

// m ? a : b per lane; m is a bool for scalars, else a mask as wide as the elements.
template <class M, class V> ONNXFUSE_INLINE V select(M m, V a, V b) {
  if constexpr (is_wide<V>) {
    typedef mask<elem<V>> I;
    return (V)(((I)m & (I)a) | (~(I)m & (I)b));
  } else if constexpr (is_vec<V>) {
    return (mask<elem<V>>)m ? a : b;
  } else {
    return m ? a : b;
  }
}

// The lanes below n.
template <class T> ONNXFUSE_INLINE mask<T> mask_first_n(int n) {
  typedef int_like<T> I;
  return lt(iota<I>(), splat<I>((I)(n > LANES ? LANES : n)));
}

template <class M> ONNXFUSE_INLINE bool any(M m) {
  if constexpr (!is_vec<M>) {
    return m;
  } else {
#if ONNXFUSE_AVX512
    if constexpr (sizeof(M) == 64) return _mm512_test_epi32_mask((__m512i)m, (__m512i)m) != 0;
#elif ONNXFUSE_AVX2
    if constexpr (sizeof(M) == 32) return !_mm256_testz_si256((__m256i)m, (__m256i)m);
#endif
    uint64_t words[sizeof(M) < 8 ? 1 : sizeof(M) / 8] = {}, or_all = 0;
    memcpy(words, &m, sizeof m);
    for (uint64_t w : words) or_all |= w;
    return or_all != 0;
  }
}
template <class M> ONNXFUSE_INLINE bool all(M m) {
  if constexpr (is_vec<M>) return !any(~m);
  else return m;
}

} }  // namespace onnxfuse

#include "vec_cast.h"

namespace onnxfuse { inline namespace ONNXFUSE_ISA {

// ---- memory ----

template <class T> ONNXFUSE_INLINE vec<T> load(const T* p) {
  if constexpr (is_same<T, f16>) return widen_f16(load(reinterpret_cast<const uint16_t*>(p)));
  else if constexpr (is_same<T, bf16>) return widen_bf16(load(reinterpret_cast<const uint16_t*>(p)));
  else return *reinterpret_cast<const typename vec_of<T>::memory*>(p);
}

template <class T> ONNXFUSE_INLINE void store(T* p, vec<T> v) {
  if constexpr (is_same<T, f16>) store(reinterpret_cast<uint16_t*>(p), narrow_f16(v));
  else if constexpr (is_same<T, bf16>) store(reinterpret_cast<uint16_t*>(p), narrow_bf16(v));
  else *reinterpret_cast<typename vec_of<T>::memory*>(p) = v;
}

#if ONNXFUSE_AVX2
// The first bytes of a vector in pieces, each as long as one bit of their number: AVX2 has masks of 4 and 8 bytes only, and
// a store through one takes 18 cycles on some cores. Where the number is that of the last turn, branches are predicted.
ONNXFUSE_INLINE void store_bytes(char* p, uint64_t v, int bytes) {  // at most 8
  if (bytes & 8) memcpy(p, &v, 8);
  if (bytes & 4) memcpy(p, &v, 4), p += 4, v >>= 32;
  if (bytes & 2) memcpy(p, &v, 2), p += 2, v >>= 16;
  if (bytes & 1) *p = (char)v;
}
ONNXFUSE_INLINE void store_bytes(char* p, __m128i v, int bytes) {  // at most 16
  if (bytes & 16) _mm_storeu_si128(reinterpret_cast<__m128i*>(p), v);
  if (bytes & 8) _mm_storel_epi64(reinterpret_cast<__m128i*>(p), v), p += 8, v = _mm_unpackhi_epi64(v, v);
  if (bytes & 7) store_bytes(p, (uint64_t)_mm_cvtsi128_si64(v), bytes & 7);
}
ONNXFUSE_INLINE void store_bytes(char* p, __m256i v, int bytes) {  // at most 32
  if (bytes & 32) return _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v);
  __m128i part = _mm256_castsi256_si128(v);
  if (bytes & 16) _mm_storeu_si128(reinterpret_cast<__m128i*>(p), part), p += 16, part = _mm256_extracti128_si256(v, 1);
  if (bytes & 15) store_bytes(p, part, bytes & 15);
}
ONNXFUSE_INLINE uint64_t load_bytes(const char* p, int bytes) {  // at most 8
  uint64_t v = 0;
  uint32_t four;
  uint16_t two;
  if (bytes & 8) memcpy(&v, p, 8);
  if (bytes & 4) memcpy(&four, p, 4), v = four;
  if (bytes & 2) memcpy(&two, p + (bytes & 4), 2), v |= (uint64_t)two << 8 * (bytes & 4);
  if (bytes & 1) v |= (uint64_t)(uint8_t)p[bytes & 6] << 8 * (bytes & 6);
  return v;
}
ONNXFUSE_INLINE __m128i load_16_bytes(const char* p, int bytes) {  // at most 16
  if (bytes < 8) return _mm_cvtsi64_si128((int64_t)load_bytes(p, bytes));
  return _mm_set_epi64x((int64_t)load_bytes(p + 8, bytes - 8), (int64_t)load_bytes(p, 8));
}
#endif

#if ONNXFUSE_AVX512
// The elements of the lanes whose bits are set, zero elsewhere; memory elsewhere is not touched.
template <class T> ONNXFUSE_INLINE vec<T> load_masked(const T* p, unsigned m) {
  if constexpr (sizeof(T) == 1) return (vec<T>)_mm_maskz_loadu_epi8((__mmask16)m, p);
  if constexpr (sizeof(T) == 2) return (vec<T>)_mm256_maskz_loadu_epi16((__mmask16)m, p);
  if constexpr (sizeof(T) == 4) return (vec<T>)_mm512_maskz_loadu_epi32((__mmask16)m, p);
  if constexpr (sizeof(T) == 8) {
    typedef typename vec_of<T>::half H;
    return join_halves<T>((H)_mm512_maskz_loadu_epi64((__mmask8)m, p), (H)_mm512_maskz_loadu_epi64((__mmask8)(m >> 8), p + 8));
  }
}
#elif ONNXFUSE_AVX2
// The same of 4 and 8 bytes, by a mask of whole lanes.
template <class T> ONNXFUSE_INLINE vec<T> load_masked(const T* p, mask<T> m) {
  if constexpr (sizeof(T) == 4) return (vec<T>)_mm256_maskload_epi32(reinterpret_cast<const int*>(p), (__m256i)m);
  if constexpr (sizeof(T) == 8) {
    typedef typename vec_of<T>::half H;
    const long long* words = reinterpret_cast<const long long*>(p);
    return join_halves<T>((H)_mm256_maskload_epi64(words, (__m256i)lower_half(m)),
                          (H)_mm256_maskload_epi64(words + 4, (__m256i)upper_half(m)));
  }
}
#endif

// The first n of LANES elements, zero beyond; memory past n is not touched. 0 <= n <= LANES.
template <class T> ONNXFUSE_INLINE vec<T> load_n(const T* p, int n) {
  if constexpr (is_same<T, f16>) return widen_f16(load_n(reinterpret_cast<const uint16_t*>(p), n));
  else if constexpr (is_same<T, bf16>) return widen_bf16(load_n(reinterpret_cast<const uint16_t*>(p), n));
  else {
#if ONNXFUSE_AVX512
    return load_masked(p, (1u << n) - 1);
#elif ONNXFUSE_AVX2
    const char* at = reinterpret_cast<const char*>(p);
    if constexpr (sizeof(T) == 1) return bits_as<vec<T>>(load_bytes(at, n));
    if constexpr (sizeof(T) == 2) return (vec<T>)load_16_bytes(at, 2 * n);
    if constexpr (sizeof(T) >= 4) return load_masked(p, mask_first_n<T>(n));
#else
    T lanes[LANES] = {};
    for (int i = 0; i < n; i++) lanes[i] = p[i];
    return load(lanes);
#endif
  }
}

// The elements from the first to before the last of LANES, zero elsewhere; memory elsewhere is not touched.
// 0 <= first, last <= LANES.
template <class T> ONNXFUSE_INLINE vec<T> load_between(const T* p, int first, int last) {
  if constexpr (is_same<T, f16>) return widen_f16(load_between(reinterpret_cast<const uint16_t*>(p), first, last));
  else if constexpr (is_same<T, bf16>) return widen_bf16(load_between(reinterpret_cast<const uint16_t*>(p), first, last));
  else {
#if ONNXFUSE_AVX512
    return load_masked(p, ((1u << last) - 1) & (~0u << first));
#elif ONNXFUSE_AVX2
    const char* at = reinterpret_cast<const char*>(p + first);
    const int count = last > first ? last - first : 0;
    if constexpr (sizeof(T) == 1) return bits_as<vec<T>>(count ? load_bytes(at, count) << 8 * first : 0);
    if constexpr (sizeof(T) == 2) {  // the places before the first have negative numbers, for which the shuffle gives 0
      const __m128i places = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
      return (vec<T>)_mm_shuffle_epi8(load_16_bytes(at, 2 * count), _mm_sub_epi8(places, _mm_set1_epi8((char)(2 * first))));
    }
    if constexpr (sizeof(T) >= 4) return load_masked<T>(p, mask_first_n<T>(last) & ~mask_first_n<T>(first));
#else
    if (first == 0 && last == LANES) return load(p);
    T lanes[LANES] = {};
    for (int i = first; i < last; i++) lanes[i] = p[i];
    return load(lanes);
#endif
  }
}

// Stores the first n lanes only. 0 <= n <= LANES.
template <class T> ONNXFUSE_INLINE void store_n(T* p, vec<T> v, int n) {
  if constexpr (is_same<T, f16>) store_n(reinterpret_cast<uint16_t*>(p), narrow_f16(v), n);
  else if constexpr (is_same<T, bf16>) store_n(reinterpret_cast<uint16_t*>(p), narrow_bf16(v), n);
  else {
#if ONNXFUSE_AVX512
    unsigned m = (1u << n) - 1;
    if constexpr (sizeof(T) == 1) return _mm_mask_storeu_epi8(p, (__mmask16)m, (__m128i)v);
    if constexpr (sizeof(T) == 2) return _mm256_mask_storeu_epi16(p, (__mmask16)m, (__m256i)v);
    if constexpr (sizeof(T) == 4) return _mm512_mask_storeu_epi32(p, (__mmask16)m, (__m512i)v);
    if constexpr (sizeof(T) == 8) {
      _mm512_mask_storeu_epi64(p, (__mmask8)m, (__m512i)lower_half(v));
      return _mm512_mask_storeu_epi64(p + 8, (__mmask8)(m >> 8), (__m512i)upper_half(v));
    }
#elif ONNXFUSE_AVX2
    char* at = reinterpret_cast<char*>(p);
    if constexpr (sizeof(T) == 1) return store_bytes(at, bits_as<uint64_t>(v), n);
    if constexpr (sizeof(T) == 2) return store_bytes(at, (__m128i)v, 2 * n);
    if constexpr (sizeof(T) == 4) return store_bytes(at, (__m256i)v, 4 * n);
    if constexpr (sizeof(T) == 8) {
      store_bytes(at, (__m256i)lower_half(v), n < 4 ? 8 * n : 32);
      if (n > 4) store_bytes(at + 32, (__m256i)upper_half(v), 8 * n - 32);
    }
#else
    T lanes[LANES];
    store(lanes, v);
    for (int i = 0; i < n; i++) p[i] = lanes[i];
#endif
  }
}

// To an address that is a multiple of the vector's size, past the caches where the machine can.
ONNXFUSE_INLINE void stream(float* p, vf v) {
#if ONNXFUSE_AVX512
  _mm512_stream_ps(p, (__m512)v);
#elif ONNXFUSE_AVX2
  _mm256_stream_ps(p, (__m256)v);
#else
  store(p, v);
#endif
}
ONNXFUSE_INLINE void streamed() {
#if ONNXFUSE_AVX512 || ONNXFUSE_AVX2
  _mm_sfence();
#endif
}

// One element, for scalar code: f16 and bf16 as float, bool as uint8_t.
template <class T> ONNXFUSE_INLINE compute<T> get(const T* p) {
  if constexpr (is_same<T, f16>) return widen_f16(splat<uint16_t>(p->bits))[0];
  else if constexpr (is_same<T, bf16>) return bits_as<float>((uint32_t)p->bits << 16);
  else return (compute<T>)*p;
}
template <class T> ONNXFUSE_INLINE void put(T* p, compute<T> x) {
  if constexpr (is_same<T, f16>) p->bits = narrow_f16(splat<float>(x))[0];
  else if constexpr (is_same<T, bf16>) p->bits = narrow_bf16(splat<float>(x))[0];
  else *p = (T)x;
}

// v, kept in a register: without it GCC may load a value again in each multiply-add that uses it.
template <class V> ONNXFUSE_INLINE V once(V v) {
#if ONNXFUSE_AVX512
  if constexpr (sizeof(V) == 64) asm("" : "+v"(v));
#elif ONNXFUSE_AVX2
  if constexpr (sizeof(V) == 32) asm("" : "+x"(v));
#endif
  return v;
}

// base[index[lane]] per lane; index is a vec<int32_t> or vec<int64_t> of element offsets.
template <class T, class I> ONNXFUSE_INLINE vec<T> gather(const T* base, I index) {
  vec<T> r{};
  for (int i = 0; i < LANES; i++) r[i] = get(base + index[i]);
  return r;
}

ONNXFUSE_INLINE void prefetch_l1(const void* p) { __builtin_prefetch(p, 0, 3); }
ONNXFUSE_INLINE void prefetch_l2(const void* p) { __builtin_prefetch(p, 0, 2); }

// ---- arithmetic that operators do not spell ----

template <class V> ONNXFUSE_INLINE V fma_(V a, V b, V c) { return a * b + c; }

// The second operand where either is NaN: one instruction, spelled out since compilers lose it among bit operations.
template <class V> ONNXFUSE_INLINE V max_(V a, V b) {
#if ONNXFUSE_AVX512
  if constexpr (is_same<V, vf>) return (V)_mm512_max_ps((__m512)a, (__m512)b);
#elif ONNXFUSE_AVX2
  if constexpr (is_same<V, vf>) return (V)_mm256_max_ps((__m256)a, (__m256)b);
#endif
  return select(gt(a, b), a, b);
}
template <class V> ONNXFUSE_INLINE V min_(V a, V b) {
#if ONNXFUSE_AVX512
  if constexpr (is_same<V, vf>) return (V)_mm512_min_ps((__m512)a, (__m512)b);
#elif ONNXFUSE_AVX2
  if constexpr (is_same<V, vf>) return (V)_mm256_min_ps((__m256)a, (__m256)b);
#endif
  return select(lt(a, b), a, b);
}
// NaN where either is NaN, as ONNX Max, Min and numpy have it. Reductions pass what is new as `b`: whether it is NaN is
// found once for all accumulators that take it in, each by one instruction with that mask.
template <class V> ONNXFUSE_INLINE V max_nan(V a, V b) {
#if ONNXFUSE_AVX512
  if constexpr (is_same<V, vf>) {
    return (V)_mm512_mask_max_ps((__m512)b, _mm512_cmp_ps_mask((__m512)b, (__m512)b, _CMP_ORD_Q), (__m512)b, (__m512)a);
  }
#elif ONNXFUSE_AVX2  // all bits set are a NaN, too
  if constexpr (is_same<V, vf>) return (V)_mm256_or_ps((__m256)max_(b, a), _mm256_cmp_ps((__m256)b, (__m256)b, _CMP_UNORD_Q));
#endif
  if constexpr (is_float<elem<V>>) return select(ne(b, b), b, max_(b, a));
  else return max_(a, b);
}
template <class V> ONNXFUSE_INLINE V min_nan(V a, V b) {
#if ONNXFUSE_AVX512
  if constexpr (is_same<V, vf>) {
    return (V)_mm512_mask_min_ps((__m512)b, _mm512_cmp_ps_mask((__m512)b, (__m512)b, _CMP_ORD_Q), (__m512)b, (__m512)a);
  }
#elif ONNXFUSE_AVX2  // all bits set are a NaN, too
  if constexpr (is_same<V, vf>) return (V)_mm256_or_ps((__m256)min_(b, a), _mm256_cmp_ps((__m256)b, (__m256)b, _CMP_UNORD_Q));
#endif
  if constexpr (is_float<elem<V>>) return select(ne(b, b), b, min_(b, a));
  else return min_(a, b);
}

} }  // namespace onnxfuse

#include "vec_lanes.h"
