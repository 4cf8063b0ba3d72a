// Host twins of what cuda.h has assembly for. Included by it, where the types of elements are known.
inline float to_float(f16 x) { return (float)emulated_bits<_Float16>(x.bits); }
inline f16 to_half(float x) { return f16{emulated_bits<uint16_t>((_Float16)x)}; }

inline float power_of_two(float x) { return x < -126 ? 0 : exp2f(x); }

inline void loads_before() {}

// A launch that has begun early goes on when the one before it has ended.
inline void wait_for_kernel_before() {
  if (emulated::before) emulated::leave(emulated::FOR_KERNEL);
}
inline void let_next_kernel_begin() {}
template <class T>
inline void fetch_ahead(const T* from, int count) {
  const volatile char* bytes = reinterpret_cast<const volatile char*>(from);
  if (count) (void)(bytes[0] + bytes[count * sizeof(T) - 1]);  // a device's memory is there
}

// A copy arrives when it is waited for, and not before.
template <int BYTES>
void copy_bytes(void* to, const void* from) {
  emulated::now->running->copies.back().push_back({to, from, BYTES});
}
inline void commit_copies() { emulated::now->running->copies.emplace_back(); }
template <int PENDING>
void wait_copies() {
  auto& groups = emulated::now->running->copies;
  while (groups.size() > PENDING + 1) {
    for (const emulated::Copy& c : groups.front()) memcpy(c.to, c.from, c.bytes);
    groups.erase(groups.begin());
  }
}

// By the PTX manual (ldmatrix): lane l holds elements 2 (l % 4) and the next of row l / 4 of each matrix; with .trans, of
// column l / 4. Rows of matrix i are those of lanes 8 i to 8 i + 7.
template <int COUNT, bool TURNED>
OPTIMIZED inline void matrices(unsigned* to, const void* row) {
  const unsigned lane = threadIdx.x % 32, high = lane / 4, low = lane % 4 * 2, turn = emulated::now->running->turn;
  emulated::exchange(0xffffffffu, (uint64_t)row, lane);
  const emulated::Thread* lanes = &emulated::now->threads[threadIdx.x / 32 * 32];  // what they gave in this turn
  for (unsigned i = 0; i < COUNT; i++) {
    to[i] = 0;
    for (unsigned v = 0; v < 2; v++) {
      const uint64_t line = lanes[8 * i + (TURNED ? low + v : high)].exchanged[turn];
      to[i] |= (unsigned)reinterpret_cast<const uint16_t*>(line)[TURNED ? high : low + v] << 16 * v;
    }
  }
}

// Elements of fragments by the rows and columns of the PTX manual (mma.m16n8k16).
template <class T>
OPTIMIZED inline void mma_m16n8k16(float* c, const T* a, const T* b) {
  emulated::Warp& w = emulated::now->warps[threadIdx.x / 32];
  const int group = threadIdx.x % 32 / 4, within = threadIdx.x % 4;
  for (int i = 0; i < 8; i++) {
    const bool below = (i >= 2 && i < 4) || i >= 6;
    w.left[group + (below ? 8 : 0)][within * 2 + (i & 1) + (i >= 4 ? 8 : 0)] = to_float(a[i]);
  }
  for (int i = 0; i < 4; i++) w.right[within * 2 + (i & 1) + (i >= 2 ? 8 : 0)][group] = to_float(b[i]);
  __syncwarp();
  for (int i = 0; i < 4; i++)
    for (int k = 0; k < 16; k++) c[i] += w.left[group + (i >= 2 ? 8 : 0)][k] * w.right[k][within * 2 + (i & 1)];
  __syncwarp();
}
inline void mma_m16n8k16_float16(float* c, const f16* a, const f16* b) { mma_m16n8k16(c, a, b); }
inline void mma_m16n8k16_bfloat16(float* c, const bf16* a, const bf16* b) { mma_m16n8k16(c, a, b); }

// wgmma: a product reads its sides and adds to its sums when it is waited for, and not before. Descriptors and sums are
// read as the PTX manual describes them.
inline void tell_units() { emulated::now->running->tells = true; }
inline unsigned address_in_shared(const void* p) { return (unsigned)((const unsigned char*)p - emulated::now->arena); }
inline void ready_registers() {}
inline void commit_products() { emulated::now->running->products.emplace_back(); }

// Swizzled within 128 bytes: byte (line, step) is line / 8 * stride + line % 8 * 128 + step * 2 where the depth lies side
// by side, and else line / 64 * leading + line % 64 * 2 + step / 8 * stride + step % 8 * 128; of its address in shared
// memory, bits 4 to 6 are then changed by bits 7 to 9.
inline const unsigned char* described_at(uint64_t form, int line, int step, bool deep) {
  const auto field = [form](int from) { return (size_t)(form >> from & 0x3fff) << 4; };
  const size_t at = field(0) + (deep ? line / 8 * field(32) + line % 8 * 128 + step * 2
                                     : line / 64 * field(16) + line % 64 * 2 + step / 8 * field(32) + step % 8 * 128);
  return emulated::now->arena + (at ^ (at >> 7 & 7) << 4);
}

// A thread has rows 16 w + l / 4 and 8 further of columns 8 j + 2 (l % 4) and the next, for warp w and lane l.
template <class T>
OPTIMIZED void multiplied(const emulated::Product& p) {
  for (uint64_t form : {p.left, p.right})
    if (form >> 62 != 1) fprintf(stderr, "emulated: a matrix is not swizzled within 128 bytes\n"), abort();
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, row = warp * 16 + lane / 4;
  const auto number = [](const unsigned char* at) { return to_float(*reinterpret_cast<const T*>(at)); };
  float left[2][16], right[16];
  for (int k = 0; k < 16; k++)
    for (int below = 0; below < 2; below++) left[below][k] = number(described_at(p.left, row + below * 8, k, true));
  for (int j = 0; j < p.columns / 4; j++) {
    const int column = j / 2 * 8 + lane % 4 * 2 + j % 2;
    for (int k = 0; k < 16; k++) right[k] = number(described_at(p.right, column, k, p.deep));
    for (int below = 0; below < 2; below++) {
      float& sum = p.sums[j / 2 * 4 + below * 2 + j % 2];
      for (int k = 0; k < 16; k++) sum += left[below][k] * right[k];
    }
  }
}
template <int PENDING, int COUNT>
void wait_products(float (&)[COUNT]) {
  auto& groups = emulated::now->running->products;
  while (groups.size() > PENDING + 1) {
    for (const emulated::Product& p : groups.front()) p.multiplied(p);
    groups.erase(groups.begin());
  }
}
template <class T, int N>
struct Wgmma {
  template <bool DEEP>
  static void add(float* sums, uint64_t left, uint64_t right) {
    if (!emulated::now->told && emulated::now->arrivals.empty()) fprintf(stderr, "emulated: a matrix unit was not told what was stored\n"), abort();
    emulated::now->running->products.back().push_back({sums, left, right, N, DEEP, multiplied<T>});
  }
};

// Boxes arrive when somebody waits for them, and not before; then all of an arrival's have to be on their way.
struct Map {
  unsigned char bytes[128];
};
template <int COUNT, int BOXES>
void begin_arrivals(i64* arrivals) {
  for (int i = 0; i < COUNT; i++) {
    if (emulated::now->arrivals.count(arrivals + i)) fprintf(stderr, "emulated: an arrival is begun twice\n"), abort();
    emulated::now->arrivals[arrivals + i] = {BOXES, 0, {}};
  }
}
template <int ROWS, class T>
void copy_box(T* to, const Map& map, int64_t column, int64_t row, i64* arrival) {
  emulated::Map here;
  memcpy(&here, map.bytes, sizeof here);
  emulated::on_boundary((void*)((unsigned char*)to - emulated::now->arena), 1024);
  emulated::Arrival& met = emulated::now->arrivals.at(arrival);
  if (here.of_box != ROWS || met.coming.size() == met.boxes) fprintf(stderr, "emulated: a box that nobody expects\n"), abort();
  met.coming.push_back({(unsigned char*)to, here, row, column});
}
// By the PTX manual (128B swizzle): bits 4 to 6 of an address in shared memory are changed by bits 7 to 9.
OPTIMIZED inline void arrive(const emulated::Box& b) {
  for (int64_t r = 0; r < b.map.of_box; r++)
    for (int64_t c = 0; c < 64; c++) {
      const int64_t row = b.row + r, column = b.column + c;
      const bool inside = row >= 0 && row < b.map.rows && column >= 0 && column < b.map.columns;
      const size_t at = b.to - emulated::now->arena + r * 128 + c * 2;
      const uint16_t value = inside ? b.map.data[row * b.map.pitch + column] : 0;
      memcpy(emulated::now->arena + (at ^ (at >> 7 & 7) << 4), &value, 2);
    }
}
inline void wait_arrival(i64* arrival, int turn) {
  emulated::Arrival& met = emulated::now->arrivals.at(arrival);
  for (int tries = 0; met.turns == 0 || (met.turns - 1) % 2 != turn % 2; tries++) {
    if (met.coming.size() == met.boxes) {
      for (const emulated::Box& b : met.coming) arrive(b);
      met.coming.clear();
      met.turns++;
    } else if (tries > 10000) {
      fprintf(stderr, "emulated: a box is waited for that nobody copies\n"), abort();
    } else {
      emulated::leave(emulated::RUNNING);
    }
  }
}
