#include "compare/values_torch.h"

#include <ATen/SparseTensorImpl.h>
#include <ATen/core/List.h>
#include <ATen/core/enum_tag.h>

#include "compare/tape_run.h"
#include "observe/device_memory_torch.h"
#include "observe/tape_values_torch.h"
#include "observe/tensor_view_torch.h"
#include "record/argument_words.h"

namespace finitude::compare {
namespace {

using capture::TensorRef;
using capture::Value;

void add_flat(const c10::IValue& value, std::vector<at::Tensor>& out) {
  if (value.isTensor()) {
    const at::Tensor& t = value.toTensor();
    if (!t.defined()) return;
    if (t.layout() == c10::kSparse) {
      const auto* impl = static_cast<const at::SparseTensorImpl*>(t.unsafeGetTensorImpl());
      out.push_back(impl->indices());
      out.push_back(impl->values());
    } else {
      out.push_back(t);
    }
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) add_flat(item, out);
  }
}

c10::IValue replaced(const c10::IValue& value, const std::vector<at::Tensor>& tensors, std::size_t& next) {
  if (value.isTensor()) {
    if (!value.toTensor().defined()) return value;
    TORCH_CHECK(value.toTensor().layout() == c10::kStrided && next < tensors.size(), "not a dense tensor");
    return tensors[next++];
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const c10::IValue& item : value.toListRef()) list.push_back(replaced(item, tensors, next).toTensor());
    return list;
  }
  if (!value.isList()) return value;
  c10::impl::GenericList list(value.toList().elementType());
  for (const c10::IValue& item : value.toListRef()) list.push_back(replaced(item, tensors, next));
  return list;
}

bool same_place(const Tensor& a, const Tensor& b) {
  return a.storage == b.storage && a.begin == b.begin && a.end == b.end && a.shape == b.shape;
}

}  // namespace

OperatorFacts facts_of(const c10::OperatorHandle& handle) {
  OperatorFacts facts{handle, 0, handle.hasTag(at::Tag::nondeterministic_seeded), false, {}, {}};
  const std::string& name = handle.operator_name().name;
  facts.allocates = name.starts_with("aten::empty") || name.starts_with("aten::new_empty") || name == "aten::resize_";
  const auto& arguments = handle.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    facts.args.push_back(arguments[i].name());
    const bool writes = arguments[i].alias_info() != nullptr && arguments[i].alias_info()->isWrite();
    // The kernels of batch norm write the running statistics; their schemas do not say so.
    if (i < 64 && (writes || arguments[i].name() == "running_mean" || arguments[i].name() == "running_var"))
      facts.writes |= std::uint64_t{1} << i;
  }
  for (const auto& result : handle.schema().returns()) facts.returns.push_back(result.name());
  return facts;
}

Call call_of(const capture::Tape& tape, const capture::Entry& entry, const OperatorFacts& facts, Slots* slots) {
  Call call;
  call.op = tape.operators.at(entry.number).name;
  call.overload = tape.operators.at(entry.number).overload;
  call.random = facts.random;
  call.fresh = facts.allocates;
  if (entry.place < tape.places.size()) {
    const capture::Place& place = tape.places[entry.place];
    call.file = place.file;
    call.line = static_cast<int>(place.line);
    call.source = place.source;
    call.of_backward = entry.of_backward;
  }
  std::vector<std::pair<Tensor, std::uint32_t>> written;
  std::uint32_t at = 0;
  for (std::size_t i = 0; i < entry.args.size(); ++i) {
    const std::string& arg = i < facts.args.size() ? facts.args[i] : std::string();
    if (std::string text = argument_text(entry.args[i]); !text.empty())
      call.scalars.push_back({arg, record::argument_word(arg, std::move(text))});
    capture::for_each_tensor(entry.args[i], [&](const TensorRef& ref) {
      const std::uint32_t here = at++;
      if (is_number(ref)) return;
      Tensor t = described(tape, ref);
      t.arg = arg;
      slots->inputs.push_back(here);
      if (i < 64 && (facts.writes >> i & 1) != 0) written.emplace_back(t, here);
      call.inputs.push_back(std::move(t));
    });
  }
  at = 0;
  for (std::size_t i = 0; i < entry.results.size(); ++i) {
    capture::for_each_tensor(entry.results[i], [&](const TensorRef& ref) {
      Tensor t = described(tape, ref);
      t.arg = i < facts.returns.size() ? facts.returns[i] : "";
      slots->outputs.push_back({true, at++});
      call.outputs.push_back(std::move(t));
    });
  }
  for (auto& [t, here] : written) {
    bool known = false;
    for (const Tensor& output : call.outputs) known |= same_place(output, t);
    if (known) continue;
    slots->outputs.push_back({false, here});
    call.outputs.push_back(std::move(t));
  }
  for (Tensor& output : call.outputs) output.name.clear();
  return call;
}

std::vector<at::Tensor> flat(c10::ArrayRef<c10::IValue> values) {
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& value : values) add_flat(value, tensors);
  return tensors;
}

torch::jit::Stack with_tensors(c10::ArrayRef<c10::IValue> values, const std::vector<at::Tensor>& tensors) {
  torch::jit::Stack stack;
  std::size_t next = 0;
  for (const c10::IValue& value : values) stack.push_back(replaced(value, tensors, next));
  return stack;
}

std::vector<at::Tensor> outputs_of(const Slots& slots, const std::vector<at::Tensor>& arguments,
                                   const std::vector<at::Tensor>& results) {
  std::vector<at::Tensor> outputs;
  for (const Slots::Output& output : slots.outputs)
    outputs.push_back((output.of_result ? results : arguments).at(output.at));
  return outputs;
}

at::Tensor plain(const at::Tensor& tensor) {
  return observe::on_host(tensor).resolve_conj().resolve_neg().contiguous();
}

void measure(const at::Tensor& tensor, Tensor* out) {
  const at::Tensor t = tensor.is_conj() || tensor.is_neg() || !tensor.device().is_cpu() ? plain(tensor) : tensor;
  observe::TensorView view;
  if (!observe::view_of(*t.unsafeGetTensorImpl(), &view)) return;
  out->health = observe::full(view);
  out->checksum = observe::checksum(view);
  out->has_checksum = true;
}

}  // namespace finitude::compare
