#include "net.h"

#include <finitude/scope.h>

Net::Net() {
  conv1 = register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 8, 3).padding(1)));
  conv2 = register_module("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 16, 3).padding(1)));
  dropout = register_module("dropout", torch::nn::Dropout(0.1));
  head = register_module("head", torch::nn::Linear(16 * 4 * 4, 10));
}

torch::Tensor Net::forward(torch::Tensor x) {
  FINITUDE_HERE("Net");
  x = torch::max_pool2d(torch::relu(conv1->forward(x)), 2);
  x = torch::max_pool2d(torch::relu(conv2->forward(x)), 2);
  x = dropout->forward(x.flatten(1));
  return torch::softmax(head->forward(x), 1);
}

torch::Tensor Net::loss(const torch::Tensor& probabilities, const torch::Tensor& labels) {
  FINITUDE_HERE("loss");
  // A probability that softmax rounded to zero has no logarithm: cross_entropy of the logits would do.
  const torch::Tensor logs = torch::log(probabilities);
  return -logs.gather(1, labels.unsqueeze(1)).mean();
}
