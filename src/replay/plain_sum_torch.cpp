// Products with a sum, and sums with a quotient.
#include <map>

#include "replay/plain_call_torch.h"

namespace finitude::replay {
namespace {

Tensors plus_quotient(const PlainCall& call) {
  return {call.tensor("self") + call.tensor("tensor1") / call.tensor("tensor2") * call.real("value")};
}

// With a factor of 0 the sum is not read.
Tensors plus_product(const PlainCall& call, const char* left, const char* right) {
  const double beta = call.real("beta");
  const at::Tensor product = call.tensor(left).matmul(call.tensor(right)) * call.real("alpha");
  return {beta == 0 ? product : call.tensor("self") * beta + product};
}
Tensors addmm(const PlainCall& call) { return plus_product(call, "mat1", "mat2"); }
Tensors baddbmm(const PlainCall& call) { return plus_product(call, "batch1", "batch2"); }

}  // namespace

PlainForm plain_sum(std::string_view op) {
  static const std::map<std::string_view, PlainForm> known{
      {"aten::addcdiv", plus_quotient},
      {"aten::addmm", addmm},
      {"aten::baddbmm", baddbmm},
  };
  const auto found = known.find(op);
  return found == known.end() ? nullptr : found->second;
}

}  // namespace finitude::replay
