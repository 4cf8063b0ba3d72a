// Applies every function of math.h to arrays: vectors with a masked tail, or the scalar overload.
#include "math.h"
using namespace onnxfuse;

template <class T, class F> static void map_vector(const T* x, T* y, long n, F f) {
  for (long i = 0; i < n; i += LANES) {
    int count = n - i < LANES ? (int)(n - i) : LANES;
    store_n(y + i, f(load_n(x + i, count)), count);
  }
}

#define UNARY(name)                                                                                                           \
  extern "C" void name##_vector_float(const float* x, float* y, long n) { map_vector(x, y, n, [](vf v) { return name(v); }); }     \
  extern "C" void name##_vector_double(const double* x, double* y, long n) { map_vector(x, y, n, [](vd v) { return name(v); }); }  \
  extern "C" void name##_scalar_float(const float* x, float* y, long n) { for (long i = 0; i < n; i++) y[i] = name(x[i]); }        \
  extern "C" void name##_scalar_double(const double* x, double* y, long n) { for (long i = 0; i < n; i++) y[i] = name(x[i]); }

UNARY(exp_) UNARY(exp_or_zero_) UNARY(log_) UNARY(tanh_) UNARY(erf_) UNARY(sigmoid_) UNARY(softplus_) UNARY(sqrt_) UNARY(rsqrt_) UNARY(reciprocal_)
UNARY(sin_) UNARY(cos_) UNARY(tan_) UNARY(asin_) UNARY(acos_) UNARY(atan_) UNARY(sinh_) UNARY(cosh_) UNARY(asinh_) UNARY(acosh_)
UNARY(atanh_) UNARY(floor_) UNARY(ceil_) UNARY(round_) UNARY(trunc_) UNARY(abs_) UNARY(sign_) UNARY(gelu_erf) UNARY(gelu_tanh)

#define BINARY(name, kind, T)                                                                    \
  extern "C" void name##_vector_##kind(const T* x, const T* y, T* z, long n) {                   \
    for (long i = 0; i < n; i += LANES) {                                                        \
      int count = n - i < LANES ? (int)(n - i) : LANES;                                          \
      store_n(z + i, name(load_n(x + i, count), load_n(y + i, count)), count);                   \
    }                                                                                            \
  }                                                                                              \
  extern "C" void name##_scalar_##kind(const T* x, const T* y, T* z, long n) {                   \
    for (long i = 0; i < n; i++) z[i] = name(x[i], y[i]);                                        \
  }
#define BINARY_ALL(name) \
  BINARY(name, float, float) BINARY(name, double, double) BINARY(name, int32, int32_t) BINARY(name, int64, int64_t)
BINARY_ALL(pow_) BINARY_ALL(max_nan) BINARY_ALL(min_nan)

// ---- codes: one vector at a time, four at once, and one number at a time ----
#define CODES(name, T)                                                                                              \
  extern "C" void coded_##name(const float* x, T* y, const int32_t* zero, long n) {                                 \
    for (long i = 0; i < n; i += LANES) store(y + i, coded<T>(load(x + i), splat<int32_t>(*zero)));                 \
  }                                                                                                                 \
  extern "C" void coded_together_##name(const float* x, T* y, const int32_t* zero, long n) {                        \
    for (long i = 0; i < n; i += 4 * LANES)                                                                         \
      store_codes<T>(*zero, load(x + i), y + i, load(x + i + LANES), y + i + LANES, load(x + i + 2 * LANES),        \
                     y + i + 2 * LANES, load(x + i + 3 * LANES), y + i + 3 * LANES);                                \
  }                                                                                                                 \
  extern "C" void coded_side_by_side_##name(const float* x, T* y, const int32_t* zero, long n) {                    \
    for (long i = 0; i < n; i += 4 * LANES)                                                                         \
      store_codes<T>(*zero, load(x + i), load(x + i + LANES), load(x + i + 2 * LANES), load(x + i + 3 * LANES), y + i); \
  }                                                                                                                 \
  extern "C" void coded_in_pairs_##name(const float* x, T* y, const int32_t* zero, long n) {                        \
    for (long i = 0; i < n; i += 4 * LANES)                                                                         \
      store_pairs<T>(*zero, load(x + i), load(x + i + LANES), y + i, load(x + i + 2 * LANES),                       \
                     load(x + i + 3 * LANES), y + i + 2 * LANES);                                                   \
  }                                                                                                                 \
  extern "C" void coded_alone_##name(const float* x, T* y, const int32_t* zero, long n) {                           \
    for (long i = 0; i < n; i++) y[i] = coded<T>(x[i], *zero);                                                      \
  }
extern "C" void quotient_to_round(const float* x, const float* y, float* z, long n) {
  for (long i = 0; i < n; i += LANES) store(z + i, quotient_to_round_(load(x + i), splat<float>(*y)));
}
CODES(u8, uint8_t)
CODES(i8, int8_t)
