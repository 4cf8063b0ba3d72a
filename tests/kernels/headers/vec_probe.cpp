// Applies every operation of vec.h to arrays, in whole vectors and tails, under names that the test lists.
#include "vec.h"
using namespace onnxfuse;

#define TYPES(X) \
  X(f32, float) X(f64, double) X(i8, int8_t) X(i16, int16_t) X(i32, int32_t) X(i64, int64_t) \
  X(u8, uint8_t) X(u16, uint16_t) X(u32, uint32_t) X(u64, uint64_t)
#define STORED(X) TYPES(X) X(b8, bool) X(f16, f16) X(bf16, bf16)

static int count_at(long i, long n) { return n - i < LANES ? (int)(n - i) : LANES; }

extern "C" int lanes() { return LANES; }

// ---- tails: copy n elements by load_n and store_n ----
template <class T> static void copy_tail(const T* x, T* y, long n) {
  for (long i = 0; i < n; i += LANES) store_n(y + i, load_n(x + i, count_at(i, n)), count_at(i, n));
}
// load_n gives zero beyond n: the whole vector is stored.
template <class T> static void load_short(const T* x, T* y, long n) { store(y, load_n(x, (int)n)); }
// Zero before the first and beyond the last, of which n has the numbers.
template <class T> static void load_inner(const T* x, T* y, long n) { store(y, load_between(x, (int)(n / 100), (int)(n % 100))); }
#define COPY(name, T)                                                                             \
  extern "C" void copy_##name(const T* x, T* y, long n) { copy_tail(x, y, n); }                   \
  extern "C" void load_short_##name(const T* x, T* y, long n) { load_short(x, y, n); }            \
  extern "C" void load_inner_##name(const T* x, T* y, long n) { load_inner(x, y, n); }            \
  extern "C" void get_put_##name(const T* x, T* y, long n) { for (long i = 0; i < n; i++) put(y + i, get(x + i)); }
STORED(COPY)

// ---- casts, every pair ----
template <class From, class To> static void cast(const From* x, To* y, long n) {
  for (long i = 0; i < n; i += LANES) store_n(y + i, convert<To>(load_n(x + i, count_at(i, n))), count_at(i, n));
}
template <class From, class To> static void cast_scalar(const From* x, To* y, long n) {
  for (long i = 0; i < n; i++) put(y + i, convert<To>(get(x + i)));
}
#define CAST(from, From, to, To)                                                                                \
  extern "C" void cast_##from##_##to(const From* x, To* y, long n) { cast(x, y, n); }                           \
  extern "C" void cast_scalar_##from##_##to(const From* x, To* y, long n) { cast_scalar(x, y, n); }
#define CASTS(from, From)                                                                                       \
  CAST(from, From, f32, float) CAST(from, From, f64, double) CAST(from, From, i8, int8_t)                       \
  CAST(from, From, i16, int16_t) CAST(from, From, i32, int32_t) CAST(from, From, i64, int64_t)                  \
  CAST(from, From, u8, uint8_t) CAST(from, From, u16, uint16_t) CAST(from, From, u32, uint32_t)                 \
  CAST(from, From, u64, uint64_t) CAST(from, From, b8, bool) CAST(from, From, f16, f16) CAST(from, From, bf16, bf16)
STORED(CASTS)

// ---- comparisons to stored bools, selection by masks of another width ----
#define COMPARE(name, T, op)                                                                                    \
  extern "C" void op##_##name(const T* x, const T* y, bool* z, long n) {                                        \
    for (long i = 0; i < n; i += LANES) store(z + i, to_bool(op(load(x + i), load(y + i))));                    \
  }                                                                                                             \
  extern "C" void scalar_##op##_##name(const T* x, const T* y, bool* z, long n) {                               \
    for (long i = 0; i < n; i++) put(z + i, to_bool(op(x[i], y[i])));                                           \
  }
#define COMPARES(name, T) \
  COMPARE(name, T, lt) COMPARE(name, T, le) COMPARE(name, T, gt) COMPARE(name, T, ge) COMPARE(name, T, eq) COMPARE(name, T, ne)
TYPES(COMPARES)

// where b: x, else y; and where p < q (doubles, bytes): the mask changes its width on the way.
#define SELECT(name, T)                                                                                               \
  extern "C" void where_##name(const bool* b, const T* x, const T* y, T* z, long n) {                                 \
    for (long i = 0; i < n; i += LANES) store(z + i, select(from_bool<T>(load(b + i)), load(x + i), load(y + i)));    \
  }                                                                                                                   \
  extern "C" void where_f64_##name(const double* p, const T* x, const T* y, T* z, long n) {                           \
    for (long i = 0; i < n; i += LANES)                                                                               \
      store(z + i, select(mask_to<T>(lt(load(p + i), splat<double>(0))), load(x + i), load(y + i)));                  \
  }                                                                                                                   \
  extern "C" void where_i8_##name(const int8_t* p, const T* x, const T* y, T* z, long n) {                            \
    for (long i = 0; i < n; i += LANES)                                                                               \
      store(z + i, select(mask_to<T>(lt(load(p + i), splat<int8_t>(0))), load(x + i), load(y + i)));                  \
  }
TYPES(SELECT)

// ---- minima and maxima; reductions of whole vectors ----
#define PAIR(name, T, op) \
  extern "C" void op##name(const T* x, const T* y, T* z, long n) { for (long i = 0; i < n; i += LANES) store(z + i, op(load(x + i), load(y + i))); }
#define PAIRS(name, T) PAIR(name, T, max_) PAIR(name, T, min_)                                                                  \
  extern "C" void max_nan_##name(const T* x, const T* y, T* z, long n) { for (long i = 0; i < n; i += LANES) store(z + i, max_nan(load(x + i), load(y + i))); } \
  extern "C" void min_nan_##name(const T* x, const T* y, T* z, long n) { for (long i = 0; i < n; i += LANES) store(z + i, min_nan(load(x + i), load(y + i))); }
TYPES(PAIRS)
#define REDUCE(name, T, op) extern "C" void op##_##name(const T* x, T* y, long n) { for (long i = 0; i < n; i += LANES) y[i / LANES] = op(load(x + i)); }
#define REDUCES(name, T) REDUCE(name, T, reduce_add) REDUCE(name, T, reduce_mul) REDUCE(name, T, reduce_max) REDUCE(name, T, reduce_min) \
  REDUCE(name, T, reduce_max_nan) REDUCE(name, T, reduce_min_nan)
TYPES(REDUCES)

// ---- the rest ----
#define BUILD(name, T)                                                                        \
  extern "C" void iota_##name(T* y) { store(y, iota<T>()); }                                  \
  extern "C" void splat_##name(const T* x, T* y) { store(y, splat<T>(*x)); }                  \
  extern "C" void first_##name(bool* y, long n) { store(y, to_bool(mask_first_n<T>((int)n))); } \
  extern "C" int any_##name(const T* x) { return any(ne(load(x), vec<T>{})); }                \
  extern "C" int all_##name(const T* x) { return all(ne(load(x), vec<T>{})); }                \
  extern "C" void gather32_##name(const T* x, const int32_t* at, T* y) { store(y, gather(x, load(at))); } \
  extern "C" void gather64_##name(const T* x, const int64_t* at, T* y) { store(y, gather(x, load(at))); }
TYPES(BUILD)
extern "C" void transpose_f32(const float* x, float* y) {
  vf rows[LANES];
  for (int i = 0; i < LANES; i++) rows[i] = load(x + i * LANES);
  transpose(rows);
  for (int i = 0; i < LANES; i++) store(y + i * LANES, rows[i]);
}

#define EACH(op)                                                            \
  extern "C" void op##_each(const float* x, float* y) {                     \
    vf rows[LANES];                                                         \
    for (int i = 0; i < LANES; i++) rows[i] = load(x + i * LANES);          \
    store(y, reduce_##op##_each(rows));                                     \
  }
EACH(add) EACH(max)
