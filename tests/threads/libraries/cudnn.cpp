// cuDNN without a device, of the few functions that convolutions with epilogues take: it computes on the host, in float32,
// when the stream is waited for. It is stricter than the real one: what a call has to keep is kept, or it is refused.
//
// In the environment: CUDNN_FINDS=0, there is no algorithm for anything; CUDNN_TAKES=0, every convolution is refused;
// CUDNN_TAKES=last, all algorithms but the last one that was told are.
#include <cstdlib>
#include <functional>

#include "stand_in.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

enum { OK = 0, BAD_PARAM = 2000, NOT_SUPPORTED = 3000, EXECUTION_FAILED = 5000 };  // cudnnStatus_t of cuDNN 9
enum { BRAIN = 9, LAST = 1, CORRELATION = 1 };
enum { ROUNDED_MATH = 0, TENSOR_MATH = 1, PLAIN_MATH = 3, RELU = 1, IDENTITY = 5, GEMM = 0, PRECOMPUTED = 1, WORKSPACE = 4096, ALIGNED = 16 };

struct Handle {
  void* stream = nullptr;
};
struct Tensor {
  int type = -1, n, c, h, w;
  size_t count() const { return (size_t)n * c * h * w; }
};
struct Filter {
  int type = -1, k, c, h, w;
  size_t count() const { return (size_t)k * c * h * w; }
};
struct Convolution {
  int pad[2], stride[2], dilation[2], compute = -1, groups = 1, math = 0;
};
struct Activation {
  int mode = -1;
};
struct Performance {
  int algorithm, status;
  float time;
  size_t memory;
  int determinism, math, reserved[3];
};

int refuse(const char* why) { return say("refused %s", why), BAD_PARAM; }
bool said(const char* name, const char* what) { return getenv(name) && strcmp(getenv(name), what) == 0; }
size_t bytes(int type) { return type == SINGLE ? 4 : 2; }

int extent(int have, int pad, int window, int stride, int dilation) {
  return (have + 2 * pad - dilation * (window - 1) - 1) / stride + 1;
}

// What is wrong with a convolution, whoever asks; null: nothing.
const char* wrong(const Tensor* x, const Filter* w, const Convolution* c, const Tensor* y) {
  if (!x || !w || !c || !y || x->type < 0 || w->type < 0 || y->type < 0 || c->compute < 0) return "what is not described";
  if (x->type != w->type || x->type != y->type) return "tensors of several types";
  if (x->type != SINGLE && x->type != HALF && x->type != BRAIN) return "a type that it has no convolutions of";
  if (c->compute != SINGLE) return "sums that are not float32";
  const bool known = x->type == SINGLE ? c->math == PLAIN_MATH || c->math == ROUNDED_MATH : c->math == TENSOR_MATH;
  if (!known) return "another kind of math";
  if (c->groups < 1 || x->c != w->c * c->groups || w->k % c->groups) return "channels that do not make the groups";
  if (y->n != x->n || y->c != w->k) return "a result of other images or channels";
  const int have[] = {x->h, x->w}, window[] = {w->h, w->w}, made[] = {y->h, y->w};
  for (int i = 0; i < 2; ++i)
    if (made[i] != extent(have[i], c->pad[i], window[i], c->stride[i], c->dilation[i])) return "a result of another size";
  return nullptr;
}

// The parts of a call that both kinds have.
const char* not_callable(Handle* handle, const Tensor& x, const void* xs, const Filter& w, const void* ws, int algorithm,
                         void* space, size_t size, const Tensor& y, void* ys) {
  if (!handle) return "a convolution without a handle";
  if (algorithm == PRECOMPUTED && size < WORKSPACE) return "a workspace that is too small";
  if (size && (!space || reinterpret_cast<uintptr_t>(space) % ALIGNED || !has(space, size))) return "a workspace that is none";
  const void* const begins[] = {xs, ws, ys};
  for (const void* each : begins)
    if (reinterpret_cast<uintptr_t>(each) % ALIGNED) return "an operand that begins elsewhere than it takes";
  if (!has(xs, x.count() * bytes(x.type)) || !has(ws, w.count() * bytes(w.type)) || !has(ys, y.count() * bytes(y.type)))
    return "an operand that is not the device's memory";
  return nullptr;
}

// float32 as TF32 has it, with 10 bits behind the point.
float rounded(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  bits = (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu;
  return memcpy(&value, &bits, 4), value;
}

// Queues what a call computes: all tensors channels last.
int queue(Handle* handle, Tensor x, const void* xs, Filter w, const void* ws, Convolution c, void* space, size_t size, Tensor y,
          void* ys, const void* zs, float scale, const void* bias, int mode) {
  const std::function<void()> work = [=] {
    if (size) memset(space, 0xff, size);
    const int per = w.k / c.groups;
    const bool rounds = x.type == SINGLE && c.math == ROUNDED_MATH;
    for (int n = 0; n < y.n; ++n)
      for (int h = 0; h < y.h; ++h)
        for (int v = 0; v < y.w; ++v)
          for (int k = 0; k < w.k; ++k) {
            float sum = 0;
            for (int a = 0; a < w.h; ++a)
              for (int b = 0; b < w.w; ++b) {
                const int row = h * c.stride[0] + a * c.dilation[0] - c.pad[0], at = v * c.stride[1] + b * c.dilation[1] - c.pad[1];
                if (row < 0 || row >= x.h || at < 0 || at >= x.w) continue;
                const size_t pixel = (((size_t)n * x.h + row) * x.w + at) * x.c + (size_t)(k / per) * w.c;
                const size_t tap = (((size_t)k * w.h + a) * w.w + b) * w.c;
                for (int i = 0; i < w.c; ++i) {
                  const float a_ = read(xs, x.type, pixel + i), b_ = read(ws, w.type, tap + i);
                  sum += rounds ? rounded(a_) * rounded(b_) : a_ * b_;
                }
              }
            const size_t to = (((size_t)n * y.h + h) * y.w + v) * w.k + k;
            if (scale != 0) sum += scale * read(zs, y.type, to);
            if (bias) sum += read(bias, y.type, k);
            if (mode == RELU) sum = sum > 0 || std::isnan(sum) ? sum : 0;
            write(ys, y.type, to, sum);
          }
  };
  return reinterpret_cast<int (*)(void*, const std::function<void()>*)>(driver("standInQueue"))(handle->stream, &work)
             ? NOT_SUPPORTED
             : OK;
}

bool taken(int algorithm) { return !said("CUDNN_TAKES", "0") && (!said("CUDNN_TAKES", "last") || algorithm == PRECOMPUTED); }

// Whether a call fails for a reason of the moment, as many of the first ones do as the environment says.
bool fails() {
  static int left = getenv("CUDNN_FAILS") ? atoi(getenv("CUDNN_FAILS")) : 0;
  return left > 0 && left-- > 0;
}

}  // namespace

EXPORT int cudnnCreate(void** out) {
  void* current = nullptr;
  reinterpret_cast<int (*)(void**)>(driver("cuCtxGetCurrent"))(&current);
  if (!current) return refuse("a handle without a context");
  say("handle");
  return *out = new Handle, OK;
}
EXPORT int cudnnSetStream(void* handle, void* stream) {
  if (!handle) return refuse("a stream of no handle");
  return static_cast<Handle*>(handle)->stream = stream, OK;
}
EXPORT int cudnnCreateTensorDescriptor(void** out) { return *out = new Tensor, OK; }
EXPORT int cudnnDestroyTensorDescriptor(void* t) { return delete static_cast<Tensor*>(t), OK; }
EXPORT int cudnnSetTensor4dDescriptor(void* t, int format, int type, int n, int c, int h, int w) {
  if (format != LAST || n < 1 || c < 1 || h < 1 || w < 1) return refuse("a tensor that is empty, or not channels last");
  return *static_cast<Tensor*>(t) = Tensor{type, n, c, h, w}, OK;
}
EXPORT int cudnnCreateFilterDescriptor(void** out) { return *out = new Filter, OK; }
EXPORT int cudnnDestroyFilterDescriptor(void* f) { return delete static_cast<Filter*>(f), OK; }
EXPORT int cudnnSetFilter4dDescriptor(void* f, int type, int format, int k, int c, int h, int w) {
  if (format != LAST || k < 1 || c < 1 || h < 1 || w < 1) return refuse("filters that are empty, or not channels last");
  return *static_cast<Filter*>(f) = Filter{type, k, c, h, w}, OK;
}
EXPORT int cudnnCreateConvolutionDescriptor(void** out) { return *out = new Convolution, OK; }
EXPORT int cudnnDestroyConvolutionDescriptor(void* c) { return delete static_cast<Convolution*>(c), OK; }
EXPORT int cudnnSetConvolution2dDescriptor(void* c, int pad_h, int pad_w, int stride_h, int stride_w, int dilation_h,
                                           int dilation_w, int mode, int compute) {
  if (mode != CORRELATION) return refuse("a convolution that turns its filters");
  if (pad_h < 0 || pad_w < 0 || stride_h < 1 || stride_w < 1 || dilation_h < 1 || dilation_w < 1)
    return refuse("steps of a convolution that are none");
  Convolution& made = *static_cast<Convolution*>(c);
  made = Convolution{{pad_h, pad_w}, {stride_h, stride_w}, {dilation_h, dilation_w}, compute};
  return OK;
}
EXPORT int cudnnSetConvolutionGroupCount(void* c, int groups) { return static_cast<Convolution*>(c)->groups = groups, OK; }
EXPORT int cudnnSetConvolutionMathType(void* c, int math) { return static_cast<Convolution*>(c)->math = math, OK; }
EXPORT int cudnnCreateActivationDescriptor(void** out) { return *out = new Activation, OK; }
EXPORT int cudnnDestroyActivationDescriptor(void* a) { return delete static_cast<Activation*>(a), OK; }
EXPORT int cudnnSetActivationDescriptor(void* a, int mode, int nans, double) {
  if (mode != RELU && mode != IDENTITY) return refuse("an activation that it does not fuse");
  if (nans != 1) return refuse("an activation that loses what is no number");
  return static_cast<Activation*>(a)->mode = mode, OK;
}
EXPORT int cudnnGetConvolutionForwardAlgorithm_v7(void* handle, void* x, void* w, void* how, void* y, int wanted, int* found,
                                                  Performance* out) {
  const Convolution* c = static_cast<Convolution*>(how);
  const Filter* filter = static_cast<Filter*>(w);
  if (!handle || wanted < 3) return refuse("a question without a handle");
  if (const char* why = wrong(static_cast<Tensor*>(x), filter, c, static_cast<Tensor*>(y))) return refuse(why);
  const Tensor* made = static_cast<Tensor*>(y);
  say("asked %d %d %d %d", made->n, made->c, made->h, made->w);
  if (said("CUDNN_FINDS", "0")) return *found = 0, NOT_SUPPORTED;
  // One that does not work here, one that rounds float32 to TF32 or needs nothing, and the one that fuses anything.
  out[0] = {7, NOT_SUPPORTED, -1, 0, 1, c->math, {}};
  out[1] = {GEMM, OK, -1, 0, 1, made->type == SINGLE ? ROUNDED_MATH : c->math, {}};
  out[2] = {PRECOMPUTED, OK, -1, WORKSPACE, 1, c->math, {}};
  return *found = 3, OK;
}
EXPORT int cudnnGetConvolutionForwardWorkspaceSize(void* handle, void* x, void* w, void* how, void* y, int algorithm,
                                                   size_t* out) {
  if (!handle || algorithm != PRECOMPUTED) return refuse("the workspace of another algorithm");
  if (const char* why = wrong(static_cast<Tensor*>(x), static_cast<Filter*>(w), static_cast<Convolution*>(how), static_cast<Tensor*>(y)))
    return refuse(why);
  return said("CUDNN_FINDS", "0") ? NOT_SUPPORTED : (*out = WORKSPACE, OK);
}
EXPORT int cudnnConvolutionForward(void* handle, const void* alpha, void* x_, const void* xs, void* w_, const void* ws, void* how,
                                   int algorithm, void* space, size_t size, const void* beta, void* y_, void* ys) {
  const Tensor x = *static_cast<Tensor*>(x_), y = *static_cast<Tensor*>(y_);
  const Filter w = *static_cast<Filter*>(w_);
  const Convolution c = *static_cast<Convolution*>(how);
  if (const char* why = wrong(&x, &w, &c, &y)) return refuse(why);
  if (*static_cast<const float*>(alpha) != 1 || *static_cast<const float*>(beta) != 0) return refuse("scales that nobody uses");
  if (const char* why = not_callable(static_cast<Handle*>(handle), x, xs, w, ws, algorithm, space, size, y, ys)) return refuse(why);
  if (!taken(algorithm)) return say("not taken"), NOT_SUPPORTED;
  if (fails()) return say("failed"), EXECUTION_FAILED;
  say("convolution %d %d %d %d plain algorithm %d math %d", y.n, y.c, y.h, y.w, algorithm, c.math);
  return queue(static_cast<Handle*>(handle), x, xs, w, ws, c, space, size, y, ys, nullptr, 0, nullptr, IDENTITY);
}
EXPORT int cudnnConvolutionBiasActivationForward(void* handle, const void* alpha, void* x_, const void* xs, void* w_,
                                                 const void* ws, void* how, int algorithm, void* space, size_t size,
                                                 const void* beta, void* z_, const void* zs, void* bias_, const void* bias,
                                                 void* activation, void* y_, void* ys) {
  const Tensor x = *static_cast<Tensor*>(x_), y = *static_cast<Tensor*>(y_), z = *static_cast<Tensor*>(z_),
               b = *static_cast<Tensor*>(bias_);
  const Filter w = *static_cast<Filter*>(w_);
  const Convolution c = *static_cast<Convolution*>(how);
  const int mode = static_cast<Activation*>(activation)->mode;
  const float scale = *static_cast<const float*>(beta);
  if (const char* why = wrong(&x, &w, &c, &y)) return refuse(why);
  if (*static_cast<const float*>(alpha) != 1 || (scale != 0 && scale != 1)) return refuse("scales that nobody uses");
  if (z.type != y.type || z.n != y.n || z.c != y.c || z.h != y.h || z.w != y.w) return refuse("a residual of another shape");
  if (b.type != y.type || b.n != 1 || b.h != 1 || b.w != 1 || b.c != y.c) return refuse("a bias that is not one of channels");
  if (mode == IDENTITY && algorithm != PRECOMPUTED) return refuse("an algorithm that has no call without an activation");
  if (const char* why = not_callable(static_cast<Handle*>(handle), x, xs, w, ws, algorithm, space, size, y, ys)) return refuse(why);
  if (reinterpret_cast<uintptr_t>(bias) % ALIGNED || !has(bias, b.count() * bytes(b.type))) return refuse("a bias that is none");
  if (!zs || !has(zs, z.count() * bytes(z.type))) return refuse("a residual that is none");
  if (!taken(algorithm)) return say("not taken"), NOT_SUPPORTED;
  if (fails()) return say("failed"), EXECUTION_FAILED;
  say("convolution %d %d %d %d mode %d beta %g algorithm %d math %d", y.n, y.c, y.h, y.w, mode, scale, algorithm, c.math);
  return queue(static_cast<Handle*>(handle), x, xs, w, ws, c, space, size, y, ys, zs, scale, bias, mode);
}
