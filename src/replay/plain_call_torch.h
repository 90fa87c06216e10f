// The arguments of a call by their names, as plain forms of operators want them.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace finitude::replay {

class PlainCall {
 public:
  PlainCall(const c10::FunctionSchema& schema, const std::vector<c10::IValue>& arguments)
      : schema_(schema), arguments_(arguments) {}

  const c10::IValue& value(std::string_view name) const {
    for (std::size_t i = 0; i < arguments_.size() && i < schema_.arguments().size(); ++i) {
      if (schema_.arguments()[i].name() == name) return arguments_[i];
    }
    TORCH_CHECK(false, "no argument ", name);
  }
  // Undefined where it is not given. Of half precision: as float32.
  at::Tensor tensor(std::string_view name) const {
    const c10::IValue& given = value(name);
    if (!given.isTensor() || !given.toTensor().defined()) return {};
    const at::Tensor t = given.toTensor();
    return t.scalar_type() == at::kHalf || t.scalar_type() == at::kBFloat16 ? t.to(at::kFloat) : t;
  }
  std::int64_t integer(std::string_view name) const { return value(name).toInt(); }
  bool flag(std::string_view name) const { return value(name).toBool(); }
  double real(std::string_view name, double otherwise = 0) const {
    return value(name).isNone() ? otherwise : value(name).toScalar().toDouble();
  }
  std::vector<std::int64_t> integers(std::string_view name) const { return value(name).toIntVector(); }
  bool is_given(std::string_view name) const { return !value(name).isNone(); }

 private:
  const c10::FunctionSchema& schema_;
  const std::vector<c10::IValue>& arguments_;
};

// A kernel may do without what its plain form has to write down.
inline void check_size(std::int64_t numel) {
  TORCH_CHECK(numel <= std::int64_t{1} << 26, "too large to be written down");
}

using Tensors = std::vector<at::Tensor>;
using PlainForm = Tensors (*)(const PlainCall&);

// By the operator's name; null: not one of these.
PlainForm plain_softmax(std::string_view op);  // softmax and attention
PlainForm plain_norm(std::string_view op);     // normalisations, variances, norms
PlainForm plain_loss(std::string_view op);
PlainForm plain_sum(std::string_view op);  // with a product or quotient in it

}  // namespace finitude::replay
