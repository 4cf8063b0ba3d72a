// A custom operator for ONNX Runtime's CUDA provider: one kernel, given as a cubin, on the provider's own stream.
//
// Build: g++ -std=c++17 -O2 -fPIC -shared custom_op.cc -o libcustom_op.so -ldl. The cubin (any image that cuModuleLoadData
// takes) is the file that ONNXFUSE_PROBE_IMAGE names; its function `kernel` is that of rows.cu. No CUDA library is linked.
// The numbers of the table's entries are those of ONNX Runtime's stable C interface, version 18.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

namespace {

enum Entry { CREATE_STATUS = 0, CREATE_DOMAIN = 26, DOMAIN_ADD = 27, ADD_DOMAIN = 28, TENSOR_DATA = 51, DIM_COUNT = 61,
             DIMS = 62, ELEMENTS = 64, TYPE_SHAPE = 65, INPUT = 90, OUTPUT = 91, RELEASE_TYPE_SHAPE = 99, GPU_STREAM = 193 };
using Table = const void* const*;
struct Base { Table (*get)(uint32_t); const char* (*version)(); };
struct Op {
  uint32_t version;
  void* (*create)(const Op*, Table, const void*);
  const char* (*name)(const Op*);
  const char* (*provider)(const Op*);
  int (*input_type)(const Op*, size_t);
  size_t (*inputs)(const Op*);
  int (*output_type)(const Op*, size_t);
  size_t (*outputs)(const Op*);
  void (*compute)(void*, void*);
  void (*destroy)(void*);
  int (*input_kind)(const Op*, size_t);
  int (*output_kind)(const Op*, size_t);
  int (*input_memory)(const Op*, size_t);
  void* unused[4];
  void* (*create2)(const Op*, Table, const void*, void**);
  void* (*compute2)(void*, void*);
  void* more[7];
};
static_assert(sizeof(Op) == 26 * 8, "the order of the fields is the interface");

Table table;
long computes, creates;

template <class R = void*, class... A>
R call(int entry, A... values) {
  return reinterpret_cast<R (*)(A...)>(const_cast<void*>(table[entry]))(values...);
}
void* failure(const std::string& text) { return call(CREATE_STATUS, 1, text.c_str()); }

struct Cuda {  // the driver, found when the first kernel is created
  void* lib = dlopen("libcuda.so.1", RTLD_NOW);
  template <class R = int, class... A>
  R operator()(const char* name, A... values) {
    return reinterpret_cast<R (*)(A...)>(dlsym(lib, name))(values...);
  }
};

struct Kernel {
  Cuda cuda;
  void *library = nullptr, *handle = nullptr, *function = nullptr;
  int threads = atoi(getenv("ONNXFUSE_PROBE_THREADS")), rows = atoi(getenv("ONNXFUSE_PROBE_ROWS"));
  unsigned shared = atoi(getenv("ONNXFUSE_PROBE_SHARED"));
};

void* create(const Op*, Table, const void*, void** made) {
  ++creates;
  auto* kernel = new Kernel;
  if (!kernel->cuda.lib) return failure("no driver");
  std::ifstream file(getenv("ONNXFUSE_PROBE_IMAGE"), std::ios::binary);
  std::string image{std::istreambuf_iterator<char>(file), {}};
  // A library needs no current context; the function is asked for in the one that is current when it runs.
  if (int code = kernel->cuda("cuLibraryLoadData", &kernel->library, (const void*)image.data(), (void*)nullptr,
                              (void*)nullptr, 0u, (void*)nullptr, (void*)nullptr, 0u))
    return failure("cuLibraryLoadData " + std::to_string(code));
  if (int code = kernel->cuda("cuLibraryGetKernel", &kernel->handle, kernel->library, "kernel"))
    return failure("cuLibraryGetKernel " + std::to_string(code));
  *made = kernel;
  return nullptr;
}

void* compute(void* state, void* context) {
  ++computes;
  auto& kernel = *static_cast<Kernel*>(state);
  void *x[4], *given[4];
  for (size_t i = 0; i < 4; ++i) {
    if (void* s = call(INPUT, context, i, (const void**)&given[i])) return s;
    if (void* s = call(TENSOR_DATA, given[i], &x[i])) return s;
  }
  void* shape;
  if (void* s = call(TYPE_SHAPE, given[0], &shape)) return s;
  size_t rank;
  int64_t dims[16];
  call(DIM_COUNT, shape, &rank);
  call(DIMS, shape, dims, rank);
  call<void>(RELEASE_TYPE_SHAPE, shape);
  void *result, *y, *stream;
  if (void* s = call(OUTPUT, context, size_t(0), (const int64_t*)dims, rank, &result)) return s;
  if (void* s = call(TENSOR_DATA, result, &y)) return s;
  if (void* s = call(GPU_STREAM, context, &stream)) return s;
  long long rows = 1;
  for (size_t i = 0; i + 1 < rank; ++i) rows *= dims[i];
  void* cells[] = {&x[0], &x[1], &x[2], &x[3], &y, &rows};
  const unsigned grid = unsigned((rows + kernel.rows - 1) / kernel.rows);
  // A kernel of a library stands where a function does, and runs in the context that is current.
  if (int code = kernel.cuda("cuLaunchKernel", kernel.handle, grid, 1u, 1u, (unsigned)kernel.threads, 1u, 1u,
                             kernel.shared, stream, (void**)cells, (void**)nullptr))
    return failure("cuLaunchKernel " + std::to_string(code));
  return nullptr;
}

Op op[2];

}  // namespace

extern "C" __attribute__((visibility("default"))) long probe_computes() { return computes; }
extern "C" __attribute__((visibility("default"))) long probe_creates() { return creates; }

extern "C" __attribute__((visibility("default"))) void* RegisterCustomOps(void* options, const Base* base) {
  table = base->get(18);
  if (!table) return nullptr;
  void* domain;
  if (void* s = call(CREATE_DOMAIN, (const char*)"onnxfuse.probe", &domain)) return s;
  Op& one = op[0];
  one.version = 18;
  one.name = [](const Op*) { return "Row"; };
  one.provider = [](const Op*) -> const char* { return "CUDAExecutionProvider"; };
  one.input_type = [](const Op*, size_t) { return 10; };  // fp16
  one.output_type = one.input_type;
  one.inputs = [](const Op*) -> size_t { return 4; };
  one.outputs = [](const Op*) -> size_t { return 1; };
  one.input_kind = [](const Op*, size_t) { return 0; };
  one.output_kind = one.input_kind;
  one.input_memory = [](const Op*, size_t) { return 0; };
  one.destroy = [](void* state) { delete static_cast<Kernel*>(state); };
  one.create2 = create;
  one.compute2 = compute;
  if (void* s = call(DOMAIN_ADD, domain, (const Op*)&one)) return s;
  return call(ADD_DOMAIN, options, domain);
}
