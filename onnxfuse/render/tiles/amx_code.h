// The implementation of amx.h, included by one translation unit of a library. Four tile registers hold 32 x 32 sums, two hold
// rows, two a panel, so that each load serves two products; a product takes 16 cycles and a load 8. Everything is counted in
// bytes, since pairs of bfloat16 and quadruples of 8-bit integers have the same layout.
#pragma once
#include "amx.h"
#include "tile_code.h"
#if defined(ONNXFUSE_AMX_UNIT)
#include ONNXFUSE_AMX_UNIT  // a software model of the unit, for machines without AMX
#else
#include "amx_unit.h"
#endif

namespace onnxfuse { inline namespace ONNXFUSE_ISA {
namespace amx {
namespace {

static_assert(PANEL == 32 && LANES == 16, "a panel is two registers wide, a row of one a vector");

constexpr int MOST_ROWS = agreed::AMX_ROWS, HALF = agreed::AMX_SIDE;  // of a tile, and of a register
constexpr i64 PIECE = agreed::AMX_PIECE;                             // bytes of a row that one instruction takes
constexpr i64 PITCH = PANEL * 4;                     // row stride of a register in panels and in sums
constexpr i64 ROUND = HALF * PITCH;                  // bytes of a panel per instruction depth

enum { C0, C1, C2, C3, A0, A1, B0, B1 };

// Rows of the upper registers; the lower ones have the rest, if any.
ONNXFUSE_INLINE i64 upper_rows(i64 tall) { return tall > HALF ? (tall + 1) / 2 : tall; }

struct Pairs {
  template <int C, int A, int B> ONNXFUSE_INLINE void add() { tdpbf16ps<C, A, B>(); }
};
template <bool SignedA, bool SignedB> struct Quads {
  template <int C, int A, int B> ONNXFUSE_INLINE void add() {
    if constexpr (SignedA && SignedB) tdpbssd<C, A, B>();
    else if constexpr (SignedA) tdpbsud<C, A, B>();
    else if constexpr (SignedB) tdpbusd<C, A, B>();
    else tdpbuud<C, A, B>();
  }
};

// A register's worth of equidistant rows.
struct Piece {
  const char* from;
  i64 stride;
};

// `second` is the first row of the lower registers.
template <class Way, bool Two> ONNXFUSE_INLINE void multiply(Piece a, i64 second, const char* b) {
  load<A0>(a.from, a.stride);
  load<B0>(b, PITCH);
  Way::template add<C0, A0, B0>();
  load<B1>(b + PITCH / 2, PITCH);
  Way::template add<C1, A0, B1>();
  if constexpr (Two) {
    load<A1>(a.from + second * a.stride, a.stride);
    Way::template add<C2, A1, B0>();
    Way::template add<C3, A1, B1>();
  }
}

// Accumulates the products of `bytes` of each row; at(k, n) gives the piece from byte k on, n bytes of which are valid.
template <class Way, bool Two, class At>
ONNXFUSE_INLINE void add_products(i64 second, i64 bytes, const char* b, Ahead& ahead, At at) {
  i64 k = 0;
#pragma GCC unroll 1
  for (; k + PIECE <= bytes; k += PIECE, b += ROUND) {
#pragma GCC unroll 1
    for (i64 line = 0; line < HALF * ahead.step; line += 64) prefetch_l2(ahead.from + line);
    ahead.from += HALF * ahead.step;
    multiply<Way, Two>(at(k, PIECE), second, b);
  }
  if (k < bytes) {  // memory behind the panel may be unmapped
    alignas(64) char last[ROUND];
    const i64 there = (bytes - k + 3) / 4 * PITCH;
    memcpy(last, b, size_t(there));
    memset(last + there, 0, size_t(ROUND - there));
    multiply<Way, Two>(at(k, bytes - k), second, last);
  }
}

// Sums start at zero, at their previous values, or at one row for all; calls f(Two) with whether lower registers are used.
template <class F>
ONNXFUSE_INLINE void summed(i64 tall, i64 second, void* out, const void* start, i64 stride, F f) {
  char* to = static_cast<char*>(out);
  const char* from = static_cast<const char*>(start);
  if (from) {
    load<C0>(from, stride);
    load<C1>(from + PITCH / 2, stride);
  } else {
    zero<C0>();
    zero<C1>();
  }
  if (tall <= HALF) {
    f(Count<0>{});
  } else {
    if (from) {
      load<C2>(from + second * stride, stride);
      load<C3>(from + second * stride + PITCH / 2, stride);
    } else {
      zero<C2>();
      zero<C3>();
    }
    f(Count<1>{});
    store<C2>(to + second * PITCH, PITCH);
    store<C3>(to + second * PITCH + PITCH / 2, PITCH);
  }
  store<C0>(to, PITCH);
  store<C1>(to + PITCH / 2, PITCH);
}

// Rows with a pointer each, and equidistant rows with four pointers, as for tile_even.
struct Listed {
  const char* const* table;
  ONNXFUSE_INLINE const char* row(const Listed& r, i64 i) { return r.table[i]; }
};
struct Even {
  const char* const* table;
  i64 last;
  ONNXFUSE_INLINE const char* end(const Even& r) { return r.table[agreed::EVEN_ENTRIES - 1]; }
  ONNXFUSE_INLINE const char* row(const Even& r, i64 i) {
    return i == 0 ? r.table[0] : i == r.last ? end(r) : r.table[1] + (i - 1) * (r.table[2] - r.table[1]);
  }
};

// Copies of n bytes, followed by zeros, load under a mask, which sanitizers do not see.
// A model of the unit that is built without AVX-512 has plain copies and comparisons.
#if defined(__AVX512BW__)
ONNXFUSE_INLINE void copy_piece(char* to, const char* from, i64 n) {  // to a whole line
  _mm512_store_si512(to, _mm512_maskz_loadu_epi8(~0ull >> (PIECE - n), from));
}
ONNXFUSE_INLINE void copy_half(char* to, const char* from, i64 n) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_maskz_loadu_epi8(~0u >> (PIECE / 2 - n), from));
}
ONNXFUSE_INLINE void clear_half(char* to) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_setzero_si256()); }

// Whether rows are equidistant. All addresses of a vector are compared at once.
ONNXFUSE_INLINE bool equidistant(const char* const* at, i64 rows, i64 stride) {
  const __m512i far = _mm512_set1_epi64(8 * stride);
  __m512i wanted = _mm512_add_epi64(_mm512_set1_epi64(reinterpret_cast<i64>(at[0])),
                                    _mm512_mullo_epi64(_mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7), _mm512_set1_epi64(stride)));
  __mmask8 other = 0;
  for (i64 i = 0; i < rows; i += 8, wanted = _mm512_add_epi64(wanted, far)) {
    const __mmask8 there = (__mmask8)(rows - i < 8 ? (1 << (rows - i)) - 1 : 0xff);
    other |= _mm512_mask_cmpneq_epi64_mask(there, _mm512_maskz_loadu_epi64(there, at + i), wanted);
  }
  return !other;
}
#else
ONNXFUSE_INLINE void copy_piece(char* to, const char* from, i64 n) {
  memcpy(to, from, size_t(n));
  memset(to + n, 0, size_t(PIECE - n));
}
ONNXFUSE_INLINE void copy_half(char* to, const char* from, i64 n) {
  memcpy(to, from, size_t(n));
  memset(to + n, 0, size_t(PIECE / 2 - n));
}
ONNXFUSE_INLINE void clear_half(char* to) { memset(to, 0, PIECE / 2); }
ONNXFUSE_INLINE bool equidistant(const char* const* at, i64 rows, i64 stride) {
  bool all = true;
  for (i64 i = 1; i < rows; i++) all &= reinterpret_cast<i64>(at[i]) == reinterpret_cast<i64>(at[0]) + i * stride;
  return all;
}
#endif

// The base address of equidistant rows; null where they are not.
ONNXFUSE_INLINE Piece evenly(const Listed& r, i64 rows) {
  const char* const* at = r.table;
  const i64 stride = rows > 1 ? at[1] - at[0] : 0;
  return {equidistant(at, rows, stride) ? at[0] : nullptr, stride};
}
ONNXFUSE_INLINE Piece evenly(const Even& r, i64 rows) {
  const i64 stride = rows > 2 ? r.table[2] - r.table[1] : Even::end(r) - r.table[0];
  const bool all = Even::end(r) - r.table[0] == r.last * stride && (rows < 3 || r.table[1] - r.table[0] == stride);
  return {all ? r.table[0] : nullptr, stride};
}

// Copies a piece of rows that are not equidistant into a register's layout, while the previous products are in flight.
struct Room {
  alignas(64) char bytes[2][MOST_ROWS * PIECE];
};
template <class Rows> ONNXFUSE_INLINE Piece gathered(const Rows& r, i64 rows, i64 k, i64 n, char* to) {
  for (i64 i = 0; i < rows; i++, to += PIECE) copy_piece(to, Rows::row(r, i) + k, n);
  return {to - rows * PIECE, PIECE};
}

// Sums over segments of `bytes` of each row; of(s) gives the rows of a segment. With fewer rows than two registers hold, the
// lower register overlaps the upper one; with fewer than one holds, the rest is zero.
template <class Way, class Of>
ONNXFUSE_INLINE void sum_rows(i64 rows, i64 tall, i64 segments, i64 bytes, const void* panel, void* out, const void* start,
                              Ahead ahead, Of of) {
  const i64 upper = upper_rows(tall), second = rows < upper ? upper : rows - (tall - upper);
  Room room;
  if (rows < upper)
    for (auto& each : room.bytes) memset(each + rows * PIECE, 0, size_t((tall - rows) * PIECE));
  summed(tall, second, out, start, 0, [&](auto two) {
    const char* b = static_cast<const char*>(panel);
    for (i64 s = 0; s < segments; s++, b += (bytes + 3) / 4 * PITCH) {
      const auto held = of(s);
      const Piece lines = rows < upper ? Piece{nullptr, 0} : evenly(held, rows);
      add_products<Way, decltype(two)::value>(second, bytes, b, ahead, [&](i64 k, i64 n) {
        if (lines.from && n == PIECE) return Piece{lines.from + k, lines.stride};
        return gathered(held, rows, k, n, room.bytes[k / PIECE & 1]);
      });
    }
  });
}

// The same for short segments, which are put side by side first, each padded to whole groups as the panel is.
template <class Way>
ONNXFUSE_INLINE void sum_joined(i64 rows, i64 tall, i64 segments, i64 length, const void* panel, void* out, const void* start,
                                Ahead ahead, const char* const* table) {
  const i64 each = (length + 3) / 4 * 4, bytes = each * segments, stride = (bytes + PIECE - 1) / PIECE * PIECE;
  const i64 upper = upper_rows(tall), second = rows < upper ? upper : rows - (tall - upper);
  alignas(64) char room[MOST_ROWS * agreed::AMX_JOINED + PIECE / 2];  // what is stored last goes over the end of its row
  char* to = room;
  for (i64 i = 0; i < rows; i++, to += stride) {
    for (i64 at = bytes; at < stride; at += PIECE / 2) clear_half(to + at);
    for (i64 s = 0; s < segments; s++)
      copy_half(to + s * each, table[s * tall + i], length);
  }
  if (rows < tall) memset(to, 0, size_t((tall - rows) * stride));
  summed(tall, second, out, start, 0, [&](auto two) {
    add_products<Way, decltype(two)::value>(second, bytes, static_cast<const char*>(panel), ahead,
                                            [&](i64 k, i64) { return Piece{room + k, stride}; });
  });
}

template <class From>
ONNXFUSE_INLINE void pack(i64 rows, i64 tall, i64 skip, const From* const* from, i64 depth, bf16* out) {
  constexpr i64 STEPS = PIECE / sizeof(bf16);
  for (i64 k = 0; k < depth;) {
    const i64 begin = (skip + k) % STEPS, room = STEPS - begin, n = depth - k < room ? depth - k : room;
    bf16* to = out + (skip + k) / STEPS * STEPS * tall + begin;
    for (i64 i = 0; i < tall; i++, to += STEPS) {
      if (i < rows && n == STEPS) {
        onnxfuse::store(reinterpret_cast<float*>(to), Packed<bf16>::values(from[i] + k));
      } else {
        for (i64 j = 0; j < room; j++) put(to + j, i < rows && j < n ? get(from[i] + k + j) : 0.0f);
      }
    }
    k += n;
  }
}

}  // namespace
}  // namespace amx

void amx_begin(int tall) {
  using namespace amx;
  Shape shape{};
  shape.palette = 1;
  const int upper = (int)upper_rows(tall), lower = tall - upper;
  for (int t = 0; t < 8; t++) {
    const int rows = t == C0 || t == C1 || t == A0 ? upper : t == B0 || t == B1 ? HALF : lower;
    shape.rows[t] = (uint8_t)rows;
    shape.bytes[t] = rows ? 64 : 0;
  }
  configure(shape);
}

void amx_end() { amx::release(); }

void amx_packed(int tall, const bf16* a, i64 depth, const bf16* b, float* out, bool more, Ahead ahead) {
  using namespace amx;
  const char* from = reinterpret_cast<const char*>(a);
  summed(tall, upper_rows(tall), out, more ? out : nullptr, PITCH, [&](auto two) {
    add_products<Pairs, decltype(two)::value>(upper_rows(tall), depth * 2, reinterpret_cast<const char*>(b), ahead,
                                              [&](i64 k, i64) { return Piece{from + k * tall, PIECE}; });
  });
}

void amx_rows(int rows, const bf16* const* table, i64 tall, i64 segments, i64 length, const bf16* b, float* out, Ahead ahead) {
  using namespace amx;
  const char* const* at = reinterpret_cast<const char* const*>(table);
  sum_rows<Pairs>(rows, tall, segments, length * 2, b, out, nullptr, ahead, [&](i64 s) { return Listed{at + s * tall}; });
}

void amx_even(int rows, const bf16* const* table, i64 tall, i64 segments, i64 length, const bf16* b, float* out, Ahead ahead) {
  using namespace amx;
  const char* const* at = reinterpret_cast<const char* const*>(table);
  sum_rows<Pairs>(rows, tall, segments, length * 2, b, out, nullptr, ahead, [&](i64 s) { return Even{at + s * agreed::EVEN_ENTRIES, rows - 1}; });
}

void amx_sum_codes(int rows, const uint8_t* const* table, i64 tall, i64 segments, i64 length, const uint8_t* b, int columns,
                   int32_t* out, const Codes& codes, Ahead ahead) {
  using namespace amx;
  const char* const* at = reinterpret_cast<const char* const*>(table);
  const i64 groups = (length + 3) / 4 * segments;
  alignas(64) int32_t sums[PANEL], first[PANEL], zeros[PANEL];
  bool any = false;
  const int32_t* start = first;
  if (!codes.right_zeros && !codes.right_zero && !codes.left_zero) {
    start = nullptr;  // registers that are loaded wait until `first` has been stored
  } else if (memcpy(sums, b + codes_bytes(groups) - PITCH, sizeof sums); !codes.right_zeros && !codes.right_zero) {
    for (int j = 0; j < PANEL; j += LANES) onnxfuse::store(first + j, onnxfuse::load(sums + j) * -codes.left_zero);  // most weights
  } else {
    for (int j = 0; j < PANEL; j++) {
      zeros[j] = j < columns ? right_zero(codes, j) : 0;
      any |= zeros[j] != 0;
      first[j] = codes.left_zero * ((int32_t)(segments * length) * zeros[j] - sums[j]);
    }
  }
  auto sum = [&](auto way) {
    if (segments > 1 && 2 * length < PIECE && groups * 4 <= agreed::AMX_JOINED)
      return sum_joined<decltype(way)>(rows, tall, segments, length, b, out, start, ahead, at);
    sum_rows<decltype(way)>(rows, tall, segments, length, b, out, start, ahead, [&](i64 s) { return Listed{at + s * tall}; });
  };
  if (codes.left_signed && codes.right_signed) sum(Quads<true, true>{});
  else if (codes.left_signed) sum(Quads<true, false>{});
  else if (codes.right_signed) sum(Quads<false, true>{});
  else sum(Quads<false, false>{});
  for (int i = 0; any && i < rows; i++) {  // subtract the zero point of a column times the sum of the row
    int32_t all = 0;
    for (i64 s = 0; s < segments; s++) {
      const uint8_t* row = table[s * tall + i];
      for (i64 k = 0; k < length; k++) all += codes.left_signed ? (int8_t)row[k] : row[k];
    }
    for (int j = 0; j < PANEL; j++) out[i * PANEL + j] -= all * zeros[j];
  }
}

#define ONNXFUSE_AMX_PACK(From)                                                                   \
  void amx_pack(int rows, int tall, i64 skip, const From* const* from, i64 depth, bf16* out) {    \
    amx::pack(rows, tall, skip, from, depth, out);                                                \
  }
ONNXFUSE_AMX_PACK(float)
ONNXFUSE_AMX_PACK(f16)
ONNXFUSE_AMX_PACK(bf16)
#undef ONNXFUSE_AMX_PACK

} }  // namespace onnxfuse
