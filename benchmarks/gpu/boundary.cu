// What it costs to end one kernel and begin the next, to cross the grid inside one, and to move bytes.
//
// Build: nvcc -arch=sm_90 -O3 boundary.cu -o boundary. Prints one JSON object. Every time is the median of replays.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#define OK(call)                                                                               \
  do {                                                                                         \
    cudaError_t e = (call);                                                                    \
    if (e != cudaSuccess) { fprintf(stderr, "%s:%d %s\n", #call, __LINE__, cudaGetErrorString(e)); exit(1); } \
  } while (0)

__global__ void empty() {}

// Every value becomes 1 larger: whoever starts too early shows in the sum. Vectors of 16 bytes, grid-stride.
__global__ void step(float4* x, long n) {
  for (long i = blockIdx.x * (long)blockDim.x + threadIdx.x; i < n; i += (long)gridDim.x * blockDim.x) {
    float4 v = x[i];
    v.x += 1.f; v.y += 1.f; v.z += 1.f; v.w += 1.f;
    x[i] = v;
  }
}

// The same under programmatic dependent launch: `early` lets the next kernel begin at once, else after the last store.
template <bool early>
__global__ void step_dependent(float4* x, long n) {
  if (early) asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
  for (long i = blockIdx.x * (long)blockDim.x + threadIdx.x; i < n; i += (long)gridDim.x * blockDim.x) {
    float4 v = x[i];
    v.x += 1.f; v.y += 1.f; v.z += 1.f; v.w += 1.f;
    x[i] = v;
  }
  if (!early) asm volatile("griddepcontrol.launch_dependents;");
}

__device__ void grid_barrier(unsigned* count, unsigned blocks, unsigned round) {  // count only grows
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(count, 1u);
    unsigned seen;
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(count) : "memory");
    while (seen < blocks * (round + 1));
  }
  __syncthreads();
}

// `rounds` steps over x with a barrier after each; block b reads what block b + 1 wrote the round before.
__global__ void crossing(float* x, unsigned* count, int rounds) {
  const unsigned blocks = gridDim.x;
  for (int r = 0; r < rounds; ++r) {
    const float other = __ldcg(x + (r & 1) * blocks * blockDim.x + (blockIdx.x + 1) % blocks * blockDim.x + threadIdx.x);
    __stcg(x + (~r & 1) * blocks * blockDim.x + blockIdx.x * blockDim.x + threadIdx.x, other + 1.f);
    grid_barrier(count, blocks, r);
  }
}

__global__ void copy(const uint4* __restrict__ x, uint4* __restrict__ y, long n) {
  const long first = (long)blockIdx.x * blockDim.x * 4 + threadIdx.x;
  uint4 v[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) if (first + i * blockDim.x < n) v[i] = x[first + i * blockDim.x];
#pragma unroll
  for (int i = 0; i < 4; ++i) if (first + i * blockDim.x < n) y[first + i * blockDim.x] = v[i];
}

__global__ void read(const uint4* __restrict__ x, unsigned* y, long n) {
  const long first = (long)blockIdx.x * blockDim.x * 4 + threadIdx.x;
  unsigned sum = 0;
  uint4 v[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) if (first + i * blockDim.x < n) v[i] = x[first + i * blockDim.x];
#pragma unroll
  for (int i = 0; i < 4; ++i) if (first + i * blockDim.x < n) sum += v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
  if (sum == 0x12345678) *y = sum;
}

static cudaStream_t stream;

static double timed(const std::function<void()>& work, int repeats = 15) {  // microseconds
  cudaEvent_t a, b;
  OK(cudaEventCreate(&a)); OK(cudaEventCreate(&b));
  std::vector<double> found;
  for (int i = 0; i < repeats + 3; ++i) {
    OK(cudaEventRecord(a, stream)); work(); OK(cudaEventRecord(b, stream)); OK(cudaEventSynchronize(b));
    float ms; OK(cudaEventElapsedTime(&ms, a, b));
    if (i >= 3) found.push_back(ms * 1e3);
  }
  OK(cudaGetLastError());
  std::sort(found.begin(), found.end());
  return found[found.size() / 2];
}

static double replayed(const std::function<void()>& work) {
  cudaGraph_t graph; cudaGraphExec_t exec;
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  work();
  OK(cudaStreamEndCapture(stream, &graph));
  OK(cudaGraphInstantiate(&exec, graph, 0));
  double us = timed([&] { OK(cudaGraphLaunch(exec, stream)); });
  OK(cudaGraphExecDestroy(exec)); OK(cudaGraphDestroy(graph));
  return us;
}

template <class... A>
static void launch(void (*kernel)(A...), int grid, int threads, int attribute, A... values) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid; config.blockDim = threads; config.stream = stream;
  cudaLaunchAttribute given[1];
  if (attribute) {
    given[0].id = (cudaLaunchAttributeID)attribute;
    if (attribute == cudaLaunchAttributeCooperative) given[0].val.cooperative = 1;
    else given[0].val.programmaticStreamSerializationAllowed = 1;
    config.attrs = given; config.numAttrs = 1;
  }
  OK(cudaLaunchKernelEx(&config, kernel, values...));
}

static const int PDL = cudaLaunchAttributeProgrammaticStreamSerialization;

// Chains of `length` kernels over so many bytes, by way of launching; `wrong` counts values that missed a step.
static void chain(const char* name, size_t bytes, int blocks, bool last) {
  const int length = 200, threads = 256;
  const long n = bytes / 16;
  float4* x; OK(cudaMalloc(&x, bytes));
  const int grid = blocks ? blocks : (int)std::min<long>((n + threads - 1) / threads, 132 * 8);
  std::vector<float> host(n * 4);
  long wrong = 0;
  auto run = [&](auto kernel, int attribute, bool graph) {
    auto work = [&] { for (int i = 0; i < length; ++i) launch(kernel, grid, threads, attribute, x, n); };
    OK(cudaMemset(x, 0, bytes));
    double us = graph ? replayed(work) : timed(work);
    OK(cudaMemcpy(host.data(), x, bytes, cudaMemcpyDeviceToHost));
    for (float v : host) wrong += v != host[0] || host[0] != (graph ? 18 : 18) * (float)length;
    return us / length;
  };
  double e = 0, eg = 0;
  { auto work = [&] { for (int i = 0; i < length; ++i) launch(empty, grid, threads, 0); }; e = timed(work); eg = replayed(work); }
  printf("  {\"name\": \"%s\", \"bytes\": %zu, \"blocks\": %d, \"empty_stream_us\": %.3f, \"empty_graph_us\": %.3f, ",
         name, bytes, grid, e / length, eg / length);
  printf("\"stream_us\": %.3f, ", run(step, 0, false));
  printf("\"graph_us\": %.3f, ", run(step, 0, true));
  printf("\"dependent_stream_us\": %.3f, ", run(step_dependent<true>, PDL, false));
  printf("\"dependent_graph_us\": %.3f, ", run(step_dependent<true>, PDL, true));
  printf("\"dependent_late_graph_us\": %.3f, ", run(step_dependent<false>, PDL, true));
  printf("\"wrong\": %ld}%s\n", wrong, last ? "" : ",");
  OK(cudaFree(x));
}

static void barrier(int per, int threads, bool last) {
  const int blocks = 132 * per, rounds = 200;
  float* x; unsigned* count;
  OK(cudaMalloc(&x, 2ul * blocks * threads * 4)); OK(cudaMalloc(&count, 4));
  OK(cudaMemset(x, 0, 2ul * blocks * threads * 4));
  double us[2];
  long wrong = 0;
  for (int graph = 0; graph < 2; ++graph) {  // a cooperative launch, in a stream and under capture
    auto work = [&] {
      OK(cudaMemsetAsync(count, 0, 4, stream));
      OK(cudaMemsetAsync(x, 0, 2ul * blocks * threads * 4, stream));
      launch(crossing, blocks, threads, (int)cudaLaunchAttributeCooperative, x, count, rounds);
    };
    auto none = [&] {
      OK(cudaMemsetAsync(count, 0, 4, stream));
      OK(cudaMemsetAsync(x, 0, 2ul * blocks * threads * 4, stream));
      launch(crossing, blocks, threads, (int)cudaLaunchAttributeCooperative, x, count, 0);
    };
    const double without = graph ? replayed(none) : timed(none);
    us[graph] = ((graph ? replayed(work) : timed(work)) - without) / rounds;
    std::vector<float> host(blocks * threads);
    OK(cudaMemcpy(host.data(), x, host.size() * 4, cudaMemcpyDeviceToHost));
    for (float v : host) wrong += v != rounds;
  }
  printf("  {\"blocks_per_sm\": %d, \"threads\": %d, \"stream_us\": %.3f, \"captured_us\": %.3f, \"wrong\": %ld}%s\n", per,
         threads, us[0], us[1], wrong, last ? "" : ",");
  OK(cudaFree(x)); OK(cudaFree(count));
}

static void bytes_per_second(size_t bytes, bool last) {
  uint4 *x, *y;
  OK(cudaMalloc(&x, bytes)); OK(cudaMalloc(&y, bytes));
  std::vector<unsigned> noise(bytes / 4);
  for (auto& v : noise) v = rand();
  OK(cudaMemcpy(x, noise.data(), bytes, cudaMemcpyHostToDevice));
  const long n = bytes / 16;
  const int times = (int)std::max<size_t>(1, std::min<size_t>(100, (1ul << 30) / bytes));
  auto rate = [&](int moved, auto one) {
    return moved * (double)bytes * times / replayed([&] { for (int i = 0; i < times; ++i) one(); }) * 1e-3;
  };
  double best = 0, reading = 0;
  for (int threads : {128, 256, 512, 1024}) {
    const int grid = (int)((n + threads * 4 - 1) / (threads * 4));
    best = std::max(best, rate(2, [&] { launch(copy, grid, threads, 0, (const uint4*)x, y, n); }));
    reading = std::max(reading, rate(1, [&] { launch(read, grid, threads, 0, (const uint4*)x, (unsigned*)y, n); }));
  }
  const double library = rate(2, [&] { OK(cudaMemcpyAsync(y, x, bytes, cudaMemcpyDeviceToDevice, stream)); });
  printf("  {\"bytes\": %zu, \"kernel_gb_s\": %.0f, \"memcpy_gb_s\": %.0f, \"read_gb_s\": %.0f}%s\n", bytes, best, library,
         reading, last ? "" : ",");
  OK(cudaFree(x)); OK(cudaFree(y));
}

int main() {
  OK(cudaStreamCreate(&stream));
  cudaDeviceProp p; OK(cudaGetDeviceProperties(&p, 0));
  printf("{\"device\": \"%s\", \"multiprocessors\": %d, \"l2_bytes\": %d, \"memory_bytes\": %zu, \"shared_optin\": %zu,\n", p.name,
         p.multiProcessorCount, p.l2CacheSize, p.totalGlobalMem, p.sharedMemPerBlockOptin);
  printf("\"chains\": [\n");
  chain("one block", 4096, 1, false);
  chain("132 blocks", 132 * 4096, 132, false);
  for (int kb : {64, 256, 1024, 4096, 16384}) chain("bytes", kb * 1024ul, 0, kb == 16384);
  printf("],\n\"barriers\": [\n");
  for (int per : {1, 2, 4, 8}) barrier(per, 256, false);
  barrier(1, 1024, false); barrier(2, 1024, true);
  printf("],\n\"copies\": [\n");
  for (int mb : {1, 2, 4, 8, 16, 24, 64, 256, 1024}) bytes_per_second((size_t)mb << 20, mb == 1024);
  printf("]}\n");
}
