// Vectors of LANES elements of any ONNX element type: loads, tails, casts, masks and fixed-order reductions, for any ISA.
//
// vec<T> is a native compiler vector, so + - * / & | ^ << >> and comparisons work on it as they stand; a comparison
// gives mask<T>: integers as wide as T, 0 or -1 per lane. bool is stored as uint8_t 0 or 1. f16 and bf16 exist in
// memory only: vec<f16> and vec<bf16> are vec<float> whose values the narrow type can hold. Scalar overloads of the
// same names serve generated scalar code. Everything is internal to its translation unit: several ISAs may be linked
// into one library. Products and sums contract to fused multiply-adds (-ffp-contract=fast), where there are any.
#pragma once
#include <cstdint>
#include <cstring>
#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

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

namespace onnxfuse {

constexpr int LANES = ONNXFUSE_LANES;
static_assert(LANES == 4 || LANES == 8 || LANES == 16, "ONNXFUSE_LANES is 4, 8 or 16");

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

// ---- casts ----

// Between integer types, or masks: one doubling or halving of the width at a time, which compilers do in registers.
template <class To, class V> ONNXFUSE_INLINE vec<To> resize(V v) {
  typedef elem<V> From;
  constexpr bool is_unsigned = From(0) < From(-1);
#if ONNXFUSE_AVX512
  if constexpr (sizeof(From) == 1 && sizeof(To) == 4)
    return (vec<To>)(is_unsigned ? _mm512_maskz_cvtepu8_epi32((__mmask16)-1, (__m128i)v)
                                 : _mm512_maskz_cvtepi8_epi32((__mmask16)-1, (__m128i)v));
#endif
  if constexpr (sizeof(From) >= 4 || sizeof(To) <= 2 * sizeof(From)) {
    if constexpr (sizeof(From) == 8 && sizeof(To) < 4) return resize<To>(__builtin_convertvector(v, vec<int32_t>));
    else return __builtin_convertvector(v, vec<To>);
  } else if constexpr (sizeof(From) == 1) {
    if constexpr (is_unsigned) return resize<To>(__builtin_convertvector(v, vec<uint16_t>));
    else return resize<To>(__builtin_convertvector(v, vec<int16_t>));
  } else {
    if constexpr (is_unsigned) return resize<To>(__builtin_convertvector(v, vec<uint32_t>));
    else return resize<To>(__builtin_convertvector(v, vec<int32_t>));
  }
}

// A mask as wide as T from a mask of any width; from stored bools; and back to stored bools.
template <class T, class M> ONNXFUSE_INLINE mask<T> mask_to(M m) { return resize<int_like<T>>(m); }
template <class T> ONNXFUSE_INLINE mask<T> from_bool(vec<uint8_t> b) { return resize<int_like<T>>((vec<int8_t>)(b != 0)); }
template <class M> ONNXFUSE_INLINE auto to_bool(M m) {
  if constexpr (is_vec<M>) return (vec<uint8_t>)resize<int8_t>(m) & 1;
  else return (uint8_t)(m ? 1 : 0);
}

ONNXFUSE_INLINE vf widen_f16(vec<uint16_t> h) {
#if ONNXFUSE_AVX512
  return (vf)_mm512_maskz_cvtph_ps((__mmask16)-1, (__m256i)h);
#elif ONNXFUSE_AVX2 && defined(__F16C__)
  return (vf)_mm256_cvtph_ps((__m128i)h);
#else
  // Fabian Giesen's half_to_float_fast5: shift into place, then rebias; subnormals are renormalised by a subtraction.
  vec<uint32_t> w = resize<uint32_t>(h), o = (w & 0x7fff) << 13, e = o & 0x0f800000u;
  o += 112u << 23;
  o += (vec<uint32_t>)(e == 0x0f800000u) & (112u << 23);
  vec<uint32_t> subnormal = bits_as<vec<uint32_t>>(bits_as<vf>(o + (1u << 23)) - bits_as<float>(113u << 23));
  return bits_as<vf>(((vec<int32_t>)(e == 0) ? subnormal : o) | (w & 0x8000) << 16);
#endif
}

// Round to nearest even; NaN stays NaN.
ONNXFUSE_INLINE vec<uint16_t> narrow_f16(vf v) {
#if ONNXFUSE_AVX512
  return (vec<uint16_t>)_mm512_maskz_cvtps_ph((__mmask16)-1, (__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif ONNXFUSE_AVX2 && defined(__F16C__)
  return (vec<uint16_t>)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  // Fabian Giesen's float_to_half_fast3_rtne.
  vec<uint32_t> u = bits_as<vec<uint32_t>>(v), sign = u & 0x80000000u, f = u ^ sign;
  vec<uint32_t> special = (vec<uint32_t>)((vec<int32_t>)(f > 0x7f800000u) ? splat<int32_t>(0x7e00) : splat<int32_t>(0x7c00));
  vec<uint32_t> subnormal = bits_as<vec<uint32_t>>(bits_as<vf>(f) + bits_as<float>(126u << 23)) - (126u << 23);
  vec<uint32_t> normal = (f + ((uint32_t)(15 - 127) << 23) + 0xfff + (f >> 13 & 1)) >> 13;
  vec<uint32_t> o = (vec<int32_t>)(f >= (143u << 23)) ? special : (vec<int32_t>)(f < (113u << 23)) ? subnormal : normal;
  return resize<uint16_t>(o | sign >> 16);
#endif
}

ONNXFUSE_INLINE vf widen_bf16(vec<uint16_t> h) { return bits_as<vf>(resize<uint32_t>(h) << 16); }
ONNXFUSE_INLINE vec<uint16_t> narrow_bf16(vf v) {
  vec<uint32_t> u = bits_as<vec<uint32_t>>(v), rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;
  return resize<uint16_t>((vec<int32_t>)(v != v) ? (u >> 16 | 0x40) : rounded);
}

// ONNX Cast: float to integer truncates, integers wrap, to bool is != 0, to f16 or bf16 rounds to nearest even.
// What a float out of the integer's range gives is undefined, as in ONNX.
template <class To, class V> ONNXFUSE_INLINE auto convert(V v) {
  typedef elem<V> From;
  if constexpr (is_same<To, f16> || is_same<To, bf16>) {
    auto wide = convert<float>(v);
    auto round = [](vf x) { return is_same<To, f16> ? widen_f16(narrow_f16(x)) : widen_bf16(narrow_bf16(x)); };
    if constexpr (is_vec<V>) return round(wide);
    else return (float)round(splat<float>(wide))[0];
  } else if constexpr (!is_vec<V>) {
    if constexpr (is_same<To, bool>) return (uint8_t)(v != 0);
    else if constexpr (is_float<From> && sizeof(To) < 4) return (To)(int32_t)v;
    else return (To)v;
  } else if constexpr (is_same<To, bool>) {
    return to_bool(ne(v, V{}));
  } else if constexpr (is_same<To, From>) {
    return v;
  } else if constexpr (is_float<From> && is_float<To>) {
    return (vec<To>)__builtin_convertvector(v, vec<To>);
  } else if constexpr (is_float<From>) {
    if constexpr (sizeof(To) < 4) return resize<To>(__builtin_convertvector(v, vec<int32_t>));
    else return (vec<To>)__builtin_convertvector(v, vec<To>);
  } else if constexpr (is_float<To>) {
    if constexpr (sizeof(From) < 4) return (vec<To>)__builtin_convertvector(resize<int32_t>(v), vec<To>);
    else return (vec<To>)__builtin_convertvector(v, vec<To>);
  } else {
    return resize<To>(v);
  }
}

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

// The first n of LANES elements, zero beyond; memory past n is not touched. 0 <= n <= LANES.
template <class T> ONNXFUSE_INLINE vec<T> load_n(const T* p, int n) {
  if constexpr (is_same<T, f16>) return widen_f16(load_n(reinterpret_cast<const uint16_t*>(p), n));
  else if constexpr (is_same<T, bf16>) return widen_bf16(load_n(reinterpret_cast<const uint16_t*>(p), n));
  else {
#if ONNXFUSE_AVX512
    unsigned m = (1u << n) - 1;
    if constexpr (sizeof(T) == 1) return (vec<T>)_mm_maskz_loadu_epi8((__mmask16)m, p);
    if constexpr (sizeof(T) == 2) return (vec<T>)_mm256_maskz_loadu_epi16((__mmask16)m, p);
    if constexpr (sizeof(T) == 4) return (vec<T>)_mm512_maskz_loadu_epi32((__mmask16)m, p);
    if constexpr (sizeof(T) == 8) {
      typedef typename vec_of<T>::half H;
      return join_halves<T>((H)_mm512_maskz_loadu_epi64((__mmask8)m, p), (H)_mm512_maskz_loadu_epi64((__mmask8)(m >> 8), p + 8));
    }
#elif ONNXFUSE_AVX2
    if constexpr (sizeof(T) == 4)
      return (vec<T>)_mm256_maskload_epi32(reinterpret_cast<const int*>(p), (__m256i)mask_first_n<int32_t>(n));
#endif
    T lanes[LANES] = {};
    for (int i = 0; i < n; i++) lanes[i] = p[i];
    return load(lanes);
  }
}

// Stores the first n lanes only.
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
    if constexpr (sizeof(T) == 4)
      return _mm256_maskstore_epi32(reinterpret_cast<int*>(p), (__m256i)mask_first_n<int32_t>(n), (__m256i)v);
#endif
    T lanes[LANES];
    store(lanes, v);
    for (int i = 0; i < n; i++) p[i] = lanes[i];
  }
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
// NaN where either is NaN, as ONNX Max, Min and numpy have it.
template <class V> ONNXFUSE_INLINE V max_nan(V a, V b) {
  if constexpr (is_float<elem<V>>) return select(ne(a, a), a, max_(a, b));
  else return max_(a, b);
}
template <class V> ONNXFUSE_INLINE V min_nan(V a, V b) {
  if constexpr (is_float<elem<V>>) return select(ne(a, a), a, min_(a, b));
  else return min_(a, b);
}

// ---- horizontal ----

// Lane i becomes lane i ^ Distance.
template <int Distance, class V> ONNXFUSE_INLINE V swap_lanes(V v) {
#if defined(__clang__)
  V r{};
#pragma clang loop unroll(full)
  for (int i = 0; i < LANES; i++) r[i] = v[i ^ Distance];
  return r;
#else
  return __builtin_shuffle(v, iota<int_like<elem<V>>>() ^ (int_like<elem<V>>)Distance);
#endif
}

// One value from all lanes in a tree that depends on LANES alone: distances LANES/2, .., 2, 1.
template <class V, class F> ONNXFUSE_INLINE elem<V> reduce(V v, F f) {
  if constexpr (LANES > 8) v = f(v, swap_lanes<8>(v));
  if constexpr (LANES > 4) v = f(v, swap_lanes<4>(v));
  v = f(v, swap_lanes<2>(v));
  return f(v, swap_lanes<1>(v))[0];
}
template <class V> ONNXFUSE_INLINE elem<V> reduce_add(V v) { return reduce(v, [](V a, V b) { return a + b; }); }
template <class V> ONNXFUSE_INLINE elem<V> reduce_mul(V v) { return reduce(v, [](V a, V b) { return a * b; }); }
template <class V> ONNXFUSE_INLINE elem<V> reduce_max(V v) { return reduce(v, [](V a, V b) { return max_(a, b); }); }
template <class V> ONNXFUSE_INLINE elem<V> reduce_min(V v) { return reduce(v, [](V a, V b) { return min_(a, b); }); }
template <class V> ONNXFUSE_INLINE elem<V> reduce_max_nan(V v) { return reduce(v, [](V a, V b) { return max_nan(a, b); }); }
template <class V> ONNXFUSE_INLINE elem<V> reduce_min_nan(V v) { return reduce(v, [](V a, V b) { return min_nan(a, b); }); }

// a0 b0 a1 b1 .. from the lower halves of a and b, and the same from the upper halves.
ONNXFUSE_INLINE vf zip_lower(vf a, vf b) {
#if defined(__clang__)
  vf r{};
#pragma clang loop unroll(full)
  for (int i = 0; i < LANES; i++) r[i] = i & 1 ? b[i / 2] : a[i / 2];
  return r;
#else
  return __builtin_shuffle(a, b, (iota<int32_t>() >> 1) + (iota<int32_t>() & 1) * LANES);
#endif
}
ONNXFUSE_INLINE vf zip_upper(vf a, vf b) {
#if defined(__clang__)
  vf r{};
#pragma clang loop unroll(full)
  for (int i = 0; i < LANES; i++) r[i] = i & 1 ? b[LANES / 2 + i / 2] : a[LANES / 2 + i / 2];
  return r;
#else
  return __builtin_shuffle(a, b, (iota<int32_t>() >> 1) + (iota<int32_t>() & 1) * LANES + LANES / 2);
#endif
}

// Lane i is reduce(rows[i], f), to the bit, at a third of the shuffles: every step halves the rows and zips their halves.
template <class F> ONNXFUSE_INLINE vf reduce_each(const vf (&rows)[LANES], F f) {
  vf part[LANES];
#pragma GCC unroll 16
  for (int i = 0; i < LANES; i++) part[i] = rows[i];
#pragma GCC unroll 4
  for (int half = LANES / 2; half > 0; half /= 2)
#pragma GCC unroll 8
    for (int i = 0; i < half; i++)
      part[i] = f(zip_lower(part[i], part[i + half]), zip_upper(part[i], part[i + half]));
  return part[0];
}
ONNXFUSE_INLINE vf reduce_add_each(const vf (&rows)[LANES]) { return reduce_each(rows, [](vf a, vf b) { return a + b; }); }
ONNXFUSE_INLINE vf reduce_max_each(const vf (&rows)[LANES]) { return reduce_each(rows, [](vf a, vf b) { return max_(a, b); }); }

// rows[i][j] becomes rows[j][i]: log2(LANES) perfect shuffles.
ONNXFUSE_INLINE void transpose(vf (&rows)[LANES]) {
#pragma GCC unroll 4
  for (int step = 1; step < LANES; step *= 2) {
    vf next[LANES];
#pragma GCC unroll 8
    for (int i = 0; i < LANES / 2; i++) {
      next[2 * i] = zip_lower(rows[i], rows[i + LANES / 2]);
      next[2 * i + 1] = zip_upper(rows[i], rows[i + LANES / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) rows[i] = next[i];
  }
}

}  // namespace onnxfuse
