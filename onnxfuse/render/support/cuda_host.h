// Launches kernels through the CUDA driver API, which is loaded by dlopen on first use: nothing of CUDA is linked.
// Kernels are data: code for one architecture, the names of its functions, and the parameters of each launch.
#pragma once
#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "host.h"

namespace onnxfuse {
namespace cuda {

typedef int Result;  // 0 is success
typedef void* Handle;

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
  Result (*cuLaunchKernel)(Handle function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned shared,
                           Handle stream, void** arguments, void** extra);
  Result (*cuStreamSynchronize)(Handle stream);
  bool there;
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
            ONNXFUSE_FIND(cuLibraryGetKernel) && ONNXFUSE_FIND(cuKernelGetFunction) && ONNXFUSE_FIND(cuLaunchKernel) &&
            ONNXFUSE_FIND(cuCtxGetDevice) && ONNXFUSE_FIND(cuKernelSetAttribute) && ONNXFUSE_FIND(cuStreamSynchronize);
#undef ONNXFUSE_FIND
  if (d.there) d.there = d.cuInit(0) == 0;
  return d;
}

// A spin lock: everything it protects is done once per process.
struct Lock {
  std::atomic<int>& busy;
  explicit Lock(std::atomic<int>& b) : busy(b) {
    for (int idle = 0; !busy.compare_exchange_weak(idle, 1, std::memory_order_acquire); idle = 0) {
    }
  }
  ~Lock() { busy.store(0, std::memory_order_release); }
};

inline std::atomic<int> opening;
inline Driver driver_;
inline bool asked;

inline const Driver& driver() {
  Lock lock(opening);
  if (!asked) driver_ = opened();
  asked = true;
  return driver_;
}

enum { kDynamicShared = 8, kUnasked = 48 << 10 };  // a function attribute; bytes of shared memory available without it
enum { kMajor = 75, kMinor = 76, kOldestDriver = 13000 };  // two device attributes; the CUDA version that code is compiled with

// The lowest compute capability of all devices, as 10 * major + minor; 0 without a device.
inline int capability() {
  const Driver& d = driver();
  int version = 0, count = 0, lowest = 0;
  if (!d.there || d.cuDriverGetVersion(&version) || version < kOldestDriver || d.cuDeviceGetCount(&count)) return 0;
  for (int i = 0; i < count; ++i) {
    int device = 0, major = 0, minor = 0;
    if (d.cuDeviceGet(&device, i) || d.cuDeviceGetAttribute(&major, kMajor, device) ||
        d.cuDeviceGetAttribute(&minor, kMinor, device))
      return 0;
    const int here = 10 * major + minor;
    if (!lowest || here < lowest) lowest = here;
  }
  return lowest;
}

// Whether code for a capability runs on all devices: machine code on those of its major version that are no older, PTX on
// all that are no older.
inline bool suits(int code, bool portable) {
  const int here = capability();
  return here >= code && (portable || here / 10 == code / 10);
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
};

// Loads the module into the current context, eagerly, so that nothing is left to load while a graph is captured.
inline const char* load(Module& m) {
  const Driver& d = driver();
  if (!d.there) return "there is no CUDA driver";
  Lock lock(m.busy);
  if (!m.loaded) {
    Handle library = nullptr;
    if (d.cuLibraryLoadData(&library, m.code, nullptr, nullptr, 0, nullptr, nullptr, 0))
      return "the CUDA driver does not take the code of a kernel";
    for (int i = 0; i < m.count; ++i)
      if (d.cuLibraryGetKernel(m.functions + i, library, m.names[i])) return "the code of a kernel lacks a function";
    m.loaded = true;
  }
  Handle context = nullptr, function = nullptr;
  if (d.cuCtxGetCurrent(&context)) return "the CUDA driver has no context";
  if (!context) {
    if (d.cuDevicePrimaryCtxRetain(&context, 0) || d.cuCtxSetCurrent(context)) return "the CUDA driver has no context";
  }
  int device = 0;
  if (d.cuCtxGetDevice(&device)) return "the CUDA driver has no device";
  for (int i = 0; i < m.count; ++i)
    if (m.shared[i] > kUnasked && d.cuKernelSetAttribute(kDynamicShared, (int)m.shared[i], m.functions[i], device))
      return "a GPU has less shared memory than a kernel needs";
  for (int i = 0; i < m.count; ++i)
    if (d.cuKernelGetFunction(&function, m.functions[i])) return "a kernel cannot be brought to the device";
  return nullptr;
}

// One asynchronous launch on the stream of a run.
inline const char* launch(Host* host, Module& m, int function, i64 grid, unsigned block, unsigned shared, void** arguments) {
  if (grid <= 0) return nullptr;
  if (grid > 0x7fffffff) return "a launch has more blocks than a grid holds";
  const Result wrong = driver().cuLaunchKernel(m.functions[function], (unsigned)grid, 1, 1, block, 1, 1, shared,
                                               host->stream(host), arguments, nullptr);
  return wrong ? "a kernel could not be launched" : nullptr;
}

// The end of a run: synchronizes with the stream where its tensors are in host memory.
inline const char* done(Host* host) {
  if (!host->waits) return nullptr;
  return driver().cuStreamSynchronize(host->stream(host)) ? "a kernel failed" : nullptr;
}

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
