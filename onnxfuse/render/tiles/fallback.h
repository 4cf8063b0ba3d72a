// The function body of a node as a model, which a session of its own runs where the sizes of a call contradict the names
// of the model's dimensions: the kernel was built for equal sizes, the body takes all that the original takes.
#pragma once
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "host.h"
#include "ort_abi.h"

namespace onnxfuse {
namespace {

struct Fallback {
  ort::Api api;
  char* model;  // a ModelProto with inputs in0, in1, ... and outputs out0, out1, ...
  size_t bytes;
  std::atomic<ort::Session*> session;  // null until the first call that needs it
};

// The model that the node carries in the attribute FALLBACK; null where there is none.
inline Fallback* fallback_of(ort::Api api, const ort::KernelInfo* info) {
  size_t size = 0;
  if (ort::Status* none = ort::KernelInfoGetAttributeString(api)(info, agreed::FALLBACK, nullptr, &size)) {
    ort::ReleaseStatus(api)(none);
    return nullptr;
  }
  Fallback* made = static_cast<Fallback*>(calloc(1, sizeof(Fallback)));
  char* model = static_cast<char*>(malloc(size + 1));
  ort::Status* failed = made && model ? ort::KernelInfoGetAttributeString(api)(info, agreed::FALLBACK, model, &size) : nullptr;
  if (failed) ort::ReleaseStatus(api)(failed);
  if (!made || !model || failed || !size) {
    free(made);
    free(model);
    return nullptr;
  }
  made->api = api;
  made->model = model;
  made->bytes = size - 1;  // without the final zero
  return made;
}

inline void release(Fallback* f) {
  if (!f) return;
  if (ort::Session* session = f->session.load()) ort::ReleaseSession(f->api)(session);
  free(f->model);
  free(f);
}

// The session, made by the first that asks; of two that ask at once, one is thrown away. On one thread: the caller's.
inline ort::Status* session_of(Fallback* f, ort::Session** out) {
  *out = f->session.load(std::memory_order_acquire);
  if (*out) return nullptr;
  const int kErrors = 3;
  ort::Env* env = nullptr;
  ort::SessionOptions* options = nullptr;
  ort::Session* made = nullptr;
  ort::Status* status = ort::CreateEnv(f->api)(kErrors, "onnxfuse", &env);
  if (!status) status = ort::CreateSessionOptions(f->api)(&options);
  if (!status) status = ort::SetSessionLogSeverityLevel(f->api)(options, kErrors);
  if (!status) status = ort::SetIntraOpNumThreads(f->api)(options, 1);
  if (!status) status = ort::CreateSessionFromArray(f->api)(env, f->model, f->bytes, options, &made);
  if (options) ort::ReleaseSessionOptions(f->api)(options);
  if (env) ort::ReleaseEnv(f->api)(env);
  if (status) return status;
  if (f->session.compare_exchange_strong(*out, made, std::memory_order_acq_rel)) *out = made;
  else ort::ReleaseSession(f->api)(made);
  return nullptr;
}

// in0, in1, ... or out0, out1, ...
struct Names {
  char text[16];
  static const char** list(const char* prefix, int count) {
    char* room = static_cast<char*>(malloc(size_t(count + 1) * (sizeof(char*) + sizeof(Names))));
    if (!room) return nullptr;
    const char** all = reinterpret_cast<const char**>(room);
    Names* names = reinterpret_cast<Names*>(room + size_t(count + 1) * sizeof(char*));
    for (int i = 0; i < count; ++i) {
      char* at = names[i].text;
      for (const char* c = prefix; *c; ++c) *at++ = *c;
      int digits = 1;
      for (int rest = i; rest >= 10; rest /= 10) ++digits;
      at[digits] = 0;
      for (int rest = i; digits-- > 0; rest /= 10) at[digits] = char('0' + rest % 10);
      all[i] = names[i].text;
    }
    return all;
  }
};

// Copies a result of the body into output `index` of the node. `bytes` are those of an element.
inline ort::Status* hand_over(ort::Api api, ort::KernelContext* context, size_t index, const ort::Value* made, size_t bytes) {
  enum { kMaxRank = 64 };
  i64 dims[kMaxRank];
  size_t rank = 0, count = 0;
  ort::ShapeInfo* info = nullptr;
  if (ort::Status* failed = ort::GetTensorTypeAndShape(api)(made, &info)) return failed;
  ort::Status* status = ort::GetDimensionsCount(api)(info, &rank);
  if (!status && rank > kMaxRank) status = ort::CreateStatus(api)(ort::kFail, "a result has too many dimensions");
  if (!status) status = ort::GetDimensions(api)(info, dims, rank);
  if (!status) status = ort::GetTensorShapeElementCount(api)(info, &count);
  ort::ReleaseShapeInfo(api)(info);
  ort::Value* value = nullptr;
  void *from = nullptr, *to = nullptr;
  if (!status) status = ort::GetOutput(api)(context, index, dims, rank, &value);
  if (!status) status = ort::GetTensorMutableData(api)(value, &to);
  if (!status) status = ort::GetTensorMutableData(api)(made, &from);
  if (!status && count) memcpy(to, from, count * bytes);
  return status;
}

inline size_t element_bytes(int onnx_type) {
  switch (onnx_type) {
    case 1: case 6: case 12: return 4;           // float, int32, uint32
    case 7: case 11: case 13: return 8;          // int64, double, uint64
    case 4: case 5: case 10: case 16: return 2;  // uint16, int16, float16, bfloat16
    default: return 1;                           // 8 bits: uint8, int8, bool
  }
}

// Runs the body on the inputs of a node, which are in host memory.
inline ort::Status* run_fallback(Fallback* f, const Kernel* kernel, ort::KernelContext* context) {
  ort::Session* session = nullptr;
  if (ort::Status* failed = session_of(f, &session)) return failed;
  const char** inputs = Names::list("in", kernel->inputs);
  const char** outputs = Names::list("out", kernel->outputs);
  const ort::Value** values = static_cast<const ort::Value**>(calloc(size_t(kernel->inputs) + 1, sizeof(ort::Value*)));
  ort::Value** made = static_cast<ort::Value**>(calloc(size_t(kernel->outputs) + 1, sizeof(ort::Value*)));
  ort::Status* status = nullptr;
  if (!inputs || !outputs || !values || !made) status = ort::CreateStatus(f->api)(ort::kFail, "out of memory");
  for (int i = 0; i < kernel->inputs && !status; ++i) status = ort::GetInput(f->api)(context, size_t(i), values + i);
  if (!status)
    status = ort::Run(f->api)(session, nullptr, inputs, values, size_t(kernel->inputs), outputs, size_t(kernel->outputs), made);
  for (int i = 0; i < kernel->outputs && !status; ++i)
    status = hand_over(f->api, context, size_t(i), made[i], element_bytes(kernel->output_types[i]));
  for (int i = 0; made && i < kernel->outputs; ++i)
    if (made[i]) ort::ReleaseValue(f->api)(made[i]);
  free(inputs);
  free(outputs);
  free(values);
  free(made);
  return status;
}

}  // namespace
}  // namespace onnxfuse
