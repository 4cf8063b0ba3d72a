// Runs kernels that are linked into this program on inputs from a file, one after the other and task after task, and writes
// their outputs to another: for machines that are only emulated. Usage: PROGRAM IN OUT.
//
// IN: for each run, the kernel's number in `kernels` (int64), then for each input its rank, dims and data. OUT: for each run
// the outputs in the same form; a kernel that fails ends the program with its message.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "host.h"

using onnxfuse::i64;

extern const onnxfuse::Kernel* const kernels[];

namespace {

FILE* in;
FILE* out;

size_t element_size(int type) {
  switch (type) {
    case 1: case 6: case 12: return 4;
    case 4: case 5: case 10: case 16: return 2;
    case 7: case 11: case 13: return 8;
    default: return 1;
  }
}

struct Block {
  i64 dims[16];
  int rank;
  size_t bytes;
  void* data;
};

// Memory of 64-byte alignment, full of ones: a value left unwritten is a NaN.
void* memory(size_t bytes) {
  size_t rounded = bytes / 64 * 64 + 128;
  return memset(aligned_alloc(64, rounded), 0xff, rounded);
}

i64 number() {
  i64 value = -1;
  if (fread(&value, sizeof value, 1, in) != 1) value = -1;
  return value;
}

Block shaped(const i64* dims, int rank, int type) {
  Block b{};
  b.rank = rank;
  b.bytes = element_size(type);
  for (int i = 0; i < rank; i++) {
    b.dims[i] = dims[i];
    b.bytes *= (size_t)dims[i];
  }
  b.data = memory(b.bytes);
  return b;
}

struct Emulated : onnxfuse::Host {
  const onnxfuse::Kernel* kernel;
  Block outputs[16];
};

const char* run(const onnxfuse::Kernel* kernel) {
  Block blocks[64];
  onnxfuse::Tensor tensors[64];
  for (int i = 0; i < kernel->inputs; i++) {
    i64 dims[16];
    const int rank = (int)number();
    for (int d = 0; d < rank; d++) dims[d] = number();
    blocks[i] = shaped(dims, rank, kernel->input_types[i]);
    if (blocks[i].bytes && fread(blocks[i].data, blocks[i].bytes, 1, in) != 1) return "the file ends early";
    tensors[i] = onnxfuse::Tensor{blocks[i].data, blocks[i].dims, blocks[i].rank};
  }
  Emulated host{};
  host.kernel = kernel;
  host.cores = 2;
  host.output = [](onnxfuse::Host* self, int index, const i64* dims, int rank) -> void* {
    Emulated* e = static_cast<Emulated*>(self);
    e->outputs[index] = shaped(dims, rank, e->kernel->output_types[index]);
    return e->outputs[index].data;
  };
  host.scratch = [](onnxfuse::Host*, size_t bytes) { return memory(bytes); };
  host.parallel = [](onnxfuse::Host*, size_t tasks, void (*fn)(void*, size_t), void* user) {
    for (size_t i = tasks; i > 0; i--) fn(user, i - 1);
  };
  if (const char* message = kernel->run(&host, tensors)) return message;
  for (int i = 0; i < kernel->outputs; i++) {
    const Block& b = host.outputs[i];
    const i64 rank = b.rank;
    fwrite(&rank, sizeof rank, 1, out);
    fwrite(b.dims, sizeof(i64), (size_t)b.rank, out);
    if (b.bytes) fwrite(b.data, b.bytes, 1, out);
  }
  return nullptr;
}

}  // namespace

int main(int, char** argv) {
  in = fopen(argv[1], "rb");
  out = fopen(argv[2], "wb");
  if (!in || !out) return 2;
  for (i64 next = number(); next >= 0; next = number())
    if (const char* message = run(kernels[next])) {
      fprintf(stderr, "%s: %s\n", kernels[next]->name, message);
      return 1;
    }
  return fclose(out) == 0 ? 0 : 1;
}
