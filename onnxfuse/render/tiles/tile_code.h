// The implementation of tile.h. The translation units of tiles (render/tile_units.py) instantiate what the kernels of a
// library call, one for each, by a macro for each function and pair of types.
#pragma once
#include "tile.h"

namespace onnxfuse { inline namespace ONNXFUSE_ISA {
namespace {

// How elements of rows and of a panel are multiplied. An iteration of the k loop takes PARTS * WIDE values of k: from each
// row PARTS values of WIDE elements, one after the other, and from the panel PANEL * PARTS * WIDE elements.
template <class Left, class Right> struct Product {  // rows of float; panels are widened when they are loaded
  static constexpr int PARTS = 1, WIDE = 1;
  ONNXFUSE_INLINE vf panel(const Right* b, int) { return load(b); }
  ONNXFUSE_INLINE vf spread(const Left* a) { return splat<float>(*a); }
  ONNXFUSE_INLINE vf add(vf sum, vf a, vf b) { return sum + a * b; }
};

typedef vec<uint32_t> words;  // two bf16 each, the lower k in the lower half

ONNXFUSE_INLINE words pairs(const bf16* p) {  // aligned as bf16 are, to even addresses
  words w;
  memcpy(&w, p, sizeof w);
  return w;
}

template <> struct Product<float, bf16> {
  static constexpr int PARTS = 2, WIDE = 1;
  ONNXFUSE_INLINE vf panel(const bf16* b, int part) {
    const words w = pairs(b);
    return bits_as<vf>(part ? w & 0xffff0000u : w << 16);
  }
  ONNXFUSE_INLINE vf spread(const float* a) { return splat<float>(*a); }
  ONNXFUSE_INLINE vf add(vf sum, vf a, vf b) { return sum + a * b; }
};

#if defined(__AVX512BF16__)
template <> struct Product<bf16, bf16> {
  static constexpr int PARTS = 1, WIDE = 2;
  ONNXFUSE_INLINE words panel(const bf16* b, int) { return pairs(b); }
  ONNXFUSE_INLINE words spread(const bf16* a) {
    uint32_t pair;
    memcpy(&pair, a, sizeof pair);
    return splat<uint32_t>(pair);
  }
  ONNXFUSE_INLINE vf add(vf sum, words a, words b) {
    return (vf)_mm512_dpbf16_ps((__m512)sum, bits_as<__m512bh>(a), bits_as<__m512bh>(b));
  }
};
#endif

// Iterations ahead of which a panel is prefetched to L1: 8 come too late for lines that have just reached L2 (32: the same
// as 24, 64: 5 % slower).
constexpr int NEAR = 24;

// Iterations that are unrolled where a tile has few rows, so that counters and addresses are a quarter of its instructions:
// a core whose front end is shared with another hardware thread decodes no more of them (docs/decisions/0187).
constexpr int UNROLLED = TALL > 6 ? 1 : 2;

// `Wide` tiles have both vectors of a register tile's columns, others only the first: they are as fast as their loads, so
// that they fetch only what they read themselves. Both vectors may be one cache line, and then one prefetch is enough.
#define ONNXFUSE_ROUND(row_at)                                             \
  {                                                                        \
    constexpr bool two_lines = ACROSS * ROUND * sizeof(Right) > 64;        \
    prefetch_l1(b + NEAR * PANEL * ROUND);                                 \
    if (Wide && two_lines) prefetch_l1(b + (NEAR * PANEL + LANES) * ROUND); \
    if constexpr (Wide) {                                                  \
      if (turn == 0) prefetch_l2(next);                                    \
      if (two_lines) prefetch_l2(next + ahead.step / 2);                   \
      next += ahead.step;                                                  \
    }                                                                      \
    _Pragma("GCC unroll 2") for (int part = 0; part < P::PARTS; part++) {  \
      auto b0 = once(P::panel(b, part)), b1 = once(P::panel(b + LANES * ROUND, part)); \
      _Pragma("GCC unroll 16") for (int i = 0; i < Rows; i++) {            \
        auto one = P::spread(row_at);                                      \
        sum[i][0] = P::add(sum[i][0], one, b0);                            \
        if constexpr (Wide) sum[i][1] = P::add(sum[i][1], one, b1);        \
      }                                                                    \
    }                                                                      \
    b += PANEL * ROUND;                                                    \
  }

// `round`, which advances k by ROUND, until k is `end`. Unrolled rounds stay apart: gcc would load for several of them at
// once, and keep sums in memory for that. Together they prefetch one line, so that there are none where a tile has to
// prefetch more than that: a panel that is read once is waited for, not decoded.
#define ONNXFUSE_ROUNDS(end, round)                                            \
  i64 k = 0;                                                                   \
  if constexpr (UNROLLED > 1) {                                                \
    const i64 shared = ahead.step * UNROLLED <= 64 ? end / (UNROLLED * ROUND) : 0; \
    _Pragma("GCC unroll 1") for (i64 n = 0; n < shared; n++) {                 \
      _Pragma("GCC unroll 4") for (int turn = 0; turn < UNROLLED; turn++) {    \
        asm volatile("" ::: "memory");                                         \
        round                                                                  \
      }                                                                        \
    }                                                                          \
  }                                                                            \
  {                                                                            \
    constexpr int turn = 0;                                                    \
    _Pragma("GCC unroll 1") while (k < end) round                              \
  }

template <bool Wide, int Rows> ONNXFUSE_INLINE void finish(vf (&sum)[Rows][2], float* out) {
#pragma GCC unroll 16
  for (int i = 0; i < Rows; i++) {
    store(out + i * PANEL, sum[i][0]);
    if constexpr (Wide) store(out + i * PANEL + LANES, sum[i][1]);
  }
}

// Whether all rows of a segment are padding: its products are zeros. Mostly the first row tells that they are not.
template <int Entries, class Left> ONNXFUSE_INLINE bool is_padding(const Left* const* table) {
  const void* const zeros = ZEROS;
#pragma GCC unroll 1
  for (int i = 0; i < Entries; i++)
    if (table[i] != zeros) return false;
  return true;
}

// Chains of sums of one row, whose sums alone would wait for each other, and iterations ahead of which its panels are
// prefetched: they are a stream from memory, which is read at the pace at which it comes.
constexpr int CHAINS = 4, STREAM = 64;

template <bool Wide, class P, class Left, class Right>
ONNXFUSE_INLINE void one_row(const Left* row, i64 length, const Right* b, vf (&sum)[1][2]) {
  constexpr int ROUND = P::PARTS * P::WIDE;
  vf chain[CHAINS][2] = {};
  auto step = [&](int u) HOLE {
#pragma GCC unroll 2
    for (int part = 0; part < P::PARTS; part++) {
      auto one = P::spread(row + part * P::WIDE);
      chain[u][0] = P::add(chain[u][0], one, P::panel(b, part));
      if constexpr (Wide) chain[u][1] = P::add(chain[u][1], one, P::panel(b + LANES * ROUND, part));
    }
    row += ROUND;
    b += PANEL * ROUND;
  };
  i64 k = 0;
#pragma GCC unroll 1
  for (; k + CHAINS * ROUND <= length; k += CHAINS * ROUND) {
#pragma GCC unroll 4
    for (int u = 0; u < CHAINS; u++) {
      prefetch_l1(b + STREAM * PANEL * ROUND);
      if (Wide && PANEL * ROUND * sizeof(Right) > 64) prefetch_l1(b + (STREAM * PANEL + LANES) * ROUND);
      step(u);
    }
  }
#pragma GCC unroll 1
  for (; k < length; k += ROUND) step(0);
#pragma GCC unroll 2
  for (int v = 0; v < 2; v++) sum[0][v] += (chain[0][v] + chain[1][v]) + (chain[2][v] + chain[3][v]);
}

// Inner rows are addressed relative to every third one, to save address registers. The first and the last have pointers of
// their own, since at the edges of an image they may be padding.
template <int Rows, bool Wide, class Left, class Right>
void even_tile(const Left* const* table, i64 segments, i64 length, const Right* b, float* out, Ahead ahead) {
  typedef Product<Left, Right> P;
  constexpr int ROUND = P::PARTS * P::WIDE, LAST = Rows - 1, BASES = Rows > 2 ? Rows / 3 : 0;
  vf sum[Rows][2];
#pragma GCC unroll 16
  for (int i = 0; i < Rows; i++) sum[i][0] = sum[i][1] = vf{};
  const char* next = ahead.from ? ahead.from : reinterpret_cast<const char*>(b);  // a prefetch of an invalid address would walk page tables
  for (i64 s = 0; s < segments; s++, table += agreed::EVEN_ENTRIES) {
    if (is_padding<agreed::EVEN_ENTRIES>(table)) {
      b += length * PANEL;
      continue;
    }
    const Left *first = table[0], *last = table[agreed::EVEN_ENTRIES - 1], *p[BASES + 1];
    if constexpr (Rows == 1) {
      one_row<Wide, P>(first, length, b, sum);
      b += (length + ROUND - 1) / ROUND * (PANEL * ROUND);
      continue;
    }
    const i64 stride = table[2] - table[1];
#pragma GCC unroll 16
    for (int i = 0; i < BASES; i++) p[i] = table[1] + 3 * i * stride;
    ONNXFUSE_ROUNDS(length, {
      ONNXFUSE_ROUND((i == 0 ? first : i == LAST ? last : p[(i - 1) / 3] + ((i - 1) % 3) * stride) + part * P::WIDE)
      first += ROUND;
      last += ROUND;
      _Pragma("GCC unroll 16") for (int i = 0; i < BASES; i++) p[i] += ROUND;
      k += ROUND;
    })
  }
  finish<Wide>(sum, out);
}

template <int Rows, bool Wide, class Left, class Right>
void rows_tile(const Left* const* table, i64 pitch, i64 segments, i64 length, const Right* b, float* out, Ahead ahead) {
  typedef Product<Left, Right> P;
  constexpr int ROUND = P::PARTS * P::WIDE;
  vf sum[Rows][2];
#pragma GCC unroll 16
  for (int i = 0; i < Rows; i++) sum[i][0] = sum[i][1] = vf{};
  const char* next = ahead.from ? ahead.from : reinterpret_cast<const char*>(b);
  const Left* held[UNROLLED > 1 ? Rows : 1];  // few pointers stay in registers, which are not loaded again in each round
  for (i64 s = 0; s < segments; s++, table += pitch) {
    if (is_padding<Rows>(table)) {
      b += length * PANEL;
      continue;
    }
    if constexpr (Rows == 1) {
      one_row<Wide, P>(table[0], length, b, sum);
      b += (length + ROUND - 1) / ROUND * (PANEL * ROUND);
      continue;
    }
    if constexpr (UNROLLED > 1) {
#pragma GCC unroll 16
      for (int i = 0; i < Rows; i++) held[i] = table[i];
    }
    ONNXFUSE_ROUNDS(length, {
      ONNXFUSE_ROUND((UNROLLED > 1 ? held[i] : table[i]) + k + part * P::WIDE)
      k += ROUND;
    })
  }
  finish<Wide>(sum, out);
}

template <int Rows, bool Wide, class Left, class Right>
void packed_tile(const Left* a, i64 depth, const Right* b, float* out, bool more, Ahead ahead) {
  typedef Product<Left, Right> P;
  constexpr int ROUND = P::PARTS * P::WIDE;
  vf sum[Rows][2];
#pragma GCC unroll 16
  for (int i = 0; i < Rows; i++) {
    sum[i][0] = more ? load(out + i * PANEL) : vf{};
    sum[i][1] = Wide && more ? load(out + i * PANEL + LANES) : vf{};
  }
  if constexpr (Rows == 1) {
    one_row<Wide, P>(a, depth, b, sum);
    return finish<Wide>(sum, out);
  }
  const char* next = ahead.from ? ahead.from : reinterpret_cast<const char*>(b);
  ONNXFUSE_ROUNDS(depth, {
    ONNXFUSE_ROUND(a + (part * Rows + i) * P::WIDE)
    a += Rows * ROUND;
    k += ROUND;
  })
  finish<Wide>(sum, out);
}

// Loads and stores of a panel fill gaps that products leave: copied before, it takes up to a fifth of a tile of few rows.
template <int Rows>
void filled_tile(const float* a, i64 depth, const float* const* from, int j, float* b, float* out, bool more) {
  vf sum[Rows][2];
#pragma GCC unroll 16
  for (int i = 0; i < Rows; i++) {
    sum[i][0] = more ? load(out + i * PANEL) : vf{};
    sum[i][1] = more ? load(out + i * PANEL + LANES) : vf{};
  }
#pragma GCC unroll 1
  for (i64 k = 0; k < depth; k++) {
    const vf b0 = once(load(from[k] + j)), b1 = once(load(from[k] + j + LANES));
    store(b, b0);
    store(b + LANES, b1);
#pragma GCC unroll 16
    for (int i = 0; i < Rows; i++) {
      const vf one = splat<float>(a[i]);
      sum[i][0] += one * b0;
      sum[i][1] += one * b1;
    }
    a += Rows;
    b += PANEL;
  }
  finish<true>(sum, out);
}

// LANES values of a row from k on: elements, or words of two bf16.
template <class To> struct Packed {
  typedef To Word;
  static constexpr int WIDE = 1;
  template <class From> ONNXFUSE_INLINE vf values(const From* p) { return load(p); }
};
template <> struct Packed<bf16> {
  typedef float Word;
  static constexpr int WIDE = 2;
  ONNXFUSE_INLINE vf values(const bf16* p) { return bits_as<vf>(pairs(p)); }
  template <class From> ONNXFUSE_INLINE vf values(const From* p) {
#if defined(__AVX512BF16__)
    return bits_as<vf>(_mm512_cvtne2ps_pbh((__m512)load(p + LANES), (__m512)load(p)));
#endif
    bf16 both[2 * LANES];
    store(both, load(p));
    store(both + LANES, load(p + LANES));
    return values(both);
  }
};

// Steps, and rows, from which on what is behind the last LANES is turned as a block too, not element by element.
constexpr int TURNED = 4;

// Whether blocks without a row of zeros have code of their own: without AVX-512 they are most of them, and looking at each
// row takes as long as transposing a block.
constexpr bool NO_ZEROS = LANES < 16;

// to[k, i] = from[i][k] for i < here and k < steps, 0 for i >= alive; `Whole` blocks have LANES steps, `Alive` ones LANES rows.
template <bool Whole, bool Alive, class To, class From>
ONNXFUSE_INLINE void turn_block(int alive, int here, int steps, i64 pitch, const From* const* from, i64 k,
                                typename Packed<To>::Word* to) {
  vf block[LANES];
#pragma GCC unroll 16
  for (int i = 0; i < LANES; i++) {
    if (!Alive && i >= alive) block[i] = vf{};
    else if constexpr (Whole) block[i] = Packed<To>::values(from[i] + k);
    else block[i] = load_n(from[i] + k, steps);
  }
  transpose(block);
  if (Alive || here == LANES) {
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++)
      if (Whole || i < steps) store(to + i * pitch, block[i]);
  } else {
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++)
      if (Whole || i < steps) store_n(to + i * pitch, block[i], here);
  }
}

template <class From, class To>
void packed_rows(int rows, int wide, i64 pitch, const From* const* from, i64 depth, To* out) {
  constexpr int WIDE = Packed<To>::WIDE;
  i64 done = 0;
  if constexpr (NO_ZEROS)  // what is far apart is stored line by line
    if (pitch > wide && rows > LANES)
      for (; done + LANES * WIDE <= depth; done += LANES * WIDE)
        for (int first = 0; first + LANES <= rows; first += LANES)
          turn_block<true, true, To>(LANES, LANES, LANES, pitch, from + first, done,
                                     reinterpret_cast<typename Packed<To>::Word*>(out + done * pitch + first * WIDE));
  for (int first = 0; first < wide; first += LANES) {
    const int here = wide - first < LANES ? wide - first : LANES;
    const int alive = rows - first < here ? rows - first : here;
    const auto to = [&](i64 k) { return reinterpret_cast<typename Packed<To>::Word*>(out + k * pitch + first * WIDE); };
    i64 k = alive == LANES ? done : 0;
    if constexpr (NO_ZEROS) {
      for (; alive == LANES && k + LANES * WIDE <= depth; k += LANES * WIDE)
        turn_block<true, true, To>(LANES, LANES, LANES, pitch, from + first, k, to(k));
      if (WIDE == 1 && alive == LANES && depth > LANES && depth - k >= TURNED) {  // with steps before them, again
        turn_block<true, true, To>(LANES, LANES, LANES, pitch, from + first, depth - LANES, to(depth - LANES));
        k = depth;
      }
    }
    for (; here >= TURNED && k + LANES * WIDE <= depth; k += LANES * WIDE)
      turn_block<true, false, To>(alive, here, LANES, pitch, from + first, k, to(k));
    if constexpr (WIDE == 1)
      if (here >= TURNED && depth - k >= TURNED) {
        turn_block<false, false, To>(alive, here, (int)(depth - k), pitch, from + first, k, to(k));
        k = depth;
      }
    for (; k < depth; k++)
      for (int i = 0; i < here; i++)
        put(out + (k / WIDE * pitch + first + i) * WIDE + k % WIDE, i < alive ? get(from[first + i] + k) : 0.0f);
  }
}

}  // namespace
} }  // namespace onnxfuse

#define ONNXFUSE_ROWS_TILE(Left, Right)                                                                              \
  namespace onnxfuse { inline namespace ONNXFUSE_ISA {                                                               \
  void tile_rows(int rows, const Left* const* table, i64 pitch, i64 segments, i64 length, const Right* b, float* out, \
                 Ahead ahead) {                                                                                      \
    with_rows<TALL>(rows, [&](auto n) {                                                                              \
      over_panel(segments * length / STEPS<Right>, ahead, [&](int j, Ahead next) {                                   \
        rows_tile<decltype(n)::value, true>(table, pitch, segments, length, b + j * STEPS<Right>, out + j, next);          \
      });                                                                                                            \
    });                                                                                                              \
  }                                                                                                                  \
  } }

#define ONNXFUSE_EVEN_TILE(Left, Right)                                                                              \
  namespace onnxfuse { inline namespace ONNXFUSE_ISA {                                                               \
  void tile_even(int rows, const Left* const* table, i64 segments, i64 length, const Right* b, float* out, Ahead ahead) { \
    with_rows<TALL>(rows, [&](auto n) {                                                                              \
      over_panel(segments * length / STEPS<Right>, ahead, [&](int j, Ahead next) {                                   \
        even_tile<decltype(n)::value, true>(table, segments, length, b + j * STEPS<Right>, out + j, next);                 \
      });                                                                                                            \
    });                                                                                                              \
  }                                                                                                                  \
  } }

#define ONNXFUSE_PACKED_TILE(Left, Right)                                                                            \
  namespace onnxfuse { inline namespace ONNXFUSE_ISA {                                                               \
  void tile_packed(int rows, const Left* a, i64 depth, const Right* b, float* out, bool more, Ahead ahead) {         \
    with_rows<TALL>(rows, [&](auto n) {                                                                              \
      over_panel(depth / STEPS<Right>, ahead, [&](int j, Ahead next) {                                               \
        packed_tile<decltype(n)::value, true>(a, depth, b + j * STEPS<Right>, out + j, more, next);                        \
      });                                                                                                            \
    });                                                                                                              \
  }                                                                                                                  \
  } }

#define ONNXFUSE_FILLED_TILE(Left, Right)                                                                             \
  namespace onnxfuse { inline namespace ONNXFUSE_ISA {                                                               \
  void tile_filled(int rows, const Left* a, i64 depth, const Left* const* from, Right* b, float* out, bool more) {   \
    with_rows<TALL>(rows, [&](auto n) {                                                                              \
      over_panel(depth, Ahead{nullptr, 0}, [&](int j, Ahead) {                                                       \
        filled_tile<decltype(n)::value>(a, depth, from, j, b + j, out + j, more);                                    \
      });                                                                                                            \
    });                                                                                                              \
  }                                                                                                                  \
  } }

// The same for the first columns of a panel: a register tile whose columns fit one vector is half as wide.
#define ONNXFUSE_SOME_ROWS_TILE(Left, Right)                                                                          \
  namespace onnxfuse { inline namespace ONNXFUSE_ISA {                                                                \
  void some_rows(int rows, const Left* const* table, i64 pitch, i64 segments, i64 length, const Right* b, float* out, \
                 Ahead ahead, int columns) {                                                                          \
    with_rows<TALL>(rows, [&](auto n) {                                                                               \
      over_some(segments * length / STEPS<Right>, ahead, columns, [&](auto wide, int j, Ahead next) {                 \
        rows_tile<decltype(n)::value, decltype(wide)::value != 0>(table, pitch, segments, length, b + j * STEPS<Right>,    \
                                                             out + j, next);                                          \
      });                                                                                                             \
    });                                                                                                               \
  }                                                                                                                   \
  } }

#define ONNXFUSE_SOME_EVEN_TILE(Left, Right)                                                                          \
  namespace onnxfuse { inline namespace ONNXFUSE_ISA {                                                                \
  void some_even(int rows, const Left* const* table, i64 segments, i64 length, const Right* b, float* out, Ahead ahead, \
                 int columns) {                                                                                       \
    with_rows<TALL>(rows, [&](auto n) {                                                                               \
      over_some(segments * length / STEPS<Right>, ahead, columns, [&](auto wide, int j, Ahead next) {                 \
        even_tile<decltype(n)::value, decltype(wide)::value != 0>(table, segments, length, b + j * STEPS<Right>, out + j,  \
                                                             next);                                                   \
      });                                                                                                             \
    });                                                                                                               \
  }                                                                                                                   \
  } }

#define ONNXFUSE_SOME_PACKED_TILE(Left, Right)                                                                        \
  namespace onnxfuse { inline namespace ONNXFUSE_ISA {                                                                \
  void some_packed(int rows, const Left* a, i64 depth, const Right* b, float* out, bool more, Ahead ahead,            \
                   int columns) {                                                                                     \
    with_rows<TALL>(rows, [&](auto n) {                                                                               \
      over_some(depth / STEPS<Right>, ahead, columns, [&](auto wide, int j, Ahead next) {                             \
        packed_tile<decltype(n)::value, decltype(wide)::value != 0>(a, depth, b + j * STEPS<Right>, out + j, more, next);  \
      });                                                                                                             \
    });                                                                                                               \
  }                                                                                                                   \
  } }

#define ONNXFUSE_PACKS(From, To)                                                               \
  namespace onnxfuse { inline namespace ONNXFUSE_ISA {                                         \
  void pack_rows(int rows, int wide, i64 pitch, const From* const* from, i64 depth, To* out) { \
    packed_rows(rows, wide, pitch, from, depth, out);                                          \
  }                                                                                            \
  } }
