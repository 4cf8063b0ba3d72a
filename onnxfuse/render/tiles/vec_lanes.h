// Cross-lane operations: reductions in an order fixed by LANES, zips, transposes. Included by vec.h only.
#pragma once

namespace onnxfuse { inline namespace ONNXFUSE_ISA {

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

// Lane l becomes lane l / G * G + i; G, a power of two, divides the lanes.
template <int G, class V> ONNXFUSE_INLINE V from_group(V v, int i) {
#if defined(__clang__)
  V r{};
#pragma clang loop unroll(full)
  for (int l = 0; l < LANES; l++) r[l] = v[l / G * G + i];
  return r;
#else
  typedef int_like<elem<V>> I;
  return __builtin_shuffle(v, (iota<I>() & (I)-G) + (I)i);
#endif
}

// A tree reduction of all lanes whose shape depends on LANES only: distances LANES/2, .., 2, 1.
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

// Lane i is reduce(rows[i], f), bit for bit, with a third of the shuffles: every step halves the rows and zips their halves.
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

// The S * LANES lanes of S vectors, first those of all first lanes: where lane l of the k-th vector of them comes from, as
// the j-th of S - 1 shuffles picks it, which take in one vector more each.
template <int S> struct Weave {
  alignas(sizeof(vf)) int32_t from[S][S - 1][LANES] = {};
  constexpr Weave() {
    for (int k = 0; k < S; k++)
      for (int l = 0; l < LANES; l++) {
        const int place = k * LANES + l, lane = place / S, vector = place % S;
        for (int j = 1; j < S; j++)
          from[k][j - 1][l] = vector == j ? LANES + lane : j > 1 ? l : vector == 0 ? lane : 0;
      }
  }
};
template <int S> constexpr Weave<S> WEAVE{};
template <int S> ONNXFUSE_INLINE vf woven(const vf (&vs)[S], int k) {
#if defined(__clang__)
  vf r{};
#pragma clang loop unroll(full)
  for (int l = 0; l < LANES; l++) r[l] = vs[(k * LANES + l) % S][(k * LANES + l) / S];
  return r;
#else
  vf r = vs[0];
#pragma GCC unroll 4
  for (int j = 1; j < S; j++) r = __builtin_shuffle(r, vs[j], load(WEAVE<S>.from[k][j - 1]));
  return r;
#endif
}

// The same of 8-bit integers: of which lane of the j-th vector byte l of the k-th result is; none where the highest bit is set.
template <int S> struct WeaveBytes {
  alignas(16) uint8_t from[S][S][16] = {};
  constexpr WeaveBytes() {
    for (int k = 0; k < S; k++)
      for (int j = 0; j < S; j++)
        for (int l = 0; l < 16; l++) {
          const int place = k * LANES + l;
          from[k][j][l] = l < LANES && place % S == j ? (uint8_t)(place / S) : 0x80;
        }
  }
};
template <int S> constexpr WeaveBytes<S> WEAVE_BYTES{};
template <class V, int S> ONNXFUSE_INLINE V woven_bytes(const V (&vs)[S], int k) {
#if ONNXFUSE_AVX512 || ONNXFUSE_AVX2
  __m128i r{};
#pragma GCC unroll 4
  for (int j = 0; j < S; j++) {
    __m128i lanes{};
    memcpy(&lanes, &vs[j], sizeof vs[j]);
    r |= _mm_shuffle_epi8(lanes, *reinterpret_cast<const __m128i*>(WEAVE_BYTES<S>.from[k][j]));
  }
  V out;
  memcpy(&out, &r, sizeof out);
  return out;
#else
  V r{};
  for (int l = 0; l < LANES; l++) r[l] = vs[(k * LANES + l) % S][(k * LANES + l) / S];
  return r;
#endif
}

// rows[i][j] becomes rows[j][i]: log2(LANES) perfect shuffles; on AVX2, where one takes two instructions, halves of rows are
// put together and blocks of 4 x 4 transposed in either half, which takes half as many.
ONNXFUSE_INLINE void transpose(vf (&rows)[LANES]) {
#if ONNXFUSE_AVX2 && !ONNXFUSE_AVX512
  __m256 half[LANES];
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    half[i] = _mm256_insertf128_ps((__m256)rows[i], _mm256_castps256_ps128((__m256)rows[i + 4]), 1);
    half[i + 4] = _mm256_permute2f128_ps((__m256)rows[i], (__m256)rows[i + 4], 0x31);
  }
#pragma GCC unroll 2
  for (int i = 0; i < LANES; i += 4) {
    const __m256 a = _mm256_unpacklo_ps(half[i], half[i + 1]), b = _mm256_unpackhi_ps(half[i], half[i + 1]);
    const __m256 c = _mm256_unpacklo_ps(half[i + 2], half[i + 3]), d = _mm256_unpackhi_ps(half[i + 2], half[i + 3]);
    rows[i] = (vf)_mm256_shuffle_ps(a, c, 0x44);
    rows[i + 1] = (vf)_mm256_shuffle_ps(a, c, 0xee);
    rows[i + 2] = (vf)_mm256_shuffle_ps(b, d, 0x44);
    rows[i + 3] = (vf)_mm256_shuffle_ps(b, d, 0xee);
  }
  return;
#endif
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

} }  // namespace onnxfuse
