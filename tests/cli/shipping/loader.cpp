// A host that knows ONNX Runtime by our own description of its C interface alone: it opens a model with its library and
// runs it on as many floats as its input has; prints the sum of its output. Arguments: runtime, library, model, rows, columns.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "ort_abi.h"

namespace {
using namespace onnxfuse::ort;

constexpr Slot<2, const char*(const Status*)> GetErrorMessage{};
constexpr Slot<7, Status*(const Env*, const char* path, const SessionOptions*, Session** out)> CreateSession{};
constexpr Slot<29, Status*(SessionOptions*, const char* path, void** handle)> RegisterCustomOpsLibrary{};
constexpr Slot<49, Status*(const MemoryInfo*, void* data, size_t bytes, const int64_t* dims, size_t rank, int type,
                           Value** out)>
    CreateTensor{};
constexpr Slot<69, Status*(int allocator, int memory, MemoryInfo** out)> CreateCpuMemoryInfo{};

Api api;

void well(Status* status) {
  if (status == nullptr) return;
  std::fprintf(stderr, "%s\n", GetErrorMessage(api)(status));
  std::exit(1);
}

}  // namespace

int main(int, char** arguments) {
  void* runtime = dlopen(arguments[1], RTLD_NOW);
  if (runtime == nullptr) return std::fprintf(stderr, "%s\n", dlerror()), 1;
  const auto base = reinterpret_cast<const Base* (*)()>(dlsym(runtime, "OrtGetApiBase"))();
  api = base->get_api(kAbiVersion);
  Env* env;
  SessionOptions* options;
  Session* session;
  MemoryInfo* memory;
  Value *input, *output = nullptr;
  void *handle, *made;
  well(CreateEnv(api)(3, "loader", &env));
  well(CreateSessionOptions(api)(&options));
  well(RegisterCustomOpsLibrary(api)(options, arguments[2], &handle));
  well(CreateSession(api)(env, arguments[3], options, &session));
  const int64_t dims[2] = {std::atoi(arguments[4]), std::atoi(arguments[5])};
  std::vector<float> values(dims[0] * dims[1], 0.5f);
  well(CreateCpuMemoryInfo(api)(1, 0, &memory));
  well(CreateTensor(api)(memory, values.data(), values.size() * sizeof(float), dims, size_t{2}, 1, &input));
  const char *names[] = {"x"}, *outputs[] = {"y"};
  well(Run(api)(session, nullptr, names, &input, size_t{1}, outputs, size_t{1}, &output));
  well(GetTensorMutableData(api)(output, &made));
  double sum = 0;
  for (size_t i = 0; i < values.size(); ++i) sum += static_cast<const float*>(made)[i];
  std::printf("%s %.6f\n", base->version(), sum);
}
