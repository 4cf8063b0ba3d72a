// Matrix products by AMX: tiles of up to 32 rows by a panel. Each task configures the unit's tile registers for its tiles.
//
// `tall`, the rows of the tallest tile, is the same in all calls between amx_begin and amx_end. The sums of every tile have
// room for so many rows.
#pragma once
#include "codes.h"

namespace onnxfuse { inline namespace ONNXFUSE_ISA {

void amx_begin(int tall);
void amx_end();  // releases the tile registers

// Packs rows for the unit: out[((k / 32) * tall + i) * 32 + k % 32] = from[i][k - skip], rounded, for steps k from `skip`
// to skip + depth; zeros in rows from `rows` up to `tall`, and behind the last step up to a multiple of 32.
#define ONNXFUSE_AMX_PACK(From) \
  void amx_pack(int rows, int tall, i64 skip, const From* const* from, i64 depth, bf16* out);
ONNXFUSE_AMX_PACK(float)
ONNXFUSE_AMX_PACK(f16)
ONNXFUSE_AMX_PACK(bf16)
#undef ONNXFUSE_AMX_PACK

// As the tiles of tile.h; rows of `a` are packed by amx_pack.
void amx_packed(int tall, const bf16* a, i64 depth, const bf16* b, float* out, bool more, Ahead ahead);
void amx_rows(int rows, const bf16* const* table, i64 tall, i64 segments, i64 length, const bf16* b, float* out, Ahead ahead);
void amx_even(int rows, const bf16* const* table, i64 tall, i64 segments, i64 length, const bf16* b, float* out, Ahead ahead);

// As tile_codes of codes.h.
void amx_sum_codes(int rows, const uint8_t* const* table, i64 tall, i64 segments, i64 length, const uint8_t* b, int columns,
                   int32_t* out, const Codes& codes, Ahead ahead);

template <class A, class B>
ONNXFUSE_INLINE void amx_codes(int rows, const A* const* table, i64 tall, i64 segments, i64 length, const B* b, i64 columns,
                               int32_t* out, int left_zero, int right_zero, const B* right_zeros, Ahead ahead) {
  const Codes codes{left_zero, right_zero, right_zeros, is_same<A, int8_t>, is_same<B, int8_t>};
  amx_sum_codes(rows, reinterpret_cast<const uint8_t* const*>(table), tall, segments, length,
                reinterpret_cast<const uint8_t*>(b), columns < PANEL ? (int)columns : PANEL, out, codes, ahead);
}

} }  // namespace onnxfuse
