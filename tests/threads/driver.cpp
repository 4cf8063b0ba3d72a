// A driver of CUDA without a device: what is launched waits in the queue of its stream until somebody synchronises, and
// then runs as host code. It refuses what a real one would, and keeps a list of all that it was asked for.
//
// In the environment: DRIVER_KERNELS, the library of the kernels for the host; DRIVER_LOG, the list; DRIVER_CAPABILITY (of
// each device, with commas between them) and DRIVER_VERSION, what it says of itself; DRIVER_DEVICES; DRIVER_LOSES, how many
// launches are forgotten; DRIVER_SLOW, part of the names of kernels that take 5 ms more, whether forgotten or not; DRIVER_FAULT, the number of the launch that ends its context, after which every call fails.
// A context is current to one thread. What is brought to a device lives in its primary context, and ends with that. Memory
// that it allocates is closed to the host but in copies, and while kernels run. While a stream is captured, nothing may be
// allocated, waited for, loaded or launched elsewhere, by no thread that has not exchanged its mode; what was captured runs
// as often as its graph is launched. After the process's last destructor, nothing is answered any more.
// A launch that may begin before the one before it has ended does: that runs when the first block waits for it, and not
// before, so that a kernel which reads or stores earlier has wrong results. Several of these begin behind each other.
#include <dlfcn.h>
#include <sys/mman.h>

#include <array>
#include <chrono>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <ctime>
#include <string>
#include <thread>
#include <vector>

#include "cubin.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

enum { OK = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_IMAGE = 200, INVALID_CONTEXT = 201,
       DEINITIALIZED = 4, NO_BINARY = 209, INVALID_HANDLE = 400, ILLEGAL_ADDRESS = 700, NOT_FOUND = 500, NOT_READY = 600, TOO_MANY = 701, CAPTURED = 900,
       INVALIDATED = 901 };
enum { REGISTERS = 1 << 16, UNASKED = 48 << 10, DYNAMIC_SHARED = 8 };  // of a multiprocessor; bytes; an attribute
enum { DEPENDENT = 6, DEPENDENT_SINCE = 90, MOST_EARLY = 4 };  // an attribute of launches; the first that has it; at once

struct Kernel {
  std::string name;
  void (*run)(void**, unsigned, unsigned, size_t, unsigned);
  int arguments, threads;
  const int* sizes;  // bytes of each argument
  std::map<int, int> loaded;  // by device: the life of its context in which it was
  int registers;     // of a thread; 0 where nobody knows, as of PTX
  int architecture;  // 0: PTX
  std::map<int, unsigned> shared;  // bytes that a block may have, by device
};
struct Library {
  std::map<std::string, int> registers;  // of each function
  int architecture;                      // 0: PTX
};
struct Context {
  int device, life;  // it begins anew with each reset
};
struct Launch {
  Kernel* kernel;  // null: `work` is done
  unsigned grid, block;
  size_t shared;
  std::vector<std::array<uint64_t, 16>> values;
  std::function<void()> work;
  bool dependent = false;  // on the one before: may begin early
};
struct Attribute {  // CUlaunchAttribute
  int id, unused;
  uint64_t value[8];
};
struct Config {  // CUlaunchConfig
  unsigned grid[3], block[3], shared;
  void* stream;
  const Attribute* attributes;
  unsigned count;
};
typedef const std::function<void()>* Early;

std::mutex lock;
bool begun, over, faulted;
Context contexts[8];
thread_local Context* current;
thread_local int mode_;  // of captures: 0 global, 2 relaxed
std::map<void*, std::deque<Launch>> streams;
std::map<void*, Context*> made;  // streams that it made, and their contexts
std::map<std::string, Kernel> kernels;
std::map<char*, size_t> memory;  // of whole pages

typedef std::vector<Launch> Graph;
struct Capture {
  void* stream = nullptr;  // null: none is captured
  bool broken = false;
  Graph launches;
  std::thread::id by;
} capture;

int number(const char* name, int otherwise) {
  const char* said = getenv(name);
  return said ? atoi(said) : otherwise;
}
int capability(int device) {
  const char* said = getenv("DRIVER_CAPABILITY");
  for (; said && device > 0 && strchr(said, ','); --device) said = strchr(said, ',') + 1;
  return said ? atoi(said) : 90;
}
struct Ending {
  ~Ending() { over = true; }
} ending;

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

// What is not allowed while a stream is captured, and breaks the capture.
int refuse_captured(const char* what) {
  if (faulted) return ILLEGAL_ADDRESS;
  if (over) return refuse(DEINITIALIZED, "a call when the driver is gone");
  if (!capture.stream || (mode_ == 2 && capture.by != std::this_thread::get_id())) return OK;
  capture.broken = true;
  return refuse(CAPTURED, what);
}

// Bytes of shared memory that a block may ask for.
unsigned most_shared(int device) {
  const std::map<int, unsigned> kilobytes = {{75, 64}, {80, 163}, {86, 99}, {89, 99}, {90, 227}, {100, 227}, {120, 99}};
  auto after = kilobytes.upper_bound(capability(device));
  return (after == kilobytes.begin() ? 48 : std::prev(after)->second) << 10;
}

// Whether machine code of an architecture runs on a device; Tegra's is its own.
bool fits(int made, int device) {
  const int here = capability(device);
  return made == here || (made < here && made / 10 == here / 10 && here != 87);
}

// The library of the kernels for the host.
void* host_library() {
  static void* opened = dlopen(getenv("DRIVER_KERNELS"), RTLD_NOW | RTLD_LOCAL);
  return opened;
}

// Whether a kernel was brought to a context that is still the same.
bool there(const Kernel* k, const Context* c) {
  auto found = k->loaded.find(c->device);
  return found != k->loaded.end() && found->second == c->life + 1;
}

// The device's memory, open as long as this lives.
struct Open {
  Open() { protect(PROT_READ | PROT_WRITE); }
  ~Open() { protect(PROT_NONE); }
  static void protect(int how) {
    for (auto& [begin, bytes] : memory) mprotect(begin, bytes, how);
  }
};

// The first launches of a queue, up to one, all behind the first of which are dependent: the last begins first, and those
// before it run when it waits for them.
void run(std::deque<Launch>& queue, int last) {
  Launch& l = queue[last];
  bool waited = last == 0;
  const std::function<void()> before = [&] { waited = true, run(queue, last - 1); };
  if (l.work) return l.work();
  std::vector<void*> arguments;
  for (auto& v : l.values) arguments.push_back(v.data());
  Early (*begins_early)(Early) = reinterpret_cast<Early (*)(Early)>(dlsym(host_library(), "emulated_begins_early"));
  begins_early(waited ? nullptr : &before);
  l.kernel->run(arguments.data(), l.grid, l.block, l.shared, 3);
  begins_early(nullptr);
  if (waited) return;
  say("refused a dependent launch of %s, which waits for nothing", l.kernel->name.c_str());
  before();
}

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
EXPORT int cuDeviceGetAttribute(int* out, int attribute, int device) {
  if (attribute == 75) return *out = capability(device) / 10, OK;
  if (attribute == 76) return *out = capability(device) % 10, OK;
  return refuse(INVALID_VALUE, "an attribute that it does not know");
}
EXPORT int cuGetExportTable(const void** out, const void*) { return *out = nullptr, NOT_FOUND; }  // NVRTC asks
EXPORT int cuDeviceGetName(char* out, int bytes, int) { return snprintf(out, bytes, "no device"), OK; }
EXPORT int cuGetErrorName(int code, const char** out) {
  static thread_local std::string name;
  name = "error " + std::to_string(code);
  return *out = name.c_str(), OK;
}

EXPORT int cuGetErrorString(int code, const char** out) {
  *out = code == ILLEGAL_ADDRESS ? "an illegal memory access was encountered" : "what a stand-in says";
  return OK;
}
EXPORT int cuThreadExchangeStreamCaptureMode(int* mode) { return std::swap(*mode, mode_), OK; }

EXPORT int cuMemAlloc_v2(uint64_t* out, size_t bytes) {
  if (int wrong = refuse_captured("memory while a stream is captured")) return wrong;
  if (!current) return refuse(INVALID_CONTEXT, "memory without a context");
  const size_t pages = (bytes + 4095) / 4096 * 4096;
  void* made = mmap(nullptr, pages, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  std::lock_guard<std::mutex> held(lock);
  memory[static_cast<char*>(made)] = pages;
  return *out = reinterpret_cast<uint64_t>(made), OK;
}
EXPORT int cuMemFree_v2(uint64_t at) {
  if (int wrong = refuse_captured("memory given back while a stream is captured")) return wrong;
  std::lock_guard<std::mutex> held(lock);
  auto found = memory.find(reinterpret_cast<char*>(at));
  if (found == memory.end()) return refuse(INVALID_VALUE, "memory that it has not given");
  munmap(found->first, found->second);
  return memory.erase(found), OK;
}
EXPORT int cuMemsetD8_v2(uint64_t at, unsigned char value, size_t bytes) {
  if (int wrong = refuse_captured("a fill while a stream is captured")) return wrong;
  std::lock_guard<std::mutex> held(lock);
  if (!inside(at, bytes)) return refuse(INVALID_VALUE, "a fill of memory that is not the device's");
  Open open;
  return memset(reinterpret_cast<void*>(at), value, bytes), OK;
}
EXPORT int cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t bytes) {
  if (int wrong = refuse_captured("a copy while a stream is captured")) return wrong;
  std::lock_guard<std::mutex> held(lock);
  if (!inside(to, bytes)) return refuse(INVALID_VALUE, "a copy to memory that is not the device's");
  Open open;
  return memcpy(reinterpret_cast<void*>(to), from, bytes), OK;
}
EXPORT int cuMemcpyDtoH_v2(void* to, uint64_t from, size_t bytes) {
  if (int wrong = refuse_captured("a copy while a stream is captured")) return wrong;
  std::lock_guard<std::mutex> held(lock);
  if (!inside(from, bytes)) return refuse(INVALID_VALUE, "a copy from memory that is not the device's");
  Open open;
  return memcpy(to, reinterpret_cast<void*>(from), bytes), OK;
}

EXPORT int cuDevicePrimaryCtxRetain(void** out, int device) {
  if (device < 0 || device >= number("DRIVER_DEVICES", 1)) return refuse(NO_DEVICE, "a context of no device");
  say("retain");
  contexts[device].device = device;
  return *out = &contexts[device], OK;
}
EXPORT int cuDevicePrimaryCtxReset_v2(int device) {
  say("reset");
  std::lock_guard<std::mutex> held(lock);
  return contexts[device].life++, streams.clear(), OK;
}
EXPORT int cuCtxGetCurrent(void** out) { return *out = current, OK; }
EXPORT int cuCtxGetDevice(int* out) { return current ? (*out = current->device, OK) : INVALID_CONTEXT; }
EXPORT int cuCtxSetCurrent(void* context) { return current = static_cast<Context*>(context), OK; }

EXPORT int cuLibraryLoadData(void** out, const void* code, void*, void*, unsigned, void*, void*, unsigned) {
  if (!begun) return NOT_INITIALIZED;
  if (int wrong = refuse_captured("code loaded while a stream is captured")) return wrong;
  const unsigned char* image = static_cast<const unsigned char*>(code);
  const bool cubin = cubin::is_one(image), ptx = strstr(static_cast<const char*>(code), ".version") != nullptr;
  if (!cubin && !ptx) return refuse(INVALID_IMAGE, "code that is none");
  if (cubin) {
    const int made = cubin::architecture(image);
    say("load sm_%d", made);
    bool runs = false;  // a library is of no context: it is taken where some device runs it
    for (int i = 0; i < number("DRIVER_DEVICES", 1); ++i) runs = runs || fits(made, i);
    if (!runs) return refuse(NO_BINARY, "code for another device");
  } else {
    say("load ptx");
  }
  return *out = new Library{cubin ? cubin::registers(image) : std::map<std::string, int>(), cubin ? cubin::architecture(image) : 0}, OK;
}
EXPORT int cuLibraryUnload(void* library) {
  if (over) return refuse(DEINITIALIZED, "a call when the driver is gone");
  say("unload");
  return delete static_cast<Library*>(library), OK;
}
EXPORT int cuLibraryGetKernel(void** out, void* library, const char* name) {
  void* host = host_library();
  if (!library || !host) return refuse(NOT_FOUND, "a function without a library");
  std::lock_guard<std::mutex> held(lock);
  Kernel& k = kernels[name];
  k.name = name;
  k.run = reinterpret_cast<decltype(k.run)>(dlsym(host, ("run_" + k.name).c_str()));
  const int* arguments = static_cast<int*>(dlsym(host, ("arguments_" + k.name).c_str()));
  if (!k.run || !arguments) return refuse(NOT_FOUND, name);
  k.arguments = arguments[0];
  k.threads = arguments[1];
  k.sizes = arguments + 2;
  k.registers = static_cast<Library*>(library)->registers[name];
  k.architecture = static_cast<Library*>(library)->architecture;
  return *out = &k, OK;
}
EXPORT int cuKernelSetAttribute(int attribute, int value, void* kernel, int device) {
  if (int wrong = refuse_captured("an attribute set while a stream is captured")) return wrong;
  if (attribute != DYNAMIC_SHARED || value < 0) return refuse(INVALID_VALUE, "an attribute that it does not know");
  if ((unsigned)value > most_shared(device)) return refuse(INVALID_VALUE, "more shared memory than the device has");
  say("shared %s %d", static_cast<Kernel*>(kernel)->name.c_str(), value);
  return static_cast<Kernel*>(kernel)->shared[device] = value, OK;
}
EXPORT int cuFuncSetAttribute(void* function, int attribute, int value) {
  return cuKernelSetAttribute(attribute, value, function, current ? current->device : 0);
}
EXPORT int cuKernelGetFunction(void** out, void* kernel) {
  if (!current) return refuse(INVALID_CONTEXT, "a function without a context");
  Kernel* k = static_cast<Kernel*>(kernel);
  if (k->architecture && !fits(k->architecture, current->device)) return refuse(NO_BINARY, "code for another device");
  if (!there(k, current))
    if (int wrong = refuse_captured("code brought to the device while a stream is captured")) return wrong;
  std::lock_guard<std::mutex> held(lock);
  k->loaded[current->device] = current->life + 1;
  return *out = kernel, OK;
}
EXPORT int cuLaunchKernelEx(const Config* config, void* function, void** arguments, void** extra) {
  const unsigned gx = config->grid[0], gy = config->grid[1], gz = config->grid[2];
  const unsigned bx = config->block[0], by = config->block[1], bz = config->block[2];
  const unsigned shared = config->shared;
  void* stream = config->stream;
  Kernel* k = static_cast<Kernel*>(function);
  if (!k) return refuse(INVALID_HANDLE, "a launch of nothing");
  if (faulted) return ILLEGAL_ADDRESS;
  if (over) return refuse(DEINITIALIZED, "a launch when the driver is gone");
  if (!stream && !current) return refuse(INVALID_CONTEXT, "a launch on the default stream of no context");
  const Context* c = stream && made.count(stream) ? made[stream] : current ? current : contexts;
  if (!there(k, c)) return refuse(NOT_READY, "a launch of what is loaded only then");
  if (!gx || gx > 0x7fffffffu || gy != 1 || gz != 1 || by != 1 || bz != 1 || extra) return refuse(INVALID_VALUE, "a grid");
  if (!bx || bx > 1024 || (int)bx > k->threads) return refuse(TOO_MANY, "more threads than a kernel is compiled for");
  const auto asked = k->shared.find(c->device);
  if (shared > (asked == k->shared.end() ? UNASKED : asked->second)) return refuse(INVALID_VALUE, "more shared memory than was asked for");
  const unsigned warps = (bx + 31) / 32, of_warp = (k->registers * 32 + 255) / 256 * 256;  // as they are given out
  if (warps * of_warp > REGISTERS) {
    say("registers %s %d", k->name.c_str(), k->registers);
    return refuse(TOO_MANY, "more registers than a multiprocessor has");
  }
  Launch l{k, gx, bx, shared, {}, {}};
  for (const Attribute* a = config->attributes; a != config->attributes + config->count; ++a) {
    if (a->id != DEPENDENT) return refuse(INVALID_VALUE, "a launch attribute that it does not know");
    if (capability(c->device) < DEPENDENT_SINCE) return refuse(INVALID_VALUE, "a dependent launch on a device without");
    l.dependent = a->value[0] & 0xffffffffu;
  }
  for (int i = 0; i < k->arguments; i++) {
    std::array<uint64_t, 16> value{};
    memcpy(value.data(), arguments[i], k->sizes[i]);
    l.values.push_back(value);
  }
  say("launch %s %u %u %u%s", k->name.c_str(), gx, bx, shared, l.dependent ? " dependent" : "");
  std::lock_guard<std::mutex> held(lock);
  const char* slow = getenv("DRIVER_SLOW");
  if (slow && strstr(k->name.c_str(), slow)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  static int lost = number("DRIVER_LOSES", 0), faults = number("DRIVER_FAULT", 0);
  if (faults && --faults == 0) return faulted = true, OK;  // whoever asks next is told
  if (lost-- > 0) return OK;
  if (capture.stream && stream != capture.stream) return refuse_captured("a launch on another stream than is captured");
  if (capture.stream)
    capture.launches.push_back(l);
  else
    streams[stream].push_back(l);
  return OK;
}

EXPORT int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, void* stream, void** arguments, void** extra) {
  const Config config{{gx, gy, gz}, {bx, by, bz}, shared, stream, nullptr, 0};
  return cuLaunchKernelEx(&config, function, arguments, extra);
}

// A tensor map, as the emulator reads it (emulated.h).
EXPORT int cuTensorMapEncodeTiled(void* map, int type, unsigned rank, void* data, const uint64_t* extents,
                                  const uint64_t* pitches, const unsigned* box, const unsigned* strides, int interleaved,
                                  int swizzle, int, int outside) {
  enum { HALF = 6, BFLOAT = 9, WITHIN_128 = 3 };
  const uint64_t address = reinterpret_cast<uint64_t>(data);
  if (reinterpret_cast<uint64_t>(map) % 64) return refuse(INVALID_VALUE, "a tensor map that does not begin at 64 bytes");
  if ((type != HALF && type != BFLOAT) || rank != 2 || interleaved || outside || swizzle != WITHIN_128)
    return refuse(INVALID_VALUE, "a tensor map that it does not know");
  if (address % 16 || pitches[0] % 16 || pitches[0] < extents[0] * 2 || !extents[0] || !extents[1])
    return refuse(INVALID_VALUE, "a matrix that cannot be copied in boxes");
  if (box[0] != 64 || !box[1] || box[1] > 256 || strides[0] != 1 || strides[1] != 1) return refuse(INVALID_VALUE, "a box");
  {
    std::lock_guard<std::mutex> held(lock);
    if (!memory.empty() && !inside(address, (extents[1] - 1) * pitches[0] + extents[0] * 2))
      return refuse(INVALID_VALUE, "a matrix that is not in the device's memory");
  }
  const int64_t known[] = {(int64_t)address, (int64_t)extents[1], (int64_t)extents[0], (int64_t)pitches[0] / 2, box[1]};
  memcpy(map, known, sizeof known);
  return say("map %u", box[1]), OK;
}

// For stand-ins of libraries (libraries/): work on a stream, refused where a launch would be; whether memory may be read.
EXPORT int standInQueue(void* stream, const std::function<void()>* work) {
  if (faulted) return ILLEGAL_ADDRESS;
  if (!stream && !current) return refuse(INVALID_CONTEXT, "work on the default stream of no context");
  std::lock_guard<std::mutex> held(lock);
  if (capture.stream && stream != capture.stream) return refuse_captured("work on another stream than is captured");
  Launch l{nullptr, 0, 0, 0, {}, *work};
  if (capture.stream)
    capture.launches.push_back(l);
  else
    streams[stream].push_back(l);
  return OK;
}
EXPORT bool standInHas(const void* at, size_t bytes) {
  std::lock_guard<std::mutex> held(lock);
  return memory.empty() || inside(reinterpret_cast<uint64_t>(at), bytes);
}
EXPORT void standInSays(const char* text) { say("%s", text); }

EXPORT int cuStreamCreate(void** out, unsigned) {
  if (!current) return refuse(INVALID_CONTEXT, "a stream of no context");
  std::lock_guard<std::mutex> held(lock);
  return *out = new char, made[*out] = current, OK;
}
EXPORT int cuStreamBeginCapture_v2(void* stream, int) {
  if (!stream || capture.stream) return refuse(INVALID_VALUE, "a capture of the default stream, or of a second one");
  capture = {stream, false, {}, std::this_thread::get_id()};
  return OK;
}
EXPORT int cuStreamGetCaptureInfo_v3(void* stream, int* status, uint64_t*, void**, void* const** nodes, const void** edges,
                                     size_t* count) {
  static thread_local void* node;  // what was captured last, by its number
  *status = stream && stream == capture.stream;
  *edges = nullptr;
  *nodes = &node;
  node = reinterpret_cast<void*>(capture.launches.size());
  *count = *status && node != nullptr;
  return OK;
}
EXPORT int cuStreamEndCapture(void* stream, void** out) {
  if (!stream || stream != capture.stream) return refuse(INVALID_VALUE, "the end of a capture that has not begun");
  *out = capture.broken ? nullptr : new Graph(capture.launches);
  capture = {};
  return *out ? OK : INVALIDATED;
}
EXPORT int cuGraphInstantiateWithFlags(void** out, void* graph, unsigned long long) { return *out = graph, OK; }
EXPORT int cuGraphLaunch(void* graph, void* stream) {
  std::lock_guard<std::mutex> held(lock);
  const size_t before = streams[stream].size();
  for (const Launch& l : *static_cast<Graph*>(graph)) streams[stream].push_back(l);
  if (streams[stream].size() > before) streams[stream][before].dependent = false;  // edges do not leave a graph
  return OK;
}
EXPORT int cuStreamSynchronize(void* stream);

// Events: what is queued before one has run when it is recorded; its time can be had once it was waited for.
struct Event {
  double at;
  bool recorded, waited;
};
EXPORT int cuEventCreate(void** out, unsigned) { return *out = new Event{}, OK; }
EXPORT int cuEventRecord(void* event, void* stream) {
  if (int wrong = cuStreamSynchronize(stream)) return wrong;
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return *static_cast<Event*>(event) = Event{now.tv_sec * 1e3 + now.tv_nsec * 1e-6, true, false}, OK;
}
EXPORT int cuEventSynchronize(void* event) { return static_cast<Event*>(event)->waited = true, OK; }
EXPORT int cuEventElapsedTime(float* out, void* begin, void* end) {
  const Event *a = static_cast<Event*>(begin), *b = static_cast<Event*>(end);
  if (!a->recorded || !b->recorded || !b->waited) return refuse(NOT_READY, "the time of an event that nobody waited for");
  return *out = (float)(b->at - a->at), OK;
}
EXPORT int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void* stream) {
  if (int wrong = cuStreamSynchronize(stream)) return wrong;
  std::lock_guard<std::mutex> held(lock);
  if (!inside(to, bytes) || !inside(from, bytes)) return refuse(INVALID_VALUE, "a copy of memory that is not the device's");
  Open open;
  return memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes), OK;
}

EXPORT int cuStreamSynchronize(void* stream) {
  if (int wrong = refuse_captured("a wait while a stream is captured")) return wrong;
  if (!stream && !current) return refuse(INVALID_CONTEXT, "a wait for the default stream of no context");
  std::lock_guard<std::mutex> held(lock);
  say("synchronize %zu", streams[stream].size());
  Open open;
  for (std::deque<Launch>& queue = streams[stream]; !queue.empty();) {
    int early = 0;
    while (early < MOST_EARLY && early + 1 < (int)queue.size() && queue[early + 1].dependent) ++early;
    run(queue, early);
    queue.erase(queue.begin(), queue.begin() + early + 1);
  }
  return OK;
}
