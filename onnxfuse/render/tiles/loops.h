// The vocabulary of generated loops: vector loops with masked tails, reductions, tasks, scratch slots, checked indices.
#pragma once
#include "host.h"
#include "math.h"
#include "vec.h"

namespace onnxfuse { inline namespace ONNXFUSE_ISA {

// ---- vector loops ----

// The active lanes of an iteration: all, or the first n.
struct All {
  static constexpr bool all = true;
  static constexpr int n = LANES;
};
struct First {
  static constexpr bool all = false;
  int n;
};
template <int N> struct Way { static constexpr int value = N; };

// f(j, lanes) for j = begin, begin + LANES, ..; the last call may have fewer lanes.
template <class F> ONNXFUSE_INLINE void for_lanes(i64 begin, i64 end, F f) {
  i64 j = begin;
#pragma GCC unroll 1
  for (; j + LANES <= end; j += LANES) f(j, All{});
  if (j < end) f(j, First{(int)(end - j)});
}

// The same where nothing is lost if lanes run twice: where masks are slow, the last vector ends with the last lane.
template <class F> ONNXFUSE_INLINE void for_lanes_again(i64 begin, i64 end, F f) {
#if ONNXFUSE_AVX512
  for_lanes(begin, end, f);
#else
  if (end - begin < LANES) {
    if (begin < end) f(begin, First{(int)(end - begin)});
    return;
  }
#pragma GCC unroll 1
  for (i64 j = begin; j < end; j += LANES) f(j + LANES <= end ? j : end - LANES, All{});
#endif
}

// f(j, lanes) unrolled by `Ways`, one accumulator each, to hide the latency of reductions: f(j, lanes, way).
template <int Ways, class F> ONNXFUSE_INLINE void for_lanes_ways(i64 begin, i64 end, F f) {
  i64 j = begin;
  if constexpr (Ways == agreed::CARRIED) {
    static_assert(Ways == 4, "so many calls are written out");
#pragma GCC unroll 1
    for (; j + 4 * LANES <= end; j += 4 * LANES) {
      f(j, All{}, Way<0>{});
      f(j + LANES, All{}, Way<1>{});
      f(j + 2 * LANES, All{}, Way<2>{});
      f(j + 3 * LANES, All{}, Way<3>{});
    }
  }
#pragma GCC unroll 1
  for (; j + LANES <= end; j += LANES) f(j, All{}, Way<0>{});
  if (j < end) f(j, First{(int)(end - j)}, Way<0>{});
}

template <class T, class L> ONNXFUSE_INLINE vec<T> load_lanes(const T* p, L lanes) {
  if constexpr (L::all) return load(p);
  else return load_n(p, lanes.n);
}
// The same from a buffer of the task, which has ROOM behind its elements: where whole vectors were stored to it, only whole ones
// are loaded without waiting for the cache, unless there are true masks.
constexpr int ROOM = LANES == 16 ? 0 : LANES;
template <class T, class L> ONNXFUSE_INLINE vec<T> own_lanes(const T* p, L lanes) {
  if constexpr (L::all || ROOM == 0) {
    return load_lanes(p, lanes);
  } else {
    return (vec<T>)((mask<compute<T>>)load(p) & mask_first_n<compute<T>>(lanes.n));
  }
}
template <class T, class L> ONNXFUSE_INLINE void store_lanes(T* p, vec<T> v, L lanes) {
  if constexpr (L::all) store(p, v);
  else store_n(p, v, lanes.n);
}
// Rounds value(m) and stores it as 8-bit integers at place(m), for m from `begin` to `end`; four vectors are narrowed together.
template <class To, class L, class F, class P>
ONNXFUSE_INLINE void codes_together(i64 begin, i64 end, L lanes, int32_t zero, F value, P place) {
  i64 m = begin;
  if constexpr (L::all) {
#pragma GCC unroll 1
    for (; m + 4 <= end; m += 4)
      store_codes<To>(zero, value(m), place(m), value(m + 1), place(m + 1), value(m + 2), place(m + 2), value(m + 3), place(m + 3));
  }
#pragma GCC unroll 1
  for (; m < end; m++) store_lanes(place(m), coded<To>(value(m), splat<int32_t>(zero)), lanes);
}
// The same for columns j from `begin` to `end`: columns(j, lanes, then) calls then(value, place) for the columns of a vector. Two
// rows of two vectors, which lie side by side, are narrowed together.
template <class To, class F> ONNXFUSE_INLINE void codes_by_rows(i64 begin, i64 end, i64 first, i64 last, int32_t zero, F columns) {
  i64 j = begin;
#pragma GCC unroll 1
  for (; j + 2 * LANES <= end; j += 2 * LANES)
    columns(j, All{}, [&](auto left, auto place) HOLE {
      columns(j + LANES, All{}, [&](auto right, auto) HOLE {
        i64 m = first;
#pragma GCC unroll 1
        for (; m + 2 <= last; m += 2) store_pairs<To>(zero, left(m), right(m), place(m), left(m + 1), right(m + 1), place(m + 1));
        if (m < last) {
          store(place(m), coded<To>(left(m), splat<int32_t>(zero)));
          store(place(m) + LANES, coded<To>(right(m), splat<int32_t>(zero)));
        }
      });
    });
  for_lanes(j, end, [&](i64 i, auto lanes) HOLE {
    columns(i, lanes, [&](auto value, auto place) HOLE { codes_together<To>(first, last, lanes, zero, value, place); });
  });
}
// Rounds value(j, lanes) for lanes j from `begin` to `end`, and stores them as 8-bit integers side by side, of which place(j) is
// number j; four vectors are narrowed together.
template <class To, class F, class P> ONNXFUSE_INLINE void codes_in_lanes(i64 begin, i64 end, int32_t zero, F value, P place) {
  i64 j = begin;
#pragma GCC unroll 1
  for (; j + 4 * LANES <= end; j += 4 * LANES)
    store_codes<To>(zero, value(j, All{}), value(j + LANES, All{}), value(j + 2 * LANES, All{}), value(j + 3 * LANES, All{}), place(j));
  for_lanes(j, end, [&](i64 i, auto lanes) HOLE { store_lanes(place(i), coded<To>(value(i, lanes), splat<int32_t>(zero)), lanes); });
}
// Every lane has element i < G of the group of G lanes that it is in. A vector begins at the start of a group, or lies
// within one; the first element of that group is at p.
template <int G, class T, class L> ONNXFUSE_INLINE vec<T> group_lanes(const T* p, i64 i, L lanes) {
  if constexpr (G % LANES == 0) return splat<T>(get(p + i));
  else return from_group<G>(load_lanes(p, lanes), (int)i);
}
// Every S-th element of S consecutive vectors.
template <int S, class V> ONNXFUSE_INLINE V every(const V (&part)[S]) {
  static_assert(2 <= S && S <= agreed::FARTHEST, "more would be as many loads as lanes");
#if defined(__clang__)
  V r{};
#pragma clang loop unroll(full)
  for (int i = 0; i < LANES; i++) r[i] = part[S * i / LANES][S * i % LANES];
  return r;
#else
  typedef int_like<elem<V>> I;
#if ONNXFUSE_AVX2  // one shuffle across halves instead of two
  if constexpr (S == 2 && sizeof(V) == 32) {
    const __m256 even = _mm256_shuffle_ps((__m256)part[0], (__m256)part[1], 0x88);
    return (V)_mm256_permute4x64_pd(_mm256_castps_pd(even), 0xd8);
  }
#endif
  const auto at = iota<I>() * (I)S, lane = iota<I>();
  const V first = __builtin_shuffle(part[0], part[1], at);
  if constexpr (S == 2) return first;
  const auto behind = at >= (I)(2 * LANES);
  if constexpr (S == 3) return __builtin_shuffle(first, part[2], (lane & ~behind) | ((at - (I)LANES) & behind));
  if constexpr (S == 4) return __builtin_shuffle(first, __builtin_shuffle(part[2], part[3], at), lane + ((I)LANES & behind));
#endif
}
#if ONNXFUSE_AVX2
// A vector of two halves in memory.
ONNXFUSE_INLINE __m256 two_halves(const float* lower, const float* upper) {
  return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(lower)), _mm_loadu_ps(upper), 1);
}
#endif
// Lane i is p[S * i]; nothing beyond the last lane is read.
template <int S, class T, class L> ONNXFUSE_INLINE vec<T> strided_lanes(const T* p, L lanes) {
#if ONNXFUSE_AVX2  // by halves, within which shuffles pick lanes fast; the last ones end with the last lane
  if constexpr (L::all && sizeof(T) == 4) {
    const float* at = reinterpret_cast<const float*>(p);
    const __m256 first = two_halves(at, at + 4 * S), last = two_halves(at + 3 * S - 3, at + 7 * S - 3);
    if constexpr (S == 2) return (vec<T>)_mm256_shuffle_ps(first, last, 0xd8);
    if constexpr (S == 3) return (vec<T>)_mm256_shuffle_ps(first, last, 0xcc);
    const __m256 second = two_halves(at + 4, at + 20), third = two_halves(at + 8, at + 24);
    const __m256 low = _mm256_unpacklo_ps(first, second), high = _mm256_shuffle_ps(third, last, 0xf0);
    return (vec<T>)_mm256_shuffle_ps(low, high, 0x84);
  }
#endif
  vec<T> part[S];
#pragma GCC unroll 4
  for (int k = 0; k < S; k++) {
    const int left = (lanes.n - 1) * S + 1 - k * LANES;
    part[k] = left >= LANES ? load(p + k * LANES) : left > 0 ? load_n(p + k * LANES, left) : vec<T>{};
  }
  return every<S>(part);
}
// The number of x among 0, .., LANES.
ONNXFUSE_INLINE int lane_of(i64 x) { return x < 0 ? 0 : x > LANES ? LANES : (int)x; }
#if ONNXFUSE_AVX512
// A bit for each place from `first` to before `last`, of 64. It has no branches, so that loads in the same lanes share it.
ONNXFUSE_INLINE uint64_t places_between(i64 first, i64 last) {
  const auto before = [](i64 n) HOLE { return _bzhi_u64(~0ull, (unsigned)(n < 0 ? 0 : n > 64 ? 64 : n)); };
  return before(last) & ~before(first);
}
#endif
// Lane i is p[S * i] where first <= S * i < last, `otherwise` elsewhere; memory elsewhere is not touched.
template <int S, class T, class L> ONNXFUSE_INLINE vec<T> lanes_within(const T* p, L lanes, i64 first, i64 last, compute<T> otherwise) {
#if !ONNXFUSE_AVX512  // a mask takes longer than to see that none is needed
  if (first <= 0 && last > (lanes.n - 1) * S) {
    if constexpr (S == 1) return load_lanes(p, lanes);
    else return strided_lanes<S>(p, lanes);
  }
#endif
  if constexpr (S > 1) {  // what lies between them and the first or the last lane may not be memory
    first = (first + S - 1) / S * S;
    last = last > 0 ? (last - 1) / S * S + 1 : 0;
  }
  vec<T> part[S];
#if ONNXFUSE_AVX512
  if constexpr (S > 1 && sizeof(T) == 4) {
    const i64 most = (lanes.n - 1) * S + 1;
    const uint64_t held = places_between(first, last < most ? last : most);
    const __m512i other = (__m512i)splat<T>(otherwise);
#pragma GCC unroll 4
    for (int k = 0; k < S; k++)
      part[k] = (vec<T>)_mm512_mask_loadu_epi32(other, (__mmask16)(held >> k * LANES), p + k * LANES);
    return every<S>(part);
  }
#endif
#pragma GCC unroll 4
  for (int k = 0; k < S; k++) {
    const int most = (int)lane_of((lanes.n - 1) * S + 1 - k * LANES), end = lane_of(last - k * LANES);
    const int from = lane_of(first - k * LANES), to = end < most ? end : most;
    part[k] = load_between(p + k * LANES, from, to);
    if (!__builtin_constant_p(otherwise) || otherwise != 0)
      part[k] = select(mask_first_n<compute<T>>(to) & ~mask_first_n<compute<T>>(from), part[k], splat<T>(otherwise));
  }
  if constexpr (S == 1) return part[0];
  else return every<S>(part);
}
// The lanes i with first <= i < last, which several loads of 4 bytes have in common.
struct Between {
  i64 first, last;
#if ONNXFUSE_AVX512
  unsigned held;
#elif ONNXFUSE_AVX2
  bool all;
  mask<float> held;
#endif
};
template <class L> ONNXFUSE_INLINE Between lanes_between(L lanes, i64 first, i64 last) {
#if ONNXFUSE_AVX512
  return {first, last, (unsigned)places_between(first, last < lanes.n ? last : lanes.n)};
#elif ONNXFUSE_AVX2
  const int from = lane_of(first), end = lane_of(last), to = end < lanes.n ? end : lanes.n;
  return {first, last, L::all && from == 0 && to == LANES, mask_first_n<float>(to) & ~mask_first_n<float>(from)};
#else
  return {first, last};
#endif
}
// Lane i is p[i] in these lanes, `otherwise` elsewhere; memory elsewhere is not touched.
template <class T, class L> ONNXFUSE_INLINE vec<T> lanes_held(const T* p, L lanes, Between at, compute<T> otherwise) {
#if ONNXFUSE_AVX512
  if constexpr (sizeof(T) == 4)
    return (vec<T>)_mm512_mask_loadu_epi32((__m512i)splat<T>(otherwise), (__mmask16)at.held, p);
#elif ONNXFUSE_AVX2
  if constexpr (sizeof(T) == 4) {
    if (at.all) return load(p);
    const vec<T> part = load_masked(p, (mask<T>)at.held);
    return __builtin_constant_p(otherwise) && otherwise == 0 ? part : select((mask<T>)at.held, part, splat<T>(otherwise));
  }
#endif
  return lanes_within<1>(p, lanes, at.first, at.last, otherwise);
}
// Lane i is p[S * i] where first <= S * i < last, the lane of `otherwise` elsewhere; S = 0: the same element in the lanes
// from `first` to `last`. Memory elsewhere is not touched.
template <int S, class T, class L> ONNXFUSE_INLINE vec<T> lanes_within(const T* p, L lanes, i64 first, i64 last, vec<T> otherwise) {
  constexpr int apart = S > 1 ? S : 1;
  const int from = lane_of((first + apart - 1) / apart), end = lane_of((last + apart - 1) / apart), to = end < lanes.n ? end : lanes.n;
  const auto held = mask_first_n<compute<T>>(to) & ~mask_first_n<compute<T>>(from);
  const T none{};
  if constexpr (S == 0) return select(held, splat<T>(get(from < to ? p : &none)), otherwise);
  else return select(held, lanes_within<S>(p, lanes, first, last, compute<T>(0)), otherwise);
}
// Non-temporal where the lanes fill a cache line. Streamed stores are visible to other threads after `streamed`.
template <class L> ONNXFUSE_INLINE void stream_lanes(float* p, vf v, L lanes) {
  if constexpr (L::all) {
    if (((uintptr_t)p & (sizeof v - 1)) == 0) return stream(p, v);
  }
  store_lanes(p, v, lanes);
}

// Interleaves S vectors: p[S * i + k] is lane i of the k-th.
template <class T, class L, class... V> ONNXFUSE_INLINE void weave_lanes(T* p, L lanes, V... vs) {
  constexpr int S = sizeof...(vs);
  const vec<T> all[S] = {vs...};
  if constexpr (L::all) {
#pragma GCC unroll 4
    for (int k = 0; k < S; k++) {
      if constexpr (sizeof(T) == 1) store(p + k * LANES, woven_bytes(all, k));
      else store(p + k * LANES, woven(all, k));
    }
  } else {
    for (int i = 0; i < lanes.n; i++)
      for (int k = 0; k < S; k++) p[S * i + k] = all[k][i];
  }
}

// Lane by lane: value(j) for active lanes, 0 beyond.
template <class T, class L, class F> ONNXFUSE_INLINE vec<T> each_lane(i64 j, L lanes, F value) {
#if ONNXFUSE_AVX2  // put together in registers; one by one they go through memory
  if constexpr (L::all && sizeof(elem<vec<T>>) == 4)
    return vec<T>{value(j), value(j + 1), value(j + 2), value(j + 3), value(j + 4), value(j + 5), value(j + 6), value(j + 7)};
#endif
  vec<T> r{};
  for (int i = 0; i < lanes.n; i++) r[i] = value(j + i);
  return r;
}
// value(j) where guard(j) holds, the lane of `otherwise` elsewhere.
template <class T, class L, class G, class F> ONNXFUSE_INLINE vec<T> each_lane_if(i64 j, L lanes, G guard, F value, vec<T> otherwise) {
  vec<T> r = otherwise;
  for (int i = 0; i < lanes.n; i++)
    if (guard(j + i)) r[i] = value(j + i);
  return r;
}
// p[place(j)] where guard(j) holds, the lane of `otherwise` elsewhere; place moves by 1 at most from lane to lane. Either
// way one load makes the vector: with a value from each of two branches, only one of them might be multiplied and added at once.
template <class T, class L, class G, class F> ONNXFUSE_INLINE vec<T> piecewise_lanes(const T* p, i64 j, L lanes, G guard, F place, vec<T> otherwise) {
  T apart[LANES];
  const T* from = apart;
  const i64 end = j + lanes.n - 1;
  if (guard(j) && guard(end)) {
    const i64 first = place(j);
    if (place(end) - first == lanes.n - 1) from = p + first;
  }
  if (from == apart) {
    store(apart, otherwise);
    for (int i = 0; i < lanes.n; i++)
      if (guard(j + i)) apart[i] = p[place(j + i)];
  }
  return load_lanes(from, lanes);
}
// p[place(j)], where place moves by 1 after every K lanes; if it is limited at one of its ends within the vector, lane by lane.
// Lanes that are not active may be beyond what place is defined for, but nothing is read there.
template <int K, class T, class L, class F> ONNXFUSE_INLINE vec<T> climbing_lanes(const T* p, i64 j, L lanes, F place) {
  if constexpr (L::all) {
    const i64 first = place(j);
    int ahead = 1;  // lanes that read the first element
#pragma GCC unroll 8
    for (; ahead <= K; ahead++)
      if (place(j + ahead) != first) break;
    const int before = K - ahead, last = (LANES - 1 + before) / K;
    if (ahead <= K && place(j + LANES - 1) - first == last) {
      const auto part = load_lanes(p + first, First{last + 1});
      using I = int_like<elem<vec<T>>>;
      const auto at = (iota<I>() + (I)before) / (I)K;
#if defined(__clang__)
      vec<T> r{};
      for (int i = 0; i < LANES; i++) r[i] = part[at[i]];
      return r;
#else
      return __builtin_shuffle(part, at);
#endif
    }
  }
  return each_lane<compute<T>>(j, lanes, [&](i64 lane) HOLE { return get(p + place(lane)); });
}
template <class T, class L, class F> ONNXFUSE_INLINE void put_each_lane(i64 j, L lanes, vec<T> v, F place) {
  if constexpr (is_same<T, f16> || is_same<T, bf16>) {  // rounded as a vector
    T rounded[LANES];
    store(rounded, v);
    for (int i = 0; i < lanes.n; i++) *place(j + i) = rounded[i];
  } else {
    for (int i = 0; i < lanes.n; i++) put(place(j + i), (compute<T>)v[i]);
  }
}

// The lanes from the n-th on, and those below it.
ONNXFUSE_INLINE vi lanes_from(i64 n) { return ge(iota<int32_t>(), splat<int32_t>((int32_t)(n < 0 ? 0 : n > LANES ? LANES : n))); }
ONNXFUSE_INLINE vi lanes_below(i64 n) { return ~lanes_from(n); }

// v in active lanes, `idle` (the identity of a reduction) beyond.
template <class V, class L> ONNXFUSE_INLINE V alive(V v, V idle, L lanes) {
  if constexpr (L::all) return v;
  else return select(mask_first_n<elem<V>>(lanes.n), v, idle);
}

// out[i] = all lanes of the vector at parts + i * LANES combined, for i < rows <= LANES.
#define ONNXFUSE_EACH_ROW(name, merge)                                              \
  ONNXFUSE_INLINE void name##_each_row(const float* parts, int rows, float* out) {   \
    vf part[LANES];                                                                 \
    for (int i = 0; i < LANES; i++) part[i] = i < rows ? load(parts + i * LANES) : vf{}; \
    store(out, reduce_each(part, [](vf a, vf b) HOLE { return merge; }));           \
  }
ONNXFUSE_EACH_ROW(reduce_add, a + b)
ONNXFUSE_EACH_ROW(reduce_max, max_(a, b))
ONNXFUSE_EACH_ROW(reduce_max_nan, max_nan(a, b))
ONNXFUSE_EACH_ROW(reduce_min_nan, min_nan(a, b))
#undef ONNXFUSE_EACH_ROW

// Prefetches Count elements from p on to L2.
template <int Count, class T> ONNXFUSE_INLINE void touch(const T* p) {
#pragma GCC unroll 8
  for (int i = 0; i < Count; i += (int)(64 / sizeof(T))) prefetch_l2(p + i);
}

// The same to L1: of lines that are used soon, the one that the last element is in too.
template <int Count, class T> ONNXFUSE_INLINE void touch_near(const T* p) {
#pragma GCC unroll 8
  for (int i = 0; i < Count; i += (int)(64 / sizeof(T))) prefetch_l1(p + i);
  prefetch_l1(p + Count - 1);
}

// ---- arithmetic with the rules of ONNX ----

constexpr uint8_t unsigned_like(int8_t) { return 0; }
constexpr uint8_t unsigned_like(uint8_t) { return 0; }
constexpr uint16_t unsigned_like(int16_t) { return 0; }
constexpr uint16_t unsigned_like(uint16_t) { return 0; }
constexpr uint32_t unsigned_like(int32_t) { return 0; }
constexpr uint32_t unsigned_like(uint32_t) { return 0; }
constexpr uint64_t unsigned_like(int64_t) { return 0; }
constexpr uint64_t unsigned_like(uint64_t) { return 0; }
// Integers wrap, which in C++ only unsigned ones do, and those only where they are not widened to int first.
template <class T, bool Vector> struct wrapping { typedef uint64_t type; };
template <class T> struct wrapping<T, true> { typedef vec<decltype(unsigned_like((elem<T>)0))> type; };
#define ONNXFUSE_WRAPS(name, ...) \
  template <class V> ONNXFUSE_INLINE V name { typedef typename wrapping<V, is_vec<V>>::type U; return (V)(__VA_ARGS__); }
ONNXFUSE_WRAPS(add_(V a, V b), (U)a + (U)b)
ONNXFUSE_WRAPS(sub_(V a, V b), (U)a - (U)b)
ONNXFUSE_WRAPS(mul_(V a, V b), (U)a * (U)b)
ONNXFUSE_WRAPS(neg_(V a), U{} - (U)a)
#undef ONNXFUSE_WRAPS

// Shifting by the width of the type or more gives 0, or the sign for arithmetic right shifts.
template <class V> ONNXFUSE_INLINE V shift_left_(V a, V b) {
  typedef typename wrapping<V, is_vec<V>>::type U;
  typedef elem<V> T;
  const V most = V{} + (T)(8 * sizeof(T) - 1);
  return select(ge(b, V{}) & le(b, most), (V)((U)a << (U)(b & most)), V{});
}
template <class V> ONNXFUSE_INLINE V shift_right_(V a, V b) {
  typedef elem<V> T;
  const V most = V{} + (T)(8 * sizeof(T) - 1);
  const auto inside = ge(b, V{}) & le(b, most);
  if constexpr ((T)-1 < 0) return (V)(a >> select(inside, b, most));
  else return select(inside, (V)(a >> (V)(b & most)), V{});
}

template <class V> ONNXFUSE_INLINE V div_(V a, V b) {
  if constexpr (is_float<elem<V>>) {
    return a / b;
  } else if constexpr (is_vec<V>) {
    V r{};
    for (int i = 0; i < LANES; i++) r[i] = div_(a[i], b[i]);
    return r;
  } else {
    if (b == 0) return 0;
    if (b == (V)-1 && (V)-1 < 0) return (V)(0 - (uint64_t)a);  // the smallest number has no negative
    return (V)(a / b);
  }
}

template <class T> ONNXFUSE_INLINE T fmod_(T a, T b) {
  if constexpr (is_same<T, float>) return __builtin_fmodf(a, b);
  else if constexpr (is_same<T, double>) return __builtin_fmod(a, b);
  else if constexpr (is_vec<T>) {
    T r{};
    for (int i = 0; i < LANES; i++) r[i] = fmod_(a[i], b[i]);
    return r;
  } else return b == 0 || b == (T)-1 ? 0 : (T)(a % b);
}
// The sign of the divisor, as in Python.
template <class T> ONNXFUSE_INLINE T mod_(T a, T b) {
  if constexpr (is_vec<T>) {
    T r{};
    for (int i = 0; i < LANES; i++) r[i] = mod_(a[i], b[i]);
    return r;
  } else {
    T r = fmod_(a, b);
    return r != 0 && (r < 0) != (b < 0) ? (T)(r + b) : r;
  }
}

template <class V> ONNXFUSE_INLINE auto isinf_(V x) { return eq(abs_(x), V{} + (elem<V>)__builtin_inff()); }

// ---- integer indices ----

ONNXFUSE_INLINE i64 floor_div(i64 a, i64 b) { return a / b - (a % b < 0); }  // b > 0
ONNXFUSE_INLINE i64 floor_mod(i64 a, i64 b) { return a % b + (a % b < 0 ? b : 0); }
ONNXFUSE_INLINE i64 least(i64 a, i64 b) { return a < b ? a : b; }

// a / b where b may be an extent of 0: then the result is 0, which is an empty extent too.
ONNXFUSE_INLINE i64 quotient(i64 a, i64 b) { return b ? a / b : 0; }

// What two extents broadcast to: one of them where the other is 1.
ONNXFUSE_INLINE i64 common(i64 a, i64 b) { return b == 1 ? a : b; }

// An index loaded from a tensor: negative values count from the end. Out of range: the run's fault is set, and 0 is used.
ONNXFUSE_INLINE i64 checked(i64 i, i64 extent, int* fault) {
  if (i < 0) i += extent;
  if (__builtin_expect(i < 0 || i >= extent, 0)) {
    __atomic_store_n(fault, 1, __ATOMIC_RELAXED);
    return 0;
  }
  return i;
}

// ---- tasks ----

// The partition of two parallel axes among tasks: `outer` contiguous ranges of the first times `inner` of the second.
struct Parts {
  i64 outer, inner;
  i64 tasks() const { return outer * inner; }
};

// Tasks of about TASK picoseconds of work each, a multiple of the cores and at most TASKS per core. The first axis is divided
// first, evenly where it is short; the second only where that gives fewer than PLENTY tasks per core: its parts may repeat work.
// Less work than two tasks is divided between two cores from SHARED picoseconds on.
ONNXFUSE_INLINE Parts parts_of(int cores, i64 picoseconds, i64 first, i64 second) {
  if (first <= 0 || second <= 0) return Parts{0, 0};
  i64 wanted = picoseconds / agreed::TASK, most = agreed::TASKS * (i64)cores;
  wanted = wanted < 2 ? (picoseconds < agreed::SHARED ? 1 : 2) : least((wanted + cores - 1) / cores * cores, most);
  if (cores == 1) wanted = 1;
  i64 outer = least(wanted, first);
  if (outer > 1 && first % outer && first <= most) outer = first;
  return Parts{outer, outer >= agreed::PLENTY * (i64)cores ? 1 : least((wanted + outer - 1) / outer, second)};
}

// For phases whose tasks each read all weights, or their share of them: at most one task per core.
ONNXFUSE_INLINE Parts few_parts_of(int cores, i64 picoseconds, i64 first, i64 second) {
  if (first <= 0 || second <= 0) return Parts{0, 0};
  i64 wanted = picoseconds >= 2 * (i64)agreed::TASK ? cores : picoseconds >= agreed::SHARED && cores > 1 ? 2 : 1;
  i64 outer = least(wanted, first);
  return Parts{outer, least(wanted / outer, second)};
}

ONNXFUSE_INLINE i64 part_begin(i64 extent, i64 part, i64 parts, i64 step = 1) {
  return part == parts ? extent : extent * part / parts / step * step;
}

// Scratch memory for concurrent tasks: a task claims a slot and releases it.
struct Slots {
  char* base;
  size_t bytes;
  int count;
  unsigned char busy[agreed::SLOTS];

  char* claim(int* slot) {
    for (;;)
      for (int i = 0; i < count; i++)
        if (!__atomic_exchange_n(&busy[i], 1, __ATOMIC_ACQUIRE)) {
          *slot = i;
          return base + (size_t)i * bytes;
        }
  }
  void release(int slot) { __atomic_store_n(&busy[slot], 0, __ATOMIC_RELEASE); }
};

ONNXFUSE_INLINE bool same_shape(const Tensor& t, const i64* want, int rank) {
  if (t.rank != rank) return false;
  for (int i = 0; i < rank; i++)
    if (t.dims[i] != want[i]) return false;
  return true;
}

constexpr size_t rounded(size_t bytes) { return (bytes + agreed::ALIGNMENT - 1) / agreed::ALIGNMENT * agreed::ALIGNMENT; }

} }  // namespace onnxfuse
