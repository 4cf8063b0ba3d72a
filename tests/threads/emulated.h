// CUDA on the host: a thread of the system for each thread of a block, blocks one after the other.
#include <barrier>
#include <cmath>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#define __global__
#define __device__
#define __restrict__ __restrict
#define __launch_bounds__(threads)
#define SHARED(name) unsigned char* const name = block->arena.data()

struct Warp {
  std::barrier<> meet{32};
  u64 exchanged[32];
  float left[16][16], right[16][8];
};

struct Block {
  std::barrier<> meet;
  std::vector<std::unique_ptr<Warp>> warps;
  std::vector<unsigned char> arena;
  Block(int threads, size_t bytes) : meet(threads), arena(bytes, 0xff) {  // floats that are no number
    for (int at = 0; at < threads; at += 32) warps.push_back(std::make_unique<Warp>());
  }
};

struct Number {
  unsigned x;
};
struct Copy {
  void* to;
  const void* from;
  size_t bytes;
};
thread_local Number threadIdx, blockIdx, gridDim;
thread_local Block* block;
thread_local std::vector<std::vector<Copy>> copies;  // groups, the last one of which is not committed yet

inline Warp& warp() { return *block->warps[threadIdx.x / 32]; }
inline void __syncthreads() { block->meet.arrive_and_wait(); }
inline void __syncwarp() { warp().meet.arrive_and_wait(); }

template <class T>
T __shfl_xor_sync(unsigned, T x, int other) {
  Warp& w = warp();
  const unsigned lane = threadIdx.x % 32;
  std::memcpy(&w.exchanged[lane], &x, sizeof x);
  w.meet.arrive_and_wait();
  std::memcpy(&x, &w.exchanged[lane ^ other], sizeof x);
  w.meet.arrive_and_wait();
  return x;
}

inline float __int_as_float(int bits) {
  float made;
  std::memcpy(&made, &bits, sizeof made);
  return made;
}
inline float to_float(f16 x) {
  _Float16 made;
  std::memcpy(&made, &x, sizeof made);
  return (float)made;
}
inline f16 to_half(float x) {
  const _Float16 rounded = (_Float16)x;
  f16 made;
  std::memcpy(&made, &rounded, sizeof made);
  return made;
}

// A copy arrives when it is waited for, and not before.
template <int BYTES>
void copy_bytes(void* to, const void* from) {
  copies.back().push_back({to, from, BYTES});
}
inline void commit_copies() { copies.emplace_back(); }
template <int PENDING>
void wait_copies() {
  while (copies.size() > PENDING + 1) {
    for (const Copy& c : copies.front()) std::memcpy(c.to, c.from, c.bytes);
    copies.erase(copies.begin());
  }
}

// Elements of fragments by the rows and columns of the PTX manual (mma.m16n8k16).
inline void mma_m16n8k16_float16(float* c, const f16* a, const f16* b) {
  Warp& w = warp();
  const int group = threadIdx.x % 32 / 4, within = threadIdx.x % 4;
  for (int i = 0; i < 8; i++) {
    const bool below = (i >= 2 && i < 4) || i >= 6;
    w.left[group + (below ? 8 : 0)][within * 2 + (i & 1) + (i >= 4 ? 8 : 0)] = to_float(a[i]);
  }
  for (int i = 0; i < 4; i++) w.right[within * 2 + (i & 1) + (i >= 2 ? 8 : 0)][group] = to_float(b[i]);
  w.meet.arrive_and_wait();
  for (int i = 0; i < 4; i++)
    for (int k = 0; k < 16; k++) c[i] += w.left[group + (i >= 2 ? 8 : 0)][k] * w.right[k][within * 2 + (i & 1)];
  w.meet.arrive_and_wait();
}

template <class Body>
void launch(unsigned grid, unsigned threads, size_t shared, Body body) {
  for (unsigned number = 0; number < grid; number++) {
    Block here((int)threads, shared);
    std::vector<std::thread> running;
    for (unsigned at = 0; at < threads; at++)
      running.emplace_back([&, at] {
        threadIdx.x = at;
        blockIdx.x = number;
        gridDim.x = grid;
        block = &here;
        copies.assign(1, {});
        body();
      });
    for (std::thread& each : running) each.join();
  }
}
