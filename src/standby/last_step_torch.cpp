#include "standby/last_step_torch.h"

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "locate/script_nodes.h"
#include "observe/tensor_view_torch.h"
#include "observe/tracer_torch.h"
#include "pyhost/is_tensor_torch.h"
#include "pyhost/tensor_subclass_torch.h"
#include "show/findings.h"
#include "standby/first_step_torch.h"

namespace finitude::bindings {
namespace {

// What lies in memory, by the address of its storage. A weak reference keeps the address from being used again.
struct Named {
  c10::weak_intrusive_ptr<c10::StorageImpl> memory;
  record::Origin origin;
  std::string name;
};

struct LastStep {
  bool kept = false;     // wanted
  bool any = false;      // there is one
  bool trained = false;  // a backward ran in it
  std::shared_ptr<const record::Trace> trace = std::make_shared<record::Trace>();
  std::unordered_map<c10::StorageImpl*, Named> names;
};

// Invalid UTF-8, as in the name of a file, is replaced: dump() would throw.
std::string ops_text(const record::Trace& trace, std::size_t most) {
  return show::op_table(trace, most).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

LastStep& last() {
  static LastStep* step = new LastStep();  // leaked on purpose: may be used until the process is gone
  return *step;
}

record::Origin origin_of_kind(const std::string& kind) {
  return kind == "parameter" ? record::Origin::kParameter
         : kind == "buffer"  ? record::Origin::kBuffer
                             : record::Origin::kOptimizerState;
}

// Takes the trace. Names are looked up by address before that, which ends the ids, and put into it afterwards.
record::Trace named_trace() {
  observe::Tracer& tracer = observe::Tracer::get();
  std::vector<std::pair<record::StorageId, const Named*>> named;
  for (const auto& [memory, what] : last().names) {
    if (const record::StorageId id = tracer.storage_of(memory); id != record::kNone) named.emplace_back(id, &what);
  }
  record::Trace trace = tracer.take_trace();
  for (const auto& [id, what] : named) {
    if (id >= trace.storages.size()) continue;
    trace.storages[id].origin = what->origin;
    trace.storages[id].name = what->name;
  }
  return trace;
}

}  // namespace

bool keeps_last_step() noexcept { return last().kept; }

void end_traced_window() {
  observe::Tracer& tracer = observe::Tracer::get();
  LastStep& l = last();
  first_step_over();
  // The tracer itself stays on: the next window is recorded without a gap.
  if (!l.kept) return tracer.clear();
  record::Trace trace = named_trace();
  tracer.clear();
  const bool trained = std::any_of(trace.ops.begin(), trace.ops.end(), [](const record::Op& op) { return op.is_node; });
  if (l.any && l.trained && !trained) return;  // a second optimizer of the same backward: the step is what came before
  l.trace = std::make_shared<record::Trace>(std::move(trace));
  l.trained = trained;
  l.any = true;
}

void keep_last_step(bool on) {
  last().kept = on;  // of a run that begins: what was before is none of it
  last().any = last().trained = false;
  last().trace = std::make_shared<record::Trace>();
  last().names.clear();
}

// A wrapper (DTensor) has no memory of its own; the tensor inside it has.
void last_step_name(PyObject* given, const std::string& kind, const std::string& name) {
  observe::TensorView v;
  if (!is_tensor_object(given)) return;
  const at::Tensor& t = local_of(THPVariable_Unpack(given));
  if (!observe::place_of(*t.unsafeGetTensorImpl(), &v) || v.storage == nullptr) return;
  // A reference for a moment only, to make the weak one from. The map does not keep the memory of the tensor.
  const auto owner = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(v.storage);
  last().names.insert_or_assign(v.storage,
                                Named{c10::weak_intrusive_ptr<c10::StorageImpl>(owner), origin_of_kind(kind), name});
}

void last_step_forget_gone() {
  std::erase_if(last().names, [](const auto& n) { return n.second.memory.expired(); });
}

std::string last_step_ops(std::size_t most) { return last().any ? ops_text(*last().trace, most) : ""; }

std::shared_ptr<const record::Trace> last_step_trace() {
  return last().any ? last().trace : std::make_shared<record::Trace>();
}

std::shared_ptr<const record::Trace> take_trace() {
  auto trace = std::make_shared<record::Trace>(named_trace());
  locate::split_script_nodes(trace.get());
  return trace;
}

}  // namespace finitude::bindings
