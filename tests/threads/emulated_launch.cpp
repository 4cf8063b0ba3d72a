// How the fibers of a launch take turns: compiled once, for the kernels of all libraries.
#include <sys/mman.h>

#include <algorithm>
#include <random>

#include "emulated.h"

namespace emulated {

__thread Block* now = nullptr;
__thread const std::function<void()>* before = nullptr;

namespace {

const size_t STACK = 64 << 10;

void entry() {
  (*now->body)();
  leave(DONE);
}
[[noreturn]] void stuck(const Block& b) {
  for (const Thread& t : b.threads)
    if (t.state != DONE)
      fprintf(stderr, "emulated: block %u is stuck, thread %u %s\n", b.number.x, t.number.x,
              t.state == IN_WARP ? "waits for its warp" : "is at a barrier"),
          abort();
  abort();
}

// Runs the lanes of a warp as far as they come; whether any did.
bool run_warp(Block& b, size_t first, std::vector<unsigned>& order, std::mt19937& random) {
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

void run_block(Block& b, char* stacks, std::mt19937& random) {
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

}  // namespace

// All blocks of a launch; the memory of each begins as floats that are no number.
void launch(unsigned grid, unsigned threads, size_t shared, unsigned seed, const std::function<void()>& body) {
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

}  // namespace emulated

extern "C" const std::function<void()>* emulated_begins_early(const std::function<void()>* before) {
  return std::exchange(emulated::before, before);
}
