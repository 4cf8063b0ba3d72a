// Casts between vectors of any element type, masks of any width and the 16-bit storage types. Included by vec.h alone.
#pragma once

namespace onnxfuse { inline namespace ONNXFUSE_ISA {

// Between integer types, or masks: one doubling or halving of the width at a time, which compilers do in registers.
template <class To, class V> ONNXFUSE_INLINE vec<To> resize(V v) {
  typedef elem<V> From;
  constexpr bool is_unsigned = From(0) < From(-1);
#if ONNXFUSE_AVX512
  if constexpr (sizeof(From) == 1 && sizeof(To) == 4)
    return (vec<To>)(is_unsigned ? _mm512_maskz_cvtepu8_epi32((__mmask16)-1, (__m128i)v)
                                 : _mm512_maskz_cvtepi8_epi32((__mmask16)-1, (__m128i)v));
  if constexpr (sizeof(From) == 4 && sizeof(To) == 1) return (vec<To>)_mm512_maskz_cvtepi32_epi8((__mmask16)-1, (__m512i)v);
#elif ONNXFUSE_AVX2
  if constexpr (sizeof(From) == 4 && sizeof(To) == 1) {  // the lowest bytes side by side; compilers go byte by byte
    const __m256i fours = _mm256_shuffle_epi8((__m256i)v, _mm256_set1_epi32(0x0c080400));
    const __m256i eight = _mm256_permutevar8x32_epi32(fours, _mm256_setr_epi32(0, 4, 0, 4, 0, 4, 0, 4));
    return (vec<To>)_mm_cvtsi128_si64(_mm256_castsi256_si128(eight));
  }
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
#if defined(ONNXFUSE_ROUNDS) && ONNXFUSE_AVX512  // subnormals become 0
  return (vec<uint16_t>)_mm512_cvtneps_pbh((__m512)v);
#endif
  vec<uint32_t> u = bits_as<vec<uint32_t>>(v), rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;
  return resize<uint16_t>((vec<int32_t>)(v != v) ? (u >> 16 | 0x40) : rounded);
}

// From a float to an unsigned integer of 32 or 64 bits as compilers without such an instruction do it: by way of int64,
// so that negative numbers wrap.
template <class To, class V> ONNXFUSE_INLINE auto to_unsigned(V v) {
  if constexpr (sizeof(To) == 4) {
    if constexpr (!is_vec<V>) return (uint32_t)(int64_t)v;
    else {
      auto wide = __builtin_convertvector(v, vec<int64_t>);
      asm("" : "+m"(wide));  // clang would convert to 32 bits at once, which says something else of what does not fit
      return resize<uint32_t>(wide);
    }
  } else if constexpr (is_vec<V>) {
    vd wide = __builtin_convertvector(v, vd);
    vec<int64_t> large = (vec<int64_t>)(wide >= 0x1p63);
    return (vec<uint64_t>)__builtin_convertvector(large ? wide - 0x1p63 : wide, vec<int64_t>) ^ ((vec<uint64_t>)large << 63);
  } else {
    return v >= (V)0x1p63 ? (uint64_t)(int64_t)(v - (V)0x1p63) ^ 1ull << 63 : (uint64_t)(int64_t)v;
  }
}

// ONNX Cast: float to integer truncates, integers wrap, to bool is != 0, to f16 or bf16 rounds to nearest even.
// What a float out of the integer's range gives is undefined in ONNX; here it is what ONNX Runtime gives on x86.
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
    else if constexpr (is_float<From> && (is_same<To, uint32_t> || is_same<To, uint64_t>)) return to_unsigned<To>(v);
    else return (To)v;
  } else if constexpr (is_same<To, bool>) {
    return to_bool(ne(v, V{}));
  } else if constexpr (is_same<To, From>) {
    return v;
  } else if constexpr (is_float<From> && is_float<To>) {
    return (vec<To>)__builtin_convertvector(v, vec<To>);
  } else if constexpr (is_float<From>) {
    if constexpr (sizeof(To) < 4) return resize<To>(__builtin_convertvector(v, vec<int32_t>));
    else if constexpr (is_same<To, uint32_t> || is_same<To, uint64_t>) return to_unsigned<To>(v);
    else {
      auto made = (vec<To>)__builtin_convertvector(v, vec<To>);
#if !ONNXFUSE_AVX512
      if constexpr (sizeof(To) == 8) asm("" : "+m"(made));  // gcc would round where it is made a float again: what does not fit differs
#endif
      return made;
    }
  } else if constexpr (is_float<To>) {
    if constexpr (sizeof(From) < 4) return (vec<To>)__builtin_convertvector(resize<int32_t>(v), vec<To>);
    else return (vec<To>)__builtin_convertvector(v, vec<To>);
  } else {
    return resize<To>(v);
  }
}

} }  // namespace onnxfuse
