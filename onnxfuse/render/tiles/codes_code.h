// The implementation of codes.h. As with tile_code.h, a translation unit (render/tile_units.py) instantiates one function
// of it by a macro. Dot-product instructions multiply unsigned by signed bytes, so operands of the other signedness have
// their highest bit flipped, which shifts them and their zero points by 128.
#pragma once
#include "codes.h"
#if ONNXFUSE_AVX512
#include <cpuid.h>
#endif

namespace onnxfuse { inline namespace ONNXFUSE_ISA {
namespace {

constexpr int MOVED = 128;
constexpr int32_t TURN = (int32_t)0x80808080u;

// Groups of four k ahead of which a panel is prefetched to L1. It takes no other prefetch: an iteration has 28 products, and
// those that spread the next panel over a tile took the places of its loads.
constexpr int NEAR = 64;

ONNXFUSE_INLINE int32_t quad(const uint8_t* p) {
  int32_t v;
  memcpy(&v, p, sizeof v);
  return v;
}

// The last four of n bytes from p on; fewer are the upper bytes.
ONNXFUSE_INLINE int32_t last_quad(const uint8_t* p, i64 n) {
  if (n >= 4) return quad(p + n - 4);
  uint32_t v = 0;
  for (i64 i = 0; i < n; i++) v |= (uint32_t)p[i] << 8 * (4 - n + i);
  return (int32_t)v;
}

ONNXFUSE_INLINE vi columns_of(const uint8_t* b) { return load(reinterpret_cast<const int32_t*>(b)); }

// sum + the dot product of four unsigned bytes of a and four signed bytes of b per lane: even and odd ones as 16 bits.
ONNXFUSE_INLINE vi products_widened(vi sum, vi a, vi b) {
  typedef vec<int32_t> V;
  typedef int16_t Short __attribute__((vector_size(sizeof(V)), may_alias));
  const Short even_b = (Short)b << 8 >> 8, odd_b = (Short)b >> 8;
  const V even_a = a & 0x00ff00ff, odd_a = (V)((vec<uint32_t>)a >> 8) & 0x00ff00ff;
#if ONNXFUSE_AVX512
  return sum + (V)_mm512_madd_epi16((__m512i)even_a, (__m512i)even_b) + (V)_mm512_madd_epi16((__m512i)odd_a, (__m512i)odd_b);
#elif ONNXFUSE_AVX2
  return sum + (V)_mm256_madd_epi16((__m256i)even_a, (__m256i)even_b) + (V)_mm256_madd_epi16((__m256i)odd_a, (__m256i)odd_b);
#else
  const V even_p = (even_a & 0xffff) * ((V)even_b << 16 >> 16) + (even_a >> 16) * ((V)even_b >> 16);
  return sum + even_p + (odd_a & 0xffff) * ((V)odd_b << 16 >> 16) + (odd_a >> 16) * ((V)odd_b >> 16);
#endif
}

// Elements of up to four rows of bytes, those of one column side by side in a lane: ACROSS columns from the address on, of
// which `columns` exist. Bytes of rows that there are not are 0.
template <int Lines> ONNXFUSE_INLINE void interleaved(const uint8_t* const (&from)[Lines], int columns, vi (&to)[2]) {
#if ONNXFUSE_AVX512
  const __mmask32 some = columns >= 32 ? ~(__mmask32)0 : ((__mmask32)1 << columns) - 1;
  __m512i pair[2]{};
#pragma GCC unroll 4
  for (int k = 0; k < Lines; k++) {
    const __m256i one = _mm256_maskz_loadu_epi8(some, from[k]);
    pair[k / 2] = k % 2 ? _mm512_inserti64x4(pair[k / 2], one, 1) : _mm512_zextsi256_si512(one);
  }
  // Four columns of each row to every quarter of a vector; there, bytes of one column side by side.
  const __m512i low = _mm512_setr_epi32(0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27);
  const __m512i bytes = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  to[0] = (vi)_mm512_shuffle_epi8(_mm512_permutex2var_epi32(pair[0], low, pair[1]), bytes);
  to[1] = (vi)_mm512_shuffle_epi8(_mm512_permutex2var_epi32(pair[0], _mm512_add_epi32(low, _mm512_set1_epi32(4)), pair[1]), bytes);
#elif ONNXFUSE_AVX2
  __m128i line[4]{};
#pragma GCC unroll 4
  for (int k = 0; k < Lines; k++) {
    if (columns >= 16) line[k] = _mm_loadu_si128((const __m128i_u*)from[k]);
    else line[k] = load_16_bytes(reinterpret_cast<const char*>(from[k]), columns > 0 ? columns : 0);
  }
  const auto quads = [](__m128i lower, __m128i upper) {
    return (vi)_mm256_set_m128i(_mm_unpackhi_epi16(lower, upper), _mm_unpacklo_epi16(lower, upper));
  };
  to[0] = quads(_mm_unpacklo_epi8(line[0], line[1]), _mm_unpacklo_epi8(line[2], line[3]));
  to[1] = quads(_mm_unpackhi_epi8(line[0], line[1]), _mm_unpackhi_epi8(line[2], line[3]));
#else
  for (int v = 0; v < 2; v++) {
    const int there = columns - v * LANES, n = there < 0 ? 0 : there < LANES ? there : LANES;
    to[v] = vi{};
    for (int k = 0; k < Lines; k++) to[v] |= (vi)((vec<uint32_t>)convert<int32_t>(load_n(from[k] + v * LANES, n)) << (uint32_t)(8 * k));
  }
#endif
}

#if ONNXFUSE_AVX512
static inline __attribute__((always_inline, target("avx512vnni"))) vi products_vnni(vi sum, vi a, vi b) {
  return (vi)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
}

// Whether this machine has the dot-product instructions; their register state is one that the library requires anyway.
bool has_vnni() {
  static int known = 0;  // 1: yes, 2: no
  int have = __atomic_load_n(&known, __ATOMIC_RELAXED);
  if (!have) {
    unsigned a = 0, b = 0, c = 0, d = 0;
    have = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (c >> 11 & 1) ? 1 : 2;
    __atomic_store_n(&known, have, __ATOMIC_RELAXED);
  }
  return have == 1;
}
#endif

}  // namespace
} }  // namespace onnxfuse

#define ONNXFUSE_CODES_SUMS tile_widened
#define ONNXFUSE_CODES_CHANNELS channels_widened
#define ONNXFUSE_CODES_GROUPS groups_widened
#define ONNXFUSE_CODES_PRODUCTS products_widened
#define ONNXFUSE_CODES_FOR
#include "codes_body.h"
#if ONNXFUSE_AVX512
#define ONNXFUSE_CODES_SUMS tile_vnni
#define ONNXFUSE_CODES_CHANNELS channels_vnni
#define ONNXFUSE_CODES_GROUPS groups_vnni
#define ONNXFUSE_CODES_PRODUCTS products_vnni
#define ONNXFUSE_CODES_FOR __attribute__((target("avx512vnni")))
#include "codes_body.h"
#endif
#include "codes_pairs.h"

namespace onnxfuse { inline namespace ONNXFUSE_ISA {

// sum_codes without dot-product instructions, for both types of the left side: a unit of its own.
void sum_widened(int rows, const uint8_t* const* table, i64 pitch, i64 segments, i64 length, const uint8_t* b, int columns,
                 int32_t* out, const Codes& codes);

namespace {

template <bool Signed>
ONNXFUSE_INLINE void codes_tile(int rows, const uint8_t* const* table, i64 pitch, i64 segments, i64 length, const uint8_t* b,
                                int columns, int32_t* out, const Codes& codes) {
#if ONNXFUSE_AVX512
  if (has_vnni()) {
    with_rows<TALL>(rows, [&](auto n) {
      constexpr int Rows = decltype(n)::value;
#pragma GCC unroll 1
      for (int at = 0; at < PANEL; at += ACROSS) {
        if (Signed || !codes.right_signed) tile_vnni<Rows, true, 2>(table, pitch, segments, length, b, columns, at, out, codes);
        else if (columns - at > LANES) tile_vnni<Rows, Signed, 2>(table, pitch, segments, length, b, columns, at, out, codes);
        else tile_vnni<Rows, Signed, Signed ? 2 : 1>(table, pitch, segments, length, b, columns, at, out, codes);
      }
    });
    return;
  }
#endif
  sum_widened(rows, table, pitch, segments, length, b, columns, out, codes);
}

ONNXFUSE_INLINE void widened_tile(int rows, const uint8_t* const* table, i64 pitch, i64 segments, i64 length, const uint8_t* b,
                                  int columns, int32_t* out, const Codes& codes) {
  with_rows<TALL>(rows, [&](auto n) {
#if ONNXFUSE_AVX2 && !ONNXFUSE_AVX512
    constexpr int Rows = decltype(n)::value;
    const auto tile = codes.left_signed ? codes.right_signed ? tile_pairs<Rows, true, true> : tile_pairs<Rows, true, false>
                      : codes.right_signed ? tile_pairs<Rows, false, true> : tile_pairs<Rows, false, false>;
    tile(table, pitch, segments, length, b, columns, out, codes);
#else
#pragma GCC unroll 1
    for (int at = 0; at < PANEL; at += ACROSS)
      tile_widened<decltype(n)::value, true, 2>(table, pitch, segments, length, b, columns, at, out, codes);
#endif
  });
}

ONNXFUSE_INLINE void channels_tile(int rows, const uint8_t* const* table, i64 pitch, i64 segments, i64 length, i64 across,
                                   const int8_t* b, int columns, int32_t* out, int left_zero, bool left_signed, bool slides) {
  const int32_t left = left_zero + (left_signed ? MOVED : 0);
  const vi turn = splat<int32_t>(left_signed ? TURN : 0);
#pragma GCC unroll 1
  for (int at = 0; at < PANEL && at < columns; at += ACROSS) {
#define ONNXFUSE_CHANNELS(Function) Function(rows, table, pitch, segments, length, across, b, columns, at, out, left, turn, slides)
#if ONNXFUSE_AVX512
    if (has_vnni()) {
      if (segments == 3 && length == 3 && !left_signed) ONNXFUSE_CHANNELS((channels_vnni<3, 3>));
      else if (segments == 5 && length == 5 && !left_signed) ONNXFUSE_CHANNELS((channels_vnni<5, 5>));
      else ONNXFUSE_CHANNELS((channels_vnni<0, 0>));
      continue;
    }
#endif
    if (segments == 3 && length == 3 && !left_signed) ONNXFUSE_CHANNELS((channels_widened<3, 3>));
    else ONNXFUSE_CHANNELS((channels_widened<0, 0>));
#undef ONNXFUSE_CHANNELS
  }
}

}  // namespace
} }  // namespace onnxfuse

#define ONNXFUSE_CODES_TILE(Left)                                                                                       \
  namespace onnxfuse { inline namespace ONNXFUSE_ISA {                                                                  \
  void sum_codes(int rows, const Left* const* table, i64 pitch, i64 segments, i64 length, const uint8_t* b, int columns, \
                 int32_t* out, const Codes& codes) {                                                                    \
    codes_tile<is_same<Left, int8_t>>(rows, reinterpret_cast<const uint8_t* const*>(table), pitch, segments, length, b, \
                                      columns, out, codes);                                                             \
  }                                                                                                                     \
  } }

#define ONNXFUSE_WIDENED_TILE()                                                                                          \
  namespace onnxfuse { inline namespace ONNXFUSE_ISA {                                                                   \
  void sum_widened(int rows, const uint8_t* const* table, i64 pitch, i64 segments, i64 length, const uint8_t* b,         \
                   int columns, int32_t* out, const Codes& codes) {                                                      \
    widened_tile(rows, table, pitch, segments, length, b, columns, out, codes);                                          \
  }                                                                                                                      \
  } }

#define ONNXFUSE_CHANNELS_TILE()                                                                                         \
  namespace onnxfuse { inline namespace ONNXFUSE_ISA {                                                                   \
  void sum_channels(int rows, const uint8_t* const* table, i64 pitch, i64 segments, i64 length, i64 across,              \
                    const int8_t* b, int columns, int32_t* out, int left_zero, bool left_signed, bool slides) {          \
    channels_tile(rows, table, pitch, segments, length, across, b, columns, out, left_zero, left_signed, slides);        \
  }                                                                                                                      \
  } }
