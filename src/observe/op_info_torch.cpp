#include "observe/op_info_torch.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include "record/allocating_ops.h"

namespace finitude::observe {
namespace {

// The engine's bracket around each node, and ranges that stand for no computation of their own.
bool is_range(std::string_view name) {
  for (std::string_view prefix : {"autograd::engine::", "TorchDynamo", "Torch-Compiled", "PythonSubclass",
                                  "PythonDispatchMode", "## ", "Optimizer.", "enumerate(DataLoader)"}) {
    if (name.starts_with(prefix)) return true;
  }
  return false;
}

// In-place ops whose result does not depend on what the destination held.
bool fills(std::string_view name) {
  for (std::string_view op :
       {"copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "log_normal_",
        "cauchy_", "geometric_", "set_", "eye_", "_foreach_copy_", "_foreach_zero_"}) {
    if (name.starts_with("aten::") && name.substr(6) == op) return true;
  }
  return false;
}

bool only_reads_statistics(std::string_view name) {
  return name.ends_with("_backward") || name.ends_with("_no_training");
}

void fill_from_schema(const c10::OperatorName& op, OpInfo* info) {
  const auto handle = c10::Dispatcher::singleton().findSchema(op);
  if (!handle) return;
  info->composite = info->name.starts_with("aten::") && !handle->hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
                    (handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
                     handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd));
  const c10::FunctionSchema& schema = handle->schema();
  bool inplace_view = false;
  for (at::Tag tag : handle->getTags()) {
    inplace_view |= tag == at::Tag::inplace_view;
    info->random |= tag == at::Tag::nondeterministic_seeded;
  }
  const auto& args = schema.arguments();
  for (std::size_t i = 0; i < args.size(); ++i) {
    info->args.push_back(args[i].name());
    const bool write = args[i].alias_info() != nullptr && args[i].alias_info()->isWrite();
    // t_, detach_ and kin carry a write annotation but change no value.
    if (write && i < 64 && (!inplace_view || info->name == "aten::resize_")) info->writes |= 1ull << i;
    if (write && i < 64 && (args[i].is_out() || (i == 0 && fills(info->name)))) info->overwrites |= 1ull << i;
    // The kernels of batch norm write the running statistics; their schemas do not say so.
    const bool statistic = args[i].name() == "running_mean" || args[i].name() == "running_var";
    if (i < 64 && statistic && !only_reads_statistics(info->name)) info->statistics |= 1ull << i;
    if (args[i].name() == "training" || args[i].name() == "use_input_stats") info->training = i;
  }
  info->writes |= info->statistics;
  for (const auto& ret : schema.returns()) {
    info->returns.push_back(ret.name());
    info->may_view |= ret.alias_info() != nullptr && !ret.alias_info()->isWrite();
  }
  info->may_view |= inplace_view || info->name == "aten::_unsafe_view" || info->name == "aten::_reshape_alias";
}

}  // namespace

const OpInfo& op_info(const at::RecordFunction& fn) {
  static std::mutex mutex;
  static auto& by_address = *new std::unordered_map<const char*, std::unique_ptr<OpInfo>>();
  static auto& by_name = *new std::unordered_map<std::string, std::unique_ptr<OpInfo>>();
  const char* name = fn.name();
  std::lock_guard<std::mutex> lock(mutex);
  // operator_name() copies two strings. The name of an operator lies in its schema and stays there.
  if (const auto known = by_address.find(name); known != by_address.end() && known->second->name == name)
    return *known->second;
  const auto op = fn.operator_name();
  if (!op) {  // the text of a range lives inside the event: its address says nothing
    auto& slot = by_name[name];
    if (!slot) {
      slot = std::make_unique<OpInfo>();
      slot->name = name;
      slot->transparent = is_range(name);
    }
    return *slot;
  }
  auto& slot = by_address[name];
  if (slot) slot.release();  // of an operator that is gone; an op that has not ended may still point at it
  slot = std::make_unique<OpInfo>();
  slot->is_op = true;
  slot->name = op->name;
  slot->allocates = record::allocates(op->name);
  slot->from_host = op->name == "aten::lift_fresh";
  slot->transparent = op->name.starts_with("profiler::") || op->name.starts_with("aten::is_");
  fill_from_schema(*op, slot.get());
  return *slot;
}

std::uint64_t writes_of(const OpInfo& info, c10::ArrayRef<const c10::IValue> arguments) {
  if (info.statistics == 0 || info.training >= arguments.size()) return info.writes;
  const c10::IValue& training = arguments[info.training];
  return training.isBool() && !training.toBool() ? info.writes & ~info.statistics : info.writes;
}

}  // namespace finitude::observe
