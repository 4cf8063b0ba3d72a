// The register tile of a contraction, compiled once per library and shared by all of its kernels.
//
// A tile writes rows x PANEL sums to a small buffer that stays in L1; what is done with them is the caller's next loop.
#pragma once
#include "host.h"
#include "vec.h"

namespace onnxfuse {

constexpr int PANEL = 2 * LANES;  // columns of a packed weight panel
constexpr int TALL = LANES == 16 ? 14 : LANES == 8 ? 6 : 4;  // rows of a tile at most

// Zeros that stand for the padding of a convolution.
constexpr int ZERO_ROW = 4096;
extern const float ZEROS[ZERO_ROW];

// What a thread should read next: bytes that are spread over the steps of this tile's sum, and fetched to L2.
struct Ahead {
  const char* from;
  i64 step;
};

// out[i * PANEL + j] = sum over segments s and steps k < length of table[s * pitch + i][k] * b[(s * length + k) * PANEL + j].
void tile_rows(int rows, const float* const* table, i64 pitch, i64 segments, i64 length, const float* b, float* out, Ahead ahead);

// The same where all rows but the first and the last lie at one distance from each other: a segment has four entries in the
// table, those of the first three rows and of the last.
void tile_even(int rows, const float* const* table, i64 segments, i64 length, const float* b, float* out, Ahead ahead);

// out[i * PANEL + j] = sum over k < depth of a[k * rows + i] * b[k * PANEL + j], added to what is there with `more`.
void tile_packed(int rows, const float* a, i64 depth, const float* b, float* out, bool more, Ahead ahead);

// out[k * pitch + i] = from[i][k] for i < rows <= PANEL and k < depth; 0 for rows <= i < wide <= pitch.
void pack_rows(int rows, int wide, i64 pitch, const float* const* from, i64 depth, float* out);

// The share of the next panel that tile `turn` of `turns` fetches while it runs over `depth` steps. Where each panel is
// read by one tile, what lies FAR floats ahead: a whole panel ahead would be evicted again before it is read.
constexpr i64 FAR = 8192;
ONNXFUSE_INLINE Ahead ahead_of(const float* next, i64 depth, i64 turn, i64 turns) {
  if (turns == 1 && depth * PANEL > FAR) next += FAR - depth * PANEL;
  i64 step = (PANEL * 4 + turns - 1) / turns;
  return Ahead{reinterpret_cast<const char*>(next) + turn * depth * step, step};
}

}  // namespace onnxfuse
