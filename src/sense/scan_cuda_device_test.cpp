// What only a device shows of the C interface of cuda_scan.h: nothing waits, streams keep their order, graphs are
// captured, and the device of the caller stays current. Without FINITUDE_TEST_ON_GPU there is nothing in it.
#ifdef FINITUDE_TEST_ON_GPU
#include <bit>
#include <cstdint>

#include "sense/scan_cuda_testing.h"

namespace finitude::sense {
namespace {

TEST_F(CudaScan, NothingReachesTheHostBeforeTheDevice) {
  Tensor gradient(DType::kFloat32, 64 << 20, 0, Mix::kOrdinary, random_);
  set({gradient.view()});
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  finitude_cuda_summary summary{};
  for (int i = 0; i < 20; ++i) ASSERT_EQ(finitude_cuda_scan(list_, nullptr, nullptr, &ticket_), FINITUDE_CUDA_OK);
  EXPECT_EQ(finitude_cuda_poll(list_, ticket_, &summary), FINITUDE_CUDA_NOT_READY)
      << "20 reads of 256 MB are not done yet";
  ASSERT_EQ(finitude_cuda_wait(list_, ticket_, &summary), FINITUDE_CUDA_OK);
}

TEST_F(CudaScan, StreamsKeepTheirOrder) {
  Tensor gradient(DType::kBFloat16, 32 << 20, 0, Mix::kOrdinary, random_);
  set({gradient.view()});
  cudaStream_t streams[3];
  for (auto& stream : streams) ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  const finitude_cuda_summary once = scan();
  for (int i = 0; i < 30; ++i) {
    ASSERT_EQ(finitude_cuda_scan(list_, streams[i % 3], nullptr, &ticket_), FINITUDE_CUDA_OK)
        << finitude_cuda_why(list_);
  }
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  for (std::uint64_t t = ticket_ - 29; t <= ticket_; ++t) {
    finitude_cuda_summary summary{};
    ASSERT_EQ(finitude_cuda_poll(list_, t, &summary), FINITUDE_CUDA_OK);
    EXPECT_EQ(std::bit_cast<std::uint64_t>(summary.sum_sq), std::bit_cast<std::uint64_t>(once.sum_sq));
  }
  for (auto& stream : streams) cudaStreamDestroy(stream);
}

TEST_F(CudaScan, AGraphScansAnewAtEachReplay) {
  Tensor gradient(DType::kFloat32, 100000, 0, Mix::kFinite, random_);
  set({gradient.view()});
  scan();
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  EXPECT_EQ(finitude_cuda_capturing(0, stream), 0);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_EQ(finitude_cuda_capturing(0, stream), 1);
  const finitude_cuda_tensor two[2] = {gradient.view(), gradient.view()};
  EXPECT_EQ(finitude_cuda_set(list_, two, 2, stream), FINITUDE_CUDA_CAPTURE);
  ASSERT_EQ(finitude_cuda_scan(list_, stream, nullptr, &ticket_), FINITUDE_CUDA_OK) << finitude_cuda_why(list_);
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  finitude_cuda_summary summary{};
  EXPECT_EQ(finitude_cuda_poll(list_, ticket_, &summary), FINITUDE_CUDA_NOT_READY);
  for (std::uint32_t replay = 1; replay <= 3; ++replay) {
    gradient.set(99999, replay == 2 ? 0x7fc00000 : 0);
    ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    ASSERT_EQ(finitude_cuda_poll(list_, ticket_, &summary), FINITUDE_CUDA_OK);
    EXPECT_EQ(summary.runs, replay);
    EXPECT_EQ(summary.bad_tensors, replay == 2 ? 1u : 0u);
  }
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

// Verdicts of steps before are read while a graph is captured on another stream.
TEST_F(CudaScan, WaitingBesideACaptureLeavesItWhole) {
  Tensor gradient(DType::kFloat32, 8 << 20, 0, Mix::kOrdinary, random_);
  gradient.set(5, 0x7f800000);
  set({gradient.view()});
  cudaStream_t stream;
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(finitude_cuda_scan(list_, nullptr, nullptr, &ticket_), FINITUDE_CUDA_OK) << finitude_cuda_why(list_);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  finitude_cuda_summary summary{};
  finitude_cuda_health row{};
  EXPECT_NE(finitude_cuda_query(list_), FINITUDE_CUDA_DEVICE) << finitude_cuda_why(list_);
  EXPECT_EQ(finitude_cuda_wait(list_, ticket_, &summary), FINITUDE_CUDA_OK) << finitude_cuda_why(list_);
  EXPECT_EQ(finitude_cuda_fetch(list_, ticket_, &row, 1), FINITUDE_CUDA_OK) << finitude_cuda_why(list_);
  EXPECT_EQ(finitude_cuda_query(list_), FINITUDE_CUDA_OK);
  EXPECT_EQ(row.pos_inf, 1u);
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess) << "the capture was spoiled";
  if (graph != nullptr) cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

TEST_F(CudaScan, TheCallersDeviceStaysCurrent) {
  int devices = 0;
  ASSERT_EQ(cudaGetDeviceCount(&devices), cudaSuccess);
  if (devices < 2) GTEST_SKIP() << "this machine has one device, which is always the current one";
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  set({});
  scan();
  int current = -1;
  cudaGetDevice(&current);
  EXPECT_EQ(current, 1);
  cudaSetDevice(0);
}

}  // namespace
}  // namespace finitude::sense
#endif
