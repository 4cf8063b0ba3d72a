// cuBLASLt without a device, of the few functions that products with epilogues take: it computes on the host, in float32,
// when the stream is waited for. It is stricter than the real one: what a call has to keep is kept, or it is refused.
//
// In the environment: CUBLASLT_FINDS=0, there is no algorithm for anything; CUBLASLT_TAKES=0, every product is refused.
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>

#include "stand_in.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

enum { OK = 0, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };  // cublasStatus_t
enum { BRAIN = 14, COMPUTE_32 = 68 };
enum { TRANSPOSE_A = 3, TRANSPOSE_B = 4, EPILOGUE = 7, BIAS_POINTER = 8 };
enum { RELU = 2, BIAS = 4, GELU = 32, WORKSPACE = 4096 };

struct Handle {
  int alive;
};
struct Product {
  int compute, turned = 0, epilogue = 1;
  const void* bias = nullptr;
};
struct Layout {
  int type;
  uint64_t rows, columns;
  int64_t pitch;
  size_t bytes() const { return ((columns - 1) * pitch + rows) * (type == SINGLE ? 4 : 2); }
};
struct Preference {
  uint64_t workspace = 0;
  std::map<int, uint32_t> aligned;
};
struct Algorithm {
  uint64_t algorithm[8];
  size_t workspace;
  int status;
  float waves;
  int reserved[4];
};

int refuse(const char* why) { return say("refused %s", why), INVALID_VALUE; }
bool said(const char* name) { return getenv(name) && strcmp(getenv(name), "0") == 0; }

// What is wrong with a call, whoever makes it; null: nothing. Matrices are by columns: d is rows x columns.
const char* wrong(const Product* p, const Layout* a, const Layout* b, const Layout* c, const Layout* d) {
  if (!p || !a || !b || !c || !d) return "a product without a description";
  if (p->compute != COMPUTE_32) return "a product that is not computed in float32";
  const uint64_t high = p->turned ? a->columns : a->rows, depth = p->turned ? a->rows : a->columns;
  if (high != d->rows || b->columns != d->columns || depth != b->rows) return "matrices that do not fit each other";
  if (c->rows != d->rows || c->columns != d->columns) return "a residual of another shape";
  for (const Layout* each : {a, b, c, d}) {
    if (each->type != d->type) return "matrices of several types";
    if (!each->rows || !each->columns || each->pitch < (int64_t)each->rows) return "a column that reaches into the next one";
  }
  if (d->type != SINGLE && d->type != HALF && d->type != BRAIN) return "a type that it has no products of";
  if (p->epilogue & ~(1 | RELU | BIAS | GELU) || (p->epilogue & 1 && p->epilogue != 1)) return "an epilogue that it does not know";
  if ((p->epilogue & (RELU | GELU)) == (RELU | GELU)) return "two activations";
  if (!(p->epilogue & BIAS) != !p->bias) return "a bias without its epilogue, or none with it";
  return nullptr;
}

uint64_t mark(const Product* p, const Layout* a, const Layout* d) {
  uint64_t found = 14695981039346656037ull;
  for (uint64_t each : {(uint64_t)p->epilogue, (uint64_t)p->turned, a->rows, a->columns, d->columns, (uint64_t)d->type})
    found = (found ^ each) * 1099511628211ull;
  return found;
}

}  // namespace

EXPORT int cublasLtCreate(void** out) {
  void* current = nullptr;
  reinterpret_cast<int (*)(void**)>(driver("cuCtxGetCurrent"))(&current);
  if (!current) return refuse("a handle without a context");
  say("handle");
  return *out = new Handle{1}, OK;
}
EXPORT int cublasLtMatmulDescCreate(void** out, int compute, int scale) {
  return scale == SINGLE ? (*out = new Product{compute}, OK) : refuse("a scale that is not float32");
}
EXPORT int cublasLtMatmulDescDestroy(void* product) { return delete static_cast<Product*>(product), OK; }
EXPORT int cublasLtMatmulDescSetAttribute(void* product, int attribute, const void* value, size_t bytes) {
  Product* p = static_cast<Product*>(product);
  if (attribute == BIAS_POINTER && bytes == 8) return memcpy(&p->bias, value, 8), OK;
  int number;
  if (bytes != 4) return refuse("an attribute of other bytes");
  memcpy(&number, value, 4);
  if (attribute == TRANSPOSE_A && (number == 0 || number == 1)) return p->turned = number, OK;
  if (attribute == EPILOGUE) return p->epilogue = number, OK;
  return refuse("an attribute of a product that it does not know");
}
EXPORT int cublasLtMatrixLayoutCreate(void** out, int type, uint64_t rows, uint64_t columns, int64_t pitch) {
  return *out = new Layout{type, rows, columns, pitch}, OK;
}
EXPORT int cublasLtMatrixLayoutDestroy(void* layout) { return delete static_cast<Layout*>(layout), OK; }
EXPORT int cublasLtMatmulPreferenceCreate(void** out) { return *out = new Preference, OK; }
EXPORT int cublasLtMatmulPreferenceDestroy(void* preference) { return delete static_cast<Preference*>(preference), OK; }
EXPORT int cublasLtMatmulPreferenceSetAttribute(void* preference, int attribute, const void* value, size_t bytes) {
  Preference* p = static_cast<Preference*>(preference);
  if (attribute == 1 && bytes == 8) return memcpy(&p->workspace, value, 8), OK;
  if (attribute < 5 || attribute > 8 || bytes != 4) return refuse("a preference that it does not know");
  return memcpy(&p->aligned[attribute], value, 4), OK;
}
EXPORT int cublasLtMatmulAlgoGetHeuristic(void* handle, void* product, void* a, void* b, void* c, void* d, void* preference,
                                          int wanted, void* out, int* count) {
  const Product* p = static_cast<Product*>(product);
  const Preference* given = static_cast<Preference*>(preference);
  const Layout *left = static_cast<Layout*>(a), *made = static_cast<Layout*>(d);
  if (!handle || !given || wanted < 1) return refuse("a question without a handle");
  if (const char* why = wrong(p, left, static_cast<Layout*>(b), static_cast<Layout*>(c), made)) return refuse(why);
  say("heuristic %llu %llu %d", (unsigned long long)made->columns, (unsigned long long)made->rows, p->epilogue);
  if (said("CUBLASLT_FINDS")) return *count = 0, NOT_SUPPORTED;
  uint32_t aligned = 256;  // of all four, which is what it takes where nothing is said
  for (int side = 5; side <= 8; ++side) aligned = std::min(aligned, given->aligned.count(side) ? given->aligned.at(side) : 256u);
  Algorithm found{};
  found.algorithm[0] = mark(p, left, made);
  found.algorithm[1] = aligned;
  found.workspace = given->workspace >= WORKSPACE ? WORKSPACE : 0;
  memcpy(out, &found, sizeof found);
  return *count = 1, OK;
}
EXPORT int cublasLtMatmul(void* handle, void* product, const void* alpha, const void* a, void* left_, const void* b,
                          void* right_, const void* beta, const void* c, void* added_, void* d, void* made_,
                          const void* algorithm, void* workspace, size_t workspace_bytes, void* stream) {
  const Product p = *static_cast<Product*>(product);
  const Layout left = *static_cast<Layout*>(left_), right = *static_cast<Layout*>(right_), added = *static_cast<Layout*>(added_),
               made = *static_cast<Layout*>(made_);
  if (!handle || !static_cast<Handle*>(handle)->alive) return refuse("a product without a handle");
  if (const char* why = wrong(&p, &left, &right, &added, &made)) return refuse(why);
  if (said("CUBLASLT_TAKES")) return NOT_SUPPORTED;
  const uint64_t* chosen = static_cast<const uint64_t*>(algorithm);
  if (!chosen || chosen[0] != mark(&p, &left, &made)) return refuse("an algorithm for another product");
  for (const void* each : {a, b, c, static_cast<const void*>(d), p.bias})
    if (reinterpret_cast<uintptr_t>(each) % chosen[1]) return refuse("an operand that begins elsewhere than was said");
  if (workspace_bytes && (!workspace || reinterpret_cast<uintptr_t>(workspace) % 16 || !has(workspace, workspace_bytes)))
    return refuse("a workspace that is none");
  const float one = *static_cast<const float*>(alpha), two = *static_cast<const float*>(beta);
  if (c == d && (added.pitch != made.pitch)) return refuse("a result in place, of another pitch");
  const size_t size = made.type == SINGLE ? 4 : 2;
  if (!has(a, left.bytes()) || !has(b, right.bytes()) || !has(d, made.bytes()) || (two != 0 && !has(c, added.bytes())) ||
      (p.bias && !has(p.bias, made.rows * size)))
    return refuse("an operand that is not the device's memory");
  say("matmul %llu %llu %llu epilogue %d beta %g", (unsigned long long)made.columns, (unsigned long long)made.rows,
      (unsigned long long)right.rows, p.epilogue, two);
  const std::function<void()> work = [=] {
    if (workspace_bytes) memset(workspace, 0xff, workspace_bytes);
    for (uint64_t column = 0; column < made.columns; ++column)
      for (uint64_t row = 0; row < made.rows; ++row) {
        float sum = 0;
        for (uint64_t k = 0; k < right.rows; ++k) {
          const size_t at = p.turned ? row * left.pitch + k : k * left.pitch + row;
          sum += read(a, left.type, at) * read(b, right.type, column * right.pitch + k);
        }
        sum *= one;
        if (two != 0) sum += two * read(c, added.type, column * added.pitch + row);
        if (p.bias) sum += read(p.bias, made.type, row);
        if (p.epilogue & RELU) sum = sum > 0 || std::isnan(sum) ? sum : 0;
        if (p.epilogue & GELU) sum = 0.5f * sum * (1 + std::tanh(0.7978845608f * (sum + 0.044715f * sum * sum * sum)));
        write(d, made.type, column * made.pitch + row, sum);
      }
  };
  return reinterpret_cast<int (*)(void*, const std::function<void()>*)>(driver("standInQueue"))(stream, &work);
}
