// What the tests of the C interface of cuda_scan.h share: memory of the device, tensors in it, and a list. Built twice:
// with the loops on the host, where that memory is the host's, and, with FINITUDE_TEST_ON_GPU, against a device.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "finitude/cuda_scan.h"
#include "sense/scan_test_util.h"

#ifdef FINITUDE_TEST_ON_GPU
#include <cuda_runtime_api.h>
#endif

namespace finitude::sense {

#ifdef FINITUDE_TEST_ON_GPU
inline void* allocate(std::size_t size_bytes) {
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, size_bytes);
  EXPECT_EQ(error, cudaSuccess) << cudaGetErrorString(error) << " (a GPU is expected here)";
  return error == cudaSuccess ? memory : nullptr;
}
inline void release(void* memory) { cudaFree(memory); }
// Waits: cudaMemcpy returns when pageable memory is staged, and a stream that does not block would run ahead of the
// copy.
inline void to_device(void* to, const void* from, std::size_t n) {
  EXPECT_EQ(cudaMemcpy(to, from, n, cudaMemcpyHostToDevice), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
}
inline void from_device(void* to, const void* from, std::size_t n) {
  EXPECT_EQ(cudaMemcpy(to, from, n, cudaMemcpyDeviceToHost), cudaSuccess);
}
#else
inline void* allocate(std::size_t size_bytes) { return std::aligned_alloc(256, (size_bytes + 255) / 256 * 256); }
inline void release(void* memory) { std::free(memory); }
inline void to_device(void* to, const void* from, std::size_t n) { std::memcpy(to, from, n); }
inline void from_device(void* to, const void* from, std::size_t n) { std::memcpy(to, from, n); }
#endif

// A tensor on the device with its twin on the host.
class Tensor {
 public:
  Tensor(DType dtype, std::size_t numel, std::size_t shift, Mix mix, std::mt19937_64& random)
      : dtype_(dtype), numel_(numel), offset_(shift * info(dtype).size_bytes), host_(numel * element_size(dtype) + 1) {
    fill(host_.data(), numel * static_cast<std::size_t>(info(dtype).reals_per_element), bit_format(dtype), mix, random);
    device_ = static_cast<char*>(allocate(host_.size() + offset_));
    upload();
  }
  ~Tensor() { release(device_); }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  void set(std::size_t real, std::uint64_t code) {
    put(host_.data(), real, code, bit_format(dtype_));
    upload();
  }
  finitude_cuda_tensor view() const { return {device_ + offset_, numel_, static_cast<std::uint32_t>(dtype_), 0}; }
  Health expected() const { return reference_scan(host_.data(), numel_, dtype_); }

 private:
  void upload() {
    if (numel_ != 0) to_device(device_ + offset_, host_.data(), numel_ * element_size(dtype_));
  }
  DType dtype_;
  std::size_t numel_, offset_;
  std::vector<unsigned char> host_;
  char* device_ = nullptr;
};

class CudaScan : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(finitude_cuda_abi(), FINITUDE_CUDA_ABI);
    ASSERT_EQ(finitude_cuda_open(0, &list_), FINITUDE_CUDA_OK) << finitude_cuda_why(nullptr);
  }
  void TearDown() override { finitude_cuda_close(list_); }

  finitude_cuda_summary scan(const finitude_cuda_options* options = nullptr) {
    finitude_cuda_summary summary{};
    EXPECT_EQ(finitude_cuda_scan(list_, nullptr, options, &ticket_), FINITUDE_CUDA_OK) << finitude_cuda_why(list_);
    EXPECT_EQ(finitude_cuda_wait(list_, ticket_, &summary), FINITUDE_CUDA_OK) << finitude_cuda_why(list_);
    EXPECT_EQ(summary.ticket, ticket_);
    return summary;
  }
  void set(const std::vector<finitude_cuda_tensor>& tensors) {
    ASSERT_EQ(finitude_cuda_set(list_, tensors.data(), static_cast<std::uint32_t>(tensors.size()), nullptr),
              FINITUDE_CUDA_OK)
        << finitude_cuda_why(list_);
  }

  finitude_cuda_list* list_ = nullptr;
  std::uint64_t ticket_ = 0;
  std::mt19937_64 random_{7};
};

}  // namespace finitude::sense
