// The register tile of a contraction. Each function is an object of its own, which all kernels of a library share and the
// cache keeps for other libraries.
//
// A tile writes rows x PANEL sums to a small buffer that stays in L1; the epilogue is the caller's next loop. There is one
// for each pair of element types of rows and panels: a row of ir/products.py.
#pragma once
#include "host.h"
#include "vec.h"

namespace onnxfuse { inline namespace ONNXFUSE_ISA {

constexpr int TALL = agreed::tile_rows(LANES);         // rows of a tile at most
constexpr int ACROSS = agreed::TILE_VECTORS * LANES;  // columns of a register tile

// Columns of a packed weight panel: those of one register tile, or of several where machines with wider vectors share the
// packed weights.
#if defined(ONNXFUSE_PANEL)
constexpr int PANEL = ONNXFUSE_PANEL;
#else
constexpr int PANEL = ACROSS;
#endif
static_assert(PANEL % ACROSS == 0, "a panel is whole register tiles");
constexpr int MOST = PANEL > TALL ? PANEL : TALL;  // maximum rows per pack_rows call

// Consecutive k that are interleaved in a panel of T: b[(k / STEPS * PANEL + j) * STEPS + k % STEPS].
// Not by template specializations, which clang would emit into each object.
template <class T> constexpr int STEPS =
    is_same<T, bf16> ? agreed::PAIR : is_same<T, int8_t> || is_same<T, uint8_t> ? agreed::QUAD : 1;

// Zeros that row pointers into the padding of a convolution refer to.
extern const float ZEROS[agreed::ZERO_ROW];

// Software prefetch of the next panel to L2: its bytes are spread over the k loop of this tile.
struct Ahead {
  const char* from;
  i64 step;
};

// tile_rows: out[i * PANEL + j] = sum over segments s and steps k < length of table[s * pitch + i][k] * b[s * length + k, j].
//
// tile_even: the same where all rows but the first and the last are equidistant: a segment has four entries in the table,
// those of the first three rows and of the last.
//
// tile_packed: out[i * PANEL + j] = sum over k < depth of a[k, i] * b[k, j], accumulated into `out` with `more`. a is the
// output of pack_rows.
//
// tile_filled: tile_packed with the rows of a panel behind pointers, `from`, which are stored to b while they are multiplied.
//
// some_rows, some_even, some_packed: the same for the first `columns` of a panel; sums of the columns behind them, up to a
// multiple of the lanes, are undefined.
#define ONNXFUSE_TILE(Left, Right)                                                                                     \
  void tile_rows(int rows, const Left* const* table, i64 pitch, i64 segments, i64 length, const Right* b, float* out, \
                 Ahead ahead);                                                                                        \
  void tile_even(int rows, const Left* const* table, i64 segments, i64 length, const Right* b, float* out, Ahead ahead); \
  void tile_packed(int rows, const Left* a, i64 depth, const Right* b, float* out, bool more, Ahead ahead);           \
  void some_rows(int rows, const Left* const* table, i64 pitch, i64 segments, i64 length, const Right* b, float* out, \
                 Ahead ahead, int columns);                                                                           \
  void some_even(int rows, const Left* const* table, i64 segments, i64 length, const Right* b, float* out, Ahead ahead, \
                 int columns);                                                                                        \
  void some_packed(int rows, const Left* a, i64 depth, const Right* b, float* out, bool more, Ahead ahead, int columns);
ONNXFUSE_TILE(float, float)
ONNXFUSE_TILE(float, f16)
ONNXFUSE_TILE(float, bf16)
ONNXFUSE_TILE(bf16, bf16)
#undef ONNXFUSE_TILE
void tile_filled(int rows, const float* a, i64 depth, const float* const* from, float* b, float* out, bool more);

// Calls fn(Count<rows>) for 0 < rows <= Most: rows are a compile-time constant.
template <int N> struct Count { static constexpr int value = N; };
template <int Most, class F> ONNXFUSE_INLINE void with_rows(int rows, F fn) {
  if constexpr (Most > 0) {
    if (rows == Most) fn(Count<Most>{});
    else with_rows<Most - 1>(rows, fn);
  }
}

// Calls fn(first column, prefetch) for each register tile of a panel; its k loop has `rounds` iterations.
template <class F> ONNXFUSE_INLINE void over_panel(i64 rounds, Ahead ahead, F fn) {
#pragma GCC unroll 1
  for (int j = 0; j < PANEL; j += ACROSS) {
    fn(j, ahead);
    if (ahead.from) ahead.from += rounds * ahead.step;
  }
}

// Calls fn(whether both vectors are needed, first column, prefetch) for the register tiles with one of the first `columns`.
template <class F> ONNXFUSE_INLINE void over_some(i64 rounds, Ahead ahead, int columns, F fn) {
#pragma GCC unroll 1
  for (int j = 0; j < PANEL && j < columns; j += ACROSS) {
    if (columns - j > LANES) fn(Count<true>{}, j, ahead);
    else fn(Count<false>{}, j, ahead);
    if (ahead.from) ahead.from += rounds * ahead.step;
  }
}

// out[k, i] = from[i][k] for i < rows <= MOST and k < depth; 0 for rows <= i < wide <= pitch. Rows are rounded to what
// they are packed as; [k, i] is k * pitch + i, pairs of steps side by side for bf16: (k / 2 * pitch + i) * 2 + k % 2.
#define ONNXFUSE_PACK(From, To) void pack_rows(int rows, int wide, i64 pitch, const From* const* from, i64 depth, To* out);
ONNXFUSE_PACK(float, float)
ONNXFUSE_PACK(f16, float)
ONNXFUSE_PACK(bf16, float)
ONNXFUSE_PACK(float, f16)
ONNXFUSE_PACK(f16, f16)
ONNXFUSE_PACK(float, bf16)
ONNXFUSE_PACK(f16, bf16)
ONNXFUSE_PACK(bf16, bf16)
#undef ONNXFUSE_PACK

// The share of the next panel that tile `turn` of `turns` prefetches during its `depth` steps, once per register tile. Where
// each panel is read by one tile only, the lines FAR bytes ahead: a whole panel ahead would be evicted before it is read.
// An iteration reads up to two lines, so its step is fetched in two halves.
constexpr i64 FAR = 4 << 10;
template <class T> ONNXFUSE_INLINE Ahead ahead_of(const T* next, i64 depth, i64 turn, i64 turns) {
  const i64 bytes = ACROSS * STEPS<T> * (i64)sizeof(T);                      // of one iteration of the k loop
  const i64 rounds = depth / STEPS<T> * (PANEL / ACROSS);
  const char* from = reinterpret_cast<const char*>(next);
  if (turns == 1 && rounds * bytes > FAR) from += FAR - rounds * bytes;
  const i64 step = (bytes + turns - 1) / turns;
  return Ahead{from + turn * rounds * step, step};
}

} }  // namespace onnxfuse
