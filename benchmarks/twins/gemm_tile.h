// The inner product of every contraction twin: a register tile of Rows x (Columns * LANES) over a packed right side.
//
// The depth comes in `segments` of `depth` steps (the taps of a convolution; one for a matrix product). enter(s) gives the
// left side of segment s, a function of row and step to a float. right is a panel [segments][depth][Columns * LANES].
// first(i, j) is where the sum of row i, vector j starts and last(i, j, sum) takes it away: holes for bias and epilogue, inlined,
// i and j constants in them. `ahead` is what this thread reads next: one line per step goes to L2, `stride` bytes apart.
#pragma once
#include "host.h"
#include "vec.h"

namespace onnxfuse {

#define HOLE __attribute__((always_inline))

#ifndef TWIN_L1_AHEAD
#define TWIN_L1_AHEAD 8
#endif

template <int Rows, int Columns, class Enter, class First, class Last>
ONNXFUSE_INLINE void gemm_tile(i64 segments, i64 depth, Enter enter, const float* right, const char* ahead, i64 stride, First first, Last last) {
  constexpr int WIDTH = Columns * LANES;
  vf sum[Rows][Columns];
#pragma GCC unroll 16
  for (int i = 0; i < Rows; i++)
#pragma GCC unroll 4
    for (int j = 0; j < Columns; j++) sum[i][j] = first(i, j);
  for (i64 s = 0; s < segments; s++) {
    auto left = enter(s);
#pragma GCC unroll 1
    for (i64 k = 0; k < depth; k++) {
      vf b[Columns];
#pragma GCC unroll 4
      for (int j = 0; j < Columns; j++) {
        b[j] = load(right + j * LANES);
        prefetch_l1(right + TWIN_L1_AHEAD * WIDTH + j * LANES);
      }
      right += WIDTH;
      prefetch_l2(ahead);
      ahead += stride;
#pragma GCC unroll 16
      for (int i = 0; i < Rows; i++) {
        vf a = splat<float>(left(i, k));
#pragma GCC unroll 4
        for (int j = 0; j < Columns; j++) sum[i][j] += a * b[j];
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < Rows; i++)
#pragma GCC unroll 4
    for (int j = 0; j < Columns; j++) last(i, j, sum[i][j]);
}

// The left side of a matrix product packed as [depth][Rows].
template <int Rows> ONNXFUSE_INLINE auto packed_left(const float* left) {
  return [=](i64) HOLE { return [=](int i, i64 k) HOLE { return left[k * Rows + i]; }; };
}

// fn(integral constant) for rows = 1..14: the one place where a run-time row count becomes a compile-time one.
template <int N> struct Count { static constexpr int value = N; };
template <class F> ONNXFUSE_INLINE void with_rows(int rows, F fn) {
  switch (rows) {
    case 1: return fn(Count<1>{});
    case 2: return fn(Count<2>{});
    case 3: return fn(Count<3>{});
    case 4: return fn(Count<4>{});
    case 5: return fn(Count<5>{});
    case 6: return fn(Count<6>{});
    case 7: return fn(Count<7>{});
    case 8: return fn(Count<8>{});
    case 9: return fn(Count<9>{});
    case 10: return fn(Count<10>{});
    case 11: return fn(Count<11>{});
    case 12: return fn(Count<12>{});
    case 13: return fn(Count<13>{});
    case 14: return fn(Count<14>{});
  }
}

// Row tiles of at most `most` rows and as equal as can be: 128 rows are 8 tiles of 13 and 2 of 12, not 9 of 14 and one of 2.
struct RowTiles {
  i64 rows, count;
  RowTiles(i64 rows_, i64 most) : rows(rows_), count((rows_ + most - 1) / most) {}
  i64 begin(i64 t) const { return t * rows / count; }
};

// Rows [begin, end) of a row-major matrix as [depth][end - begin], by LANES x LANES transposes.
ONNXFUSE_INLINE void pack_rows(const float* from, i64 row_stride, int rows, i64 depth, float* to) {
  i64 k = 0;
  for (; k + LANES <= depth; k += LANES) {
    vf block[LANES];
    for (int i = 0; i < LANES; i++) block[i] = i < rows ? load(from + i * row_stride + k) : vf{};
    transpose(block);
    for (int i = 0; i < LANES; i++) store_n(to + (k + i) * rows, block[i], rows);
  }
  for (; k < depth; k++)
    for (int i = 0; i < rows; i++) to[k * rows + i] = from[i * row_stride + k];
}

// A task as the host takes it: parallel(host, tasks, [&](size_t task) { .. }).
template <class F> ONNXFUSE_INLINE void parallel(Host* host, size_t tasks, F& body) {
  host->parallel(host, tasks, [](void* user, size_t task) { (*static_cast<F*>(user))(task); }, &body);
}

}  // namespace onnxfuse
