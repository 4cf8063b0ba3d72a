// Small kernels that use every part of host.h, for the tests of the pool host itself.
#include <cstring>

#include "host.h"
using namespace onnxfuse;

// y[i] = x[i] + task number of i, in tasks of 3 elements, through scratch; z = the shape of x as int64. Empty x is refused.
static const char* spread(Host* host, const Tensor* inputs) {
  i64 n = 1;
  for (int i = 0; i < inputs[0].rank; i++) n *= inputs[0].dims[i];
  if (n == 0) return "the input is empty";
  i64 rank = inputs[0].rank;
  float* y = static_cast<float*>(host->output(host, 0, inputs[0].dims, inputs[0].rank));
  i64* z = static_cast<i64*>(host->output(host, 1, &rank, 1));
  float* scratch = static_cast<float*>(host->scratch(host, n * sizeof(float)));
  if (!y || !z || !scratch || reinterpret_cast<size_t>(scratch) % 64 || host->cores < 1) return "no memory";
  struct Work { const float* x; float *y, *scratch; i64 n; } work = {static_cast<const float*>(inputs[0].data), y, scratch, n};
  auto add = [](void* user, size_t task) {
    Work& w = *static_cast<Work*>(user);
    for (i64 i = (i64)task * 3; i < ((i64)task + 1) * 3 && i < w.n; i++) w.scratch[i] = w.x[i] + (float)task;
  };
  auto copy = [](void* user, size_t task) {
    Work& w = *static_cast<Work*>(user);
    w.y[task] = w.scratch[w.n - 1 - (i64)task];  // across tasks: right only if the first loop has finished
  };
  host->parallel(host, (n + 2) / 3, add, &work);
  host->parallel(host, n, copy, &work);
  memcpy(z, inputs[0].dims, rank * sizeof(i64));
  return nullptr;
}

static const int INPUTS[1] = {1}, OUTPUTS[2] = {1, 7};
extern "C" const Kernel probe_spread = {"probe_spread", 1, 2, INPUTS, OUTPUTS, spread};
