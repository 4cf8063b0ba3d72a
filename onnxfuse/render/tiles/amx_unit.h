// The AMX instructions that amx_code.h uses, as inline assembly, since not all compilers' intrinsics declare that they read
// memory. There are eight tile registers of up to 16 rows of 64 bytes.
#pragma once
#include "vec.h"

namespace onnxfuse { inline namespace ONNXFUSE_ISA {
namespace amx {

struct alignas(64) Shape {  // of all tile registers: the operand of ldtilecfg
  uint8_t palette, start_row, reserved[14];
  uint16_t bytes[16];  // of a row
  uint8_t rows[16];
};

ONNXFUSE_INLINE void configure(const Shape& shape) { asm volatile("ldtilecfg %0" ::"m"(shape)); }
ONNXFUSE_INLINE void release() { asm volatile("tilerelease"); }
template <int T> ONNXFUSE_INLINE void zero() { asm volatile("tilezero %%tmm%c0" ::"i"(T)); }
template <int T> ONNXFUSE_INLINE void load(const void* from, i64 stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(T) : "memory");
}
template <int T> ONNXFUSE_INLINE void store(void* to, i64 stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(T) : "memory");
}

// C += A * B: of pairs of bfloat16, and of quadruples of 8-bit integers, signed (s) or unsigned (u).
#define ONNXFUSE_AMX_PRODUCT(name)                                                                                \
  template <int C, int A, int B> ONNXFUSE_INLINE void name() {                                                    \
    asm volatile(#name " %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));                                 \
  }
ONNXFUSE_AMX_PRODUCT(tdpbf16ps)
ONNXFUSE_AMX_PRODUCT(tdpbssd)
ONNXFUSE_AMX_PRODUCT(tdpbsud)
ONNXFUSE_AMX_PRODUCT(tdpbusd)
ONNXFUSE_AMX_PRODUCT(tdpbuud)
#undef ONNXFUSE_AMX_PRODUCT

}  // namespace amx
} }  // namespace onnxfuse
