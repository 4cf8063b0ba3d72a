// The interface through which a kernel calls its host. ONNX Runtime's glue, the tests and the benchmarks each implement it.
#pragma once
#include <cstddef>
#include <cstdint>

#include "agreed.h"

namespace onnxfuse {

// Which GPUs run code for a capability: those of its major version that are no older, all later ones too, or no others.
enum Reach { kFamily, kLater, kAlone };

typedef int64_t i64;

struct Tensor {       // a borrowed, dense tensor
  const void* data;
  const i64* dims;
  int rank;
};

struct Host {
  // Allocates the output tensor `index` with these dims; null on failure (the host keeps the reason).
  void* (*output)(Host*, int index, const i64* dims, int rank);
  // 64-byte aligned memory until the end of this run; null on failure. At most one call per run.
  void* (*scratch)(Host*, size_t bytes);
  // fn(user, 0..tasks-1), on as many threads as the host has; returns when all are done.
  void (*parallel)(Host*, size_t tasks, void (*fn)(void* user, size_t task), void* user);
  int cores;  // an upper bound of the threads behind `parallel`, at least 1
  // For GPU kernels: the stream that they are launched on, and whether the run has to synchronize with it.
  void* (*stream)(Host*);
  bool waits;
  bool (*rounds)(Host*);  // whether the session lets float32 be rounded to TF32
};

// One run of a kernel. Returns null on success, otherwise a message for the user, valid until the thread's next failure.
typedef const char* (*Run)(Host*, const Tensor* inputs);

struct Kernel {
  const char* name;  // the operator type
  int inputs, outputs;
  const int* input_types;   // ONNX TensorProto numbers
  const int* output_types;
  Run run;
  // Before the first run, and again for each node, for a GPU by its number; null where there is nothing to prepare.
  const char* (*prepare)(int device);
};

}  // namespace onnxfuse
