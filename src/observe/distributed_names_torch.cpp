#include "observe/distributed_names_torch.h"

#include <ATen/core/jit_type.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace finitude::observe {
namespace {

std::string name_of(const c10d::ReduceOp& reduction) {
  switch (static_cast<c10d::ReduceOp::RedOpType>(reduction.op_)) {
    case c10d::ReduceOp::SUM:
      return "sum";
    case c10d::ReduceOp::AVG:
      return "avg";
    case c10d::ReduceOp::PRODUCT:
      return "product";
    case c10d::ReduceOp::MIN:
      return "min";
    case c10d::ReduceOp::MAX:
      return "max";
    case c10d::ReduceOp::BAND:
      return "band";
    case c10d::ReduceOp::BOR:
      return "bor";
    case c10d::ReduceOp::BXOR:
      return "bxor";
    default:
      return "";
  }
}

}  // namespace

std::optional<std::string> name_of_distributed(const c10::IValue& value) {
  if (!value.isObject()) return std::nullopt;
  const auto name = value.toObjectRef().type()->name();
  if (name && name->name() == "ProcessGroup") return value.toCustomClass<c10d::ProcessGroup>()->getGroupName();
  if (name && name->name() == "ReduceOp") return name_of(*value.toCustomClass<c10d::ReduceOp>());
  return "";
}

}  // namespace finitude::observe
