// Elementary functions on float, double, vec<float> and vec<double>, correct on all inputs to the bounds tests/kernels states.
//
// vec<float> functions are polynomials; their coefficients interpolate at Chebyshev nodes and were computed in 40 digits.
// The float overload is lane 0 of the vector one, so scalar tails and vectors agree. double goes to libm lane by lane.
// They rely on IEEE arithmetic: never compile them with -ffast-math.
#pragma once
#include "vec.h"
#include "math_tables.h"

namespace onnxfuse { inline namespace ONNXFUSE_ISA {

// f(x[i]) in every lane.
template <class V, class F> ONNXFUSE_INLINE V per_lane(V x, F f) {
  V r = x;
  for (int i = 0; i < LANES; i++) r[i] = f(x[i]);
  return r;
}

#define ONNXFUSE_FLOAT_OF_VECTOR(name) \
  ONNXFUSE_INLINE float name(float x) { return name(splat<float>(x))[0]; }
#define ONNXFUSE_DOUBLE_BY_LIBM(name, libm)             \
  ONNXFUSE_INLINE double name(double x) { return libm; } \
  ONNXFUSE_INLINE vd name(vd v) { return per_lane(v, [](double x) { return (double)(libm); }); }
#define ONNXFUSE_FLOAT_BY_LIBM(name, libm)            \
  ONNXFUSE_INLINE float name(float x) { return libm; } \
  ONNXFUSE_INLINE vf name(vf v) { return per_lane(v, [](float x) { return (float)(libm); }); }

// ---- bits, signs, rounding ----

template <class V> ONNXFUSE_INLINE V abs_(V x) {
  typedef elem<V> T;
  if constexpr (is_float<T> && is_vec<V>) return bits_as<V>(bits_as<mask<T>>(x) & ~((int_like<T>)1 << (8 * sizeof(T) - 1)));
  else if constexpr (is_same<T, float>) return __builtin_fabsf(x);
  else if constexpr (is_same<T, double>) return __builtin_fabs(x);
  else return select(lt(x, V{}), (V)(V{} - x), x);
}

// -1, 0 or 1; NaN stays NaN.
template <class V> ONNXFUSE_INLINE V sign_(V x) {
  V one = V{} + (elem<V>)1;
  V r = select(gt(x, V{}), one, select(lt(x, V{}), (V)(V{} - one), V{}));
  if constexpr (is_float<elem<V>>) return select(ne(x, x), x, r);
  else return r;
}

template <class V> ONNXFUSE_INLINE V reciprocal_(V x) { return (elem<V>)1 / x; }

ONNXFUSE_INLINE vf trunc_(vf x) {
#if ONNXFUSE_AVX512
  return (vf)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
#elif ONNXFUSE_AVX2
  return (vf)_mm256_round_ps((__m256)x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
#else
  vi whole = ge(bits(x) & 0x7fffffff, splat<int32_t>(0x4b000000));  // 2^23 and above, inf, NaN: already whole
  vf small = select(whole, vf{}, x);
  return select(whole, x, with_sign(magnitude(convert<float>(convert<int32_t>(small))), x));
#endif
}
ONNXFUSE_INLINE vf floor_(vf x) {
#if ONNXFUSE_AVX512
  return (vf)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
#elif ONNXFUSE_AVX2
  return (vf)_mm256_round_ps((__m256)x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
#else
  vf t = trunc_(x);
  return select(gt(t, x), t - 1.0f, t);
#endif
}
ONNXFUSE_INLINE vf ceil_(vf x) {
#if ONNXFUSE_AVX512
  return (vf)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
#elif ONNXFUSE_AVX2
  return (vf)_mm256_round_ps((__m256)x, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
#else
  vf t = trunc_(x);
  return select(lt(t, x), with_sign(magnitude(t + 1.0f), x), t);
#endif
}
// Halves to even.
ONNXFUSE_INLINE vf round_(vf x) {
#if ONNXFUSE_AVX512
  return (vf)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif ONNXFUSE_AVX2
  return (vf)_mm256_round_ps((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  vf whole = splat<float>(8388608.0f), a = magnitude(x);  // 2^23 has no room for a fraction
  return select(lt(a, whole), with_sign((a + whole) - whole, x), x);
#endif
}
// a * b + c, rounded once where the machine can: joined or not, the compiler does as it likes with a sum of a product.
ONNXFUSE_INLINE vf fma_(vf a, vf b, vf c) {
#if ONNXFUSE_AVX512
  return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif ONNXFUSE_AVX2
  return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}
ONNXFUSE_INLINE float fma_(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}
// a / b for a b that is the same in all lanes and a quotient that becomes an integer of 8 bits: exactly rounded where that
// matters, beyond 2^20 of the right sign only. By Markstein's theorem ("Computation of elementary functions on the IBM RISC
// System/6000 processor", 1990), q + (a - q b) r is the rounded quotient if r is the rounded reciprocal of b and q = a r.
// a - q b is exact but where it is subnormal, and the quotient of such an a is below 2^-2 for the b that are allowed here.
ONNXFUSE_INLINE vf quotient_to_round_(vf a, vf b) {
#if ONNXFUSE_AVX512 || ONNXFUSE_AVX2
  const float size = __builtin_fabsf(b[0]);
  if (size > 0x1p-100f && size < 0x1p100f) {
    const vf r = splat<float>(1.0f) / b, q = min_(splat<float>(0x1p20f), max_(a * r, splat<float>(-0x1p20f)));
    return fma_(fma_(-q, b, a), r, q);
  }
#endif
  return a / b;
}
ONNXFUSE_INLINE float quotient_to_round_(float a, float b) { return a / b; }
// a * b, rounded before anything is added to it: the compiler does not see that what is added to is a product.
template <class V> ONNXFUSE_INLINE V rounded_mul_(V a, V b) {
  V product = a * b;
#if ONNXFUSE_AVX512 || ONNXFUSE_AVX2
  asm("" : "+v"(product));
#elif defined(__aarch64__)
  asm("" : "+w"(product));
#else
  asm("" : "+m"(product));
#endif
  return product;
}
ONNXFUSE_INLINE float trunc_(float x) { return __builtin_truncf(x); }
ONNXFUSE_INLINE float floor_(float x) { return __builtin_floorf(x); }
ONNXFUSE_INLINE float ceil_(float x) { return __builtin_ceilf(x); }
ONNXFUSE_INLINE float round_(float x) { return __builtin_rintf(x); }
// The nearest integer from low up to high, which are integers themselves: low for NaN. `snapped` has it in a narrow type.
template <class V> ONNXFUSE_INLINE V snap_(V x, V low, V high) { return min_(high, max_(round_(x), low)); }
template <class To> ONNXFUSE_INLINE auto snapped(float x, float low, float high) { return convert<To>(snap_(x, low, high)); }
template <class To> ONNXFUSE_INLINE auto snapped(vf x, vf low, vf high) {
  const vf inside = min_(high, max_(x, low));
#if ONNXFUSE_AVX512
  return resize<To>((vec<int32_t>)_mm512_maskz_cvtps_epi32((__mmask16)-1, (__m512)inside));
#elif ONNXFUSE_AVX2
  return resize<To>((vec<int32_t>)_mm256_cvtps_epi32((__m256)inside));
#else
  return convert<To>(round_(inside));
#endif
}
// The nearest integer plus a zero point, saturated: the least one for NaN.
template <class To> ONNXFUSE_INLINE auto coded(float x, int32_t zero) {
  constexpr float low = is_same<To, int8_t> ? -128.0f : 0.0f, high = low + 255.0f;
  return (To)((int32_t)snap_(x, low - (float)zero, high - (float)zero) + zero);
}
template <class To> ONNXFUSE_INLINE auto coded(vf x, vi zero) {
  constexpr float low = is_same<To, int8_t> ? -128.0f : 0.0f, high = low + 255.0f;
  const vf moved = __builtin_convertvector(zero, vf);
  return resize<To>(snapped<int32_t>(x, low - moved, high - moved) + zero);
}
#if ONNXFUSE_AVX512 || ONNXFUSE_AVX2
// The same for four vectors at once, with one zero point, one vector behind the other. What is too large is cut off before it
// is rounded; what is too small, or NaN, becomes the least integer of 32 bits, and saturates as the integers are narrowed.
template <class To> ONNXFUSE_INLINE auto narrowed(int32_t zero, vf a, vf b, vf c, vf d) {
  const vf most = splat<float>((is_same<To, int8_t> ? 127.0f : 255.0f) - (float)zero);
#if ONNXFUSE_AVX512
  const auto whole = [&](vf x) { return _mm512_maskz_cvtps_epi32((__mmask16)-1, (__m512)min_(most, x)); };
  const __m512i move = _mm512_set1_epi16((int16_t)zero);
  const __m512i low = _mm512_adds_epi16(_mm512_packs_epi32(whole(a), whole(b)), move);
  const __m512i high = _mm512_adds_epi16(_mm512_packs_epi32(whole(c), whole(d)), move);
  const __m512i all = is_same<To, int8_t> ? _mm512_packs_epi16(low, high) : _mm512_packus_epi16(low, high);
  const __m512i apart = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_maskz_permutexvar_epi32((__mmask16)-1, apart, all);
#else
  const auto whole = [&](vf x) { return _mm256_cvtps_epi32((__m256)min_(most, x)); };
  const __m256i move = _mm256_set1_epi16((int16_t)zero);
  const __m256i low = _mm256_adds_epi16(_mm256_packs_epi32(whole(a), whole(b)), move);
  const __m256i high = _mm256_adds_epi16(_mm256_packs_epi32(whole(c), whole(d)), move);
  const __m256i all = is_same<To, int8_t> ? _mm256_packs_epi16(low, high) : _mm256_packus_epi16(low, high);
  return _mm256_permutevar8x32_epi32(all, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
#endif
}
#endif
// The same for four vectors, stored at f, g, h and i.
template <class To> ONNXFUSE_INLINE void store_codes(int32_t zero, vf a, To* f, vf b, To* g, vf c, To* h, vf d, To* i) {
#if ONNXFUSE_AVX512
  const __m512i rows = narrowed<To>(zero, a, b, c, d);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(f), _mm512_castsi512_si128(rows));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(g), _mm512_maskz_extracti32x4_epi32((__mmask8)-1, rows, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(h), _mm512_maskz_extracti32x4_epi32((__mmask8)-1, rows, 2));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(i), _mm512_maskz_extracti32x4_epi32((__mmask8)-1, rows, 3));
#elif ONNXFUSE_AVX2
  const __m256i rows = narrowed<To>(zero, a, b, c, d);
  const __m128i first = _mm256_castsi256_si128(rows), second = _mm256_extracti128_si256(rows, 1);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(f), first);
  _mm_storeh_pd(reinterpret_cast<double*>(g), (__m128d)first);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(h), second);
  _mm_storeh_pd(reinterpret_cast<double*>(i), (__m128d)second);
#else
  const vi zeros = splat<int32_t>(zero);
  store(f, coded<To>(a, zeros));
  store(g, coded<To>(b, zeros));
  store(h, coded<To>(c, zeros));
  store(i, coded<To>(d, zeros));
#endif
}
// The same for two pairs of vectors, the first pair side by side at f, the second one at g.
template <class To> ONNXFUSE_INLINE void store_pairs(int32_t zero, vf a, vf b, To* f, vf c, vf d, To* g) {
#if ONNXFUSE_AVX512
  const __m512i rows = narrowed<To>(zero, a, b, c, d);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(f), _mm512_castsi512_si256(rows));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(g), _mm512_maskz_extracti64x4_epi64((__mmask8)-1, rows, 1));
#elif ONNXFUSE_AVX2
  const __m256i rows = narrowed<To>(zero, a, b, c, d);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(f), _mm256_castsi256_si128(rows));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(g), _mm256_extracti128_si256(rows, 1));
#else
  store_codes<To>(zero, a, f, b, f + LANES, c, g, d, g + LANES);
#endif
}
// The same for four vectors, stored side by side.
template <class To> ONNXFUSE_INLINE void store_codes(int32_t zero, vf a, vf b, vf c, vf d, To* to) {
#if ONNXFUSE_AVX512
  _mm512_storeu_si512(to, narrowed<To>(zero, a, b, c, d));
#elif ONNXFUSE_AVX2
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), narrowed<To>(zero, a, b, c, d));
#else
  store_codes<To>(zero, a, to, b, to + LANES, c, to + 2 * LANES, d, to + 3 * LANES);
#endif
}
ONNXFUSE_DOUBLE_BY_LIBM(trunc_, __builtin_trunc(x))
ONNXFUSE_DOUBLE_BY_LIBM(floor_, __builtin_floor(x))
ONNXFUSE_DOUBLE_BY_LIBM(ceil_, __builtin_ceil(x))
ONNXFUSE_DOUBLE_BY_LIBM(round_, __builtin_rint(x))

// ---- roots ----

ONNXFUSE_INLINE vf sqrt_(vf x) {
#if ONNXFUSE_AVX512
  return (vf)_mm512_sqrt_ps((__m512)x);
#elif ONNXFUSE_AVX2
  return (vf)_mm256_sqrt_ps((__m256)x);
#elif defined(__SSE2__) && ONNXFUSE_LANES == 4
  return (vf)_mm_sqrt_ps((__m128)x);
#else
  return per_lane(x, [](float v) { return __builtin_sqrtf(v); });
#endif
}
ONNXFUSE_INLINE float sqrt_(float x) { return __builtin_sqrtf(x); }
ONNXFUSE_DOUBLE_BY_LIBM(sqrt_, __builtin_sqrt(x))
template <class V> ONNXFUSE_INLINE V rsqrt_(V x) { return (elem<V>)1 / sqrt_(x); }

// ---- exp and what is made of it ----

// The integer nearest to x in float, for |x| < 2^22: the sum has no room for a fraction.
ONNXFUSE_INLINE vf nearest(vf x) { return (x + 12582912.0f) - 12582912.0f; }

// p * 2^n for a whole n, |n| <= 250, rounded once.
ONNXFUSE_INLINE vf times_power_of_two(vf p, vf n) {
  vi i = convert<int32_t>(n), half = i >> 1;
  return p * bits_as<vf>((half + 127) << 23) * bits_as<vf>((i - half + 127) << 23);
}

constexpr float LN2_HIGH = 0.693145751953125f;    // 15 bits: n * LN2_HIGH is exact
constexpr float LN2_LOW = 1.42860682031e-6f;

#if ONNXFUSE_AVX512
// 2^(i/16), and its bits less those that i adds to an exponent
alignas(64) const float SIXTEENTHS[16] = {
    1.0f, 1.04427373f, 1.09050775f, 1.13878858f, 1.18920708f, 1.24185777f, 1.29683959f, 1.35425556f,
    1.41421354f, 1.47682619f, 1.54221082f, 1.61049032f, 1.68179286f, 1.75625217f, 1.8340081f, 1.91520655f};
alignas(64) const uint32_t SIXTEENTHS_LESS_INDEX[16] = {
    0x3f800000, 0x3f7daac3, 0x3f7b95c2, 0x3f79c3d3, 0x3f7837f0, 0x3f76f532, 0x3f75fed7, 0x3f75583f,
    0x3f7504f3, 0x3f7508a4, 0x3f75672a, 0x3f76248c, 0x3f7744fd, 0x3f78ccdf, 0x3f7ac0c7, 0x3f7d257d};

// x = n ln(2) / 16 + rest with |rest| <= ln(2) / 32; the low bits of `shifted` are n.
struct SixteenthOfExponent { __m512 shifted; vf n, rest; };
ONNXFUSE_INLINE SixteenthOfExponent sixteenth_of_exponent(vf x) {
  __m512 t = _mm512_fmadd_ps((__m512)x, _mm512_set1_ps(23.0831206542f), _mm512_set1_ps(12582912.0f));
  vf n = (vf)t - 12582912.0f;
  __m512 high = _mm512_fnmadd_ps((__m512)n, _mm512_set1_ps(0.0433216989f), (__m512)x);
  return {t, n, (vf)_mm512_fnmadd_ps((__m512)n, _mm512_set1_ps(-1.19040888e-10f), high)};
}
// (exp(r) - 1) / r for |r| <= ln(2) / 32.
ONNXFUSE_INLINE vf exp_of_little(vf r) { return (r * 0.166666672f + 0.5f) * r + 1.0f; }
#else
// exp(r) for |r| <= ln(2) / 2.
ONNXFUSE_INLINE vf exp_of_rest(vf r) {
  vf p = splat<float>(0.00139263261f);
  p = p * r + 0.00836329255f;
  p = p * r + 0.0416665524f;
  p = p * r + 0.166665763f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  return p * r + 1.0f;
}
// The same by a chain that is a third shorter: it rounds once more.
ONNXFUSE_INLINE vf exp_of_rest_soon(vf r) {
  vf square = r * r, p = 0.00139263261f * square + (0.00836329255f * r + 0.0416665524f);
  p = p * square + (0.166665763f * r + 0.5f);
  return p * square + (r + 1.0f);
}
constexpr float SHIFT = 12582912.0f + 127;  // of the sum with an integer n, the low bits are the exponent of 2^n

// x = n ln(2) + rest with |rest| <= ln(2) / 2, and 2^(n + more); n + more is from -126 to 127, or the power is not used.
struct Exponent { vf power, rest; };
ONNXFUSE_INLINE Exponent exponent_of(vf x, int more) {
  const float shift = SHIFT + (float)more;
  vf shifted = x * 1.44269504f + shift, n = shifted - shift;
  return {bits_as<vf>(bits(shifted) << 23), (x - n * LN2_HIGH) - n * LN2_LOW};
}
#endif

// exp of x in [-104, 89] or NaN; what lies outside must be clamped before.
ONNXFUSE_INLINE vf exp_clamped(vf x) {
#if ONNXFUSE_AVX512  // 2^(n/16) exp(r) with |r| <= ln(2) / 32: a short chain, since iterations wait for it
  SixteenthOfExponent s = sixteenth_of_exponent(x);
  vf power = (vf)_mm512_permutexvar_ps(_mm512_castps_si512(s.shifted), _mm512_load_ps(SIXTEENTHS));  // by the last four bits
  vf p = power * s.rest * exp_of_little(s.rest) + power;
  return (vf)_mm512_scalef_ps((__m512)p, (__m512)(s.n * 0.0625f));  // scalef rounds n / 16 down
#else
  vf n = nearest(x * 1.44269504f);
  return times_power_of_two(exp_of_rest((x - n * LN2_HIGH) - n * LN2_LOW), n);
#endif
}
ONNXFUSE_INLINE vf exp_(vf x) {
  x = min_(splat<float>(89.0f), x);  // the second operand is what a NaN comes back from
  return exp_clamped(max_(splat<float>(-104.0f), x));
}

// exp(x) for x <= 88 or NaN, as a share of a sum: 0 below exp(LEAST_POWER), since subnormals make whatever is done with them many
// times slower. What is left has an exponent of its own, so that powers of two are added to bits.
ONNXFUSE_INLINE vf exp_or_zero_(vf x) {
#if ONNXFUSE_AVX512
  const __mmask16 counts = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(agreed::LEAST_POWER), _CMP_NLT_UQ);
  SixteenthOfExponent s = sixteenth_of_exponent(x);
  __m512i low = _mm512_permutexvar_epi32(_mm512_castps_si512(s.shifted), _mm512_load_si512(SIXTEENTHS_LESS_INDEX));
  __m512 power = _mm512_castsi512_ps(_mm512_add_epi32(low, _mm512_slli_epi32(_mm512_castps_si512(s.shifted), 19)));
  return (vf)_mm512_maskz_fmadd_ps(counts, power * (__m512)s.rest, (__m512)exp_of_little(s.rest), power);
#else
  Exponent s = exponent_of(x, 0);
  return select(lt(x, splat<float>(agreed::LEAST_POWER)), vf{}, exp_of_rest(s.rest) * s.power);
#endif
}

#if ONNXFUSE_AVX512
// 1 / x for x in [1, 2], within 1 ulp.
ONNXFUSE_INLINE vf fast_reciprocal(vf x) {
  vf y = (vf)_mm512_rcp14_ps((__m512)x);
  return y + y * (1.0f - x * y);
}
#endif

// exp(-|x|), which keeps its relative error where it is subnormal. The power of two of a number that is at most 1 can be 2^64 times
// as large, so that one factor is enough.
ONNXFUSE_INLINE vf exp_of_minus(vf x) {
  vf low = max_(splat<float>(-104.0f), -magnitude(x));
#if ONNXFUSE_AVX512
  return exp_clamped(low);
#else
  Exponent s = exponent_of(low, 64);
  return exp_of_rest_soon(s.rest) * s.power * 0x1p-64f;
#endif
}

// exp(-|x|) is at most 1 and keeps its relative error in both tails.
ONNXFUSE_INLINE vf sigmoid_(vf x) {
  vf e = exp_of_minus(x);
#if ONNXFUSE_AVX512
  vf r = fast_reciprocal(1.0f + e);
  return select(lt(x, vf{}), e * r, r);
#else
  return select(bits(x) < 0, e, splat<float>(1.0f)) / (1.0f + e);
#endif
}

// log(1 + exp(x)) without overflow: max(x, 0) + log1p(exp(-|x|)).
ONNXFUSE_INLINE vf softplus_(vf x) {
  vf u = exp_of_minus(x);
  vf p = splat<float>(0.00280164205f);
  p = p * u + -0.0171842668f;
  p = p * u + 0.0493099727f;
  p = p * u + -0.0913941413f;
  p = p * u + 0.130333647f;
  p = p * u + -0.163651526f;
  p = p * u + 0.19956708f;
  p = p * u + -0.249967605f;
  p = p * u + 0.33333236f;
  p = p * u + -0.5f;
  return max_(vf{}, x) + (u + u * u * p);
}

// ---- erf, tanh: by table on AVX-512 ----

ONNXFUSE_INLINE vf erf_(vf x) {
#if ONNXFUSE_AVX512
  return odd_by_table(x, ERF_TABLE, ERF_STEP, ERF_LIMIT);
#else
  vf a = min_(splat<float>(3.92f), max_(splat<float>(-3.92f), x)), t = a * a;  // beyond, erf is 1 in float
  vf p = splat<float>(2.18420246e-06f);  // a p(t) / q(t), in which nothing cancels
  p = p * t + 0.000303500477f;
  p = p * t + 0.00401142566f;
  p = p * t + 0.0561971553f;
  p = p * t + 0.202849045f;
  p = p * t + 1.20217776f;
  vf q = splat<float>(4.05826104e-05f);
  q = q * t + 0.00123844668f;
  q = q * t + 0.0159473009f;
  q = q * t + 0.121567726f;
  q = q * t + 0.534903765f;
  q = q * t + 1.06540239f;
  return min_(splat<float>(1.0f), max_(splat<float>(-1.0f), a * p / q));
#endif
}

ONNXFUSE_INLINE vf tanh_(vf x) {
#if ONNXFUSE_AVX512
  return odd_by_table(x, TANH_TABLE, TANH_STEP, TANH_LIMIT);
#else
  vf a = min_(splat<float>(9.02f), max_(splat<float>(-9.02f), x)), t = a * a;  // beyond, tanh is 1 in float
  vf p = splat<float>(1.33190657e-08f);  // a p(t) / q(t), in which nothing cancels
  p = p * t + 2.05834765e-05f;
  p = p * t + 0.00349403427f;
  p = p * t + 0.133797177f;
  p = p * t + 0.999999979f;
  vf q = splat<float>(7.7620168e-07f);
  q = q * t + 0.000328309236f;
  q = q * t + 0.0258710721f;
  q = q * t + 0.46713033f;
  q = q * t + 1.0f;
  return min_(splat<float>(1.0f), max_(splat<float>(-1.0f), a * p / q));
#endif
}

// ---- log, pow ----

ONNXFUSE_INLINE vf log_(vf x) {
  vi tiny = lt(x, splat<float>(1.17549435e-38f));
  vf scaled = select(tiny, x * 8388608.0f, x);
  vi from_root = (vi)((vec<uint32_t>)bits(scaled) - 0x3f3504f3u);  // so that the mantissa below is in [sqrt(1/2), sqrt(2))
  vf e = convert<float>((from_root >> 23) - (tiny & 23));
  vf f = bits_as<vf>((from_root & 0x7fffff) + 0x3f3504f3) - 1.0f;
  vf p = splat<float>(0.0697134659f);
  p = p * f + -0.114830814f;
  p = p * f + 0.116870247f;
  p = p * f + -0.124253601f;
  p = p * f + 0.142488763f;
  p = p * f + -0.166678101f;
  p = p * f + 0.2000072f;
  p = p * f + -0.24999997f;
  p = p * f + 0.333333313f;
  vf s = f * f;
  vf r = e * LN2_HIGH + (f + (e * LN2_LOW + (s * f * p - 0.5f * s)));
  const float inf = __builtin_inff();
  r = select(lt(x, splat<float>(inf)), r, x);  // inf and NaN
  return select(gt(x, vf{}), r, select(eq(x, vf{}), splat<float>(-inf), select(ne(x, x), x, splat<float>(__builtin_nanf("")))));
}

// |x|^y as 2^(y log2 |x|) in double, for what neither operand decides alone.
ONNXFUSE_INLINE vf pow_magnitude(vf x, vf y) {
  vf a = magnitude(x);
  vi tiny = lt(a, splat<float>(1.17549435e-38f));
  vi from_root = bits(select(tiny, a * 8388608.0f, a)) - 0x3f3504f3;
  const float inf = __builtin_inff();
  vf exponent = select(eq(a, vf{}), splat<float>(-inf), select(eq(a, splat<float>(inf)), a, convert<float>((from_root >> 23) - (tiny & 23))));
  vd m = convert<double>(bits_as<vf>((from_root & 0x7fffff) + 0x3f3504f3));
  vd s = (m - 1.0) / (m + 1.0), u = s * s;  // log2 m = 2 / ln 2 * atanh s
  vd p = u * 0.34072111495492952 + 0.41167329914115813;
  p = p * u + 0.57708357336369331;
  p = p * u + 0.96179667341549735;
  p = p * u + 2.8853900817900136;
  vd t = convert<double>(y) * (convert<double>(exponent) + s * p);
  t = max_(splat<double>(-200.0), min_(splat<double>(200.0), t));
  vd shifted = t + 6755399441055744.0;  // its low bits are the nearest integer
  vd f = t - (shifted - 6755399441055744.0);
  vd q = f * 0.00015461444698569129 + 0.0013400428177615838;
  q = q * f + 0.0096180566785246373;
  q = q * f + 0.05550327226670302;
  q = q * f + 0.24022650922288757;
  q = q * f + 0.69314720670283259;
  q = q * f + 1.0;
  typedef vec<int64_t> L;
  return convert<float>(bits_as<vd>(bits_as<L>(q) + (bits_as<L>(shifted) << 52)));
}
ONNXFUSE_INLINE vf pow_(vf x, vf y) {
  vf one = splat<float>(1.0f), r = pow_magnitude(x, y);
  r = select(eq(magnitude(x), one) & eq(magnitude(y), splat<float>(__builtin_inff())), one, r);
  vf half = y * 0.5f;
  vi whole = eq(trunc_(y), y), odd = whole & ne(trunc_(half), half);
  vi negative = bits(x) < 0;
  r = bits_as<vf>(bits(r) ^ (negative & odd & INT32_MIN));
  vi finite = lt(x, vf{}) & ne(x, splat<float>(-__builtin_inff()));
  r = select(finite & ~whole, splat<float>(__builtin_nanf("")), r);
  r = select(ne(x, x) | ne(y, y), x + y, r);
  return select(eq(x, one) | eq(y, vf{}), one, r);
}
ONNXFUSE_INLINE float pow_(float x, float y) { return pow_(splat<float>(x), splat<float>(y))[0]; }
ONNXFUSE_INLINE double pow_(double x, double y) { return __builtin_pow(x, y); }
// Integers: by squaring, wrapping; a negative power of anything but 1 and -1 is 0.
template <class T> ONNXFUSE_INLINE T integer_pow(T x, T y) {
  if (y < 0) return x == 1 ? 1 : x == (T)-1 ? (y & 1 ? (T)-1 : 1) : 0;
  uint64_t r = 1, base = (uint64_t)x;
  for (uint64_t n = (uint64_t)y; n; n >>= 1, base *= base)
    if (n & 1) r *= base;
  return (T)r;
}
template <class V> ONNXFUSE_INLINE V pow_(V x, V y) {
  typedef elem<V> T;
  if constexpr (!is_vec<V>) return integer_pow(x, y);
  else {
    V r = x;
    for (int i = 0; i < LANES; i++) r[i] = pow_((T)x[i], (T)y[i]);
    return r;
  }
}

// ---- sin, cos ----

// sin(x + quarter * pi / 2). Reduction in double by pi / 2 in two parts, the first of 33 bits.
ONNXFUSE_INLINE vf sin_quarter(vf x, int quarter) {
  vf n = nearest(x * 0.636619772f);
  vd wide = convert<double>(x), turns = convert<double>(n);
  vf r = convert<float>((wide - turns * 1.5707963267341256) - turns * 6.0771005065061922e-11);
  vi q = convert<int32_t>(n) + quarter;
  vf t = r * r;
  vf s = splat<float>(2.72468696e-06f);
  s = s * t + -0.000198400638f;
  s = s * t + 0.00833333191f;
  s = s * t + -0.166666672f;
  s = select(eq(x, vf{}), r, r + r * t * s);  // keeps -0
  vf c = splat<float>(2.45454194e-05f);
  c = c * t + -0.00138882909f;
  c = c * t + 0.0416666642f;
  c = 1.0f + (t * t * c - 0.5f * t);
  vf y = select(ne(q & 1, vi{}), c, s);
  return bits_as<vf>(bits(y) ^ (q & 2) << 30);
}
ONNXFUSE_INLINE vf sin_(vf x) {
  vi large = ~le(magnitude(x), splat<float>(1e5f));  // NaN and inf too
  vf y = sin_quarter(select(large, vf{}, x), 0);
  if (__builtin_expect(any(large), 0))
    for (int i = 0; i < LANES; i++) y[i] = large[i] ? __builtin_sinf(x[i]) : y[i];
  return y;
}
ONNXFUSE_INLINE vf cos_(vf x) {
  vi large = ~le(magnitude(x), splat<float>(1e5f));
  vf y = sin_quarter(select(large, vf{}, x), 1);
  if (__builtin_expect(any(large), 0))
    for (int i = 0; i < LANES; i++) y[i] = large[i] ? __builtin_cosf(x[i]) : y[i];
  return y;
}

// ---- scalars, double, and what goes to libm ----

ONNXFUSE_FLOAT_OF_VECTOR(exp_) ONNXFUSE_FLOAT_OF_VECTOR(exp_or_zero_) ONNXFUSE_FLOAT_OF_VECTOR(log_) ONNXFUSE_FLOAT_OF_VECTOR(tanh_)
ONNXFUSE_FLOAT_OF_VECTOR(erf_) ONNXFUSE_FLOAT_OF_VECTOR(sigmoid_) ONNXFUSE_FLOAT_OF_VECTOR(softplus_)
ONNXFUSE_FLOAT_OF_VECTOR(sin_) ONNXFUSE_FLOAT_OF_VECTOR(cos_)
ONNXFUSE_DOUBLE_BY_LIBM(exp_, __builtin_exp(x))
ONNXFUSE_DOUBLE_BY_LIBM(exp_or_zero_, x < agreed::LEAST_POWER ? 0 : __builtin_exp(x))
ONNXFUSE_DOUBLE_BY_LIBM(log_, __builtin_log(x))
ONNXFUSE_DOUBLE_BY_LIBM(tanh_, __builtin_tanh(x))
ONNXFUSE_DOUBLE_BY_LIBM(erf_, __builtin_erf(x))
ONNXFUSE_DOUBLE_BY_LIBM(sigmoid_, __builtin_exp(x < 0 ? x : 0) / (1 + __builtin_exp(-__builtin_fabs(x))))
ONNXFUSE_DOUBLE_BY_LIBM(softplus_, (x > 0 ? x : x != x ? x : 0) + __builtin_log1p(__builtin_exp(-__builtin_fabs(x))))
ONNXFUSE_DOUBLE_BY_LIBM(sin_, __builtin_sin(x))
ONNXFUSE_DOUBLE_BY_LIBM(cos_, __builtin_cos(x))
#define ONNXFUSE_ALL_BY_LIBM(name) \
  ONNXFUSE_FLOAT_BY_LIBM(name##_, __builtin_##name##f(x)) ONNXFUSE_DOUBLE_BY_LIBM(name##_, __builtin_##name(x))
ONNXFUSE_ALL_BY_LIBM(tan) ONNXFUSE_ALL_BY_LIBM(asin) ONNXFUSE_ALL_BY_LIBM(acos) ONNXFUSE_ALL_BY_LIBM(atan)
ONNXFUSE_ALL_BY_LIBM(sinh) ONNXFUSE_ALL_BY_LIBM(cosh)
ONNXFUSE_ALL_BY_LIBM(asinh) ONNXFUSE_ALL_BY_LIBM(acosh) ONNXFUSE_ALL_BY_LIBM(atanh)

// ---- Gelu ----

// x (1 + erf(x / sqrt(2))) / 2
template <class V> ONNXFUSE_INLINE V gelu_erf(V x) {
  V half = x * (elem<V>)0.5;
  return half + half * erf_(x * (elem<V>)0.70710678118654752);
}
// x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2
template <class V> ONNXFUSE_INLINE V gelu_tanh(V x) {
  V half = x * (elem<V>)0.5;
  return half + half * tanh_(x * ((elem<V>)0.79788456080286536 + (elem<V>)0.035677408136300125 * x * x));
}

#undef ONNXFUSE_ALL_BY_LIBM
#undef ONNXFUSE_FLOAT_OF_VECTOR
#undef ONNXFUSE_DOUBLE_BY_LIBM
#undef ONNXFUSE_FLOAT_BY_LIBM

} }  // namespace onnxfuse
