// What the tests of the recorder share: a folder of their own, a small net, bits to compare.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "finitude/recorder.h"

namespace finitude {

struct Net : torch::nn::Module {
  Net() {
    first = register_module("first", torch::nn::Linear(6, 8));
    norm = register_module("norm", torch::nn::BatchNorm1d(8));
    dropout = register_module("dropout", torch::nn::Dropout(0.25));
    head = register_module("head", torch::nn::Linear(8, 3));
  }
  at::Tensor forward(const at::Tensor& x) {
    return head->forward(dropout->forward(at::relu(norm->forward(first->forward(x)))));
  }

  torch::nn::Linear first{nullptr}, head{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Dropout dropout{nullptr};
};

// Copies of tensors, to be compared bit by bit: NaN equals itself.
inline std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> out;
  for (const at::Tensor& t : tensors) out.push_back(t.detach().clone());
  return out;
}

inline bool same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const at::Tensor x = a[i].detach().contiguous(), y = b[i].detach().contiguous();
    if (x.sizes() != y.sizes() || x.dtype() != y.dtype() ||
        std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) != 0)
      return false;
  }
  return true;
}

inline std::vector<at::Tensor> all_of(const Net& net) {
  std::vector<at::Tensor> out = net.parameters();
  for (const at::Tensor& b : net.buffers()) out.push_back(b);
  return out;
}

inline constexpr int kBadStep = 4;  // the step that goes wrong in training()

// Ten steps of the net; the logarithm of an exact zero in step kBadStep, unless `healthy`. Returns what came of the
// steps.
template <typename Step>
void training(Net& net, const Step& step, bool healthy = false) {
  for (int i = 0; i < 10; ++i) {
    const at::Tensor x = at::randn({12, 6});
    const at::Tensor target = at::randint(3, {12}, at::kLong);
    const bool bad = i == kBadStep && !healthy;
    const auto closure = [&] {
      net.zero_grad();
      at::Tensor p = at::softmax(net.forward(x), 1);
      if (bad) p = p * at::where(at::arange(3) == 1, 0.0, 1.0);
      FINITUDE_HERE("loss");
      at::Tensor loss = -at::log(p).gather(1, target.unsqueeze(1)).mean();
      loss.backward();
      return loss;
    };
    if (!step(i, closure)) return;
  }
}

// A parameter whose loss and gradient are NaN from the first step on.
struct AlwaysBad {
  at::Tensor w = at::ones({3}).requires_grad_();
  torch::optim::SGD sgd{std::vector<at::Tensor>{w}, torch::optim::SGDOptions(0.1)};
  at::Tensor operator()() {
    sgd.zero_grad();
    at::Tensor loss = at::sqrt(-w).sum();
    loss.backward();
    return loss;
  }
};

class RecorderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "finitude-api-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    torch::manual_seed(5);
  }
  void TearDown() override {
    std::error_code error;
    std::filesystem::remove_all(folder_, error);
  }
  RecorderOptions options(OnAlarm on_alarm = OnAlarm::kStop) {
    RecorderOptions options;
    options.on_alarm = on_alarm;
    options.runs = folder_ + "/runs";
    options.debug_lines = false;  // the debug information of a test program is large
    options.say = [this](std::string_view text) { said_ += text; };
    return options;
  }
  // The only alarm of a report that is valid.
  static Alarm alarm_of(const Recorder& recorder) {
    const Result<Report> report = recorder.report();
    EXPECT_TRUE(report.ok()) << report.why();
    if (!report.ok() || report->alarms.size() != 1) {
      ADD_FAILURE() << recorder.report_json();
      return {};
    }
    return report->alarms.front();
  }

  std::string folder_, said_;
};

}  // namespace finitude
