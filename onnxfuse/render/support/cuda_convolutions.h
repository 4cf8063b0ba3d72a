// Convolutions by cuDNN with bias, residual and ReLU: opened by dlopen, nothing of it is linked. Where it is not there, or
// does not take the operands, the caller launches a kernel of its own. Nothing here waits, or allocates memory of the device,
// once a kernel is prepared. All tensors are channels last; sums are float32, and float32 is rounded to TF32 where the session
// lets the runtime do so.
#pragma once
#include "cuda_host.h"

namespace onnxfuse {
namespace cuda {

struct Performance {  // cudnnConvolutionFwdAlgoPerf_t
  int algorithm, status;
  float time;
  size_t memory;
  int determinism, math, reserved[3];
};

// The functions in use, by their exported names; 0 is success.
struct Dnn {
  int (*cudnnCreate)(Handle*);
  int (*cudnnSetStream)(Handle, Handle stream);
  int (*cudnnCreateTensorDescriptor)(Handle*);
  int (*cudnnDestroyTensorDescriptor)(Handle);
  int (*cudnnSetTensor4dDescriptor)(Handle, int format, int type, int n, int c, int h, int w);
  int (*cudnnCreateFilterDescriptor)(Handle*);
  int (*cudnnDestroyFilterDescriptor)(Handle);
  int (*cudnnSetFilter4dDescriptor)(Handle, int type, int format, int k, int c, int h, int w);
  int (*cudnnCreateConvolutionDescriptor)(Handle*);
  int (*cudnnDestroyConvolutionDescriptor)(Handle);
  int (*cudnnSetConvolution2dDescriptor)(Handle, int pad_h, int pad_w, int stride_h, int stride_w, int dilation_h, int dilation_w,
                                         int mode, int compute);
  int (*cudnnSetConvolutionGroupCount)(Handle, int);
  int (*cudnnSetConvolutionMathType)(Handle, int);
  int (*cudnnCreateActivationDescriptor)(Handle*);
  int (*cudnnDestroyActivationDescriptor)(Handle);
  int (*cudnnSetActivationDescriptor)(Handle, int mode, int nans, double);
  int (*cudnnGetConvolutionForwardAlgorithm_v7)(Handle, Handle x, Handle w, Handle how, Handle y, int wanted, int* found,
                                                Performance*);
  int (*cudnnGetConvolutionForwardWorkspaceSize)(Handle, Handle x, Handle w, Handle how, Handle y, int algorithm, size_t*);
  int (*cudnnConvolutionForward)(Handle, const void* alpha, Handle, const void* x, Handle, const void* w, Handle how,
                                 int algorithm, void* workspace, size_t, const void* beta, Handle, void* y);
  int (*cudnnConvolutionBiasActivationForward)(Handle, const void* alpha, Handle, const void* x, Handle, const void* w,
                                               Handle how, int algorithm, void* workspace, size_t, const void* beta, Handle,
                                               const void* z, Handle, const void* bias, Handle activation, Handle, void* y);
  bool there;
};

enum { kChannelsLast = 1, kCorrelation = 1, kIdentity = 5, kKeepsNans = 1 };  // of cuDNN's enumerations
enum { kFloat = 0, kRoundedMath = 0, kTensorMath = 1, kPlainMath = 3, kPrecomputed = 1 };  // types, math, an algorithm
enum { kTries = 4, kMostSpace = 64 << 20, kMostShapes = 32, kAsked = 8, kAligned16 = 16 };

inline Dnn opened_dnn() {
  Dnn d{};
  void* library = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);  // ONNX Runtime's provider has it open
  if (!library) return d;
#define ONNXFUSE_FIND(name) found(library, #name, d.name)
  d.there = ONNXFUSE_FIND(cudnnCreate) && ONNXFUSE_FIND(cudnnSetStream) && ONNXFUSE_FIND(cudnnCreateTensorDescriptor) &&
            ONNXFUSE_FIND(cudnnDestroyTensorDescriptor) && ONNXFUSE_FIND(cudnnSetTensor4dDescriptor) &&
            ONNXFUSE_FIND(cudnnCreateFilterDescriptor) && ONNXFUSE_FIND(cudnnDestroyFilterDescriptor) &&
            ONNXFUSE_FIND(cudnnSetFilter4dDescriptor) && ONNXFUSE_FIND(cudnnCreateConvolutionDescriptor) &&
            ONNXFUSE_FIND(cudnnDestroyConvolutionDescriptor) && ONNXFUSE_FIND(cudnnSetConvolution2dDescriptor) &&
            ONNXFUSE_FIND(cudnnSetConvolutionGroupCount) && ONNXFUSE_FIND(cudnnSetConvolutionMathType) &&
            ONNXFUSE_FIND(cudnnCreateActivationDescriptor) && ONNXFUSE_FIND(cudnnDestroyActivationDescriptor) &&
            ONNXFUSE_FIND(cudnnSetActivationDescriptor) && ONNXFUSE_FIND(cudnnGetConvolutionForwardAlgorithm_v7) &&
            ONNXFUSE_FIND(cudnnGetConvolutionForwardWorkspaceSize) && ONNXFUSE_FIND(cudnnConvolutionForward) &&
            ONNXFUSE_FIND(cudnnConvolutionBiasActivationForward);
#undef ONNXFUSE_FIND
  return d;
}

inline std::atomic<int> opening_dnn;
inline std::atomic<bool> dnn_opened;
inline Dnn dnn_;
inline std::atomic<Handle> dnn_handles[kMostDevices];  // of each device that a kernel was prepared for
inline std::atomic<int> dnn_busy[kMostDevices];        // a handle has one stream at a time

// The library, opened when the first kernel that may use it is made. ONNXFUSE_CUDNN=0 leaves it out.
inline const Dnn& dnn() {
  if (!dnn_opened.load(std::memory_order_acquire)) {
    Lock lock(opening_dnn);
    const char* wanted = getenv("ONNXFUSE_CUDNN");
    if (!dnn_opened.load(std::memory_order_relaxed) && !(wanted && strcmp(wanted, "0") == 0)) dnn_ = opened_dnn();
    dnn_opened.store(true, std::memory_order_release);
  }
  return dnn_;
}

struct Choice {  // an algorithm, and what it takes
  int algorithm, math;
  size_t memory;
};

// What a run has to know of a shape: which of its algorithms comes next, and the workspace for all that are left.
struct Filtering {
  int device;
  i64 rows;
  bool rounds;
  size_t workspace;
};

// The descriptors of a shape on a device, and algorithms, those first that the library expects to be fast.
struct Described {
  int device;
  i64 rows;
  bool rounds;
  Handle x, w, y, bias, how, activation;
  Choice choices[kTries];
  int count, at;
};

// A convolution as it is known when it is compiled, and the shapes that it was asked for.
struct Convolution {
  int type;        // cudnnDataType_t of all operands
  int activation;  // cudnnActivationMode_t
  bool biased, residual;
  int channels, filters, groups;
  int size[2], window[2], made[2], pads[2], strides[2], dilations[2];  // height, width
  Described shapes[kMostShapes];
  int count, next;
  std::atomic<int> busy;
};

inline void forget(const Dnn& d, const Described& s) {
  const Handle tensors[] = {s.x, s.y, s.bias};
  for (Handle each : tensors)
    if (each) d.cudnnDestroyTensorDescriptor(each);
  if (s.w) d.cudnnDestroyFilterDescriptor(s.w);
  if (s.how) d.cudnnDestroyConvolutionDescriptor(s.how);
  if (s.activation) d.cudnnDestroyActivationDescriptor(s.activation);
}

inline bool tensor(const Dnn& d, Handle* out, int type, int n, int c, int h, int w) {
  return !d.cudnnCreateTensorDescriptor(out) && !d.cudnnSetTensor4dDescriptor(*out, kChannelsLast, type, n, c, h, w);
}

inline int math_of(const Convolution& c, bool rounds) {
  return c.type != kFloat ? kTensorMath : rounds ? kRoundedMath : kPlainMath;
}

inline bool described(const Dnn& d, const Convolution& c, Described* s) {
  const int n = (int)s->rows;
  return tensor(d, &s->x, c.type, n, c.channels, c.size[0], c.size[1]) &&
         tensor(d, &s->y, c.type, n, c.filters, c.made[0], c.made[1]) && tensor(d, &s->bias, c.type, 1, c.filters, 1, 1) &&
         !d.cudnnCreateFilterDescriptor(&s->w) &&
         !d.cudnnSetFilter4dDescriptor(s->w, c.type, kChannelsLast, c.filters, c.channels / c.groups, c.window[0], c.window[1]) &&
         !d.cudnnCreateConvolutionDescriptor(&s->how) &&
         !d.cudnnSetConvolution2dDescriptor(s->how, c.pads[0], c.pads[1], c.strides[0], c.strides[1], c.dilations[0],
                                            c.dilations[1], kCorrelation, kFloat) &&
         !d.cudnnSetConvolutionGroupCount(s->how, c.groups) &&
         !d.cudnnSetConvolutionMathType(s->how, math_of(c, s->rounds)) &&
         !d.cudnnCreateActivationDescriptor(&s->activation) &&
         !d.cudnnSetActivationDescriptor(s->activation, c.activation, kKeepsNans, 0.0);
}

// Asks for the algorithms of a shape. The call that adds a bias and nothing else takes only one of them, which comes last
// where it was not among the answers. Runs on the host alone.
inline void ask(const Dnn& d, Handle handle, const Convolution& c, Described* s) {
  if (s->rows > 0x7fffffff || !described(d, c, s)) return;
  Performance said[kAsked];
  int found = 0;
  if (d.cudnnGetConvolutionForwardAlgorithm_v7(handle, s->x, s->w, s->how, s->y, kAsked, &found, said)) found = 0;
  const bool one = c.biased && c.activation == kIdentity;
  bool there = false;
  for (int i = 0; i < found && s->count < kTries - 1; ++i) {
    const Performance& p = said[i];
    if (p.status || p.memory > kMostSpace || (one && p.algorithm != kPrecomputed)) continue;
    if (c.type == kFloat && !s->rounds && p.math != kPlainMath) continue;
    s->choices[s->count++] = {p.algorithm, p.math, p.memory};
    there = there || p.algorithm == kPrecomputed;
  }
  size_t memory = 0;
  if (!there && !d.cudnnGetConvolutionForwardWorkspaceSize(handle, s->x, s->w, s->how, s->y, kPrecomputed, &memory) &&
      memory <= kMostSpace)
    s->choices[s->count++] = {kPrecomputed, math_of(c, s->rounds), memory};
}

// A shape on a device, looked for once; null: a kernel is launched instead. The convolution is busy meanwhile.
inline Described* shape_of(Convolution& c, int device, i64 rows, bool rounds) {
  const Dnn& d = dnn();
  if (!d.there || rows <= 0 || device < 0 || device >= kMostDevices) return nullptr;
  Handle handle = dnn_handles[device].load(std::memory_order_acquire);
  if (!handle) return nullptr;
  for (int i = 0; i < c.count; ++i)
    if (c.shapes[i].device == device && c.shapes[i].rows == rows && c.shapes[i].rounds == rounds) return c.shapes + i;
  Described& s = c.shapes[c.next];
  if (c.count == kMostShapes) forget(d, s);
  s = Described{};
  s.device = device, s.rows = rows, s.rounds = rounds;
  {
    Lock one_thread(dnn_busy[device]);
    ask(d, handle, c, &s);
  }
  c.next = (c.next + 1) % kMostShapes;
  if (c.count < kMostShapes) c.count++;
  return &s;
}

// Before the first run of a node on a device: the library's handle, and algorithms where the number of images is known. Whether
// a session rounds is known in its runs; most do.
inline void prepare(Convolution& c, int device, i64 rows) {
  const Driver& driver_ = driver();
  const Dnn& d = dnn();
  int here = 0;
  if (!d.there || driver_.cuDeviceGet(&here, device) || here < 0 || here >= kMostDevices) return;
  const Current current(driver_, device);
  if (current.wrong) return;
  const Uncaptured uncaptured(driver_);
  {
    Lock lock(opening_dnn);
    Handle handle = dnn_handles[here].load();
    if (!handle && d.cudnnCreate(&handle) == 0) dnn_handles[here].store(handle, std::memory_order_release);
  }
  Lock lock(c.busy);
  shape_of(c, here, rows, c.type == kFloat);
}

// What a run has to know, workspace among it; false: a kernel is launched instead.
inline bool algorithm_of(Host* host, Convolution& c, i64 rows, Filtering* out) {
  Handle stream = nullptr;
  *out = Filtering{0, rows, c.type == kFloat && host->rounds(host), 0};
  if (stream_of(host, &stream) || driver().cuCtxGetDevice(&out->device)) return false;
  Lock lock(c.busy);
  const Described* s = shape_of(c, out->device, rows, out->rounds);
  for (int i = s ? s->at : 0; s && i < s->count; ++i)
    if (s->choices[i].memory > out->workspace) out->workspace = s->choices[i].memory;
  return s && s->at < s->count;
}

// Whether a status is of what is asked for, and not of the moment (CUDNN_STATUS_BAD_PARAM, _NOT_SUPPORTED and their kinds).
inline bool refusal(int status) { return status >= 2000 && status < 4000; }

// Computes a convolution on the stream of a run; false: it was not, since an operand begins where no algorithm takes it, the
// library fails, or it refuses all of its algorithms. One that it refuses is not tried again.
inline bool computed(Host* host, Convolution& c, const Operands& o, const Filtering& known, void* workspace) {
  const void* const begins[] = {o.left, o.right, o.bias, o.residual, o.result};
  for (const void* each : begins)
    if (!begins_well(each, kAligned16)) return false;
  Handle stream = nullptr;
  if (stream_of(host, &stream)) return false;
  const Dnn& d = dnn();
  Lock lock(c.busy);
  Described* s = shape_of(c, known.device, known.rows, known.rounds);
  if (!s) return false;
  Lock one_stream(dnn_busy[known.device]);
  Handle handle = dnn_handles[known.device].load(std::memory_order_acquire);
  if (d.cudnnSetStream(handle, stream)) return false;
  const float one = 1.0f, zero = 0.0f;
  for (; s->at < s->count; ++s->at) {
    const Choice& choice = s->choices[s->at];
    if (choice.memory > known.workspace) return false;  // another run has asked again meanwhile
    if (d.cudnnSetConvolutionMathType(s->how, choice.math)) continue;
    const int wrong =
        c.biased ? d.cudnnConvolutionBiasActivationForward(
                       handle, &one, s->x, o.left, s->w, o.right, s->how, choice.algorithm, workspace, choice.memory,
                       c.residual ? &one : &zero, s->y, c.residual ? o.residual : o.result, s->bias, o.bias, s->activation, s->y,
                       o.result)
                 : d.cudnnConvolutionForward(handle, &one, s->x, o.left, s->w, o.right, s->how, choice.algorithm, workspace,
                                             choice.memory, &zero, s->y, o.result);
    if (!wrong) return true;
    if (!refusal(wrong)) return false;  // no memory left, or an invalid capture: the next run tries again
  }
  return false;
}

}  // namespace cuda
}  // namespace onnxfuse
