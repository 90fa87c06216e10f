#include "replay/edited_step_torch.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "replay/tape_statistics_torch.h"

namespace finitude::replay {
namespace {

using capture::TensorRef;
using capture::Value;

bool is_float(const at::Tensor& t) { return t.defined() && (t.is_floating_point() || t.is_complex()); }

bool same_memory(const TensorRef& a, const TensorRef& b) {
  if (a.storage != b.storage) return false;
  return a.storage != capture::kNoStorage || (a.dtype == b.dtype && a.constant == b.constant);
}

bool same_view(const TensorRef& a, const TensorRef& b) {
  return same_memory(a, b) && a.dtype == b.dtype && a.offset == b.offset && a.sizes == b.sizes &&
         a.strides == b.strides;
}

// Laid out like the tensor that it represents, where that has no overlap.
at::Tensor like(const at::Tensor& original, const at::Tensor& values) {
  if (!original.is_non_overlapping_and_dense()) return values.contiguous();
  at::Tensor out = at::empty_strided(original.sizes(), original.strides(), original.options());
  out.copy_(values);
  if (original.unsafeGetTensorImpl()->is_wrapped_number()) out.unsafeGetTensorImpl()->set_wrapped_number(true);
  return out;
}

double changed_number(const Edit& edit, double value) {
  if (edit.kind == Edit::Kind::kReplace) {
    const bool match = edit.from_any_bad       ? !std::isfinite(value)
                       : std::isnan(edit.from) ? std::isnan(value)
                                               : value == edit.from;
    return match ? edit.to : value;
  }
  if (edit.min) value = std::max(value, *edit.min);
  return edit.max ? std::min(value, *edit.max) : value;
}

}  // namespace

at::Tensor EditedStep::edited(const at::Tensor& t, at::Tensor* replaced) const {
  at::Tensor now = t;
  *replaced = at::zeros(t.sizes(), t.options().dtype(at::kBool));
  const auto put = [&](const at::Tensor& where, double value) {
    replaced->logical_or_(where);
    now = now.masked_fill(
        where, at::isIntegralType(t.scalar_type(), true) ? c10::Scalar(std::int64_t(value)) : c10::Scalar(value));
  };
  if (edit_.kind == Edit::Kind::kShift) {
    TORCH_CHECK(t.dim() != 0 && t.numel() != 0 && t.is_floating_point(), "it has no dimension to take a maximum over");
    maximum_ = edit_.dims.empty() ? t.amax() : t.amax(edit_.dims, true);
    return like(t, t.sub(maximum_));
  }
  if (edit_.kind == Edit::Kind::kReplace && edit_.spread != 0) {
    const at::Tensor where = t.eq(edit_.from);
    // Evenly in their logarithms: a mean that the values weigh is then far from that with equal weights.
    const at::Tensor values = at::linspace(0, std::log1p(edit_.spread), t.numel(), at::kDouble).exp().mul(edit_.to);
    replaced->logical_or_(where);
    now = at::where(where, values.reshape(t.sizes()).to(t.scalar_type()), now);
  } else if (edit_.kind == Edit::Kind::kReplace) {
    put(edit_.from_any_bad       ? at::isfinite(t).logical_not()
        : std::isnan(edit_.from) ? t.isnan()
                                 : t.eq(edit_.from),
        edit_.to);
  } else {
    if (edit_.min) put(t.lt(*edit_.min), *edit_.min);
    if (edit_.max) put(t.gt(*edit_.max), *edit_.max);
  }
  return like(t, now);
}

void EditedStep::change_argument(std::size_t s, std::vector<c10::IValue>& arguments) {
  const EditSite& site = sites_.sites[s];
  c10::IValue& value = arguments.at(site.arg);
  if (site.is_list) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& t : value.toTensorVector()) {
      at::Tensor replaced;
      TORCH_CHECK(!t.is_complex() && !t.is_sparse(), "a clamp of complex or sparse numbers");
      const at::Tensor now = edited(t, &replaced);
      changed_ = changed_ || replaced.any().item<bool>();
      list.push_back(site.is_written ? t.copy_(now) : now);
    }
    value = std::move(list);
    return;
  }
  TORCH_CHECK(site.is_tensor || edit_.kind != Edit::Kind::kShift, "it is a number");
  if (!site.is_tensor) {
    const double before = value.toScalar().toDouble(), now = changed_number(edit_, before);
    changed_ = changed_ || now != before;
    if (value.isInt() && now == std::floor(now))
      value = static_cast<std::int64_t>(now);
    else
      value = now;
    return;
  }
  const at::Tensor t = value.toTensor();
  TORCH_CHECK(!t.is_complex() && !t.is_sparse(), "a clamp of complex or sparse numbers");
  State& state = states_[s];
  at::Tensor replaced;
  state.argument = edited(t, &replaced);
  const bool any = edit_.kind == Edit::Kind::kShift || replaced.any().item<bool>();
  changed_ = changed_ || any;
  if (!any) return;
  if (site.is_written) {
    t.copy_(state.argument);
    return;
  }
  state.replaced = replaced;
  value = state.argument;
  if (!edit_.in_all_arguments) return;
  const capture::Entry& entry = tape_.entries[site.entry];
  for (std::size_t a = 0; a < arguments.size() && a < entry.args.size(); ++a) {
    if (entry.args[a].kind == Value::kTensor && same_view(entry.args[a].tensors.at(0), site.tensor))
      arguments[a] = state.argument;
  }
}

void EditedStep::change_node(std::size_t n, std::size_t index, std::vector<c10::IValue>& arguments) {
  const EditedNode& node = sites_.nodes[n];
  const capture::Entry& entry = tape_.entries[index];
  for (std::size_t a = 0; a < arguments.size() && a < entry.args.size(); ++a) {
    if (entry.args[a].kind != Value::kTensor) continue;
    const TensorRef& ref = entry.args[a].tensors.at(0);
    if (edit_.kind == Edit::Kind::kLeaveOut) {
      bool of_call = node.made.contains(ref.storage);
      const auto see = [&](const TensorRef& t) { of_call = of_call || same_memory(t, ref); };
      for (const EditSite& other : sites_.sites) {
        capture::for_each_tensor(tape_.entries[other.entry].args, see);
        capture::for_each_tensor(tape_.entries[other.entry].results, see);
      }
      const at::Tensor& t = arguments[a].toTensor();
      if (!of_call && is_float(t) && !at::isfinite(with_arithmetic(t)).all().item<bool>()) clean_[n] = false;
      continue;
    }
    // Where a checkpoint computes its forward again, the node reads what that came to.
    std::size_t s = sites_.sites.size();
    while (s-- > 0) {
      if (states_[s].replaced.defined() && same_memory(ref, sites_.sites[s].tensor)) break;
    }
    if (s >= sites_.sites.size()) continue;
    const EditSite& site = sites_.sites[s];
    const State& state = states_[s];
    if (same_view(ref, site.tensor)) {
      arguments[a] = state.argument;
      continue;
    }
    // Another view of it, say its transpose.
    const std::int64_t offset = ref.offset - site.tensor.offset;
    std::int64_t last = offset;
    for (std::size_t d = 0; d < ref.sizes.size(); ++d)
      last += std::max<std::int64_t>(ref.sizes[d] - 1, 0) * ref.strides[d];
    TORCH_CHECK(ref.dtype == site.tensor.dtype && offset >= 0 && last < state.argument.numel() &&
                    state.argument.strides() == c10::IntArrayRef(site.tensor.strides) &&
                    state.argument.is_non_overlapping_and_dense(),
                "the backward reads more than the argument that was changed");
    arguments[a] = state.argument.as_strided(ref.sizes, ref.strides, offset);
  }
}

void EditedStep::change(std::size_t index, const c10::FunctionSchema& schema, std::vector<c10::IValue>& arguments) {
  const auto site = sites_.site_at.find(index);
  const auto node = sites_.node_at.find(index);
  if (site == sites_.site_at.end() && node == sites_.node_at.end()) return;
  if (!edit_.switch_on.empty()) {
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      if (schema.arguments()[i].name() == edit_.switch_on && arguments[i].isBool()) {
        changed_ = changed_ || !arguments[i].toBool();
        arguments[i] = true;
      }
    }
  }
  if (edit_.kind == Edit::Kind::kCompute) return;
  if (node != sites_.node_at.end()) change_node(node->second, index, arguments);
  if (site != sites_.site_at.end() && edit_.kind != Edit::Kind::kLeaveOut) change_argument(site->second, arguments);
}

void EditedStep::end_node(const EditedNode& node, bool clean) {
  const State& state = states_[node.site];
  if (edit_.kind == Edit::Kind::kLeaveOut) {
    for (const capture::StorageId id : node.handed_on) {
      const auto found = handed_on_.find(id);
      if (!clean || found == handed_on_.end() || !is_float(found->second)) continue;
      at::Tensor gradient = found->second;
      const at::Tensor bad = at::isfinite(gradient).logical_not();
      changed_ = changed_ || bad.any().item<bool>();
      gradient.masked_fill_(bad, 0);
    }
    return;
  }
  if (state.replaced.defined() && node.again) {
    // No gradient flows to or through what a clamp replaced: neither does one of that gradient.
    for (const capture::StorageId id : node.handed_on) {
      const auto found = handed_on_.find(id);
      if (found == handed_on_.end() || !is_float(found->second)) continue;
      at::Tensor gradient = found->second;
      TORCH_CHECK(state.replaced.sizes() == gradient.sizes(), "the step takes a derivative of the derivative of ",
                  edit_.arg, ", which mixes its elements");
      gradient.masked_fill_(state.replaced, 0);
    }
    return;
  }
  if (!state.replaced.defined() || node.gradient == capture::kNoStorage) return;
  const auto found = handed_on_.find(node.gradient);
  TORCH_CHECK(found != handed_on_.end(), "the gradient of ", edit_.arg, " is not in the record of the step");
  at::Tensor gradient = found->second;
  at::Tensor mask = state.replaced;
  if (mask.sizes() != gradient.sizes()) {
    TORCH_CHECK(at::is_expandable_to(mask.sizes(), gradient.sizes()), "the gradient of ", edit_.arg,
                " has another shape");
    mask = mask.expand(gradient.sizes());
  }
  gradient.masked_fill_(mask, 0);
}

bool EditedStep::after(const PlayedCall& call) {
  if (sites_.added_to == call.index && maximum_.defined() && !call.results.empty() && call.results.front().isTensor()) {
    at::Tensor log = call.results.front().toTensor();
    TORCH_CHECK(log.numel() == maximum_.numel(), "the logarithm has another shape than the maximum");
    log.add_(maximum_.reshape(log.sizes()));
  }
  const auto site = sites_.site_at.find(call.index);
  if (site != sites_.site_at.end() && edit_.kind == Edit::Kind::kLeaveOut) {
    // Of several results the first is the value, the others are notes for backward.
    std::vector<at::Tensor> reported = reported_by(call);
    if (!reported.empty() && is_float(reported.front())) {
      const at::Tensor bad = at::isfinite(reported.front()).logical_not();
      changed_ = changed_ || bad.any().item<bool>();
      reported.front().masked_fill_(bad, edit_.to);
    }
  }
  if (const auto found = sites_.node_at.find(call.index);
      found != sites_.node_at.end() && edit_.kind != Edit::Kind::kCompute) {
    const EditedNode& node = sites_.nodes[found->second];
    const auto& results = tape_.entries[call.index].results;
    for (std::size_t r = 0; r < results.size() && r < call.results.size(); ++r) {
      if (results[r].kind != Value::kTensor || !call.results[r].isTensor()) continue;
      const capture::StorageId id = results[r].tensors.at(0).storage;
      if (std::find(node.handed_on.begin(), node.handed_on.end(), id) != node.handed_on.end())
        handed_on_.try_emplace(id, call.results[r].toTensor());
    }
    if (call.index == node.entries.back()) end_node(node, clean_[found->second]);
  }
  if (difference.empty()) compare(call);
  return true;
}

// Exponentials whose exponents were shifted, and what is computed of them, differ by a factor that they share: it is
// gone where one is divided by another, where the maximum is added to a logarithm again, and where backward multiplies
// the derivative of an exponential by itself. What was no softmax keeps the factor, and is found to differ.
bool EditedStep::has_factor(const PlayedCall& call) {
  const capture::Entry& entry = tape_.entries[call.index];
  int read = 0;
  capture::for_each_tensor(entry.args, [&](const TensorRef& t) { read += with_factor_.contains(t.storage); });
  const bool is_site = sites_.site_at.contains(call.index);
  const std::string& name = tape_.operators[entry.number].name;
  const bool divides = name.starts_with("aten::div") || name.starts_with("aten::true_divide");
  const bool cancels =
      sites_.added_to == call.index || (read >= 2 && (divides || (entry.of_backward && name.starts_with("aten::mul"))));
  const bool has = is_site || (read != 0 && !cancels);
  capture::for_each_tensor(entry.results, [&](const TensorRef& t) {
    if (t.storage == capture::kNoStorage) return;
    if (has)
      with_factor_.insert(t.storage);
    else
      with_factor_.erase(t.storage);
  });
  return has;
}

void EditedStep::compare(const PlayedCall& call) {
  const capture::Entry& entry = tape_.entries[call.index];
  if (edit_.kind == Edit::Kind::kShift && has_factor(call)) return;
  bool of_spared = false;
  capture::for_each_tensor(entry.args,
                           [&](const TensorRef& t) { of_spared = of_spared || spared_.contains(t.storage); });
  const KeptValues::Comparison found = before_.compare(call, of_spared);
  compared += found.compared;
  if (!found.why.empty()) difference = found.why + " in " + call_name(tape_, call.index) + place_of(tape_, call.index);
  if (!found.spared) return;
  const auto spare = [&](const TensorRef& t) {
    if (t.storage != capture::kNoStorage) spared_.insert(t.storage);
  };
  capture::for_each_tensor(entry.results, spare);
  const auto& arguments = call.schema.arguments();
  for (std::size_t a = 0; a < entry.args.size() && a < arguments.size(); ++a) {
    if (arguments[a].alias_info() != nullptr && arguments[a].alias_info()->isWrite())
      capture::for_each_tensor(entry.args[a], spare);
  }
}

std::string outcome_name(const capture::Outcome& outcome) {
  if (outcome.kind == "loss")
    return is_refused_value(outcome.kind, outcome.name) ? "value " + outcome.name : outcome.kind;
  return outcome.kind + (outcome.kind == "gradient" ? " of " : " ") + outcome.name;
}

void EditedStep::outcome(std::size_t index, const at::Tensor& tensor) {
  const capture::Outcome& outcome = tape_.outcomes[index];
  const std::string what = outcome_name(outcome);
  if (is_float(tensor)) {
    const at::Tensor values = with_arithmetic(tensor.is_sparse() ? tensor._values() : tensor);
    const bool ok =
        outcome.kind == "buffer" ? !values.isnan().any().item<bool>() : at::isfinite(values).all().item<bool>();
    if (!ok) bad.push_back(what);
  }
  bool spared = false;
  capture::for_each_tensor(outcome.value, [&](const TensorRef& t) {
    spared = spared || spared_.contains(t.storage) || with_factor_.contains(t.storage);
  });
  if (spared || !difference.empty()) return;
  const KeptValues::Comparison found = before_.compare_outcome(index, tensor);
  compared += found.compared;
  if (!found.why.empty()) difference = found.why + " in the " + what;
}

}  // namespace finitude::replay
