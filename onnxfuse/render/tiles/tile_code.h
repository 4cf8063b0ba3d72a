// The code of tile.h: included by one translation unit of a library.
#pragma once
#include "tile.h"

namespace onnxfuse {

alignas(64) const float ZEROS[ZERO_ROW] = {};

namespace {

#define ONNXFUSE_STEP(value_of_row)                                  \
  {                                                                  \
    vf b0 = load(b), b1 = load(b + LANES);                           \
    prefetch_l1(b + 8 * PANEL);                                      \
    prefetch_l1(b + 8 * PANEL + LANES);                              \
    b += PANEL;                                                      \
    prefetch_l2(next);                                               \
    next += ahead.step;                                              \
    _Pragma("GCC unroll 16") for (int i = 0; i < Rows; i++) {        \
      vf one = splat<float>(value_of_row);                           \
      sum[i][0] += one * b0;                                         \
      sum[i][1] += one * b1;                                         \
    }                                                                \
  }

template <int Rows> ONNXFUSE_INLINE void finish(vf (&sum)[Rows][2], float* out) {
#pragma GCC unroll 16
  for (int i = 0; i < Rows; i++) {
    store(out + i * PANEL, sum[i][0]);
    store(out + i * PANEL + LANES, sum[i][1]);
  }
}

// Rows between the first and the last are addressed from every third one. The first and the last have pointers of their own,
// since at the edges of an image they are padding.
template <int Rows>
void even_tile(const float* const* table, i64 segments, i64 length, const float* b, float* out, Ahead ahead) {
  constexpr int LAST = Rows - 1, BASES = Rows > 2 ? Rows / 3 : 0;
  vf sum[Rows][2];
#pragma GCC unroll 16
  for (int i = 0; i < Rows; i++) sum[i][0] = sum[i][1] = vf{};
  const char* next = ahead.from ? ahead.from : reinterpret_cast<const char*>(b);  // a prefetch of nothing would walk page tables
  for (i64 s = 0; s < segments; s++, table += 4) {
    const float *first = table[0], *last = table[3], *p[BASES + 1];
    const i64 stride = table[2] - table[1];
#pragma GCC unroll 16
    for (int i = 0; i < BASES; i++) p[i] = table[1] + 3 * i * stride;
#pragma GCC unroll 1
    for (i64 k = 0; k < length; k++) {
      ONNXFUSE_STEP(i == 0 ? *first : i == LAST ? *last : p[(i - 1) / 3][((i - 1) % 3) * stride])
      first++;
      last++;
#pragma GCC unroll 16
      for (int i = 0; i < BASES; i++) p[i]++;
    }
  }
  finish<Rows>(sum, out);
}

template <int Rows>
void rows_tile(const float* const* table, i64 pitch, i64 segments, i64 length, const float* b, float* out, Ahead ahead) {
  vf sum[Rows][2];
#pragma GCC unroll 16
  for (int i = 0; i < Rows; i++) sum[i][0] = sum[i][1] = vf{};
  const char* next = ahead.from ? ahead.from : reinterpret_cast<const char*>(b);
  for (i64 s = 0; s < segments; s++, table += pitch) {
#pragma GCC unroll 1
    for (i64 k = 0; k < length; k++) ONNXFUSE_STEP(table[i][k])
  }
  finish<Rows>(sum, out);
}

template <int Rows> void packed_tile(const float* a, i64 depth, const float* b, float* out, bool more, Ahead ahead) {
  vf sum[Rows][2];
#pragma GCC unroll 16
  for (int i = 0; i < Rows; i++) {
    sum[i][0] = more ? load(out + i * PANEL) : vf{};
    sum[i][1] = more ? load(out + i * PANEL + LANES) : vf{};
  }
  const char* next = ahead.from ? ahead.from : reinterpret_cast<const char*>(b);  // a prefetch of nothing would walk page tables
#pragma GCC unroll 1
  for (i64 k = 0; k < depth; k++) {
    ONNXFUSE_STEP(a[i])
    a += Rows;
  }
  finish<Rows>(sum, out);
}

template <int N> struct Count { static constexpr int value = N; };

template <int Most, class F> ONNXFUSE_INLINE void with_rows(int rows, F fn) {
  if constexpr (Most > 0) {
    if (rows == Most) fn(Count<Most>{});
    else with_rows<Most - 1>(rows, fn);
  }
}

}  // namespace

void tile_rows(int rows, const float* const* table, i64 pitch, i64 segments, i64 length, const float* b, float* out, Ahead ahead) {
  with_rows<TALL>(rows, [&](auto n) { rows_tile<decltype(n)::value>(table, pitch, segments, length, b, out, ahead); });
}

void tile_even(int rows, const float* const* table, i64 segments, i64 length, const float* b, float* out, Ahead ahead) {
  with_rows<TALL>(rows, [&](auto n) { even_tile<decltype(n)::value>(table, segments, length, b, out, ahead); });
}

void tile_packed(int rows, const float* a, i64 depth, const float* b, float* out, bool more, Ahead ahead) {
  with_rows<TALL>(rows, [&](auto n) { packed_tile<decltype(n)::value>(a, depth, b, out, more, ahead); });
}

void pack_rows(int rows, int wide, i64 pitch, const float* const* from, i64 depth, float* out) {
  for (int first = 0; first < wide; first += LANES) {
    const int here = wide - first < LANES ? wide - first : LANES;
    const int alive = rows - first < here ? rows - first : here;
    i64 k = 0;
    for (; k + LANES <= depth; k += LANES) {
      vf block[LANES];
#pragma GCC unroll 16
      for (int i = 0; i < LANES; i++) block[i] = i < alive ? load(from[first + i] + k) : vf{};
      transpose(block);
      float* to = out + k * pitch + first;
      if (here == LANES) {
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) store(to + i * pitch, block[i]);
      } else {
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) store_n(to + i * pitch, block[i], here);
      }
    }
    for (; k < depth; k++)
      for (int i = 0; i < here; i++) out[k * pitch + first + i] = i < alive ? from[first + i][k] : 0.0f;
  }
}

}  // namespace onnxfuse
