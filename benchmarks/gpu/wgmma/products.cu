// Probes of Hopper's wgmma; wgmma.py puts functions mma_nN and mma_registers_nN before it, and defines what is compiled.
#define DEVICE __device__ __forceinline__

DEVICE unsigned near(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
DEVICE uint64_t at_address(uint64_t form, unsigned address) { return form | (uint64_t)((address & 0x3ffff) >> 4); }
DEVICE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int MOST>
DEVICE void wait_products() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(MOST) : "memory"); }
// All products are done, and nothing that reads these sums comes before.
template <int COUNT>
DEVICE void done(float* sums) {
  wait_products<0>();
#pragma unroll
  for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(sums[i])::"memory");
}
DEVICE void to_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
DEVICE void copy16(unsigned to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int MOST>
DEVICE void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(MOST) : "memory"); }
DEVICE unsigned two_halves(float low, float high) {
  unsigned made;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(made) : "f"(high), "f"(low));
  return made;
}

extern __shared__ __align__(1024) unsigned char arena[];

#ifdef LAYOUT
// One instruction on images of shared memory, which the host laid out: each thread's sums as they lie in its registers.
constexpr unsigned RIGHT = 32768;
extern "C" __global__ void __launch_bounds__(128) kernel(const uint4* left, const uint4* right, const unsigned* fragment,
                                                         uint64_t of_left, uint64_t of_right, unsigned left_from,
                                                         unsigned right_from, float* out) {
  for (unsigned i = threadIdx.x; i < RIGHT / 16; i += 128) ((uint4*)arena)[i] = left[i];
  for (unsigned i = threadIdx.x; i < 2 * RIGHT / 16; i += 128) ((uint4*)(arena + RIGHT))[i] = right[i];
  to_async_proxy();
  __syncthreads();
  float sums[N / 2];
  for (int i = 0; i < N / 2; i++) sums[i] = 1e9f;  // scale-d is 0: what was there does not count
  begin_products();
  const uint64_t b = at_address(of_right, near(arena) + RIGHT + right_from);
  if constexpr (IN_REGISTERS) {
    unsigned a[4];
    for (int i = 0; i < 4; i++) a[i] = fragment[threadIdx.x * 4 + i];
    MMA_REGISTERS(sums, a, b, 0);
  } else {
    MMA(sums, at_address(of_left, near(arena) + left_from), b, 0);
  }
  commit_products();
  done<N / 2>(sums);
  for (int i = 0; i < N / 2; i++) out[threadIdx.x * (N / 2) + i] = sums[i];
}
#endif

#ifdef FENCES
// Both sides are written anew in each turn, all elements alike: sums that are other than 16 a b read what was there before.
extern "C" __global__ void __launch_bounds__(128) kernel(const uint4* pages, int turns, unsigned* wrong) {
  constexpr unsigned SIDE = 64 * 16 * 2;
  const uint64_t form = (uint64_t)(64 * 16 >> 4) << 16 | (uint64_t)(128 >> 4) << 32;
  unsigned missed = 0;
  for (int turn = 0; turn < turns; turn++) {
    const int a = (turn + blockIdx.x) % 7, b = (3 * turn + blockIdx.x) % 7;
    const uint4 *left = pages + a * 128 + threadIdx.x, *right = pages + b * 128 + threadIdx.x;
    if constexpr (BY_COPIES) {
      copy16(near(arena) + threadIdx.x * 16, left);
      copy16(near(arena) + SIDE + threadIdx.x * 16, right);
      commit_copies();
      wait_copies<0>();
    } else {
      ((uint4*)arena)[threadIdx.x] = *left;
      ((uint4*)(arena + SIDE))[threadIdx.x] = *right;
    }
    if constexpr (FENCED) to_async_proxy();
    __syncthreads();
    float sums[32];
    begin_products();
    mma_n64_k(sums, at_address(form, near(arena)), at_address(form, near(arena) + SIDE), 0);
    commit_products();
    done<32>(sums);
    for (int i = 0; i < 32; i++) missed += sums[i] != 16.f * (a + 1) * (b + 1);
    __syncthreads();
  }
  if (missed) atomicAdd(wrong, missed);
}
#endif

#if defined(PIPELINE) || defined(BULK)
// A block has ROWS x COLUMNS of left [rows, depth] by right [depth, columns], DEPTH at a time; each warpgroup 64 rows and
// COLUMNS / WIDE columns.
constexpr int THREADS = HIGH * WIDE * 128, ROWS = HIGH * 64, MINE = COLUMNS / WIDE;
constexpr int LEFT_PITCH = ROWS * 16 + 16, RIGHT_PITCH = DEPTH * 16 + 16;  // from eight elements of a row to the next ones
constexpr int SIZE_LEFT = SWIZZLED ? ROWS * DEPTH * 2 : DEPTH / 8 * LEFT_PITCH;
constexpr int SIZE_RIGHT = SWIZZLED ? COLUMNS * DEPTH * 2 : COLUMNS / 8 * RIGHT_PITCH;
constexpr int STAGE = SIZE_LEFT + SIZE_RIGHT;
#define FIELD(bytes) ((uint64_t)((bytes) >> 4))
constexpr uint64_t FORM_LEFT =
    SWIZZLED ? FIELD(16) << 16 | FIELD(1024) << 32 | 1ull << 62 : FIELD(LEFT_PITCH) << 16 | FIELD(128) << 32;
constexpr uint64_t FORM_RIGHT = SWIZZLED ? FIELD(DEPTH * 128) << 16 | FIELD(1024) << 32 | 1ull << 62
                                         : FIELD(128) << 16 | FIELD(RIGHT_PITCH) << 32;

DEVICE void multiplied(float* sums, unsigned left, unsigned right, int y, int x) {
  begin_products();
#pragma unroll
  for (int k = 0; k < DEPTH / 16; k++) {
    const unsigned a = SWIZZLED ? left + y * 64 * 128 + k / 4 * (ROWS * 128) + k % 4 * 32
                                : left + y * 64 * 16 + k * 2 * LEFT_PITCH;
#pragma unroll
    for (int j = 0; j < MINE / N; j++) {
      const int column = x * MINE + j * N;
      const unsigned b = SWIZZLED ? right + column / 64 * (DEPTH * 128) + k * 16 * 128
                                  : right + column / 8 * RIGHT_PITCH + k * 16 * 16;
      MMA(sums + j * (N / 2), at_address(FORM_LEFT, a), at_address(FORM_RIGHT, b), 1);
    }
  }
  commit_products();
}

// Through shared memory, so that stores are wide: half a tile's rows at a time would need less room.
DEVICE void stored(const float* sums, unsigned short* c, int rows, int columns, int row, int column, int y, int x) {
  constexpr int PITCH = COLUMNS + 8;
  float* made = (float*)arena;
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  if constexpr (BY_SHARED) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < MINE / 2; i += 2) {
      const int r = y * 64 + warp * 16 + lane / 4 + i / 2 % 2 * 8, n = x * MINE + i / 4 * 8 + lane % 4 * 2;
      *(float2*)(made + r * PITCH + n) = make_float2(sums[i], sums[i + 1]);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < ROWS * COLUMNS / 8; i += THREADS) {
      const int r = i / (COLUMNS / 8), n = i % (COLUMNS / 8) * 8;
      if (row + r >= rows) continue;
      const float4 u = *(float4*)(made + r * PITCH + n), v = *(float4*)(made + r * PITCH + n + 4);
      uint4 w = {two_halves(u.x, u.y), two_halves(u.z, u.w), two_halves(v.x, v.y), two_halves(v.z, v.w)};
      *(uint4*)(c + (size_t)(row + r) * columns + column + n) = w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < MINE / 2; i += 2) {
      const int r = row + y * 64 + warp * 16 + lane / 4 + i / 2 % 2 * 8, n = x * MINE + i / 4 * 8 + lane % 4 * 2;
      if (r < rows) *(unsigned*)(c + (size_t)r * columns + column + n) = two_halves(sums[i], sums[i + 1]);
    }
  }
}
#endif

#ifdef PIPELINE
DEVICE void brought(unsigned to, const unsigned short* a, const unsigned short* b, int rows, int columns, int depth, int row,
                    int column, int from) {
#pragma unroll
  for (int i = threadIdx.x; i < ROWS * DEPTH / 8; i += THREADS) {
    const int r = i / (DEPTH / 8), c = i % (DEPTH / 8);
    int source = row + r;
    if (source >= rows) source = max(0, 2 * rows - 1 - source);
    const unsigned place = SWIZZLED ? c / 8 * (ROWS * 128) + r * 128 + (c % 8 ^ r % 8) * 16 : c * LEFT_PITCH + r * 16;
    copy16(to + place, a + (size_t)source * depth + from + c * 8);
  }
#pragma unroll
  for (int i = threadIdx.x; i < COLUMNS * DEPTH / 8; i += THREADS) {
    const int k = i / (COLUMNS / 8), c = i % (COLUMNS / 8);
    const unsigned place = SWIZZLED ? c / 8 * (DEPTH * 128) + k * 128 + (c % 8 ^ k % 8) * 16 : c * RIGHT_PITCH + k * 16;
    copy16(to + SIZE_LEFT + place, b + (size_t)(from + k) * columns + column + c * 8);
  }
}

// With PENDING products of a step under way while the next ones are issued, copies are STAGES - 1 - PENDING steps ahead.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    kernel(const unsigned short* __restrict__ a, const unsigned short* __restrict__ b, unsigned short* __restrict__ c,
           int rows, int columns, int depth) {
  constexpr int AHEAD = STAGES - 1 - PENDING;
  const int across = columns / COLUMNS, row = blockIdx.x / across * ROWS, column = blockIdx.x % across * COLUMNS;
  const int group = threadIdx.x / 128, y = group / WIDE, x = group % WIDE, steps = depth / DEPTH;
  float sums[MINE / 2];
#pragma unroll
  for (int i = 0; i < MINE / 2; i++) sums[i] = 0;
  for (int s = 0; s < AHEAD; s++) {
    if (s < steps) brought(near(arena) + s * STAGE, a, b, rows, columns, depth, row, column, s * DEPTH);
    commit_copies();
  }
  for (int s = 0; s < steps; s++) {
    wait_copies<AHEAD - 1>();
    if constexpr (FENCED) to_async_proxy();
    wait_products<PENDING>();
    __syncthreads();
    const unsigned here = near(arena) + s % STAGES * STAGE;
    multiplied(sums, here, here + SIZE_LEFT, y, x);
    const int next = s + AHEAD;
    if (next < steps) brought(near(arena) + next % STAGES * STAGE, a, b, rows, columns, depth, row, column, next * DEPTH);
    commit_copies();
  }
  done<MINE / 2>(sums);
  stored(sums, c, rows, columns, row, column, y, x);
}
#endif

#ifdef BULK
// The copy engine brings both sides (tensor maps in 128 byte swizzle), asked by one thread of a warp of its own.
struct alignas(64) Map { unsigned char bytes[128]; };
constexpr int WAITED = 1 << 22;  // tries after which a wait is given up, so that nothing hangs

DEVICE void prepared(unsigned barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
DEVICE bool arrived(unsigned barrier, int parity) {
  for (int i = 0; i < WAITED; i++) {
    unsigned done;
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    if (done) return true;
  }
  return false;
}
DEVICE void asked(unsigned to, const Map* map, int inner, int outer, unsigned barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
               ::"r"(to), "l"(map), "r"(inner), "r"(outer), "r"(barrier) : "memory");
}

extern "C" __global__ void __launch_bounds__(THREADS + 128, 1)
    kernel(const __grid_constant__ Map left, const __grid_constant__ Map right, unsigned short* __restrict__ c, int rows,
           int columns, int depth, unsigned* failed) {
  static_assert(DEPTH == 64, "a box is 128 bytes wide");
  const int across = columns / COLUMNS, row = blockIdx.x / across * ROWS, column = blockIdx.x % across * COLUMNS;
  const int group = threadIdx.x / 128, y = group / WIDE, x = group % WIDE, steps = (depth + DEPTH - 1) / DEPTH;
  const unsigned full = near(arena) + STAGES * STAGE, empty = full + 8 * STAGES;
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; s++) prepared(full + 8 * s, 1), prepared(empty + 8 * s, HIGH * WIDE);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  bool well = true;
  if (group == HIGH * WIDE) {
    if (threadIdx.x % 128 == 0)
      for (int s = 0; s < steps && well; s++) {
        const int stage = s % STAGES;
        if (s >= STAGES) well = arrived(empty + 8 * stage, (s / STAGES - 1) & 1);
        const unsigned here = near(arena) + stage * STAGE, barrier = full + 8 * stage;
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(STAGE) : "memory");
        asked(here, &left, s * DEPTH, row, barrier);
        for (int n = 0; n < COLUMNS / 64; n++)
          asked(here + SIZE_LEFT + n * DEPTH * 128, &right, column + n * 64, s * DEPTH, barrier);
      }
    if (!well) atomicAdd(failed, 1);
    if (BY_SHARED) { __syncthreads(); __syncthreads(); }
    return;
  }
  float sums[MINE / 2];
#pragma unroll
  for (int i = 0; i < MINE / 2; i++) sums[i] = 0;
  for (int s = 0; s < steps; s++) {
    const int stage = s % STAGES;
    well = arrived(full + 8 * stage, s / STAGES & 1) && well;
    if (!well) break;
    const unsigned here = near(arena) + stage * STAGE;
    multiplied(sums, here, here + SIZE_LEFT, y, x);
    wait_products<1>();
    if (s && threadIdx.x % 128 == 0)
      asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(empty + 8 * ((s - 1) % STAGES)) : "memory");
  }
  done<MINE / 2>(sums);
  if (!well) atomicAdd(failed, 1);
  stored(sums, c, rows, columns, row, column, y, x);
}
#endif
