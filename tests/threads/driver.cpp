// A driver of CUDA without a device: what is launched waits in the queue of its stream until somebody synchronises, and
// then runs as host code. It refuses what a real one would, and keeps a list of all that it was asked for.
//
// In the environment: DRIVER_KERNELS, the library of the kernels for the host; DRIVER_LOG, the list; DRIVER_CAPABILITY and
// DRIVER_VERSION, what it says of itself; DRIVER_DEVICES; DRIVER_LOSES, how many launches are forgotten.
// Memory that it allocates is closed to the host but in copies, and while kernels run.
#include <dlfcn.h>
#include <sys/mman.h>

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

enum { OK = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_IMAGE = 200, INVALID_CONTEXT = 201,
       NO_BINARY = 209, NOT_FOUND = 500, NOT_READY = 600, TOO_MANY = 701 };

struct Kernel {
  std::string name;
  void (*run)(void**, unsigned, unsigned, size_t, unsigned);
  int arguments, threads;
  bool loaded;
};
struct Library {
  bool portable;
};
struct Launch {
  Kernel* kernel;
  unsigned grid, block;
  size_t shared;
  std::vector<uint64_t> values;
};

std::mutex lock;
bool begun;
int context_, *current;
std::map<void*, std::deque<Launch>> streams;
std::map<std::string, Kernel> kernels;
std::map<char*, size_t> memory;  // of whole pages

int number(const char* name, int otherwise) {
  const char* said = getenv(name);
  return said ? atoi(said) : otherwise;
}
int capability() { return number("DRIVER_CAPABILITY", 90); }

void say(const char* format, ...) {
  const char* path = getenv("DRIVER_LOG");
  FILE* file = path ? fopen(path, "a") : nullptr;
  if (!file) return;
  va_list more;
  va_start(more, format);
  vfprintf(file, format, more);
  va_end(more);
  fputc('\n', file);
  fclose(file);
}

int refuse(int code, const char* why) {
  say("refused %s", why);
  return code;
}

// The architecture that a cubin is for, in the flags of its ELF header: bits 8 to 15 since CUDA 13, the lowest ones before.
int architecture(const unsigned char* image) {
  uint32_t flags;
  memcpy(&flags, image + 48, 4);
  const int since = flags >> 8 & 0xff, before = flags & 0xff;
  return image[8] >= 8 || before == 0 ? since : before;
}

// The device's memory, open as long as this lives.
struct Open {
  Open() { protect(PROT_READ | PROT_WRITE); }
  ~Open() { protect(PROT_NONE); }
  static void protect(int how) {
    for (auto& [begin, bytes] : memory) mprotect(begin, bytes, how);
  }
};

bool inside(uint64_t at, size_t bytes) {
  auto after = memory.upper_bound(reinterpret_cast<char*>(at));
  if (after == memory.begin()) return false;
  --after;
  return reinterpret_cast<char*>(at) + bytes <= after->first + after->second;
}

}  // namespace

EXPORT int cuInit(unsigned) {
  begun = number("DRIVER_DEVICES", 1) > 0;
  say("init");
  return begun ? OK : NO_DEVICE;
}
EXPORT int cuDriverGetVersion(int* out) { return *out = number("DRIVER_VERSION", 13000), OK; }
EXPORT int cuDeviceGetCount(int* out) {
  if (!begun) return NOT_INITIALIZED;
  return *out = number("DRIVER_DEVICES", 1), OK;
}
EXPORT int cuDeviceGet(int* out, int at) {
  if (!begun) return NOT_INITIALIZED;
  return at < number("DRIVER_DEVICES", 1) ? (*out = at, OK) : NO_DEVICE;
}
EXPORT int cuDeviceGetAttribute(int* out, int attribute, int) {
  if (attribute == 75) return *out = capability() / 10, OK;
  if (attribute == 76) return *out = capability() % 10, OK;
  return refuse(INVALID_VALUE, "an attribute that it does not know");
}
EXPORT int cuGetExportTable(const void** out, const void*) { return *out = nullptr, NOT_FOUND; }  // NVRTC asks
EXPORT int cuDeviceGetName(char* out, int bytes, int) { return snprintf(out, bytes, "no device"), OK; }
EXPORT int cuGetErrorName(int code, const char** out) {
  static thread_local std::string name;
  name = "error " + std::to_string(code);
  return *out = name.c_str(), OK;
}

EXPORT int cuMemAlloc_v2(uint64_t* out, size_t bytes) {
  if (!current) return refuse(INVALID_CONTEXT, "memory without a context");
  const size_t pages = (bytes + 4095) / 4096 * 4096;
  void* made = mmap(nullptr, pages, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  std::lock_guard<std::mutex> held(lock);
  memory[static_cast<char*>(made)] = pages;
  return *out = reinterpret_cast<uint64_t>(made), OK;
}
EXPORT int cuMemFree_v2(uint64_t at) {
  std::lock_guard<std::mutex> held(lock);
  auto found = memory.find(reinterpret_cast<char*>(at));
  if (found == memory.end()) return refuse(INVALID_VALUE, "memory that it has not given");
  munmap(found->first, found->second);
  return memory.erase(found), OK;
}
EXPORT int cuMemsetD8_v2(uint64_t at, unsigned char value, size_t bytes) {
  std::lock_guard<std::mutex> held(lock);
  if (!inside(at, bytes)) return refuse(INVALID_VALUE, "a fill of memory that is not the device's");
  Open open;
  return memset(reinterpret_cast<void*>(at), value, bytes), OK;
}
EXPORT int cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t bytes) {
  std::lock_guard<std::mutex> held(lock);
  if (!inside(to, bytes)) return refuse(INVALID_VALUE, "a copy to memory that is not the device's");
  Open open;
  return memcpy(reinterpret_cast<void*>(to), from, bytes), OK;
}
EXPORT int cuMemcpyDtoH_v2(void* to, uint64_t from, size_t bytes) {
  std::lock_guard<std::mutex> held(lock);
  if (!inside(from, bytes)) return refuse(INVALID_VALUE, "a copy from memory that is not the device's");
  Open open;
  return memcpy(to, reinterpret_cast<void*>(from), bytes), OK;
}

EXPORT int cuDevicePrimaryCtxRetain(void** out, int) {
  say("retain");
  return *out = &context_, OK;
}
EXPORT int cuCtxGetCurrent(void** out) { return *out = current, OK; }
EXPORT int cuCtxSetCurrent(void* context) { return current = static_cast<int*>(context), OK; }

EXPORT int cuLibraryLoadData(void** out, const void* code, void*, void*, unsigned, void*, void*, unsigned) {
  if (!begun) return NOT_INITIALIZED;
  const unsigned char* image = static_cast<const unsigned char*>(code);
  const bool cubin = !memcmp(image, "\x7f" "ELF", 4), ptx = strstr(static_cast<const char*>(code), ".version") != nullptr;
  if (!cubin && !ptx) return refuse(INVALID_IMAGE, "code that is none");
  if (cubin) {
    const int made = architecture(image);
    say("load sm_%d", made);
    if (made > capability() || made / 10 != capability() / 10) return refuse(NO_BINARY, "code for another device");
  } else {
    say("load ptx");
  }
  return *out = new Library{!cubin}, OK;
}
EXPORT int cuLibraryGetKernel(void** out, void* library, const char* name) {
  static void* host = dlopen(getenv("DRIVER_KERNELS"), RTLD_NOW | RTLD_LOCAL);
  if (!library || !host) return refuse(NOT_FOUND, "a function without a library");
  std::lock_guard<std::mutex> held(lock);
  Kernel& k = kernels[name];
  k.name = name;
  k.run = reinterpret_cast<decltype(k.run)>(dlsym(host, ("run_" + k.name).c_str()));
  const int* arguments = static_cast<int*>(dlsym(host, ("arguments_" + k.name).c_str()));
  if (!k.run || !arguments) return refuse(NOT_FOUND, name);
  k.arguments = arguments[0];
  k.threads = arguments[1];
  return *out = &k, OK;
}
EXPORT int cuKernelGetFunction(void** out, void* kernel) {
  if (!current) return refuse(INVALID_CONTEXT, "a function without a context");
  static_cast<Kernel*>(kernel)->loaded = true;
  return *out = kernel, OK;
}
EXPORT int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, void* stream, void** arguments, void** extra) {
  Kernel* k = static_cast<Kernel*>(function);
  if (!k->loaded) return refuse(NOT_READY, "a launch of what is loaded only then");
  if (!gx || gx > 0x7fffffffu || gy != 1 || gz != 1 || by != 1 || bz != 1 || extra) return refuse(INVALID_VALUE, "a grid");
  if (!bx || bx > 1024 || (int)bx > k->threads) return refuse(TOO_MANY, "more threads than a kernel is compiled for");
  if (shared > 48u << 10) return refuse(INVALID_VALUE, "more shared memory than is there without being asked for");
  Launch l{k, gx, bx, shared, {}};
  for (int i = 0; i < k->arguments; i++) {
    uint64_t value;
    memcpy(&value, arguments[i], 8);
    l.values.push_back(value);
  }
  say("launch %s %u %u %u", k->name.c_str(), gx, bx, shared);
  static int lost = number("DRIVER_LOSES", 0);
  if (lost-- > 0) return OK;
  std::lock_guard<std::mutex> held(lock);
  streams[stream].push_back(l);
  return OK;
}
EXPORT int cuStreamSynchronize(void* stream) {
  std::lock_guard<std::mutex> held(lock);
  say("synchronize %zu", streams[stream].size());
  Open open;
  for (; !streams[stream].empty(); streams[stream].pop_front()) {
    Launch& l = streams[stream].front();
    std::vector<void*> arguments;
    for (uint64_t& v : l.values) arguments.push_back(&v);
    l.kernel->run(arguments.data(), l.grid, l.block, l.shared, 3);
  }
  return OK;
}
