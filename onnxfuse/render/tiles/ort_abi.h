// The part of ONNX Runtime's stable C interface that a custom-op library needs: slot numbers, signatures, one struct.
// No runtime header and no runtime symbol: everything is reached through the table handed to RegisterCustomOps.
// Slots are of API version 18 (runtime 1.18) unless a comment names a later one.
#pragma once
#include <cstddef>
#include <cstdint>

#include "agreed.h"

namespace onnxfuse {
namespace ort {

struct Status;  // null is success; whoever gets one owns it
struct SessionOptions;
struct Domain;
struct KernelInfo;
struct KernelContext;
struct Value;
struct ShapeInfo;
struct Allocator;
struct MemoryInfo;
struct Env;
struct Logger;
struct Session;
struct RunOptions;

#if defined(_WIN32)
typedef wchar_t PathChar;
#else
typedef char PathChar;
#endif
typedef const void* const* Api;  // the function table, by slot

struct Base {
  Api (*get_api)(uint32_t version);  // null above the runtime's own version
  const char* (*version)();          // such as "1.31.1"
};

enum { kAbiVersion = agreed::ABI_VERSION, kFastShapeVersion = 24 };
enum ErrorCode { kFail = 1, kInvalidArgument = 2 };

template <int Number, class Signature>
struct Slot {
  Signature* operator()(Api api) const { return reinterpret_cast<Signature*>(const_cast<void*>(api[Number])); }
};

struct CustomOp;
typedef void (*Task)(void* user, size_t index);

constexpr Slot<0, Status*(ErrorCode, const char* text)> CreateStatus{};  // copies the text
constexpr Slot<3, Status*(int severity, const char* id, Env** out)> CreateEnv{};  // the one of the process, if there is one
constexpr Slot<8, Status*(const Env*, const void* model, size_t bytes, const SessionOptions*, Session** out)>
    CreateSessionFromArray{};
constexpr Slot<9, Status*(Session*, const RunOptions*, const char* const* inputs, const Value* const* values, size_t count,
                          const char* const* outputs, size_t output_count, Value** out)>
    Run{};  // null values are allocated; release with slot 96
constexpr Slot<10, Status*(SessionOptions** out)> CreateSessionOptions{};  // release with slot 100
constexpr Slot<22, Status*(SessionOptions*, int severity)> SetSessionLogSeverityLevel{};
constexpr Slot<24, Status*(SessionOptions*, int threads)> SetIntraOpNumThreads{};
constexpr Slot<26, Status*(const char* name, Domain** out)> CreateCustomOpDomain{};
constexpr Slot<27, Status*(Domain*, const CustomOp*)> CustomOpDomainAdd{};         // keeps the pointer
constexpr Slot<28, Status*(SessionOptions*, Domain*)> AddCustomOpDomain{};         // keeps the pointer
constexpr Slot<51, Status*(const Value*, void** out)> GetTensorMutableData{};
constexpr Slot<61, Status*(const ShapeInfo*, size_t* rank)> GetDimensionsCount{};
constexpr Slot<62, Status*(const ShapeInfo*, int64_t* dims, size_t rank)> GetDimensions{};
constexpr Slot<64, Status*(const ShapeInfo*, size_t* count)> GetTensorShapeElementCount{};
constexpr Slot<65, Status*(const Value*, ShapeInfo** out)> GetTensorTypeAndShape{};  // release with slot 99
constexpr Slot<72, Status*(const MemoryInfo*, int* out)> MemoryInfoGetId{};  // the number of a device
constexpr Slot<75, Status*(Allocator*, size_t bytes, void** out)> AllocatorAlloc{};
constexpr Slot<76, Status*(Allocator*, void*)> AllocatorFree{};
constexpr Slot<77, Status*(const Allocator*, const MemoryInfo** out)> AllocatorGetInfo{};  // the allocator's own
constexpr Slot<87, Status*(const KernelInfo*, const char* name, char* out, size_t* size)> KernelInfoGetAttributeString{};
constexpr Slot<90, Status*(const KernelContext*, size_t index, const Value** out)> GetInput{};
constexpr Slot<91, Status*(KernelContext*, size_t index, const int64_t* dims, size_t rank, Value** out)> GetOutput{};
constexpr Slot<92, void(Env*)> ReleaseEnv{};
constexpr Slot<93, void(Status*)> ReleaseStatus{};
constexpr Slot<95, void(Session*)> ReleaseSession{};
constexpr Slot<96, void(Value*)> ReleaseValue{};
constexpr Slot<99, void(ShapeInfo*)> ReleaseShapeInfo{};
constexpr Slot<100, void(SessionOptions*)> ReleaseSessionOptions{};
constexpr Slot<101, void(Domain*)> ReleaseCustomOpDomain{};
constexpr Slot<125, Status*(char*** names, int* count)> GetAvailableProviders{};  // release with slot 126
constexpr Slot<126, Status*(char** names, int count)> ReleaseAvailableProviders{};
constexpr Slot<130, Status*(SessionOptions*, const char* key, const char* value)> AddSessionConfigEntry{};  // copies both
constexpr Slot<132, void(Allocator*)> ReleaseAllocator{};
constexpr Slot<193, Status*(const KernelContext*, void** out)> GetGPUComputeStream{};  // null on the CPU
constexpr Slot<237, Status*(const SessionOptions*, const char* key, int* out)> HasSessionConfigEntry{};
constexpr Slot<238, Status*(const SessionOptions*, const char* key, char* out, size_t* size)> GetSessionConfigEntry{};
constexpr Slot<245, Status*(const KernelInfo*, const Logger** out)> KernelInfoGetLogger{};  // the session's, while it lives
constexpr Slot<247, Status*(const Logger*, int severity, const char* text, const PathChar* file, int line, const char* function)>
    LogMessage{};
// What a provider's stream has, by number; an error where it has none.
constexpr Slot<265, Status*(const KernelContext*, int version, int number, void** out)> GetResource{};
constexpr Slot<274, Status*(const KernelContext*, Task, size_t total, size_t batches, void* user)> ParallelFor{};
// Memory that runs on other streams do not get before this one is done with it; freed by an allocator of the same info.
constexpr Slot<277, Status*(const KernelContext*, const MemoryInfo*, size_t bytes, void** out)> GetScratchBuffer{};
constexpr Slot<278, Status*(const KernelInfo*, int memory_type, Allocator** out)> GetAllocator{};  // release with 132
// Version 24. The dims are borrowed from the value; nothing is allocated.
constexpr Slot<414, Status*(const Value*, int* type, const int64_t** dims, size_t* rank)> GetShapeReference{};

// One operator. The order of the fields is the interface; a null callback is one that version 18 permits to be absent.
struct CustomOp {
  uint32_t version;
  void* (*create)(const CustomOp*, Api, const KernelInfo*);
  const char* (*name)(const CustomOp*);
  const char* (*provider)(const CustomOp*);  // null text: the CPU
  int (*input_type)(const CustomOp*, size_t index);
  size_t (*input_count)(const CustomOp*);
  int (*output_type)(const CustomOp*, size_t index);
  size_t (*output_count)(const CustomOp*);
  void (*compute)(void* instance, KernelContext*);
  void (*destroy)(void* instance);
  int (*input_kind)(const CustomOp*, size_t index);  // 0 required, 1 optional, 2 variadic
  int (*output_kind)(const CustomOp*, size_t index);
  int (*input_memory)(const CustomOp*, size_t index);  // 0 the provider's default
  int (*variadic_input_min)(const CustomOp*);
  int (*variadic_input_homogeneous)(const CustomOp*);
  int (*variadic_output_min)(const CustomOp*);
  int (*variadic_output_homogeneous)(const CustomOp*);
  Status* (*create_v2)(const CustomOp*, Api, const KernelInfo*, void** instance);
  Status* (*compute_v2)(void* instance, KernelContext*);
  Status* (*infer_shapes)(const CustomOp*, void* context);
  int (*start_version)(const CustomOp*);
  int (*end_version)(const CustomOp*);
  size_t (*may_inplace)(int** inputs, int** outputs);
  void (*release_inplace)(int*, int*);
  size_t (*alias_map)(int** inputs, int** outputs);
  void (*release_alias_map)(int*, int*);
};
static_assert(sizeof(CustomOp) == 26 * sizeof(void*), "the custom-op struct is 26 machine words");

}  // namespace ort
}  // namespace onnxfuse
