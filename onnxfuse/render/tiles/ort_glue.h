// Runs kernels (host.h) as custom operators of ONNX Runtime 1.18 and newer, and never brings its process down:
// what this machine or runtime cannot run is not registered, and the model's function bodies run instead.
// Compiled once, for the baseline of its architecture, without exceptions; each library links its own copy.
#pragma once
#include <atomic>
#include <cstdlib>
#include <cstring>

#if defined(__linux__)
#include <sched.h>
#include <sys/syscall.h>
#endif
#if !defined(_WIN32)
#include <unistd.h>
#endif
#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif

#include "fallback.h"
#include "registration.h"
#include "session.h"

namespace onnxfuse {
namespace {  // each library keeps its own copy of every function

// ---- what the machine has --------------------------------------------------------------------------------------

#if defined(__x86_64__) || defined(__i386__)
const uint64_t kTileData = 1u << agreed::TILE_DATA;  // XCR0: AMX tile data, which Linux grants on request only

inline bool cpu_bit(unsigned leaf, unsigned subleaf, int reg, int bit) {
  unsigned r[4] = {0, 0, 0, 0};
  return __get_cpuid_count(leaf, subleaf, &r[0], &r[1], &r[2], &r[3]) && (r[reg] >> bit & 1);
}

inline uint64_t saved_state() {
  if (!cpu_bit(1, 0, 2, 27)) return 0;  // OSXSAVE: xgetbv may be used
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t(high) << 32 | low;
}

inline bool tiles_granted() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  return syscall(SYS_arch_prctl, agreed::REQUEST_PERMISSION, agreed::TILE_DATA) == 0;
#else
  return false;
#endif
}

inline bool cpu_has(const Feature& f) {
  if (!cpu_bit(f.leaf, f.subleaf, f.reg, f.bit) || (saved_state() & f.state) != f.state) return false;
  return !(f.state & kTileData) || tiles_granted();
}
#else
inline bool cpu_has(const Feature&) { return false; }  // the rows are of x86
#endif

inline bool cpu_has_all(const Feature* features, int count) {
  for (int i = 0; i < count; ++i)
    if (!cpu_has(features[i])) return false;
  return true;
}

#if defined(__linux__)
inline int allowed_cores(pid_t thread) {
  cpu_set_t set;
  return sched_getaffinity(thread, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 0;
}
#endif

// Cores that this process may use. The caller alone may be pinned to one core, so the main thread is asked as well.
inline int usable_cores() {
  int cores = 0;
#if defined(__linux__)
  const int here = allowed_cores(0), main = allowed_cores(getpid());
  cores = here > main ? here : main;
#endif
#if !defined(_WIN32)
  if (cores < 1) cores = int(sysconf(_SC_NPROCESSORS_ONLN));
#endif
  return cores < 1 ? 1 : cores;
}

// ---- the runtime -----------------------------------------------------------------------------------------------

// Facts of the one runtime that this copy of the library serves; written once, before any operator is registered.
struct Runtime {
  std::atomic<int> state;  // 0 unknown, 1 being set up, 2 ready
  const ort::Base* base;
  ort::Api api;
  bool fast_shapes;  // slot 414 is there
  int cores;
  Registration all;  // of this library
};
Runtime runtime;

inline bool at_least(const char* version, long major, long minor) {
  char* rest = nullptr;
  const long a = strtol(version, &rest, 10);
  const long b = *rest == '.' ? strtol(rest + 1, nullptr, 10) : 0;
  return a > major || (a == major && b >= minor);
}

alignas(64) char nothing[64];  // stands for the data of tensors without elements

inline void* some(void* data) { return data ? data : nothing; }

// ---- kernels for each device ---------------------------------------------------------------------------------------

// The first variant that has a kernel of an operator which a GPU runs, -1 without one; `only` allows one name, null any.
inline int variant_on(const Registration& r, int device, int operation, const char* only) {
  for (int i = 0; i < r.variant_count; ++i) {
    const Variant& v = r.variants[i];
    if (v.capability > 0 && v.kernels[operation] && (!only || strcmp(only, v.name) == 0) &&
        r.suits(device, v.capability, v.reach))
      return i;
  }
  return -1;
}

// Whether all GPUs run a kernel of an operator: nobody knows yet on which of them a session will be.
inline bool on_all(const Registration& r, int operation, const char* only) {
  const int count = r.devices();
  for (int device = 0; device < count; ++device)
    if (variant_on(r, device, operation, only) < 0) return false;
  return count > 0;
}

// The one variant that the environment allows; null: any.
inline const char* only_variant() {
  const char* only = getenv(agreed::ISA);
  return only && *only ? only : nullptr;
}

// The kernel of a registered operator for a device; one for CPUs has no other.
inline const Kernel* kernel_on(const Op* op, int device) {
  const Registration& r = runtime.all;
  const int at = int(op - r.ops);
  if (r.variants[at / r.count].capability == 0) return op->kernel;
  if (device < 0 || device >= r.devices()) return nullptr;
  const int best = variant_on(r, device, at % r.count, only_variant());
  return best < 0 ? nullptr : r.variants[best].kernels[at % r.count];
}

// ---- one run of one node ---------------------------------------------------------------------------------------

struct Instance {  // serves several runs at a time, so it is never written after its creation
  const Kernel* kernel;
  ort::Allocator* allocator;
  const ort::MemoryInfo* memory;  // of the allocator
  bool on_host;                   // its tensors are
  Fallback* fallback;             // null: without one
  Session* session;               // null: unknown, or on a GPU
};

struct Call : Host {
  const Instance* instance;
  ort::KernelContext* context;
  ort::Status* status;  // the first failure of the runtime
  void* block;          // what `scratch` got, as the allocator knows it
  bool began;           // an output was made: the kernel took the sizes of the inputs

  bool good(ort::Status* s) {
    if (!s) return true;
    if (status) ort::ReleaseStatus(runtime.api)(s);
    else status = s;
    return false;
  }
};

inline void* call_output(Host* host, int index, const i64* dims, int rank) {
  Call* call = static_cast<Call*>(host);
  ort::Value* value = nullptr;
  void* data = nullptr;
  const i64 no_dims[1] = {0};
  const i64* shape = rank ? dims : no_dims;
  call->began = true;
  if (!call->good(ort::GetOutput(runtime.api)(call->context, size_t(index), shape, size_t(rank), &value))) return nullptr;
  if (!value || !call->good(ort::GetTensorMutableData(runtime.api)(value, &data))) return nullptr;
  return some(data);
}

inline void* call_stream(Host* host) {
  Call* call = static_cast<Call*>(host);
  void* stream = nullptr;
  call->good(ort::GetGPUComputeStream(runtime.api)(call->context, &stream));
  return stream;
}

// The option use_tf32 of the CUDA provider, which has one byte; a provider that does not say rounds nothing.
inline bool call_rounds(Host* host) {
  enum { kVersion = 3, kUseTf32 = 10011 };  // of CudaResource
  void* said = nullptr;
  ort::Status* status = ort::GetResource(runtime.api)(static_cast<Call*>(host)->context, kVersion, kUseTf32, &said);
  if (status) ort::ReleaseStatus(runtime.api)(status);
  return !status && (reinterpret_cast<uintptr_t>(said) & 0xff);
}

inline void* call_scratch(Host* host, size_t bytes) {
  Call* call = static_cast<Call*>(host);
  const size_t kAlign = agreed::ALIGNMENT;
  if (call->block || bytes > SIZE_MAX - kAlign) return nullptr;
  // On a GPU kernels that use the memory are only queued when the run ends: it has to be memory of their stream.
  ort::Status* status = !call->instance->on_host && call_stream(host)
      ? ort::GetScratchBuffer(runtime.api)(call->context, call->instance->memory, bytes + kAlign, &call->block)
      : ort::AllocatorAlloc(runtime.api)(call->instance->allocator, bytes + kAlign, &call->block);
  if (!call->good(status) || !call->block) return nullptr;
  return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(call->block) + kAlign - 1) & ~uintptr_t(kAlign - 1));
}

inline void call_parallel(Host* host, size_t tasks, void (*fn)(void*, size_t), void* user) {
  Call* call = static_cast<Call*>(host);
  if (tasks == 1) return fn(user, 0);
  if (tasks) call->good(ort::ParallelFor(runtime.api)(call->context, fn, tasks, 0, user));
}

// Rank and dims of `value`. The dims live in the value, or in `room`, which then holds kMaxRank.
enum { kMaxRank = 16 };

inline bool read_shape(Call* call, const ort::Value* value, i64* room, Tensor* out) {
  size_t rank = 0;
  if (runtime.fast_shapes) {
    int type = 0;
    if (!call->good(ort::GetShapeReference(runtime.api)(value, &type, &out->dims, &rank))) return false;
  } else {
    ort::ShapeInfo* info = nullptr;
    if (!call->good(ort::GetTensorTypeAndShape(runtime.api)(value, &info))) return false;
    bool ok = call->good(ort::GetDimensionsCount(runtime.api)(info, &rank)) && rank <= kMaxRank;
    ok = ok && call->good(ort::GetDimensions(runtime.api)(info, room, rank));
    ort::ReleaseShapeInfo(runtime.api)(info);
    if (!ok) return false;
    out->dims = room;
  }
  out->rank = int(rank);
  return true;
}

inline bool read_input(Call* call, size_t index, i64* room, Tensor* out) {
  const ort::Value* value = nullptr;
  void* data = nullptr;
  if (!call->good(ort::GetInput(runtime.api)(call->context, index, &value)) || !value) return false;
  if (!read_shape(call, value, room, out)) return false;
  if (!call->good(ort::GetTensorMutableData(runtime.api)(value, &data))) return false;
  out->data = some(data);
  return true;
}

inline const char* call_kernel(Call* call) {
  const Kernel* kernel = call->instance->kernel;
  const size_t count = size_t(kernel->inputs);
  Tensor* inputs = static_cast<Tensor*>(__builtin_alloca((count + 1) * sizeof(Tensor)));
  const size_t room = runtime.fast_shapes ? 0 : kMaxRank;
  i64* dims = static_cast<i64*>(__builtin_alloca((count * room + 1) * sizeof(i64)));
  for (size_t i = 0; i < count; ++i)
    if (!read_input(call, i, dims + i * room, inputs + i)) return "an input cannot be read";
  return kernel->run(call, inputs);
}

inline ort::Status* op_compute(void* instance, ort::KernelContext* context) {
  Call call;
  call.output = call_output;
  call.scratch = call_scratch;
  call.parallel = call_parallel;
  call.stream = call_stream;
  call.rounds = call_rounds;
  call.instance = static_cast<const Instance*>(instance);
  call.waits = call.instance->on_host;
  call.context = context;
  call.cores = threads_of(call.instance->session, runtime.api, context, runtime.cores);
  call.status = nullptr;
  call.block = nullptr;
  call.began = false;
  const char* message = call_kernel(&call);
  if (call.block) call.good(ort::AllocatorFree(runtime.api)(call.instance->allocator, call.block));
  if (call.status || !message) return call.status;
  if (!call.began && call.instance->fallback)
    return run_fallback(call.instance->fallback, call.instance->kernel, context);
  return ort::CreateStatus(runtime.api)(ort::kInvalidArgument, message);
}

inline ort::Status* op_create(const ort::CustomOp* op, ort::Api, const ort::KernelInfo* info, void** out) {
  Instance* made = static_cast<Instance*>(malloc(sizeof(Instance)));
  if (!made) return ort::CreateStatus(runtime.api)(ort::kFail, "out of memory");
  int device = 0;
  made->on_host = !reinterpret_cast<const Op*>(op)->provider;
  made->allocator = nullptr;
  ort::Status* status = ort::GetAllocator(runtime.api)(info, 0, &made->allocator);
  if (!status) status = ort::AllocatorGetInfo(runtime.api)(made->allocator, &made->memory);
  if (!status && !made->on_host) status = ort::MemoryInfoGetId(runtime.api)(made->memory, &device);
  made->kernel = kernel_on(reinterpret_cast<const Op*>(op), device);
  const char* wrong = made->kernel ? nullptr : "this GPU runs none of the kernels";
  const ort::Logger* logger = nullptr;
  if (!status && made->on_host)
    if (ort::Status* none = ort::KernelInfoGetLogger(runtime.api)(info, &logger)) ort::ReleaseStatus(runtime.api)(none);
  if (!status && !wrong && made->kernel->prepare) wrong = made->kernel->prepare(device);
  if (wrong) status = ort::CreateStatus(runtime.api)(ort::kFail, wrong);
  if (!status) {
    made->fallback = made->on_host ? fallback_of(runtime.api, info) : nullptr;
    made->session = logger ? join(logger) : nullptr;
    return *out = made, nullptr;
  }
  if (made->allocator) ort::ReleaseAllocator(runtime.api)(made->allocator);
  free(made);
  return status;
}

inline void op_destroy(void* instance) {
  ort::ReleaseAllocator(runtime.api)(static_cast<Instance*>(instance)->allocator);
  release(static_cast<Instance*>(instance)->fallback);
  leave(static_cast<Instance*>(instance)->session);
  free(instance);
}

// ---- registration ----------------------------------------------------------------------------------------------

inline const Kernel* kernel_of(const ort::CustomOp* op) { return reinterpret_cast<const Op*>(op)->kernel; }
inline const char* op_name(const ort::CustomOp* op) { return kernel_of(op)->name; }
inline const char* op_provider(const ort::CustomOp* op) { return reinterpret_cast<const Op*>(op)->provider; }
inline int op_input_type(const ort::CustomOp* op, size_t index) { return kernel_of(op)->input_types[index]; }
inline size_t op_input_count(const ort::CustomOp* op) { return size_t(kernel_of(op)->inputs); }
inline int op_output_type(const ort::CustomOp* op, size_t index) { return kernel_of(op)->output_types[index]; }
inline size_t op_output_count(const ort::CustomOp* op) { return size_t(kernel_of(op)->outputs); }
inline int op_plain(const ort::CustomOp*, size_t) { return 0; }  // required, in default memory

inline void describe(Op* op, const Kernel* kernel, const char* provider) {
  memset(op, 0, sizeof(Op));
  op->kernel = kernel;
  op->provider = provider;
  op->abi.version = ort::kAbiVersion;
  op->abi.name = op_name;
  op->abi.provider = op_provider;
  op->abi.input_type = op_input_type;
  op->abi.input_count = op_input_count;
  op->abi.output_type = op_output_type;
  op->abi.output_count = op_output_count;
  op->abi.input_kind = op_plain;
  op->abi.output_kind = op_plain;
  op->abi.input_memory = op_plain;
  op->abi.create_v2 = op_create;
  op->abi.compute_v2 = op_compute;
  op->abi.destroy = op_destroy;
}

// The session config entry DISABLE: "1", or names of kernels with commas between them, to be run as function
// bodies; empty where there is none. The size counts the final zero.
inline const char* switched_off(ort::Api api, const ort::SessionOptions* options) {
  const char* key = agreed::DISABLE;
  int there = 0;
  char* text = nullptr;
  size_t size = 0;
  ort::Status* status = ort::HasSessionConfigEntry(api)(options, key, &there);
  if (!status && there) {
    if (ort::Status* first = ort::GetSessionConfigEntry(api)(options, key, nullptr, &size)) ort::ReleaseStatus(api)(first);
    text = static_cast<char*>(malloc(size + 1));  // never freed: a few words for a session that asks for them
    if (text) status = ort::GetSessionConfigEntry(api)(options, key, text, &size);
  }
  if (status) ort::ReleaseStatus(api)(status);
  return !status && text ? text : "";
}

inline bool names(const char* list, const char* name) {
  const size_t length = strlen(name);
  for (const char* at = strstr(list, name); at; at = strstr(at + 1, name))
    if ((at == list || at[-1] == ',') && (at[length] == ',' || !at[length])) return true;
  return false;
}

// A few words, cut where they get too long.
struct Words {
  char text[512];
  size_t size;
  Words() : size(0) { text[0] = 0; }
  Words& operator<<(const char* more) {
    while (*more && size + 1 < sizeof(text)) text[size++] = *more++;
    text[size] = 0;
    return *this;
  }
};

// Whether options have heard of a domain. Equal kernels of another model's library serve both models.
inline bool told(ort::Api api, const ort::SessionOptions* options, const char* domain) {
  Words key;
  key << domain << agreed::STATUS;
  int there = 0;
  if (ort::Status* failed = ort::HasSessionConfigEntry(api)(options, key.text, &there)) ort::ReleaseStatus(api)(failed);
  return there != 0;
}

// The session config entry of a domain, with STATUS behind it, says whether kernels run. A library that steps aside also has the runtime log
// it: there is no logger yet, but an entry that is set again is reported as a warning, with its old value.
inline void tell(ort::Api api, ort::SessionOptions* options, const char* domain, const char* status, bool log) {
  if (told(api, options, domain)) return;
  Words key;
  key << domain << agreed::STATUS;
  for (int i = 0; i < 1 + log; ++i)
    if (ort::Status* failed = ort::AddSessionConfigEntry(api)(options, key.text, status)) ort::ReleaseStatus(api)(failed);
}

// A domain of the operators that all GPUs run (`gpu`) and of those of a CPU's variant (-1: none), but those that
// `without` names.
inline ort::Status* make_domain(const Registration& r, bool gpu, int cpu, const char* only, const char* without,
                                ort::Domain** out) {
  ort::Domain* domain = nullptr;
  ort::Status* status = ort::CreateCustomOpDomain(runtime.api)(r.domain, &domain);
  for (int side = 0; side < 2; ++side) {
    for (int i = 0; i < r.count && !status; ++i) {
      const int variant = side ? cpu : gpu && on_all(r, i, only) ? variant_on(r, 0, i, only) : -1;
      if (variant < 0 || !r.variants[variant].kernels[i] || names(without, r.variants[variant].kernels[i]->name)) continue;
      status = ort::CustomOpDomainAdd(runtime.api)(domain, &r.ops[variant * r.count + i].abi);
    }
  }
  if (status && domain) ort::ReleaseCustomOpDomain(runtime.api)(domain);
  if (!status) *out = domain;
  return status;
}

// Whether there are GPUs, and all run some kernel.
inline bool gpus_run(const Registration& r, const char* only) {
  for (int i = 0; r.devices && i < r.count; ++i)
    if (on_all(r, i, only)) return true;
  return false;
}

// The first variant for CPUs that this machine can run, -1 without one; `only` allows one name, null any.
inline int best_variant(const Registration& r, const char* only) {
  for (int i = 0; i < r.variant_count; ++i) {
    const Variant& v = r.variants[i];
    if (v.capability > 0 || (only && strcmp(only, v.name) != 0)) continue;
    if (cpu_has_all(v.features, v.feature_count)) return i;
  }
  return -1;
}

// The variant of the CPU that is registered beside the GPUs', for sessions without their provider; -1: none.
inline int beside(const Registration& r, bool gpu, const char* only) {
  return !gpu || r.provider ? best_variant(r, only) : -1;  // two kernels of one provider would be one too many
}

// The first caller makes the domains, the others wait for it. They are never released: sessions hold them until they end.
inline ort::Status* set_up(const ort::Base* base, ort::Api api, const Registration& r) {
  int unknown = 0;
  while (!runtime.state.compare_exchange_weak(unknown, 1, std::memory_order_acquire)) {
    if (unknown == 2) return nullptr;
    unknown = 0;
  }
  const char* version = base->version();
  ort::Api newer = at_least(version, 1, ort::kFastShapeVersion) ? base->get_api(ort::kFastShapeVersion) : nullptr;
  runtime.base = base;
  runtime.api = newer ? newer : api;
  runtime.fast_shapes = newer != nullptr;
  runtime.cores = usable_cores();
  runtime.all = r;
  ort::Status* status = nullptr;
  for (int i = 0; i < r.variant_count; ++i) {
    const Variant& v = r.variants[i];
    for (int k = 0; k < r.count; ++k)
      if (v.kernels[k]) describe(r.ops + i * r.count + k, v.kernels[k], v.capability ? r.provider : nullptr);
  }
  for (int i = 0; i < r.variant_count && !status; ++i) {
    const bool gpu = r.variants[i].capability > 0;
    status = make_domain(r, gpu, gpu ? beside(r, true, nullptr) : i, nullptr, "", r.domains + i);
  }
  runtime.state.store(status ? 0 : 2, std::memory_order_release);
  return status;
}

// What keeps this machine from running any variant.
inline void say_why(const Registration& r, Words* words) {
  const char* only = only_variant();
  const char* missing = nullptr;
  for (int i = 0; i < r.variant_count; ++i) {
    const Variant& v = r.variants[i];
    if (only && strcmp(only, v.name) != 0) continue;
    for (int k = v.feature_count; k-- > 0;)
      if (!cpu_has(v.features[k])) missing = v.features[k].name;
  }
  if (missing) *words << "this processor lacks " << missing;
  else if (r.devices) *words << "this machine has no GPU, or no driver, that they are for";
  else *words << "the environment variable " << agreed::ISA << " allows " << only << " alone";
}

// The variants that the GPUs of this machine run.
inline void say_gpus(const Registration& r, const char* only, Words* words) {
  const int count = r.devices();
  bool more = false;
  for (int i = 0; i < r.variant_count; ++i) {
    bool runs = false;
    for (int device = 0; device < count; ++device)
      for (int k = 0; k < r.count; ++k) runs = runs || variant_on(r, device, k, only) == i;
    if (runs) *words << (more ? " and " : "") << r.variants[i].name;
    more = more || runs;
  }
}

// Whether the runtime was built with a provider; null is the CPU's, which it always has.
inline bool has_provider(ort::Api api, const char* provider) {
  if (!provider) return true;
  char** all = nullptr;
  int count = 0;
  bool there = false;
  if (ort::Status* failed = ort::GetAvailableProviders(api)(&all, &count)) {
    ort::ReleaseStatus(api)(failed);
    return false;
  }
  for (int i = 0; i < count; ++i) there = there || strcmp(all[i], provider) == 0;
  if (ort::Status* failed = ort::ReleaseAvailableProviders(api)(all, count)) ort::ReleaseStatus(api)(failed);
  return there;
}

}  // namespace

// Success without a registration is an answer too: the runtime then runs the function bodies.
__attribute__((cold))  // it runs once: the compiler is not to spend its time on it
ort::Status* register_kernels(ort::SessionOptions* options, const ort::Base* base, const Registration& r) {
  if (!at_least(base->version(), 1, ort::kAbiVersion)) return nullptr;
  ort::Api api = base->get_api(ort::kAbiVersion);
  const char* without = api ? switched_off(api, options) : "";
  if (!api || strcmp(without, "1") == 0) return nullptr;
  Words words;
  const char* only = only_variant();
  const bool there = has_provider(api, r.provider);
  const bool gpu = there && gpus_run(r, only);
  // Kernels of the CPU would take nodes from the bodies that a GPU without kernels runs.
  const bool on_gpu = !only && !gpu && there && r.devices && r.devices() > 0;
  const int cpu = on_gpu ? -1 : beside(r, gpu, only);
  if (!gpu && cpu < 0) {
    words << "function bodies run instead of the kernels: ";
    if (there) say_why(r, &words);
    else words << "this runtime has no " << r.provider;
    tell(api, options, r.domain, words.text, true);
    return nullptr;
  }
  if (ort::Status* status = set_up(base, api, r)) return status;
  if (runtime.base != base) {  // tables must not be mixed
    tell(api, options, r.domain, "function bodies run instead of the kernels: they serve another runtime of this process", true);
    return nullptr;
  }
  if (told(api, options, r.domain)) return nullptr;  // options refuse a domain that they have
  int first = cpu;
  for (int i = r.variant_count; gpu && i-- > 0;)
    if (r.variants[i].capability > 0) first = i;
  ort::Domain* domain = r.domains[first];
  if (*without || (only && gpu))
    if (ort::Status* status = make_domain(r, gpu, cpu, only, without, &domain)) return status;
  if (ort::Status* status = ort::AddCustomOpDomain(api)(options, domain)) return status;
  words << agreed::REGISTERED;
  if (gpu) say_gpus(r, only, &words);
  else words << r.variants[cpu].name;
  if (gpu && cpu >= 0) words << ", " << r.variants[cpu].name << " in sessions without " << r.provider;
  tell(api, options, r.domain, words.text, false);
  return nullptr;
}

}  // namespace onnxfuse
