// CUDA on the host: each thread of a block is a fiber of its own, and blocks come one after the other.
// Warps and lanes run in an order that a seed shuffles (emulated_launch.cpp). A barrier, or an exchange between lanes,
// waits for all that take part; where some never come, the block is stuck, and says so.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
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
extern __thread Block* now __attribute__((tls_model("initial-exec")));
// What has to end before this launch goes on, where it has begun early: it is run when all threads of the first block wait.
extern __thread const std::function<void()>* before __attribute__((tls_model("initial-exec")));

inline void leave(State s) {
  Thread* t = now->running;
  t->state = s;
  go(t->place, now->scheduler);
}
// All blocks of a launch; the memory of each begins as floats that are no number (emulated_launch.cpp).
void launch(unsigned grid, unsigned threads, size_t shared, unsigned seed, const std::function<void()>& body);

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
