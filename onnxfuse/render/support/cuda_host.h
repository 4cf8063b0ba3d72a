// Launches kernels through the CUDA driver API, which is loaded by dlopen on first use: nothing of CUDA is linked.
// Kernels are data: code for one architecture, the names of its functions, and the parameters of each launch.
// Nothing is unloaded when the process ends: the driver may be gone by then.
#pragma once
#include <dlfcn.h>

#include <sched.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "host.h"

namespace onnxfuse {
namespace cuda {

typedef int Result;  // 0 is success
typedef void* Handle;

// CUlaunchAttribute and CUlaunchConfig. An attribute's value is 64 bytes, of which flags are the first four.
struct alignas(8) Attribute {
  int id;
  char unused[4];
  int flag;
  char more[60];
};
struct Config {
  unsigned grid[3], block[3], shared;
  Handle stream;
  Attribute* attributes;
  unsigned count;
};

// The driver functions in use (those of CUDA 12.0 and newer), by their exported names.
struct Driver {
  Result (*cuInit)(unsigned flags);
  Result (*cuDriverGetVersion)(int* version);
  Result (*cuDeviceGetCount)(int* count);
  Result (*cuDeviceGet)(int* device, int number);
  Result (*cuDeviceGetAttribute)(int* value, int attribute, int device);
  Result (*cuDevicePrimaryCtxRetain)(Handle* context, int device);
  Result (*cuCtxGetCurrent)(Handle* context);
  Result (*cuCtxSetCurrent)(Handle context);
  Result (*cuCtxGetDevice)(int* device);
  Result (*cuLibraryLoadData)(Handle* library, const void* code, Handle*, Handle*, unsigned, Handle*, Handle*, unsigned);
  Result (*cuLibraryGetKernel)(Handle* kernel, Handle library, const char* name);
  Result (*cuKernelSetAttribute)(int attribute, int value, Handle kernel, int device);
  Result (*cuKernelGetFunction)(Handle* function, Handle kernel);
  Result (*cuLaunchKernelEx)(const Config* config, Handle function, void** arguments, void** extra);
  Result (*cuStreamSynchronize)(Handle stream);
  Result (*cuLibraryUnload)(Handle library);
  Result (*cuThreadExchangeStreamCaptureMode)(int* mode);
  Result (*cuGetErrorString)(Result wrong, const char** text);
  Result (*cuStreamGetCaptureInfo_v3)(Handle stream, int* status, uint64_t* id, Handle* graph, const Handle** nodes,
                                      const void** edges, size_t* count);
  Result (*cuTensorMapEncodeTiled)(void* map, int type, unsigned rank, void* data, const uint64_t* extents,
                                   const uint64_t* pitches, const unsigned* box, const unsigned* strides, int interleaved,
                                   int swizzle, int promotion, int outside);
  bool there;
};

enum { kMostDevices = 64 };  // devices beyond these are not looked at

// The driver, and the compute capability of each device, as 10 * major + minor.
struct Machine {
  Driver driver;
  int devices;  // 0: there is no driver, none that is new enough, or no device
  int capabilities[kMostDevices];
};

template <class F>
inline bool found(void* library, const char* name, F*& out) {
  out = reinterpret_cast<F*>(dlsym(library, name));
  return out != nullptr;
}

inline Driver opened() {
  Driver d{};
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) return d;
#define ONNXFUSE_FIND(name) found(library, #name, d.name)
  d.there = ONNXFUSE_FIND(cuInit) && ONNXFUSE_FIND(cuDriverGetVersion) && ONNXFUSE_FIND(cuDeviceGetCount) &&
            ONNXFUSE_FIND(cuDeviceGet) && ONNXFUSE_FIND(cuDeviceGetAttribute) && ONNXFUSE_FIND(cuDevicePrimaryCtxRetain) &&
            ONNXFUSE_FIND(cuCtxGetCurrent) && ONNXFUSE_FIND(cuCtxSetCurrent) && ONNXFUSE_FIND(cuLibraryLoadData) &&
            ONNXFUSE_FIND(cuLibraryGetKernel) && ONNXFUSE_FIND(cuKernelGetFunction) && ONNXFUSE_FIND(cuLaunchKernelEx) &&
            ONNXFUSE_FIND(cuCtxGetDevice) && ONNXFUSE_FIND(cuKernelSetAttribute) && ONNXFUSE_FIND(cuStreamSynchronize) &&
            ONNXFUSE_FIND(cuLibraryUnload) && ONNXFUSE_FIND(cuThreadExchangeStreamCaptureMode) &&
            ONNXFUSE_FIND(cuGetErrorString) && ONNXFUSE_FIND(cuTensorMapEncodeTiled) &&
            ONNXFUSE_FIND(cuStreamGetCaptureInfo_v3);
#undef ONNXFUSE_FIND
  if (d.there) d.there = d.cuInit(0) == 0;
  return d;
}

// A lock of what is done once per process, which may take as long as the driver compiles.
struct Lock {
  std::atomic<int>& busy;
  explicit Lock(std::atomic<int>& b) : busy(b) {
    for (int idle = 0; !busy.compare_exchange_weak(idle, 1, std::memory_order_acquire); idle = 0) sched_yield();
  }
  ~Lock() { busy.store(0, std::memory_order_release); }
};

enum { kMajor = 75, kMinor = 76, kOldestDriver = 13000 };  // two device attributes; the CUDA version that code is compiled with

inline Machine looked_at() {
  Machine m{opened(), 0, {}};
  const Driver& d = m.driver;
  int version = 0, count = 0;
  if (!d.there || d.cuDriverGetVersion(&version) || version < kOldestDriver || d.cuDeviceGetCount(&count)) return m;
  if (count > kMostDevices) count = kMostDevices;
  for (int i = 0; i < count; ++i) {
    int device = 0, major = 0, minor = 0;
    if (d.cuDeviceGet(&device, i) || d.cuDeviceGetAttribute(&major, kMajor, device) ||
        d.cuDeviceGetAttribute(&minor, kMinor, device))
      return m;
    m.capabilities[i] = 10 * major + minor;
  }
  m.devices = count;
  return m;
}

inline std::atomic<int> looking;
inline std::atomic<bool> looked;
inline Machine machine_;

inline const Machine& machine() {
  if (!looked.load(std::memory_order_acquire)) {
    Lock lock(looking);
    if (!looked.load(std::memory_order_relaxed)) machine_ = looked_at();
    looked.store(true, std::memory_order_release);
  }
  return machine_;
}
inline const Driver& driver() { return machine().driver; }
inline int devices() { return machine().devices; }

enum { kDynamicShared = 8, kUnasked = 48 << 10 };  // a function attribute; bytes of shared memory available without it
enum { kDependent = 6, kMostDependent = 16 << 20 };  // a launch attribute; bytes of tensors up to which it is given
enum { kCaptured = 1 };                              // CU_STREAM_CAPTURE_STATUS_ACTIVE

// What went wrong, and what the driver says of it; valid until the thread's next failure.
inline const char* failed(const char* what, Result wrong) {
  static thread_local char text[256];
  const char* why = nullptr;
  if (driver().cuGetErrorString(wrong, &why) || !why) why = "an unknown error";
  snprintf(text, sizeof text, "%s: CUDA error %d, %s", what, wrong, why);
  return text;
}

// Whether a device of a capability is the GPU of a Tegra, which runs no machine code for other GPUs, nor they its code.
inline bool is_tegra(int capability) { return capability == 72 || capability == 87 || capability == 110; }

// Whether code for a capability runs on a device: machine code on those of its major version that are no older, PTX on all
// that are no older, code with matrix instructions of its own (sm_90a) on no other.
inline bool suits(int device, int code, Reach reach) {
  const int here = machine().capabilities[device];
  if (here <= code || reach == kLater) return here >= code;
  if (reach == kAlone) return false;
  return here / 10 == code / 10 && !is_tegra(here) && !is_tegra(code);
}

// The execution provider that kernels are registered for. The environment may name another: that of the runtime's plugin,
// or, where device memory is host memory, CPUExecutionProvider (null: the runtime's default).
inline const char* provider() {
  const char* named = getenv("ONNXFUSE_CUDA_PROVIDER");
  if (!named || !*named) return "CUDAExecutionProvider";
  return strcmp(named, "CPUExecutionProvider") == 0 ? nullptr : named;
}

// The module of a kernel and its functions, once they are loaded.
struct Module {
  const unsigned char* code;
  const char* const* names;
  const unsigned* shared;  // bytes of shared memory per block of each function
  int count;
  Handle* functions;
  std::atomic<int> busy;
  bool loaded;
  std::atomic<bool> dependent;  // whether launches may begin before the kernel before them has ended
};

// The context in which code is brought to a device, as long as this lives: the thread's own where that is of the device,
// else the primary one, which the runtime uses.
struct Current {
  const Driver& driver;
  Handle before = nullptr;
  bool changed = false;
  Result wrong;

  Current(const Driver& d, int device) : driver(d), wrong(d.cuCtxGetCurrent(&before)) {
    int here = -1, wanted = 0;
    Handle primary = nullptr;
    if (!wrong) wrong = d.cuDeviceGet(&wanted, device);
    if (!wrong && before) wrong = d.cuCtxGetDevice(&here);
    if (wrong || (before && here == wanted)) return;
    wrong = d.cuDevicePrimaryCtxRetain(&primary, wanted);  // kept: what is loaded lives in it
    if (!wrong) wrong = d.cuCtxSetCurrent(primary);
    changed = !wrong;
  }
  ~Current() {
    if (changed) driver.cuCtxSetCurrent(before);
  }
};

// Lets a thread load code while another one captures, as long as this lives.
struct Uncaptured {
  const Driver& driver;
  int mode = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED
  explicit Uncaptured(const Driver& d) : driver(d) { d.cuThreadExchangeStreamCaptureMode(&mode); }
  ~Uncaptured() { driver.cuThreadExchangeStreamCaptureMode(&mode); }
};

// The functions of a module, loaded once per process; null: good.
inline const char* loaded(Module& m, const Driver& d) {
  Lock lock(m.busy);
  if (m.loaded) return nullptr;
  Handle library = nullptr;
  if (Result wrong = d.cuLibraryLoadData(&library, m.code, nullptr, nullptr, 0, nullptr, nullptr, 0))
    return failed("the CUDA driver does not take the code of a kernel", wrong);
  for (int i = 0; i < m.count; ++i) {
    const Result wrong = d.cuLibraryGetKernel(m.functions + i, library, m.names[i]);
    if (!wrong) continue;
    d.cuLibraryUnload(library);
    return failed("the code of a kernel lacks a function", wrong);
  }
  m.loaded = true;
  return nullptr;
}

// Brings a module to a device, eagerly, so that nothing is left to load while a graph is captured. Done for each node, as
// the context may be another one than last time, also for the same device.
inline const char* load(Module& m, int device) {
  const Driver& d = driver();
  if (device < 0 || device >= devices()) return "there is no CUDA driver, or no such device";
  const Current current(d, device);
  if (current.wrong) return failed("the CUDA driver has no context", current.wrong);
  const Uncaptured uncaptured(d);
  const char* wanted = getenv("ONNXFUSE_DEPENDENT_LAUNCHES");
  m.dependent.store(!(wanted && strcmp(wanted, "0") == 0), std::memory_order_relaxed);
  if (const char* wrong = loaded(m, d)) return wrong;
  int here = 0;
  Handle function = nullptr;
  if (Result wrong = d.cuDeviceGet(&here, device)) return failed("the CUDA driver has no device", wrong);
  for (int i = 0; i < m.count; ++i) {
    if (m.shared[i] > kUnasked)
      if (Result wrong = d.cuKernelSetAttribute(kDynamicShared, (int)m.shared[i], m.functions[i], here))
        return failed("a GPU has less shared memory than a kernel needs", wrong);
    if (Result wrong = d.cuKernelGetFunction(&function, m.functions[i]))
      return failed("a kernel cannot be brought to the device", wrong);
  }
  return nullptr;
}

// The stream of a run. The default stream is that of the thread's context, which a thread that only runs may lack.
inline const char* stream_of(Host* host, Handle* stream) {
  *stream = host->stream(host);
  if (*stream) return nullptr;
  const Driver& d = driver();
  Handle context = nullptr;
  int device = 0;
  Result wrong = d.cuCtxGetCurrent(&context);
  if (wrong || context) return wrong ? failed("the CUDA driver has no context", wrong) : nullptr;
  wrong = d.cuDeviceGet(&device, 0);
  if (!wrong) wrong = d.cuDevicePrimaryCtxRetain(&context, device);
  if (!wrong) wrong = d.cuCtxSetCurrent(context);
  return wrong ? failed("the CUDA driver has no context", wrong) : nullptr;
}

// What the copy engine has to know of a matrix, whose boxes of 64 columns it swizzles within 128 bytes: a kernel's parameter.
struct alignas(64) Map {
  unsigned char bytes[128];
};

inline const char* mapped(Map* map, int type, const void* data, i64 rows, i64 columns, i64 pitch, int of_box) {
  enum { kPlain = 0, kSwizzle128 = 3, kPromote128 = 2, kZeros = 0 };
  if (rows <= 0) return nullptr;  // nothing is launched
  const uint64_t extents[] = {(uint64_t)columns, (uint64_t)rows}, pitches[] = {(uint64_t)pitch * 2};
  const unsigned box[] = {64, (unsigned)of_box}, strides[] = {1, 1};
  const Result wrong = driver().cuTensorMapEncodeTiled(map, type, 2, const_cast<void*>(data), extents, pitches, box, strides,
                                                       kPlain, kSwizzle128, kPromote128, kZeros);
  return wrong ? failed("the CUDA driver takes a matrix for none that can be copied in boxes", wrong) : nullptr;
}

// The node that what is captured next follows; null where a stream is not captured, or goes on from none or several.
inline Handle last_node(Handle stream) {
  int status = 0;
  const Handle* nodes = nullptr;
  const void* edges = nullptr;
  size_t count = 0;
  const Result wrong =
      stream ? driver().cuStreamGetCaptureInfo_v3(stream, &status, nullptr, nullptr, &nodes, &edges, &count) : 1;
  return !wrong && status == kCaptured && count == 1 ? nodes[0] : nullptr;
}

// One asynchronous launch on the stream of a run, in the context of that. Where its tensors have `dependent` bytes, and some,
// it may begin before the kernel before it has ended, if both are captured and that one is of this launcher, so that it
// says when. That saves 0.2 to 0.5 us up to about kMostDependent; behind other kernels it costs 0.1 us, and where kernels
// fill the machine it costs time too (benchmarks/gpu/README.md).
inline const char* launch(Host* host, Module& m, int function, i64 grid, unsigned block, unsigned shared, void** arguments,
                          i64 dependent) {
  if (grid <= 0) return nullptr;
  if (grid > 0x7fffffff) return "a launch has more blocks than a grid holds";
  Handle stream = nullptr;
  if (const char* wrong = stream_of(host, &stream)) return wrong;
  static thread_local Handle own = nullptr;  // the last node that was captured here
  const bool may = dependent > 0 && m.dependent.load(std::memory_order_relaxed);
  const Handle before = may ? last_node(stream) : nullptr;
  Attribute early = {kDependent, {}, 1, {}};
  const bool begins_early = before && before == own && dependent <= kMostDependent;
  const Config config = {{(unsigned)grid, 1, 1}, {block, 1, 1}, shared, stream, &early, begins_early};
  const Result wrong = driver().cuLaunchKernelEx(&config, m.functions[function], arguments, nullptr);
  if (may) own = wrong ? nullptr : last_node(stream);
  return wrong ? failed("a kernel could not be launched", wrong) : nullptr;
}

// The end of a run: synchronizes with the stream where its tensors are in host memory.
inline const char* done(Host* host) {
  Handle stream = nullptr;
  if (!host->waits) return nullptr;
  if (const char* wrong = stream_of(host, &stream)) return wrong;
  const Result wrong = driver().cuStreamSynchronize(stream);
  return wrong ? failed("a kernel failed", wrong) : nullptr;
}

// Of a product by a library, with its rows, or of a convolution, with its images: image and filters are left and right.
struct Operands {
  i64 rows;
  const void *left, *right, *bias, *residual;
  void* result;
};

// Whether the widest access to a tensor, of so many bytes, may begin where it does: callers bind any memory.
inline bool begins_well(const void* data, unsigned bytes) { return reinterpret_cast<uintptr_t>(data) % bytes == 0; }

inline i64 least(i64 a, i64 b) { return a < b ? a : b; }
inline i64 floor_div(i64 a, i64 b) { return a / b - (a % b < 0); }  // b > 0
inline i64 floor_mod(i64 a, i64 b) { return a % b + (a % b < 0 ? b : 0); }
inline i64 common(i64 a, i64 b) { return b == 1 ? a : b; }
inline i64 quotient(i64 a, i64 b) { return b ? a / b : 0; }
inline size_t rounded(size_t bytes) { return (bytes + 255) / 256 * 256; }

inline bool same_shape(const Tensor& t, const i64* want, int rank) {
  if (t.rank != rank) return false;
  for (int i = 0; i < rank; i++)
    if (t.dims[i] != want[i]) return false;
  return true;
}

}  // namespace cuda
}  // namespace onnxfuse
