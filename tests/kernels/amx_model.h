// AMX as a plain C++ model, in place of amx_unit.h: what each instruction does to the registers of a thread, as Intel's manual
// tells it, and an end of the process where a processor would raise a fault.
#pragma once
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "vec.h"

namespace onnxfuse { inline namespace ONNXFUSE_ISA {
namespace amx {

struct alignas(64) Shape {
  uint8_t palette, start_row, reserved[14];
  uint16_t bytes[16];
  uint8_t rows[16];
};

struct Registers {
  Shape shape;  // palette 0: not set up
  unsigned char tile[8][16][64];
};
inline thread_local Registers unit{};
inline int left_behind = 0;  // registers set up and not released, of all threads

inline void must(bool holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "AMX: %s\n", what);
  abort();
}
inline void configure(const Shape& s) {
  must(s.palette == 1 && s.start_row == 0, "an unknown palette");
  for (int t = 0; t < 16; t++) must(s.rows[t] <= (t < 8 ? 16 : 0) && s.bytes[t] <= 64 && !s.rows[t] == !s.bytes[t], "a shape");
  must(!unit.shape.palette, "set up twice");
  __atomic_add_fetch(&left_behind, 1, __ATOMIC_RELAXED);
  memset(&unit, 0, sizeof unit);
  unit.shape = s;
}
inline void release() {
  if (unit.shape.palette) __atomic_sub_fetch(&left_behind, 1, __ATOMIC_RELAXED);
  memset(&unit, 0, sizeof unit);
}
template <int T> void ready() { must(unit.shape.palette == 1 && unit.shape.rows[T], "a register that is not set up"); }
template <int T> void zero() {
  ready<T>();
  memset(unit.tile[T], 0, sizeof unit.tile[T]);
}
template <int T> void load(const void* from, i64 stride) {
  zero<T>();
  for (int i = 0; i < unit.shape.rows[T]; i++)
    memcpy(unit.tile[T][i], static_cast<const char*>(from) + i * stride, unit.shape.bytes[T]);
}
template <int T> void store(void* to, i64 stride) {
  ready<T>();
  for (int i = 0; i < unit.shape.rows[T]; i++)
    memcpy(static_cast<char*>(to) + i * stride, unit.tile[T][i], unit.shape.bytes[T]);
}
template <int C, int A, int B> void check() {
  ready<A>(), ready<B>(), ready<C>();
  const Shape& s = unit.shape;
  must(C != A && C != B && A != B, "a register twice");
  must(s.rows[C] == s.rows[A] && s.bytes[C] == s.bytes[B] && s.bytes[A] == s.rows[B] * 4, "shapes that do not fit");
}
inline float flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }
inline float at_bf16(const unsigned char* p) {
  uint16_t bits;
  memcpy(&bits, p, 2);
  return flushed(bits_as<float>((uint32_t)bits << 16));
}

template <int C, int A, int B> void tdpbf16ps() {
  check<C, A, B>();
  for (int m = 0; m < unit.shape.rows[C]; m++)
    for (int n = 0; n < unit.shape.bytes[C] / 4; n++) {
      float even = 0, odd = 0, sum;
      for (int k = 0; k < unit.shape.bytes[A] / 4; k++) {
        const unsigned char *a = unit.tile[A][m] + 4 * k, *b = unit.tile[B][k] + 4 * n;
        even = flushed(std::fma(at_bf16(a), at_bf16(b), even));
        odd = flushed(std::fma(at_bf16(a + 2), at_bf16(b + 2), odd));
      }
      memcpy(&sum, unit.tile[C][m] + 4 * n, 4);
      sum = flushed(flushed(sum) + flushed(even + odd));
      memcpy(unit.tile[C][m] + 4 * n, &sum, 4);
    }
}

template <int C, int A, int B, class Left, class Right> void quads() {
  check<C, A, B>();
  for (int m = 0; m < unit.shape.rows[C]; m++)
    for (int n = 0; n < unit.shape.bytes[C] / 4; n++) {
      uint32_t sum;
      memcpy(&sum, unit.tile[C][m] + 4 * n, 4);
      for (int k = 0; k < unit.shape.bytes[A]; k++)
        sum += (uint32_t)((int)(Left)unit.tile[A][m][k] * (int)(Right)unit.tile[B][k / 4][4 * n + k % 4]);
      memcpy(unit.tile[C][m] + 4 * n, &sum, 4);
    }
}
template <int C, int A, int B> void tdpbssd() { quads<C, A, B, int8_t, int8_t>(); }
template <int C, int A, int B> void tdpbsud() { quads<C, A, B, int8_t, uint8_t>(); }
template <int C, int A, int B> void tdpbusd() { quads<C, A, B, uint8_t, int8_t>(); }
template <int C, int A, int B> void tdpbuud() { quads<C, A, B, uint8_t, uint8_t>(); }

}  // namespace amx
} }  // namespace onnxfuse

extern "C" __attribute__((visibility("default"))) int amx_left_behind() { return onnxfuse::amx::left_behind; }
