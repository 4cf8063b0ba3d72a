// Measures a machine by a kernel, so that it runs on the runtime's own thread pool: doctor --calibrate.
#pragma once
#include <ctime>

#include "host.h"
#include "vec.h"

namespace onnxfuse { inline namespace ONNXFUSE_ISA {
namespace {

constexpr i64 STEPS = 4000, CHAINS = 24;  // 24 different dependence chains: the compiler would merge equal ones
constexpr i64 FLOPS = STEPS * CHAINS * 2 * LANES;  // of a task

inline double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e9 + t.tv_nsec;
}

struct Work {
  float* data;
  i64 count, repeats;  // floats per task, and how often it reads them
  float sums[256];
};

inline void multiply_add(void* user, size_t task) {
  vf chain[CHAINS];
  for (int j = 0; j < CHAINS; j++) {
    chain[j] = splat<float>((float)j);
    asm volatile("" : "+m"(chain[j]));
  }
  vf a = splat<float>(0.999f), b = splat<float>(1e-3f);
  for (i64 i = 0; i < STEPS; i++) {
#pragma GCC unroll 24
    for (int j = 0; j < CHAINS; j++) chain[j] = chain[j] * a + b;
  }
  for (int j = 1; j < CHAINS; j++) chain[0] += chain[j];
  static_cast<Work*>(user)->sums[task % 256] = reduce_add(chain[0]);
}

inline void fill(void* user, size_t task) {
  Work* w = static_cast<Work*>(user);
  for (i64 i = 0; i < w->count; i++) w->data[(i64)task * w->count + i] = 1.0f;
}

inline void read(void* user, size_t task) {
  Work* w = static_cast<Work*>(user);
  const float* x = w->data + (i64)task * w->count;
  vf sum[8] = {};
  for (i64 pass = 0; pass < w->repeats; pass++)
    for (i64 i = 0; i + 8 * LANES <= w->count; i += 8 * LANES) {
#pragma GCC unroll 8
      for (int j = 0; j < 8; j++) sum[j] += load(x + i + j * LANES);
    }
  for (int j = 1; j < 8; j++) sum[0] += sum[j];
  w->sums[task % 256] = reduce_add(sum[0]);
}

inline void nothing(void*, size_t) {}

// Input: what to measure, tasks, bytes of all tasks, repeats. Output: nanoseconds, and the operations or bytes in that time.
inline const char* run_measure(Host* host, const Tensor* inputs) {
  const i64* asked = static_cast<const i64*>(inputs[0].data);
  const i64 what = asked[0], tasks = asked[1], bytes = asked[2], repeats = asked[3];
  const i64 dims[1] = {2};
  double* out = static_cast<double*>(host->output(host, 0, dims, 1));
  if (!out) return "no memory for an output";
  Work work{nullptr, what == agreed::READ ? bytes / tasks / 4 : 0, repeats, {}};
  if (what == agreed::READ) {
    work.data = static_cast<float*>(host->scratch(host, size_t(bytes)));
    if (!work.data) return "no memory for scratch";
    host->parallel(host, size_t(tasks), fill, &work);
    host->parallel(host, size_t(tasks), read, &work);
  }
  double begin = now();
  if (what == agreed::MULTIPLY_ADD)
    for (i64 i = 0; i < repeats; i++) host->parallel(host, size_t(tasks), multiply_add, &work);
  if (what == agreed::READ) host->parallel(host, size_t(tasks), read, &work);
  if (what == agreed::WAIT)
    for (i64 i = 0; i < repeats; i++) host->parallel(host, size_t(tasks), nothing, &work);
  out[0] = now() - begin;
  out[1] = what == agreed::MULTIPLY_ADD ? double(FLOPS * tasks * repeats) : double(work.count * 4 * tasks * repeats);
  return nullptr;
}

}  // namespace
} }  // namespace onnxfuse
