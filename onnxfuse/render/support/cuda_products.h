// Products by cuBLASLt with their epilogues: opened by dlopen, nothing of it is linked. Where it is not there, or does
// not take the operands, the caller launches a kernel of its own. Nothing here waits, or allocates memory of the device.
//
// cuBLASLt's matrices are column-major, and a row-major matrix is the transpose of one: result' = right' left'. So `right`
// comes first, rows and columns change places, and a bias, which cuBLASLt adds to all columns, is a row of ours.
#pragma once
#include "cuda_host.h"

namespace onnxfuse {
namespace cuda {

struct Algorithm {  // cublasLtMatmulHeuristicResult_t
  uint64_t algorithm[8];
  size_t workspace;
  int status;
  float waves;
  int reserved[4];
};

// The functions in use, by their exported names; 0 is success.
struct Blas {
  int (*cublasLtCreate)(Handle*);
  int (*cublasLtMatmulDescCreate)(Handle*, int compute, int scale);
  int (*cublasLtMatmulDescSetAttribute)(Handle, int attribute, const void*, size_t);
  int (*cublasLtMatmulDescDestroy)(Handle);
  int (*cublasLtMatrixLayoutCreate)(Handle*, int type, uint64_t rows, uint64_t columns, int64_t pitch);
  int (*cublasLtMatrixLayoutDestroy)(Handle);
  int (*cublasLtMatmulPreferenceCreate)(Handle*);
  int (*cublasLtMatmulPreferenceSetAttribute)(Handle, int attribute, const void*, size_t);
  int (*cublasLtMatmulPreferenceDestroy)(Handle);
  int (*cublasLtMatmulAlgoGetHeuristic)(Handle, Handle, Handle a, Handle b, Handle c, Handle d, Handle preference, int wanted,
                                        Algorithm*, int* found);
  int (*cublasLtMatmul)(Handle, Handle, const void* alpha, const void* a, Handle, const void* b, Handle, const void* beta,
                        const void* c, Handle, void* d, Handle, const void* algorithm, void* workspace, size_t, Handle stream);
  bool there;
};

enum { kSingle = 0, kCompute32 = 68 };  // CUDA_R_32F, CUBLAS_COMPUTE_32F: float32 is not rounded to TF32
enum { kTransposeA = 3, kEpilogue = 7, kBiasPointer = 8 };               // CUBLASLT_MATMUL_DESC_...
enum { kMostWorkspace = 1, kAlignmentA = 5, kAlignmentD = 8 };           // CUBLASLT_MATMUL_PREF_...
enum { kAligned = 16, kMostBytes = 32 << 20, kShapes = 16 };             // of operands; of workspace; that are remembered

inline Blas opened_blas() {
  Blas b{};
  void* library = dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);  // ONNX Runtime's provider has it open
  if (!library) library = dlopen("libcublasLt.so.12", RTLD_NOW | RTLD_LOCAL);
  if (!library) return b;
#define ONNXFUSE_FIND(name) found(library, #name, b.name)
  b.there = ONNXFUSE_FIND(cublasLtCreate) && ONNXFUSE_FIND(cublasLtMatmulDescCreate) &&
            ONNXFUSE_FIND(cublasLtMatmulDescSetAttribute) && ONNXFUSE_FIND(cublasLtMatmulDescDestroy) &&
            ONNXFUSE_FIND(cublasLtMatrixLayoutCreate) && ONNXFUSE_FIND(cublasLtMatrixLayoutDestroy) &&
            ONNXFUSE_FIND(cublasLtMatmulPreferenceCreate) && ONNXFUSE_FIND(cublasLtMatmulPreferenceSetAttribute) &&
            ONNXFUSE_FIND(cublasLtMatmulPreferenceDestroy) && ONNXFUSE_FIND(cublasLtMatmulAlgoGetHeuristic) &&
            ONNXFUSE_FIND(cublasLtMatmul);
#undef ONNXFUSE_FIND
  return b;
}

inline std::atomic<int> opening;
inline std::atomic<bool> opened_once;
inline Blas blas_;
inline std::atomic<Handle> blas_handles[kMostDevices];  // of each device that a kernel was prepared for

// The library, opened when the first kernel that may use it is made. ONNXFUSE_CUBLASLT=0 leaves it out.
inline const Blas& blas() {
  if (!opened_once.load(std::memory_order_acquire)) {
    Lock lock(opening);
    const char* wanted = getenv("ONNXFUSE_CUBLASLT");
    if (!opened_once.load(std::memory_order_relaxed) && !(wanted && strcmp(wanted, "0") == 0)) blas_ = opened_blas();
    opened_once.store(true, std::memory_order_release);
  }
  return blas_;
}

// A product as it is known when it is compiled, and the algorithms of the shapes that it was asked for.
struct Product {
  int type;      // cudaDataType_t of all operands
  int epilogue;  // cublasLtEpilogue_t
  bool turned;   // the right side's rows are the result's columns
  bool residual;
  i64 columns, depth;
  i64 left, right, added, result;  // pitches, in elements
  struct Shape {
    int device;
    i64 rows;
    bool good;
    Algorithm algorithm;
  } shapes[kShapes];
  int count, next;
  std::atomic<int> busy;
};

// The descriptors of a call, as long as this lives: of host memory, and of no thread but this.
struct Descriptors {
  const Blas& b;
  Handle product = nullptr, a = nullptr, x = nullptr, c = nullptr, d = nullptr;
  bool good;

  Descriptors(const Blas& blas, const Product& p, i64 rows, const void* bias) : b(blas) {
    const int transposed = 1;
    const i64 high = p.turned ? p.depth : p.columns, wide = p.turned ? p.columns : p.depth;
    good = !b.cublasLtMatmulDescCreate(&product, kCompute32, kSingle) &&
           (!p.turned || !set(kTransposeA, &transposed, sizeof transposed)) && !set(kEpilogue, &p.epilogue, sizeof(int)) &&
           (!bias || !set(kBiasPointer, &bias, sizeof bias)) &&
           !b.cublasLtMatrixLayoutCreate(&a, p.type, high, wide, p.right) &&
           !b.cublasLtMatrixLayoutCreate(&x, p.type, p.depth, rows, p.left) &&
           !b.cublasLtMatrixLayoutCreate(&c, p.type, p.columns, rows, p.residual ? p.added : p.result) &&
           !b.cublasLtMatrixLayoutCreate(&d, p.type, p.columns, rows, p.result);
  }
  ~Descriptors() {
    const Handle layouts[] = {a, x, c, d};
    for (Handle layout : layouts)
      if (layout) b.cublasLtMatrixLayoutDestroy(layout);
    if (product) b.cublasLtMatmulDescDestroy(product);
  }
  int set(int attribute, const void* value, size_t bytes) {
    return b.cublasLtMatmulDescSetAttribute(product, attribute, value, bytes);
  }
};

// Asks for the best algorithm for operands that begin at multiples of kAligned bytes. Runs on the host alone.
inline bool asked(const Blas& b, Handle handle, const Product& p, i64 rows, Algorithm* out) {
  const void* somewhere = reinterpret_cast<const void*>(kAligned);  // only that there is a bias matters
  const Descriptors call(b, p, rows, p.epilogue & 4 ? somewhere : nullptr);
  Handle preference = nullptr;
  if (!call.good || b.cublasLtMatmulPreferenceCreate(&preference)) return false;
  const uint64_t most = kMostBytes;
  const uint32_t aligned = kAligned;
  int count = 0;
  bool good = !b.cublasLtMatmulPreferenceSetAttribute(preference, kMostWorkspace, &most, sizeof most);
  for (int side = kAlignmentA; side <= kAlignmentD; ++side)
    good = good && !b.cublasLtMatmulPreferenceSetAttribute(preference, side, &aligned, sizeof aligned);
  good = good && !b.cublasLtMatmulAlgoGetHeuristic(handle, call.product, call.a, call.x, call.c, call.d, preference, 1, out, &count);
  b.cublasLtMatmulPreferenceDestroy(preference);
  return good && count > 0 && out->status == 0;
}

// The algorithm for so many rows on a device, looked for once per shape; false: a kernel is launched instead.
inline bool algorithm_for(Product& p, int device, i64 rows, Algorithm* out) {
  const Blas& b = blas();
  if (!b.there || rows <= 0 || device < 0 || device >= kMostDevices) return false;
  Handle handle = blas_handles[device].load(std::memory_order_acquire);
  if (!handle) return false;
  Lock lock(p.busy);
  for (int i = 0; i < p.count; ++i)
    if (p.shapes[i].device == device && p.shapes[i].rows == rows) return *out = p.shapes[i].algorithm, p.shapes[i].good;
  Product::Shape& s = p.shapes[p.next];
  s = {device, rows, asked(b, handle, p, rows, out), *out};
  p.next = (p.next + 1) % kShapes;
  if (p.count < kShapes) p.count++;
  return s.good;
}

// Before the first run of a node on a device: the library's handle, and the algorithm where the number of rows is known.
inline void prepare(Product& p, int device, i64 rows) {
  const Driver& d = driver();
  const Blas& b = blas();
  int here = 0;
  if (!b.there || d.cuDeviceGet(&here, device) || here < 0 || here >= kMostDevices) return;
  const Current current(d, device);
  if (current.wrong) return;
  const Uncaptured uncaptured(d);
  {
    Lock lock(opening);
    Handle handle = blas_handles[here].load();
    if (!handle && b.cublasLtCreate(&handle) == 0) blas_handles[here].store(handle, std::memory_order_release);
  }
  Algorithm algorithm;
  if (rows > 0) algorithm_for(p, here, rows, &algorithm);
}

// The algorithm of a run, which says how much workspace it takes.
inline bool algorithm_of(Host* host, Product& p, i64 rows, Algorithm* out) {
  Handle stream = nullptr;
  int device = 0;
  *out = Algorithm{};
  return !stream_of(host, &stream) && !driver().cuCtxGetDevice(&device) && algorithm_for(p, device, rows, out);
}

// Computes a product on the stream of a run; false: it was not, since an operand begins where no algorithm takes it, or
// the library refuses.
inline bool computed(Host* host, const Product& p, const Operands& o, const Algorithm& algorithm, void* workspace) {
  const void* const begins[] = {o.left, o.right, o.bias, o.residual, o.result};
  for (const void* each : begins)
    if (!begins_well(each, kAligned)) return false;
  Handle stream = nullptr;
  int device = 0;
  if (stream_of(host, &stream) || driver().cuCtxGetDevice(&device)) return false;
  const Blas& b = blas();
  const Descriptors call(b, p, o.rows, o.bias);
  const float one = 1.0f, beta = p.residual ? 1.0f : 0.0f;
  const void* c = p.residual ? o.residual : o.result;
  return call.good && !b.cublasLtMatmul(blas_handles[device].load(std::memory_order_acquire), call.product, &one, o.right,
                                        call.a, o.left, call.x, &beta, c, call.c, o.result, call.d, algorithm.algorithm,
                                        workspace, algorithm.workspace, stream);
}

}  // namespace cuda
}  // namespace onnxfuse
