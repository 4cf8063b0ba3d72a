// CUDA on the host: each thread of a block is a fiber of its own, and blocks come one after the other.
// Warps and lanes run in an order that a seed shuffles. A barrier, or an exchange between lanes, waits for all that take
// part; where some never come, the block is stuck, and says so.
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <utility>
#include <vector>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#define __global__
#define __device__
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __grid_constant__
#define SHARED(name) unsigned char* const name = emulated::now->arena
#define ON_BOUNDARY(place, bytes) emulated::on_boundary(place, bytes)

inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline double rsqrt(double x) { return 1 / sqrt(x); }
// Rounded by itself: the compiler of the emulator joins no product with a sum across a volatile.
inline float __fmul_rn(float a, float b) {
  volatile float product = a * b;
  return product;
}

// Kernels are compiled quickly; what runs for each of their steps is optimized, but rounds as they do.
#if defined(__GNUC__) && !defined(__clang__)
#define OPTIMIZED __attribute__((optimize("O2", "fp-contract=off")))
#else
#define OPTIMIZED
#endif

namespace emulated {

#if defined(__x86_64__)
struct Place {
  void* stack = nullptr;
};
extern "C" void emulated_switch(void** from, void* to);
asm(R"(
.text
.weak emulated_switch
.type emulated_switch,@function
emulated_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
inline void go(Place& from, Place& to) { emulated_switch(&from.stack, to.stack); }
inline void begin(Place& p, char* stack, size_t bytes, void (*entry)()) {
  void** top = reinterpret_cast<void**>(stack + bytes);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; i++) *--top = nullptr;
  p.stack = top;
}
#else
struct Place {
  ucontext_t context;
};
inline void go(Place& from, Place& to) { swapcontext(&from.context, &to.context); }
inline void begin(Place& p, char* stack, size_t bytes, void (*entry)()) {
  getcontext(&p.context);
  p.context.uc_stack.ss_sp = stack;
  p.context.uc_stack.ss_size = bytes;
  p.context.uc_link = nullptr;
  makecontext(&p.context, entry, 0);
}
#endif

// A device ends a kernel whose access does not begin at a multiple of its bytes.
inline void on_boundary(const void* place, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(place) % bytes == 0) return;
  fprintf(stderr, "emulated: an access of %zu bytes does not begin at a multiple of them\n", bytes);
  abort();
}

struct Number {
  unsigned x;
};
struct Copy {
  void* to;
  const void* from;
  size_t bytes;
};
struct Product {
  float* sums;
  uint64_t left, right;  // descriptors
  int columns;
  bool deep;
  void (*multiplied)(const Product&);  // by the elements' type
};
struct Map {  // what the stand-in's cuTensorMapEncodeTiled leaves in a tensor map
  const uint16_t* data;
  int64_t rows, columns, pitch, of_box;
};
struct Box {
  unsigned char* to;
  Map map;
  int64_t row, column;
};
struct Arrival {
  size_t boxes;
  int turns;
  std::vector<Box> coming;
};
enum State { RUNNING, AT_BARRIER, IN_WARP, FOR_KERNEL, DONE };
struct Thread {
  Place place;
  Number number;
  State state;
  uint64_t exchanged[2];
  unsigned turn, mask;  // of what it exchanges, and with whom
  std::vector<std::vector<Copy>> copies;  // groups, the last one of which is not committed yet
  std::vector<std::vector<Product>> products;
  bool tells;  // matrix units what it has stored, at the next barrier
};
struct Warp {
  float left[16][16], right[16][8];
};
struct Block {
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  unsigned char* arena;
  Number number, grid;
  std::map<const void*, Arrival> arrivals;
  bool told;  // all threads told matrix units what they had stored before the last barrier
  Thread* running;
  Place scheduler;
  const std::function<void()>* body;
};
inline thread_local __attribute__((tls_model("initial-exec"))) Block* now = nullptr;
// What has to end before this launch goes on, where it has begun early: it is run when all threads of the first block wait.
inline thread_local const std::function<void()>* before = nullptr;
const size_t STACK = 64 << 10;

inline void leave(State s) {
  Thread* t = now->running;
  t->state = s;
  go(t->place, now->scheduler);
}
inline void entry() {
  (*now->body)();
  leave(DONE);
}
[[noreturn]] inline void stuck(const Block& b) {
  for (const Thread& t : b.threads)
    if (t.state != DONE)
      fprintf(stderr, "emulated: block %u is stuck, thread %u %s\n", b.number.x, t.number.x,
              t.state == IN_WARP ? "waits for its warp" : "is at a barrier"),
          abort();
  abort();
}

// Runs the lanes of a warp as far as they come; whether any did.
OPTIMIZED inline bool run_warp(Block& b, size_t first, std::vector<unsigned>& order, std::mt19937& random) {
  bool any = false;
  for (;;) {
    std::shuffle(order.begin(), order.end(), random);
    for (unsigned lane : order) {
      Thread& t = b.threads[first + lane];
      if (t.state != RUNNING) continue;
      any = true;
      b.running = &t;
      go(b.scheduler, t.place);
    }
    unsigned waiting = 0, whole = 0, met = 0;
    for (unsigned lane = 0; lane < 32; lane++) {
      const Thread& t = b.threads[first + lane];
      waiting |= unsigned(t.state == IN_WARP) << lane;
      whole |= unsigned(t.mask == ~0u) << lane;
    }
    if ((waiting & whole) == ~0u) {  // all of them wait for all
      for (unsigned lane = 0; lane < 32; lane++) b.threads[first + lane].state = RUNNING;
      continue;
    }
    for (unsigned lane : order) {
      const unsigned mask = b.threads[first + lane].mask;
      if (!(waiting >> lane & 1) || (waiting & mask) != mask) continue;
      bool all = true;  // wait for each other, and not for others
      for (unsigned i = 0; i < 32; i++) all = all && (!(mask >> i & 1) || b.threads[first + i].mask == mask);
      if (all) met |= 1u << lane;
    }
    if (!met) return any;
    for (unsigned lane : order)
      if (met >> lane & 1) b.threads[first + lane].state = RUNNING;
  }
}

OPTIMIZED inline void run_block(Block& b, char* stacks, std::mt19937& random) {
  b.arrivals.clear();
  b.told = false;
  for (size_t i = 0; i < b.threads.size(); i++) {
    Thread& t = b.threads[i];
    t.number = {(unsigned)i};
    t.state = RUNNING;
    t.turn = 0;
    t.copies.assign(1, {});
    t.products.assign(1, {});
    t.tells = false;
    begin(t.place, stacks + i * STACK, STACK - i % 16 * 64, entry);
  }
  std::vector<unsigned> lanes(32), warps(b.threads.size() / 32);
  for (unsigned i = 0; i < 32; i++) lanes[i] = i;
  for (unsigned i = 0; i < warps.size(); i++) warps[i] = i;
  for (;;) {
    bool any = false;
    std::shuffle(warps.begin(), warps.end(), random);
    for (unsigned w : warps) any |= run_warp(b, w * 32, lanes, random);
    size_t done = 0, waiting = 0, early = 0;
    for (const Thread& t : b.threads)
      done += t.state == DONE, waiting += t.state == AT_BARRIER, early += t.state == FOR_KERNEL;
    if (done == b.threads.size()) return;
    if (early && (early + done == b.threads.size() || !any)) {
      if (const auto* first = std::exchange(before, nullptr)) (*first)();
      for (Thread& t : b.threads) t.state = t.state == FOR_KERNEL ? RUNNING : t.state;
    } else if (waiting == b.threads.size()) {
      b.told = true;
      for (Thread& t : b.threads) t.state = RUNNING, b.told = b.told && t.tells, t.tells = false;
    } else if (!any)
      stuck(b);
  }
}

// All blocks of a launch; the memory of each begins as floats that are no number.
inline void launch(unsigned grid, unsigned threads, size_t shared, unsigned seed, const std::function<void()>& body) {
  Block b;
  b.threads.resize(threads);
  b.warps.resize(threads / 32);
  b.grid = {grid};
  b.body = &body;
  b.arena = static_cast<unsigned char*>(aligned_alloc(64, (shared + 127) / 64 * 64));
  char* stacks = static_cast<char*>(mmap(nullptr, threads * STACK, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  std::mt19937 random(seed);
  Block* outer = now;
  now = &b;
  for (unsigned number = 0; number < grid; number++) {
    b.number = {number};
    memset(b.arena, 0xff, shared + 64);
    run_block(b, stacks, random);
  }
  now = outer;
  munmap(stacks, threads * STACK);
  free(b.arena);
}

// What another lane of the warp gives; all lanes of the mask have to come.
template <class T>
OPTIMIZED __attribute__((noinline)) T exchange(unsigned mask, T x, unsigned lane) {
  static_assert(sizeof(T) <= 8, "lanes exchange 64 bits");
  Thread* t = now->running;
  const unsigned turn = t->turn;
  t->turn ^= 1;
  memcpy(&t->exchanged[turn], &x, sizeof x);
  t->mask = mask;
  leave(IN_WARP);
  t = now->running;
  memcpy(&x, &now->threads[t->number.x / 32 * 32 + lane].exchanged[turn], sizeof x);
  return x;
}

}  // namespace emulated

extern "C" __attribute__((used, visibility("default"))) inline const std::function<void()>* emulated_begins_early(
    const std::function<void()>* before) {
  return std::exchange(emulated::before, before);
}

#define threadIdx (emulated::now->running->number)
#define blockIdx (emulated::now->number)
#define gridDim (emulated::now->grid)
__attribute__((noinline)) inline void __syncthreads() { emulated::leave(emulated::AT_BARRIER); }
__attribute__((noinline)) inline void __syncwarp(unsigned mask = 0xffffffffu) {
  emulated::now->running->mask = mask;
  emulated::leave(emulated::IN_WARP);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T x, int other) {
  return emulated::exchange(mask, x, threadIdx.x % 32 ^ (unsigned)other);
}

template <class To, class From>
To emulated_bits(From x) {
  To made;
  static_assert(sizeof made == sizeof x, "bits of one size");
  memcpy(&made, &x, sizeof made);
  return made;
}
inline float bits_as_float(uint32_t x) { return emulated_bits<float>(x); }
inline uint32_t float_as_bits(float x) { return emulated_bits<uint32_t>(x); }
inline double bits_as_double(uint64_t x) { return emulated_bits<double>(x); }
