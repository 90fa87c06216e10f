// A small CNN that ends in probabilities.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

struct Net : torch::nn::Module {
  Net();
  torch::Tensor forward(torch::Tensor x);
  // Mean negative log-likelihood of the right classes.
  torch::Tensor loss(const torch::Tensor& probabilities, const torch::Tensor& labels);

  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
  torch::nn::Dropout dropout{nullptr};
  torch::nn::Linear head{nullptr};
};
