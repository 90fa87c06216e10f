#include "observe/tape_op_torch.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include "observe/op_info_torch.h"
#include "observe/tape_parts_torch.h"
#include "record/exchange.h"

namespace finitude::observe {
namespace {

// The dispatcher would run a kernel that is made of other operators, which are the ones to record. Some
// operators have such a kernel and one for a backend beside it: that one runs.
bool runs_composite(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  if (!op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd)) return false;
  for (const DispatchKey key : {DispatchKey::CPU, DispatchKey::CUDA, DispatchKey::CompositeExplicitAutograd,
                                DispatchKey::CompositeExplicitAutogradNonFunctional, DispatchKey::AutogradCPU}) {
    if (op.hasKernelForDispatchKey(key)) return false;
  }
  return true;
}

}  // namespace

TapeOp tape_op(const at::RecordFunction& fn) {
  TapeOp op;
  op.text = fn.name();
  const OpInfo& info = op_info(fn);
  op.exchanges = record::exchanges_values(info.name);
  op.is_backend_call = record::is_backend_call(info.name);
  op.wraps_exchange = record::wraps_backend_call(info.name);
  op.only_waits = record::only_waits(info.name);
  op.num_args = info.args.size();
  op.transparent = !info.is_op || info.transparent;
  if (op.transparent) return op;
  op.name = info.name;
  op.may_view = info.may_view;
  op.allocates = info.allocates;
  op.from_host = info.from_host;
  op.random = info.random;
  op.writes = info.writes;
  op.overwrites = info.overwrites;
  op.picked_by = picked_by(info.name);
  for (std::size_t i = 0; i < info.args.size(); ++i) {
    if (info.args[i] == "dropout_p" || info.args[i] == "dropout") op.dropout = static_cast<int>(i);
  }
  op.num_returns = info.returns.size();
  const auto name = fn.operator_name();
  if (!name) {
    op.transparent = true;
    return op;
  }
  op.overload = name->overload_name;
  const auto handle = c10::Dispatcher::singleton().findSchema(*name);
  // set_ hands over other memory and computes nothing.
  // prims are Python functions of torch that call aten: a program without Python replays those.
  op.transparent = !handle || runs_composite(*handle) || op.name == "aten::set_" || op.name.starts_with("prims::");
  return op;
}

}  // namespace finitude::observe
