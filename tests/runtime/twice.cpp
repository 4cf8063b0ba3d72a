// A hand-written kernel, y = 2 x + 1 over matrices of any size, in two parallel phases with scratch between them.
#include "host.h"

#ifndef GAIN
#define GAIN 1.0f  // 1.01f plants an error of one percent
#endif

namespace {

using onnxfuse::Host;
using onnxfuse::i64;
using onnxfuse::Tensor;

struct Work {
  const float* x;
  float* middle;
  float* y;
  i64 n;
  size_t tasks;
};

i64 begin_of(const Work* w, size_t task) { return w->n * i64(task) / i64(w->tasks); }

void twice(void* user, size_t task) {
  const Work* w = static_cast<const Work*>(user);
  for (i64 i = begin_of(w, task); i < begin_of(w, task + 1); ++i) w->middle[i] = 2.0f * w->x[i];
}

void plus_one(void* user, size_t task) {
  const Work* w = static_cast<const Work*>(user);
  for (i64 i = begin_of(w, task); i < begin_of(w, task + 1); ++i) w->y[i] = (w->middle[i] + 1.0f) * GAIN;
}

const char* run(Host* host, const Tensor* inputs) {
  const Tensor& x = inputs[0];
  if (x.rank != 2) return "twice: x must be a matrix";
#ifdef CRASH
  *reinterpret_cast<volatile int*>(8) = 1;
#endif
  const i64 n = x.dims[0] * x.dims[1];
  float* middle = static_cast<float*>(host->scratch(host, size_t(n) * sizeof(float)));
  float* y = static_cast<float*>(host->output(host, 0, x.dims, x.rank));
  if (!middle || !y) return "twice: no memory";
  if (reinterpret_cast<size_t>(middle) % 64) return "twice: scratch is not aligned";
  if (host->cores < 1) return "twice: no cores";
  Work work = {static_cast<const float*>(x.data), middle, y, n, size_t(host->cores) * 2};
  host->parallel(host, work.tasks, twice, &work);
  host->parallel(host, work.tasks, plus_one, &work);
  return nullptr;
}

const int kFloat[] = {1};

}  // namespace

extern const onnxfuse::Kernel onnxfuse_twice;
const onnxfuse::Kernel onnxfuse_twice = {"Twice", 1, 1, kFloat, kFloat, run};
