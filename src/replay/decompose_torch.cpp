#include "replay/decompose_torch.h"

#include "replay/plain_call_torch.h"

namespace finitude::replay {
namespace {

bool is_half(const at::Tensor& t) {
  return t.defined() && (t.scalar_type() == at::kHalf || t.scalar_type() == at::kBFloat16);
}

}  // namespace

Tensors by_parts(const std::string& op, const c10::FunctionSchema& schema, const std::vector<c10::IValue>& arguments) {
  for (const auto find : {plain_softmax, plain_norm, plain_loss, plain_sum}) {
    const PlainForm form = find(op);
    if (form == nullptr) continue;
    Tensors results = form(PlainCall(schema, arguments));
    // Its first argument says in which format it answers.
    if (!arguments.empty() && arguments[0].isTensor() && is_half(arguments[0].toTensor())) {
      for (at::Tensor& t : results) {
        if (t.defined() && t.scalar_type() == at::kFloat) t = t.to(arguments[0].toTensor().scalar_type());
      }
    }
    return results;
  }
  return {};
}

}  // namespace finitude::replay
