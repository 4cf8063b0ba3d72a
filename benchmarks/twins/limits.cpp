// What the machine can do, as kernels, so that a race measures it in the same turns as what is compared with it.
// limit_multiply_add keeps both multipliers busy from registers; limit_read sums its input.
#include "gemm_tile.h"

namespace onnxfuse {
namespace {

// As many operations with vectors of any length. Chains differ, since the compiler would merge equal ones, and fit registers.
constexpr i64 TASKS = 8, STEPS = 20000 * 16 / LANES, CHAINS = 12;

const char* multiply_add(Host* host, const Tensor*) {
  const i64 dims[1] = {TASKS};
  float* y = static_cast<float*>(host->output(host, 0, dims, 1));
  if (!y) return "no memory";
  auto body = [&](size_t task) {
    vf chain[CHAINS];
    for (int j = 0; j < CHAINS; j++) {
      chain[j] = splat<float>((float)j);
      asm volatile("" : "+m"(chain[j]));
    }
    vf a = splat<float>(0.999f), b = splat<float>(1e-3f);
    for (i64 i = 0; i < STEPS; i++) {
#pragma GCC unroll 12
      for (int j = 0; j < CHAINS; j++) chain[j] = chain[j] * a + b;
    }
    for (int j = 1; j < CHAINS; j++) chain[0] += chain[j];
    y[task] = reduce_add(chain[0]);
  };
  parallel(host, TASKS, body);
  return nullptr;
}

// Reads the input once; a task reads whole pieces of 256 KB.
const char* read(Host* host, const Tensor* inputs) {
  const float* x = static_cast<const float*>(inputs[0].data);
  constexpr i64 PIECE = 65536;
  const i64 tasks = inputs[0].dims[0] / PIECE;
  float* y = static_cast<float*>(host->output(host, 0, &tasks, 1));
  if (!y) return "no memory";
  auto body = [&](size_t task) {
    vf sum[8] = {};
    for (i64 i = 0; i < PIECE; i += 8 * LANES) {
#pragma GCC unroll 8
      for (int j = 0; j < 8; j++) sum[j] += load(x + task * PIECE + i + j * LANES);
    }
    for (int j = 1; j < 8; j++) sum[0] += sum[j];
    y[task] = reduce_add(sum[0]);
  };
  parallel(host, tasks, body);
  return nullptr;
}

const int FLOATS[1] = {1};

}  // namespace
}  // namespace onnxfuse

extern "C" const onnxfuse::Kernel limit_multiply_add = {"limit_multiply_add", 0, 1, nullptr, onnxfuse::FLOATS, onnxfuse::multiply_add};
extern "C" const onnxfuse::Kernel limit_read = {"limit_read", 1, 1, onnxfuse::FLOATS, onnxfuse::FLOATS, onnxfuse::read};
