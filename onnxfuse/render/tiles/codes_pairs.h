// The tile of codes.h for AVX2, which has no dot products of bytes: rows are widened to 16 bits in chunks, weights as they are
// loaded, and pairs of k multiplied and added exactly. Of each four k, the first and third are a pair (`even`), and the others.
#pragma once
#include "codes.h"
#if ONNXFUSE_AVX2 && !ONNXFUSE_AVX512

namespace onnxfuse { inline namespace ONNXFUSE_ISA {
namespace {

constexpr int CHUNK = 128;  // groups of four k that are widened at a time: 6 KB of rows and 8 KB of a panel, in L1

struct WideRows {
  alignas(64) int32_t even[TALL][CHUNK], odd[TALL][CHUNK];
};

typedef int16_t shorts __attribute__((vector_size(sizeof(vi)), may_alias));
typedef uint16_t unsigned_shorts __attribute__((vector_size(sizeof(vi)), may_alias));

template <bool Signed> ONNXFUSE_INLINE vi even_of(vi v) {
  return Signed ? (vi)((shorts)v << 8 >> 8) : v & 0x00ff00ff;
}
template <bool Signed> ONNXFUSE_INLINE vi odd_of(vi v) { return Signed ? (vi)((shorts)v >> 8) : (vi)((unsigned_shorts)v >> 8); }

// Groups of a row that end at `bytes`, or earlier: bytes behind that are zeros.
template <bool Signed> ONNXFUSE_INLINE void widen(const uint8_t* from, i64 bytes, int32_t* even, int32_t* odd) {
  const i64 whole = bytes / 4;
  const auto some = [&](i64 g) {
    const vi v = (vi)_mm256_loadu_si256((const __m256i_u*)(from + 4 * g));
    store(even + g, even_of<Signed>(v));
    store(odd + g, odd_of<Signed>(v));
  };
  const auto few = [&](i64 g) {
    const vi v = (vi)_mm256_castsi128_si256(_mm_loadu_si128((const __m128i_u*)(from + 4 * g)));
    _mm_storeu_si128((__m128i_u*)(even + g), _mm256_castsi256_si128((__m256i)even_of<Signed>(v)));
    _mm_storeu_si128((__m128i_u*)(odd + g), _mm256_castsi256_si128((__m256i)odd_of<Signed>(v)));
  };
  const auto one = [&](i64 g, i64 n) {
    uint8_t v[4]{};
    memcpy(v, from + 4 * g, n);
    const auto pair = [&](int k) {
      const auto at = [&](int i) { return (uint32_t)(uint16_t)(Signed ? (int8_t)v[i] : v[i]); };
      return (int32_t)(at(k) | at(k + 2) << 16);
    };
    even[g] = pair(0);
    odd[g] = pair(1);
  };
  if (whole >= LANES) {
#pragma GCC unroll 1
    for (i64 g = 0; g + LANES <= whole; g += LANES) some(g);
    if (whole % LANES) some(whole - LANES);
  } else if (whole >= LANES / 2) {
    few(0);
    if (whole > LANES / 2) few(whole - LANES / 2);
  } else {
#pragma GCC unroll 1
    for (i64 g = 0; g < whole; g++) one(g, 4);
  }
  if (bytes % 4) one(whole, bytes % 4);
}

// The order in which sums are written is the one of their instructions: a compiler that multiplies ahead runs out of
// registers, of which sums, weights, a row and a product take all.
ONNXFUSE_INLINE void in_order(vi& v) { asm volatile("" : "+x"(v)); }

template <int Rows, int Wide, bool Signed>
__attribute__((noinline)) void add_pairs(const WideRows& rows, i64 groups, const uint8_t* b, int32_t* out) {
  vi sum[Rows][Wide];
#pragma GCC unroll 16
  for (int i = 0; i < Rows; i++)
#pragma GCC unroll 2
    for (int v = 0; v < Wide; v++) sum[i][v] = load(out + i * PANEL + v * LANES);
  const auto add = [&](const int32_t (&row)[TALL][CHUNK], i64 g, vi (&right)[Wide]) __attribute__((always_inline)) {
#pragma GCC unroll 16
    for (int i = 0; i < Rows; i++) {
      vi one = splat<int32_t>(row[i][g]);
      in_order(one);
#pragma GCC unroll 2
      for (int v = 0; v < Wide; v++) {
        sum[i][v] += (vi)_mm256_madd_epi16((__m256i)one, (__m256i)right[v]);
        in_order(sum[i][v]);
      }
    }
  };
#pragma GCC unroll 1
  for (i64 g = 0; g < groups; g++, b += PANEL * 4) {
    vi right[Wide];
#pragma GCC unroll 2
    for (int v = 0; v < Wide; v++) {
      right[v] = even_of<Signed>(load(reinterpret_cast<const int32_t*>(b) + v * LANES));
      prefetch_l1(b + (NEAR * PANEL + v * LANES) * 4);
    }
    add(rows.even, g, right);
#pragma GCC unroll 2
    for (int v = 0; v < Wide; v++) right[v] = odd_of<Signed>(load(reinterpret_cast<const int32_t*>(b) + v * LANES));
    add(rows.odd, g, right);
  }
#pragma GCC unroll 16
  for (int i = 0; i < Rows; i++)
#pragma GCC unroll 2
    for (int v = 0; v < Wide; v++) store(out + i * PANEL + v * LANES, sum[i][v]);
}

// sum_codes for `Rows` rows, of codes with these signs.
template <int Rows, bool Left, bool Right>
void tile_pairs(const uint8_t* const* table, i64 pitch, i64 segments, i64 length, const uint8_t* b, int columns, int32_t* out,
                const Codes& codes) {
  const i64 groups = (length + 3) / 4, steps = segments * length;
  const int32_t* sums = reinterpret_cast<const int32_t*>(b + codes_bytes(segments * groups) - PANEL * 4);
  const bool zeros = codes.right_zeros || codes.right_zero;
  alignas(64) int32_t zero[PANEL], total[TALL]{};
  for (int j = 0; zeros && j < PANEL; j++) zero[j] = j < columns ? right_zero(codes, j) : 0;
#pragma GCC unroll 2
  for (int j = 0; j < PANEL; j += LANES) {
    const vi all = zeros ? load(sums + j) - load(zero + j) * (int32_t)steps : load(sums + j);
    const vi first = all * -codes.left_zero;
#pragma GCC unroll 16
    for (int i = 0; i < Rows; i++) store(out + i * PANEL + j, first);
  }
  WideRows rows;
  i64 filled = 0;
  const auto flush = [&] {
    for (int at = 0; at < PANEL && at < columns; at += ACROSS) {
      if (columns - at > LANES) add_pairs<Rows, 2, Right>(rows, filled, b + at * 4, out + at);
      else add_pairs<Rows, 1, Right>(rows, filled, b + at * 4, out + at);
    }
    for (int i = 0; zeros && i < Rows; i++)
      for (i64 g = 0; g < filled; g++)
        total[i] += (int16_t)rows.even[i][g] + (rows.even[i][g] >> 16) + (int16_t)rows.odd[i][g] + (rows.odd[i][g] >> 16);
    b += filled * PANEL * 4;
    filled = 0;
  };
#pragma GCC unroll 1
  for (i64 s = 0; s < segments; s++, table += pitch) {
#pragma GCC unroll 1
    for (i64 g = 0; g < groups;) {
      const i64 here = groups - g < CHUNK - filled ? groups - g : CHUNK - filled;
      const i64 bytes = g + here == groups ? length - 4 * g : 4 * here;
#pragma GCC unroll 1
      for (int i = 0; i < Rows; i++) widen<Left>(table[i] + 4 * g, bytes, rows.even[i] + filled, rows.odd[i] + filled);
      g += here;
      filled += here;
      if (filled == CHUNK) flush();
    }
  }
  if (filled) flush();
  for (int i = 0; zeros && i < Rows; i++)
    for (int j = 0; j < PANEL; j += LANES) store(out + i * PANEL + j, load(out + i * PANEL + j) - load(zero + j) * total[i]);
}

}  // namespace
} }  // namespace onnxfuse
#endif
