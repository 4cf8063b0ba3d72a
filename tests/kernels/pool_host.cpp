// Runs compiled kernels on arrays without ONNX Runtime: host.h over a small spinning thread pool, behind a C interface.
//
// The pool behaves like the runtime's: the caller works too, every thread takes tasks from its own share first and then
// from the others', and idle threads spin for a while before they sleep.
#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "host.h"

using onnxfuse::Host;
using onnxfuse::i64;
using onnxfuse::Kernel;
using onnxfuse::Tensor;

namespace {

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct alignas(64) Share {
  std::atomic<size_t> next{0};
  size_t end = 0;
};

struct Pool {
  Pool(int threads, int spins) : shares(threads), most(spins) {
    for (int i = 1; i < threads; i++) workers.emplace_back([this, i] { serve(i); });
  }
  ~Pool() {
    {
      std::lock_guard<std::mutex> lock(mutex);
      quit = true;
      generation++;
    }
    wake.notify_all();
    for (auto& w : workers) w.join();
  }

  void parallel(size_t tasks, void (*fn)(void*, size_t), void* user) {
    size_t threads = shares.size();
    if (threads == 1 || tasks < 2) {
      for (size_t i = 0; i < tasks; i++) fn(user, i);
      return;
    }
    for (size_t i = 0; i < threads; i++) {
      shares[i].next.store(tasks * i / threads, std::memory_order_relaxed);
      shares[i].end = tasks * (i + 1) / threads;
    }
    function = fn;
    argument = user;
    busy.store((int)threads - 1, std::memory_order_relaxed);
    {
      std::lock_guard<std::mutex> lock(mutex);  // a worker going to sleep must not miss this
      generation.fetch_add(1, std::memory_order_release);
    }
    if (sleepers.load() > 0) wake.notify_all();
    work(0);
    while (busy.load(std::memory_order_acquire)) relax();
  }

 private:
  void work(size_t self) {
    for (size_t k = 0; k < shares.size(); k++) {
      Share& share = shares[(self + k) % shares.size()];
      while (share.next.load(std::memory_order_relaxed) < share.end) {
        size_t task = share.next.fetch_add(1, std::memory_order_relaxed);
        if (task >= share.end) break;
        function(argument, task);
      }
    }
  }
  void serve(size_t self) {
    for (uint64_t seen = 0;;) {
      for (int spins = 0; generation.load(std::memory_order_acquire) == seen; spins++) {
        relax();
        if (spins < most) continue;
        std::unique_lock<std::mutex> lock(mutex);
        sleepers++;
        wake.wait(lock, [&] { return generation.load() != seen; });
        sleepers--;
      }
      seen = generation.load();
      if (quit) return;
      work(self);
      busy.fetch_sub(1, std::memory_order_release);
    }
  }

  std::vector<Share> shares;
  const int most;  // turns of an idle thread before it sleeps
  std::vector<std::thread> workers;
  std::atomic<uint64_t> generation{0};
  std::atomic<int> busy{0}, sleepers{0};
  void (*function)(void*, size_t) = nullptr;
  void* argument = nullptr;
  bool quit = false;
  std::mutex mutex;
  std::condition_variable wake;
};

struct Buffer {  // kept between runs, so that timing sees no page faults
  void* data = nullptr;
  size_t capacity = 0;
  std::vector<i64> dims;
  ~Buffer() { std::free(data); }
  void* reserve(size_t bytes) {
    size_t rounded = (bytes + 63) / 64 * 64 + 64;
    if (rounded > capacity) {
      std::free(data);
      data = std::aligned_alloc(64, rounded);
      capacity = data ? rounded : 0;
      if (data) std::memset(data, 0xff, rounded);  // a value left unwritten is a NaN
    }
    return data;
  }
};

size_t element_size(int type) {
  switch (type) {
    case 1: case 6: case 12: return 4;
    case 4: case 5: case 10: case 16: return 2;
    case 7: case 11: case 13: return 8;
    default: return 1;
  }
}

struct Runner : Host {  // one kernel with its outputs and scratch
  const Kernel* kernel;
  Pool* pool;
  std::vector<Buffer> outputs;
  Buffer arena;

  Runner(const Kernel* k, Pool* p, int threads) : kernel(k), pool(p), outputs(k->outputs) {
    output = [](Host* self, int index, const i64* dims, int rank) -> void* {
      Runner* r = static_cast<Runner*>(self);
      if (index < 0 || index >= (int)r->outputs.size()) return nullptr;
      size_t count = 1;
      for (int i = 0; i < rank; i++) count *= (size_t)dims[i];
      r->outputs[index].dims.assign(dims, dims + rank);
      return r->outputs[index].reserve(count * element_size(r->kernel->output_types[index]));
    };
    scratch = [](Host* self, size_t bytes) { return static_cast<Runner*>(self)->arena.reserve(bytes); };
    parallel = [](Host* self, size_t tasks, void (*fn)(void*, size_t), void* user) {
      static_cast<Runner*>(self)->pool->parallel(tasks, fn, user);
    };
    cores = threads;
  }
};

}  // namespace

extern "C" {

void* pool_create(int threads, int spins) { return new Pool(threads, spins); }
void pool_destroy(void* pool) { delete static_cast<Pool*>(pool); }

// The kernel descriptor `symbol` of the shared library at `path`; null with a message in *error (static until the next call).
const void* kernel_load(const char* path, const char* symbol, const char** error) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  const void* kernel = library ? dlsym(library, symbol) : nullptr;
  *error = kernel ? nullptr : dlerror();
  return kernel;
}
int kernel_inputs(const Kernel* k) { return k->inputs; }
int kernel_outputs(const Kernel* k) { return k->outputs; }
int kernel_input_type(const Kernel* k, int i) { return k->input_types[i]; }
int kernel_output_type(const Kernel* k, int i) { return k->output_types[i]; }
const char* kernel_name(const Kernel* k) { return k->name; }

void* runner_create(const Kernel* kernel, void* pool, int threads) { return new Runner(kernel, static_cast<Pool*>(pool), threads); }
void runner_destroy(void* runner) { delete static_cast<Runner*>(runner); }
const char* runner_run(void* runner, const Tensor* inputs) {
  Runner* r = static_cast<Runner*>(runner);
  return r->kernel->run(r, inputs);
}
int runner_output_rank(void* runner, int index) { return (int)static_cast<Runner*>(runner)->outputs[index].dims.size(); }
const i64* runner_output_dims(void* runner, int index) { return static_cast<Runner*>(runner)->outputs[index].dims.data(); }
const void* runner_output_data(void* runner, int index) { return static_cast<Runner*>(runner)->outputs[index].data; }

// Runs the runners in turns, `rounds` times; round r uses inputs[r % sets]. seconds[runner * rounds + r] is one run's time.
// The first message of a failing kernel ends it.
const char* runner_race(void** runners, int count, const Tensor* const* inputs, int sets, int rounds, double* seconds) {
  for (int r = 0; r < rounds; r++)
    for (int k = 0; k < count; k++) {
      double start = now();
      if (const char* message = runner_run(runners[k], inputs[r % sets])) return message;
      seconds[k * rounds + r] = now() - start;
    }
  return nullptr;
}

}  // extern "C"
