// The register tile of a contraction of 8-bit integers: exact sums of products in 32 bits, less both sides' zero points.
#pragma once
#include "tile.h"

namespace onnxfuse { inline namespace ONNXFUSE_ISA {

// Zero points and signedness of both sides. The right side may have a zero point per column (`right_zeros`); where that is
// null, `right_zero` holds for all columns.
struct Codes {
  int left_zero, right_zero;
  const void* right_zeros;
  bool left_signed, right_signed;
};

ONNXFUSE_INLINE int right_zero(const Codes& c, i64 j) {
  if (!c.right_zeros) return c.right_zero;
  return c.right_signed ? (int)static_cast<const int8_t*>(c.right_zeros)[j] : (int)static_cast<const uint8_t*>(c.right_zeros)[j];
}

// Bytes of a panel of `groups` groups of four k: the values of a group column by column, then the sums of the columns.
constexpr i64 codes_bytes(i64 groups) { return (groups + 1) * PANEL * 4; }

// One for each type of the left side.
void sum_codes(int rows, const uint8_t* const* table, i64 pitch, i64 segments, i64 length, const uint8_t* b, int columns,
               int32_t* out, const Codes& codes);
void sum_codes(int rows, const int8_t* const* table, i64 pitch, i64 segments, i64 length, const uint8_t* b, int columns,
               int32_t* out, const Codes& codes);

// out[i * PANEL + j] = sum over segments s and steps k < length of
//   (table[s * pitch + i][k] - left zero) * (b[(s * groups + k / 4) * PANEL * 4 + j * 4 + k % 4] - right zero of column j)
// where groups = ceil(length / 4). Less than 65,536 k in all; sums of columns from `columns` on are undefined.
template <class A, class B>
ONNXFUSE_INLINE void tile_codes(int rows, const A* const* table, i64 pitch, i64 segments, i64 length, const B* b, i64 columns,
                                int32_t* out, int left_zero, int right_zero, const B* right_zeros) {
  const Codes codes{left_zero, right_zero, right_zeros, is_same<A, int8_t>, is_same<B, int8_t>};
  sum_codes(rows, table, pitch, segments, length, reinterpret_cast<const uint8_t*>(b), columns < PANEL ? (int)columns : PANEL, out,
            codes);
}

void sum_channels(int rows, const uint8_t* const* table, i64 pitch, i64 segments, i64 length, i64 across, const int8_t* b,
                  int columns, int32_t* out, int left_zero, bool left_signed, bool slides);

// Windows of one channel for each column (depthwise convolutions). A table entry is the address of one element of each channel:
// out[i * PANEL + j] = sum over segments s and steps k < length of
//   (table[(s * length + k) * pitch + i][across + j] - left zero) * b[(s * groups + k / 4) * PANEL * 4 + j * 4 + k % 4]
// where groups = ceil(length / 4). Sums of columns from `columns` on are undefined, and their elements are not read. `slides`:
// segment s of each row but the first is segment s + 1 of the row before.
template <class A>
ONNXFUSE_INLINE void tile_channels(int rows, const A* const* table, i64 pitch, i64 segments, i64 length, i64 across,
                                   const int8_t* b, i64 columns, int32_t* out, int left_zero, bool slides) {
  sum_channels(rows, reinterpret_cast<const uint8_t* const*>(table), pitch, segments, length, across, b,
               columns < PANEL ? (int)columns : PANEL, out, left_zero, is_same<A, int8_t>, slides);
}

} }  // namespace onnxfuse
