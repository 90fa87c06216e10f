// How fast a scan is on this GPU, against a plain read of the same memory. Prints JSON. Built by cmake where nvcc is
// (build/*/finitude_scan_bench) and run by `make gpu`.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "finitude/cuda_scan.h"
#include "finitude/dtype.h"

namespace {

#define CHECK(call)                                                       \
  do {                                                                    \
    if (const cudaError_t error = (call); error != cudaSuccess) {         \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error)); \
      std::exit(1);                                                       \
    }                                                                     \
  } while (0)
#define CHECK_SCAN(call)                                                   \
  do {                                                                     \
    if ((call) != FINITUDE_CUDA_OK) {                                      \
      std::fprintf(stderr, "%s: %s\n", #call, finitude_cuda_why(nullptr)); \
      std::exit(1);                                                        \
    }                                                                      \
  } while (0)

// The ceiling: every vector read once, kept by an exclusive or that the compiler cannot drop.
__global__ void __launch_bounds__(256) read_kernel(const uint4* at, std::uint64_t vectors, std::uint32_t* out) {
  const std::uint64_t stride = std::uint64_t{gridDim.x} * blockDim.x;
  std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  std::uint32_t x = 0;
  for (; i + 3 * stride < vectors; i += 4 * stride) {
    const uint4 a = __ldg(at + i), b = __ldg(at + i + stride), c = __ldg(at + i + 2 * stride),
                d = __ldg(at + i + 3 * stride);
    x ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
  }
  for (; i < vectors; i += stride) {
    const uint4 a = __ldg(at + i);
    x ^= a.x ^ a.y ^ a.z ^ a.w;
  }
  if (x == 0x9e3779b9u) *out = x;
}

// Ordinary values near 1 and -1 in every format that is measured.
__global__ void fill_kernel(std::uint32_t* at, std::uint64_t words) {
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words;
       i += std::uint64_t{gridDim.x} * blockDim.x) {
    at[i] = 0x38383838u ^ (static_cast<std::uint32_t>(i) * 2654435761u & 0x87038703u);
  }
}

struct Times {
  double median, low, high;  // microseconds; low and high: 10th and 90th percentile
};

template <typename Run>
Times measure(int repeats, Run run) {
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  for (int i = 0; i < 5; ++i) run();
  CHECK(cudaDeviceSynchronize());
  std::vector<double> us;
  for (int i = 0; i < repeats; ++i) {
    CHECK(cudaEventRecord(begin));
    run();
    CHECK(cudaEventRecord(end));
    CHECK(cudaEventSynchronize(end));
    float ms = 0;
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    us.push_back(ms * 1e3);
  }
  std::sort(us.begin(), us.end());
  CHECK(cudaEventDestroy(begin));
  CHECK(cudaEventDestroy(end));
  return {us[us.size() / 2], us[us.size() / 10], us[us.size() * 9 / 10]};
}

bool first = true;
void row(const char* what, const std::string& of, double bytes, const Times& t, double read_us) {
  std::printf(
      "%s\n  {\"what\": \"%s\", \"of\": \"%s\", \"bytes\": %.0f, \"us\": %.3f, \"us_low\": %.3f, \"us_high\": %.3f, "
      "\"read_us\": %.3f}",
      first ? "" : ",", what, of.c_str(), bytes, t.median, t.low, t.high, read_us);
  first = false;
}

}  // namespace

int main() {
  using finitude::sense::DType;
  int devices = 0;
  CHECK(cudaGetDeviceCount(&devices));
  cudaDeviceProp properties{};
  CHECK(cudaGetDeviceProperties(&properties, 0));
  int driver = 0, runtime = 0, clock_khz = 0, bus_bits = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  cudaDeviceGetAttribute(&clock_khz, cudaDevAttrMemoryClockRate, 0);
  cudaDeviceGetAttribute(&bus_bits, cudaDevAttrGlobalMemoryBusWidth, 0);
  std::printf(
      "{\"device\": \"%s\", \"driver\": %d, \"runtime\": %d, \"processors\": %d, \"memory_gb_s\": %.0f, \"rows\": [",
      properties.name, driver, runtime, properties.multiProcessorCount, 2.0 * clock_khz * 1e3 * bus_bits / 8 / 1e9);

  std::size_t free_bytes = 0, total_bytes = 0;
  CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  const std::uint64_t most = std::min<std::uint64_t>(std::uint64_t{4} << 30, free_bytes / 2);
  char* memory = nullptr;
  std::uint32_t* sink = nullptr;
  CHECK(cudaMalloc(&memory, most));
  CHECK(cudaMalloc(&sink, 4));
  fill_kernel<<<4096, 256>>>(reinterpret_cast<std::uint32_t*>(memory), most / 4);
  CHECK(cudaDeviceSynchronize());
  finitude_cuda_list* list = nullptr;
  CHECK_SCAN(finitude_cuda_open(0, &list));
  std::uint64_t ticket = 0;

  const struct {
    DType dtype;
    const char* name;
    std::uint64_t size;
  } formats[] = {{DType::kFloat32, "float32", 4},
                 {DType::kBFloat16, "bfloat16", 2},
                 {DType::kFloat16, "float16", 2},
                 {DType::kFloat64, "float64", 8},
                 {DType::kFloat8E4M3FN, "float8_e4m3fn", 1}};
  const int blocks = properties.multiProcessorCount * 8;
  for (const std::uint64_t mb : {1, 16, 64, 256, 1024, 2048}) {
    const std::uint64_t bytes = mb << 20;
    if (bytes > most) continue;
    // Buffers in rotation, so that what fits into the L2 cache is not read from there.
    const std::uint64_t places = std::min<std::uint64_t>(most / bytes, 64);
    std::uint64_t turn = 0;
    const int repeats = mb >= 256 ? 60 : 200;
    const Times read = measure(repeats, [&] {
      read_kernel<<<blocks, 256>>>(reinterpret_cast<const uint4*>(memory + turn++ % places * bytes), bytes / 16, sink);
    });
    row("read", std::to_string(mb) + " MB", static_cast<double>(bytes), read, read.median);
    for (const auto& format : formats) {
      std::vector<finitude_cuda_list*> lists;  // one per place: tables stay as they are
      const std::uint64_t used = std::min<std::uint64_t>(places, 8);
      for (std::uint64_t p = 0; p < used; ++p) {
        finitude_cuda_list* one = nullptr;
        CHECK_SCAN(finitude_cuda_open(0, &one));
        const finitude_cuda_tensor tensor{memory + p * (places / used) * bytes, bytes / format.size,
                                          static_cast<std::uint32_t>(format.dtype), 0};
        CHECK_SCAN(finitude_cuda_set(one, &tensor, 1, nullptr));
        lists.push_back(one);
      }
      const Times scan =
          measure(repeats, [&] { CHECK_SCAN(finitude_cuda_scan(lists[turn++ % used], nullptr, nullptr, &ticket)); });
      row("scan", std::to_string(mb) + " MB " + format.name, static_cast<double>(bytes), scan, read.median);
      for (finitude_cuda_list* one : lists) finitude_cuda_close(one);
    }
  }
  {  // many small tensors; and as many as a model of a billion parameters has
    std::vector<finitude_cuda_tensor> small;
    for (std::uint64_t i = 0; i < 1000; ++i)
      small.push_back({memory + i * 8192, 1024, static_cast<std::uint32_t>(DType::kFloat32), 0});
    CHECK_SCAN(finitude_cuda_set(list, small.data(), 1000, nullptr));
    const auto scan = [&] { CHECK_SCAN(finitude_cuda_scan(list, nullptr, nullptr, &ticket)); };
    row("scan", "1000 tensors of 4 KB", 1000 * 4096.0, measure(500, scan), 0);
    std::vector<finitude_cuda_tensor> model;
    std::uint64_t at = 0;
    const auto add = [&](std::uint64_t numel) {
      model.push_back({memory + at, numel, static_cast<std::uint32_t>(DType::kBFloat16), 0});
      at += (numel * 2 + 511) / 512 * 512;
    };
    add(std::uint64_t{32000} * 2048);  // 22 layers of width 2048, as in a llama of 1.1 billion
    for (int layer = 0; layer < 22; ++layer) {
      for (const std::uint64_t numel :
           {2048 * 2048, 2048 * 256, 2048 * 256, 2048 * 2048, 2048 * 5632, 2048 * 5632, 5632 * 2048, 2048, 2048})
        add(numel);
    }
    add(2048);
    add(std::uint64_t{32000} * 2048);
    if (at <= most) {
      CHECK_SCAN(finitude_cuda_set(list, model.data(), static_cast<std::uint32_t>(model.size()), nullptr));
      const Times read =
          measure(60, [&] { read_kernel<<<blocks, 256>>>(reinterpret_cast<const uint4*>(memory), at / 16, sink); });
      row("scan", "1.1 billion bfloat16 in " + std::to_string(model.size()) + " tensors", static_cast<double>(at),
          measure(60, scan), read.median);
    }
  }
  std::printf("\n]}\n");
  finitude_cuda_close(list);
  CHECK(cudaGetLastError());
  return 0;
}
