// The implementation of codes.h, included by one translation unit of a library. Dot-product instructions multiply unsigned
// by signed bytes, so operands of the other signedness have their highest bit flipped, which shifts them and their zero
// points by 128.
#pragma once
#include "codes.h"
#if ONNXFUSE_AVX512
#include <cpuid.h>
#endif

namespace onnxfuse { inline namespace ONNXFUSE_ISA {
namespace {

constexpr int MOVED = 128;
constexpr int32_t TURN = (int32_t)0x80808080u;

// Four bytes from p on; fewer are zero-extended.
ONNXFUSE_INLINE int32_t quad(const uint8_t* p) {
  int32_t v;
  memcpy(&v, p, sizeof v);
  return v;
}
ONNXFUSE_INLINE int32_t quad_n(const uint8_t* p, i64 n) {
  int32_t v = p[0];
  for (i64 i = 1; i < n; i++) v |= p[i] << 8 * i;
  return v;
}

// The first n < 4 bytes from p on in all lanes, zero-extended; with `behind`, there are four bytes before p + n.
ONNXFUSE_INLINE vi last_of(const uint8_t* p, i64 n, bool behind) {
  if (!behind) return splat<int32_t>(quad_n(p, n));
  return (vi)((vec<uint32_t>)splat<int32_t>(quad(p + n - 4)) >> (uint32_t)(8 * (4 - n)));
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

#define ONNXFUSE_CODES_TILE tile_widened
#define ONNXFUSE_CODES_PRODUCTS products_widened
#define ONNXFUSE_CODES_FOR
#include "codes_body.h"
#if ONNXFUSE_AVX512
#define ONNXFUSE_CODES_TILE tile_vnni
#define ONNXFUSE_CODES_PRODUCTS products_vnni
#define ONNXFUSE_CODES_FOR __attribute__((target("avx512vnni")))
#include "codes_body.h"
#endif

namespace onnxfuse { inline namespace ONNXFUSE_ISA {

void sum_codes(int rows, const uint8_t* const* table, i64 pitch, i64 segments, i64 length, const uint8_t* b, int columns,
               int32_t* out, const Codes& codes, Ahead ahead) {
  with_rows<TALL>(rows, [&](auto n) {
    constexpr int Rows = decltype(n)::value;
    over_panel(segments * length, ahead, [&](int at, Ahead next) {
#if ONNXFUSE_AVX512
      if (has_vnni()) {
        if (codes.left_signed) return tile_vnni<Rows, true, 2>(table, pitch, segments, length, b, columns, at, out, codes, next);
        if (columns - at > LANES) return tile_vnni<Rows, false, 2>(table, pitch, segments, length, b, columns, at, out, codes, next);
        return tile_vnni<Rows, false, 1>(table, pitch, segments, length, b, columns, at, out, codes, next);
      }
#endif
      tile_widened<Rows, true, 2>(table, pitch, segments, length, b, columns, at, out, codes, next);
    });
  });
}

} }  // namespace onnxfuse
