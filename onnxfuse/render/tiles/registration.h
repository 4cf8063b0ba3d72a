// What a library has: the generated registration lists it, and the glue (ort_glue.h), which is the same for all, serves it.
#pragma once
#include <cstdint>

#include "host.h"
#include "ort_abi.h"

namespace onnxfuse {

// One bit of CPUID, and the bits of XCR0 that say the operating system saves the registers behind it.
struct Feature {
  const char* name;
  unsigned leaf, subleaf;
  int reg;  // 0 eax, 1 ebx, 2 ecx, 3 edx
  int bit;
  uint64_t state;
};

// An operator as the runtime knows it.
struct Op {
  ort::CustomOp abi;  // first: the runtime hands back a pointer to it
  const Kernel* kernel;
  const char* provider;  // null: the CPU
};

// The kernels of a library for one instruction set; null: that one has no kernel for the operator.
struct Variant {
  const char* name;
  const Kernel* const* kernels;
  const Feature* features;
  int feature_count;
  int capability;  // that GPUs have, 10 times the major number and the minor one; 0: it is the CPU's
  Reach reach;
};

// Variants in the order of preference, each with `count` kernels of the same names. A session gets those for the GPUs of the
// machine, of one variant for CPUs, or both. Which variant's kernel a GPU runs is decided for each node, when the device of
// its session is known. The runtime keeps pointers into `ops`, which are `count` for each variant, in static storage as
// `domains` are.
struct Registration {
  const char* domain;
  const Variant* variants;
  int variant_count;
  int count;
  Op* ops;
  ort::Domain** domains;
  const char* provider;  // of the runtime, for the variants of GPUs; null: the CPU's
  int (*devices)();      // how many GPUs there are; null: no variant is for GPUs
  bool (*suits)(int device, int capability, Reach reach);  // whether one of them runs a variant
};

// Gives the options the kernels of the first variants that this machine can run; null: good.
ort::Status* register_kernels(ort::SessionOptions* options, const ort::Base* base, const Registration& r);

}  // namespace onnxfuse
