// One implementation of the tiles of codes_code.h, which includes this file once for each with macros for its name, its
// multiply-add and the attribute of its functions.

namespace onnxfuse { inline namespace ONNXFUSE_ISA {
namespace {

// Sums of `Wide` vectors of columns from column `at` on. Only if `Turned`, highest bits may have to be flipped.
template <int Rows, bool Turned, int Wide> ONNXFUSE_CODES_FOR
void ONNXFUSE_CODES_SUMS(const uint8_t* const* table, i64 pitch, i64 segments, i64 length, const uint8_t* b, int columns,
                         int at, int32_t* out, const Codes& codes) {
  const i64 whole = length / 4, rest = length % 4, steps = segments * length;
  const vi turn = splat<int32_t>(codes.left_signed ? TURN : 0), turn_b = splat<int32_t>(codes.right_signed ? 0 : TURN);
  const i64 groups = segments * (whole + (rest != 0));
  const int32_t* sums = reinterpret_cast<const int32_t*>(b + codes_bytes(groups) - PANEL * 4) + at;
  b += at * 4;
  out += at;
  const int32_t left = codes.left_zero + (codes.left_signed ? MOVED : 0);
  const bool plain = !codes.right_zeros && !codes.right_zero && codes.right_signed;  // the common case of weights
  alignas(64) int32_t moved[ACROSS];
  int any_moved = 0;
  vi first[Wide];
  for (int v = 0; v < Wide; v++) first[v] = load(sums + v * LANES);
  if (!plain) {
    alignas(64) int32_t less[ACROSS];
    for (int j = 0; j < Wide * LANES; j++) {
      const int32_t zero = at + j < columns ? right_zero(codes, at + j) : 0;
      moved[j] = zero - (codes.right_signed ? 0 : MOVED);
      any_moved |= moved[j];
      less[j] = (int32_t)steps * zero;
    }
    for (int v = 0; v < Wide; v++) first[v] -= load(less + v * LANES);
  }
  for (int v = 0; v < Wide; v++) first[v] = left ? first[v] * -left : vi{};
  vi sum[Rows][Wide];
#pragma GCC unroll 16
  for (int i = 0; i < Rows; i++)
    for (int v = 0; v < Wide; v++) sum[i][v] = first[v];
  const uint8_t* const* rows = table;
  for (i64 s = 0; s < segments; s++, rows += pitch) {
#pragma GCC unroll 1
    for (i64 k = 0; k < whole; k++) {
      vi right[Wide];
      for (int v = 0; v < Wide; v++) {
        right[v] = columns_of(b + v * LANES * 4);
        if constexpr (Turned) right[v] ^= turn_b;
        prefetch_l1(b + (NEAR * PANEL + v * LANES) * 4);
      }
      b += PANEL * 4;
#pragma GCC unroll 16
      for (int i = 0; i < Rows; i++) {
        vi one = splat<int32_t>(quad(rows[i] + 4 * k));
        if constexpr (Turned) one ^= turn;
        for (int v = 0; v < Wide; v++) sum[i][v] = ONNXFUSE_CODES_PRODUCTS(sum[i][v], one, right[v]);
      }
    }
    if (rest) {
      const int before = 8 * (4 - (int)rest);  // weights move instead of rows: what is read twice meets zeros
      vi right[Wide];
      for (int v = 0; v < Wide; v++) right[v] = (Turned ? columns_of(b + v * LANES * 4) ^ turn_b : columns_of(b + v * LANES * 4)) << before;
      b += PANEL * 4;
#pragma GCC unroll 16
      for (int i = 0; i < Rows; i++) {
        vi one = splat<int32_t>(last_quad(rows[i], length));
        if constexpr (Turned) one ^= turn;
        for (int v = 0; v < Wide; v++) sum[i][v] = ONNXFUSE_CODES_PRODUCTS(sum[i][v], one, right[v]);
      }
    }
  }
  if (any_moved) {  // subtract the zero point of a column times the sum of the row
    const vi ones = splat<int32_t>(0x01010101);
#pragma GCC unroll 1
    for (int i = 0; i < Rows; i++) {
      vi lanes{};
      int32_t all = 0;
      for (i64 s = 0; s < segments; s++) {
        const uint8_t* row = table[s * pitch + i];
        i64 k = 0;
        for (; k + LANES * 4 <= length; k += LANES * 4) lanes = ONNXFUSE_CODES_PRODUCTS(lanes, columns_of(row + k) ^ turn, ones);
        for (; k < length; k++) all += codes.left_signed ? row[k] ^ MOVED : row[k];
      }
      for (int l = 0; l < LANES; l++) all += lanes[l];
      for (int v = 0; v < Wide; v++) store(out + i * PANEL + v * LANES, load(moved + v * LANES) * all);
    }
#pragma GCC unroll 16
    for (int i = 0; i < Rows; i++)
      for (int v = 0; v < Wide; v++) sum[i][v] -= load(out + i * PANEL + v * LANES);
  }
#pragma GCC unroll 16
  for (int i = 0; i < Rows; i++)
    for (int v = 0; v < Wide; v++) store(out + i * PANEL + v * LANES, sum[i][v]);
}

// Elements of `length` rows, in groups of up to four.
template <int Length> ONNXFUSE_CODES_FOR
ONNXFUSE_INLINE void ONNXFUSE_CODES_GROUPS(const uint8_t* const* from, i64 pitch, i64 at, int columns, vi (*to)[2]) {
#pragma GCC unroll 8
  for (int k = 0; k < Length; k += 4) {
    constexpr int Last = Length % 4 ? Length % 4 : 4;
    const auto read = [&](auto lines) __attribute__((always_inline)) {
      const uint8_t* rows[decltype(lines)::value];
      for (int l = 0; l < decltype(lines)::value; l++) rows[l] = from[(k + l) * pitch] + at;
      interleaved(rows, columns, to[k / 4]);
    };
    if (k + 4 <= Length) read(Count<4>{});
    else read(Count<Last>{});
  }
}

// Sums of windows of Segments columns of Length unsigned elements each (0, 0: of any size, also signed) for two vectors of
// channels from `at` on. Where each window is the one before, moved by one column, only its last column is loaded.
template <int Segments, int Length> ONNXFUSE_CODES_FOR
void ONNXFUSE_CODES_CHANNELS(int rows, const uint8_t* const* table, i64 pitch, i64 segments, i64 length, i64 across,
                             const int8_t* panel, int columns, int at, int32_t* out, int32_t left, vi turn,
                             bool slides) {
  const i64 groups = (length + 3) / 4;
  const uint8_t* b = reinterpret_cast<const uint8_t*>(panel) + at * 4;
  const int32_t* sums = reinterpret_cast<const int32_t*>(panel + segments * groups * PANEL * 4) + at;
  across += at;
  columns -= at;
  out += at;
  vi first[2];
  for (int v = 0; v < 2; v++) first[v] = load(sums + v * LANES) * -left;
  if constexpr (Segments > 0) {
    constexpr int Groups = (Length + 3) / 4;
    vi weights[Segments][Groups][2], codes[Segments][Groups][2];
#pragma GCC unroll 8
    for (int s = 0; s < Segments; s++)
      for (int g = 0; g < Groups; g++)
        for (int v = 0; v < 2; v++) weights[s][g][v] = columns_of(b + (s * Groups + g) * PANEL * 4 + v * LANES * 4);
#pragma GCC unroll 1
    for (int i = 0; i < rows; i++, table++, out += PANEL) {
      if (slides && i > 0) {
#pragma GCC unroll 8
        for (int s = 0; s + 1 < Segments; s++)
          for (int g = 0; g < Groups; g++)
            for (int v = 0; v < 2; v++) codes[s][g][v] = codes[s + 1][g][v];
      } else {
#pragma GCC unroll 8
        for (int s = 0; s + 1 < Segments; s++) ONNXFUSE_CODES_GROUPS<Length>(table + s * Length * pitch, pitch, across, columns, codes[s]);
      }
      ONNXFUSE_CODES_GROUPS<Length>(table + (Segments - 1) * Length * pitch, pitch, across, columns, codes[Segments - 1]);
      vi sum[2] = {first[0], first[1]};
#pragma GCC unroll 8
      for (int s = 0; s < Segments; s++)
        for (int g = 0; g < Groups; g++)
          for (int v = 0; v < 2; v++) sum[v] = ONNXFUSE_CODES_PRODUCTS(sum[v], codes[s][g][v], weights[s][g][v]);
      for (int v = 0; v < 2; v++) store(out + v * LANES, sum[v]);
    }
  } else {
#pragma GCC unroll 1
    for (int i = 0; i < rows; i++, table++, out += PANEL) {
      vi sum[2] = {first[0], first[1]};
      const uint8_t* weights = b;
      for (i64 s = 0; s < segments; s++)
        for (i64 k = 0; k < length; k += 4, weights += PANEL * 4) {
          vi codes[1][2];
          const uint8_t* const* from = table + (s * length + k) * pitch;
          if (length - k >= 4) ONNXFUSE_CODES_GROUPS<4>(from, pitch, across, columns, codes);
          else if (length - k == 3) ONNXFUSE_CODES_GROUPS<3>(from, pitch, across, columns, codes);
          else if (length - k == 2) ONNXFUSE_CODES_GROUPS<2>(from, pitch, across, columns, codes);
          else ONNXFUSE_CODES_GROUPS<1>(from, pitch, across, columns, codes);
          for (int v = 0; v < 2; v++) {
            sum[v] = ONNXFUSE_CODES_PRODUCTS(sum[v], codes[0][v] ^ turn, columns_of(weights + v * LANES * 4));
          }
        }
      for (int v = 0; v < 2; v++) store(out + v * LANES, sum[v]);
    }
  }
}

}  // namespace
} }  // namespace onnxfuse

#undef ONNXFUSE_CODES_SUMS
#undef ONNXFUSE_CODES_CHANNELS
#undef ONNXFUSE_CODES_GROUPS
#undef ONNXFUSE_CODES_PRODUCTS
#undef ONNXFUSE_CODES_FOR
