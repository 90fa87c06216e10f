#include "replay/kept_values_torch.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "record/allocating_ops.h"
#include "replay/tape_statistics_torch.h"

namespace finitude::replay {
namespace {

bool holds_floats(const at::Tensor& t) { return t.is_floating_point() || t.is_complex(); }

// Complex numbers as pairs; half formats as float32, which holds all of their values.
at::Tensor real_numbers(at::Tensor t) {
  if (t.is_sparse()) t = t.coalesce().values();
  if (t.is_complex()) t = at::view_as_real(t.resolve_conj());
  if (t.is_neg()) t = t.resolve_neg();
  return t.scalar_type() == at::kDouble ? t : t.to(at::kFloat);
}

bool is_plain(const at::Tensor& t) {
  return !t.is_sparse() && t.layout() == c10::kStrided && !t.is_conj() && !t.is_neg() && t.numel() > 0;
}

// Does each value of a result depend on those at its place alone?
bool is_pointwise(const c10::FunctionSchema& schema) {
  if (schema.name() == "aten::_to_copy") return true;
  const auto op = c10::Dispatcher::singleton().findSchema(schema.operator_name());
  return op && op->hasTag(at::Tag::pointwise);
}

bool is_flag(const at::Tensor& t) {
  if (t.numel() != 1 || t.is_sparse() || t.is_complex()) return false;
  const auto value = t.to(at::kDouble).item<double>();
  return value == 0 || value == 1;
}

double smallest_of(const at::Tensor& t) {
  switch (c10::toRealValueType(t.scalar_type())) {
    case at::kHalf:
      return std::ldexp(1.0, -24);
    case at::kDouble:
    case at::kFloat:
    case at::kBFloat16:
      return 0;  // too small to matter
    default:
      return std::ldexp(1.0, -9);
  }
}

std::string figure(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

double most_values(const PlayedCall& call) {
  double most = 1;
  const auto look = [&](const at::Tensor& t) {
    if (t.defined()) most = std::max(most, static_cast<double>(t.numel()));
  };
  for (const auto* values : {&call.arguments, &call.results}) {
    for (const c10::IValue& v : *values) {
      if (v.isTensor()) look(v.toTensor());
    }
  }
  return most;
}

}  // namespace

double epsilon_of(const at::Tensor& t) {
  switch (c10::toRealValueType(t.scalar_type())) {
    case at::kDouble:
      return std::ldexp(1.0, -52);
    case at::kHalf:
      return std::ldexp(1.0, -10);
    case at::kBFloat16:
      return std::ldexp(1.0, -7);
    case at::kFloat:
      return std::ldexp(1.0, -23);
    default:
      return std::ldexp(1.0, -2);  // of eight bits
  }
}

std::vector<at::Tensor> reported_by(const PlayedCall& call) {
  std::vector<at::Tensor> reported;
  if (record::allocates(call.schema.name())) return reported;  // other bytes every time
  const auto add = [&](const at::Tensor& t) {
    if (!t.defined()) return;
    const bool known = std::any_of(reported.begin(), reported.end(), [&](const at::Tensor& other) {
      return other.unsafeGetTensorImpl() == t.unsafeGetTensorImpl() ||
             (!t.is_sparse() && !other.is_sparse() && other.is_alias_of(t) && other.sizes() == t.sizes());
    });
    if (!known) reported.push_back(t);
  };
  for (const NamedTensor& t : tensors_of(call.schema.returns(), call.results)) add(t.tensor);
  for (const NamedTensor& t : written_of(call.schema, call.arguments)) add(t.tensor);
  return reported;
}

void KeptValues::note_rows(const at::Tensor& t) {
  if (!holds_floats(t) || t.is_sparse() || t.dim() == 0 || t.size(0) < 2 || t.numel() == 0) return;
  const at::Tensor bad = at::isfinite(with_arithmetic(t)).logical_not().reshape({t.size(0), -1}).any(1);
  const at::Tensor rows = bad.nonzero().flatten().contiguous();
  const auto* row = rows.const_data_ptr<std::int64_t>();
  touched_[t.size(0)].insert(row, row + rows.numel());
}

at::Tensor KeptValues::decided_by_nan(const at::Tensor& flags) const {
  for (const auto& [made, by_nan] : decided_) {
    if (made.is_alias_of(flags) && made.sizes() == flags.sizes() && made.strides() == flags.strides()) return by_nan;
  }
  return {};
}

void KeptValues::undo_decisions(const PlayedCall& call) {
  if (!is_pointwise(call.schema)) return;
  const auto arguments = tensors_of(call.schema.arguments(), call.arguments);
  const auto add = [](at::Tensor* to, const at::Tensor& more) {
    if (more.defined()) *to = to->defined() ? at::logical_or(*to, more) : more;
  };
  for (const NamedTensor& result : tensors_of(call.schema.returns(), call.results)) {
    const at::Tensor& t = result.tensor;
    if (!t.defined() || !is_plain(t)) continue;
    at::Tensor of_nan, of_decisions;
    for (const NamedTensor& argument : arguments) {
      const at::Tensor& from = argument.tensor;
      if (!from.defined() || !is_plain(from) || from.sizes() != t.sizes() || from.is_alias_of(t)) continue;
      if (holds_floats(from))
        add(&of_nan, at::isnan(with_arithmetic(from)));
      else if (from.scalar_type() == at::kBool)
        add(&of_decisions, decided_by_nan(from));
    }
    at::Tensor made_up = of_decisions;
    if (t.scalar_type() == at::kBool || arguments.size() == 1) add(&made_up, of_nan);
    if (!made_up.defined() || !made_up.any().item<bool>()) continue;
    if (t.scalar_type() == at::kBool)
      decided_.emplace_back(t, made_up);
    else if (holds_floats(t) && t.element_size() > 1)
      t.masked_fill_(made_up, std::nan(""));
  }
}

bool KeptValues::after(const PlayedCall& call) {
  if (call.index >= sites_.reached.size() || !sites_.reached[call.index]) return true;
  const bool of_site = sites_.site_at.contains(call.index), of_node = sites_.node_at.contains(call.index);
  for (const NamedTensor& t : tensors_of(call.schema.arguments(), call.arguments)) {
    if (holds_floats(t.tensor) && !t.tensor.is_sparse() && !at::isfinite(with_arithmetic(t.tensor)).all().item<bool>())
      read_bad_.insert(call.index);
  }
  if (read_bad_.contains(call.index) || !decided_.empty()) undo_decisions(call);
  auto& kept = values_[call.index];
  for (const at::Tensor& t : reported_by(call)) {
    // Of several results the first is the value, the others are notes for backward.
    if (of_node || (of_site && kept.empty())) note_rows(t);
    bytes_ += static_cast<std::size_t>(t.numel()) * t.element_size();
    TORCH_CHECK(bytes_ <= max_bytes_, "the step is too large to be held against itself");
    if (holds_floats(t)) {
      coarsest_ = std::max(coarsest_, epsilon_of(t));
      smallest_ = std::max(smallest_, smallest_of(t));
    }
    kept.push_back(copy_of(t));
  }
  return true;
}

void KeptValues::outcome(std::size_t index, const at::Tensor& tensor) {
  if (tensor.defined()) outcomes_[index] = copy_of(tensor);
}

std::string KeptValues::coarsest_format() const {
  if (coarsest_ == std::ldexp(1.0, -10)) return "float16";
  if (coarsest_ == std::ldexp(1.0, -7)) return "bfloat16";
  return coarsest_ > std::ldexp(1.0, -7) ? "eight bits" : coarsest_ == std::ldexp(1.0, -23) ? "float32" : "float64";
}

namespace {

void widen(const at::Tensor& before, const at::Tensor& now, at::Tensor* noise) {
  if (!now.defined() || !holds_floats(before) || before.is_sparse() || now.is_sparse() || before.sizes() != now.sizes())
    return;
  const at::Tensor off =
      (real_numbers(now).to(at::kDouble) - real_numbers(before).to(at::kDouble)).abs().nan_to_num(0, 0, 0);
  *noise = noise->defined() ? at::maximum(*noise, off) : off;
}

}  // namespace

void KeptValues::note_noise_of_outcome(std::size_t index, const at::Tensor& tensor) {
  if (const auto kept = outcomes_.find(index); kept != outcomes_.end())
    widen(kept->second, tensor, &outcome_noise_[index]);
}

void KeptValues::note_noise(const PlayedCall& call) {
  const auto kept = values_.find(call.index);
  const std::vector<at::Tensor> now = reported_by(call);
  if (kept == values_.end() || kept->second.size() != now.size()) return;
  std::vector<at::Tensor>& noise = noise_[call.index];
  noise.resize(now.size());
  for (std::size_t i = 0; i < now.size(); ++i) widen(kept->second[i], now[i], &noise[i]);
}

void KeptValues::compare_one(const at::Tensor& before, const at::Tensor& now, const at::Tensor& noise, double n,
                             bool spare_rows, bool spare_others, Comparison* out) const {
  if (before.sizes() != now.sizes()) {
    out->why = "another shape";
    return;
  }
  if (before.numel() == 0) return;
  at::Tensor differs, counted, a, b;
  if (!holds_floats(before)) {
    a = before.is_sparse() ? before.coalesce().values() : before;
    b = now.is_sparse() ? now.coalesce().values() : now;
    if (a.sizes() == b.sizes()) differs = a.ne(b);
    counted = at::ones(a.sizes(), a.options().dtype(at::kBool));
  } else {
    a = real_numbers(before).to(at::kDouble);
    b = real_numbers(now).to(at::kDouble);
    counted = at::isfinite(a);
    if (a.sizes() == b.sizes()) differs = at::logical_and(counted, a.ne(b));
  }
  if (!differs.defined()) {
    out->why = "another sparse pattern";
    return;
  }
  if (holds_floats(before) && differs.any().item<bool>()) {
    const at::Tensor sizes = at::where(counted, a, at::zeros({}, a.options())).abs();
    const double epsilon = by_coarsest_ ? std::max(coarsest_, epsilon_of(before)) : epsilon_of(before);
    at::Tensor scale;
    if (a.dim() > 1) {  // the largest value of the row
      std::vector<std::int64_t> shape(static_cast<std::size_t>(a.dim()), 1);
      shape[0] = a.size(0);
      scale = sizes.reshape({a.size(0), -1}).amax(1).reshape(shape);
    } else {  // each value is a row; a zero is held against what is lost in rounding the largest
      scale = at::maximum(sizes, sizes.amax() * epsilon);
    }
    at::Tensor near = scale * (8 * epsilon * std::sqrt(n));
    if (noise.defined() && noise.sizes() == a.sizes()) {
      const at::Tensor moved = a.dim() > 1 ? noise.reshape({a.size(0), -1}).amax(1).reshape(scale.sizes()) : noise;
      near = near + 8 * moved + 8 * smallest_ * std::sqrt(n);
    }
    const at::Tensor far = at::logical_or((a - b).abs().gt(near), at::isfinite(b).logical_not());
    differs = at::logical_and(differs, far);
  }
  const auto rows = a.dim() > 0 ? touched_.find(a.size(0)) : touched_.end();
  const bool has_rows = rows != touched_.end() && !rows->second.empty();
  if (!has_rows && spare_others) {
    out->spared = out->spared || differs.any().item<bool>();
    return;
  }
  if (has_rows && spare_rows) {
    const at::Tensor list = at::tensor(std::vector<std::int64_t>(rows->second.begin(), rows->second.end()), at::kLong);
    out->spared = out->spared || differs.index_select(0, list).any().item<bool>();
    differs = differs.index_fill(0, list, false);
    counted = counted.index_fill(0, list, false);
  }
  out->compared += static_cast<std::uint64_t>(counted.sum().item<std::int64_t>());
  if (!differs.any().item<bool>()) return;
  const auto first = differs.flatten().to(at::kByte).argmax().item<std::int64_t>();
  const double was = a.flatten()[first].to(at::kDouble).item<double>(),
               is = b.flatten()[first].to(at::kDouble).item<double>();
  const auto many = differs.sum().item<std::int64_t>();
  out->why = figure(was) + " became " + figure(is) + (many > 1 ? ", and " + std::to_string(many - 1) + " more" : "");
}

KeptValues::Comparison KeptValues::compare(const PlayedCall& call, bool of_spared) const {
  Comparison out;
  const auto kept = values_.find(call.index);
  if (kept == values_.end()) return out;
  const std::vector<at::Tensor> now = reported_by(call);
  if (now.size() != kept->second.size()) {
    out.why = "another number of results";
    return out;
  }
  const std::size_t count = sites_.site_at.contains(call.index) ? std::min<std::size_t>(1, now.size()) : now.size();
  for (std::size_t i = 0; i < count && out.why.empty(); ++i) {  // notes for backward may be of any form
    // A decision on bad values: a mask, a comparison, the flag of a scaler that some gradient is not finite.
    if (read_bad_.contains(call.index) && (!holds_floats(now[i]) || (is_flag(kept->second[i]) && is_flag(now[i])))) {
      out.spared = true;
      continue;
    }
    const auto noise = noise_.find(call.index);
    const at::Tensor moved = noise != noise_.end() && i < noise->second.size() ? noise->second[i] : at::Tensor();
    compare_one(kept->second[i], now[i], moved, most_values(call), true, of_spared, &out);
  }
  return out;
}

KeptValues::Comparison KeptValues::compare_outcome(std::size_t index, const at::Tensor& now) const {
  Comparison out;
  const auto kept = outcomes_.find(index);
  const auto noise = outcome_noise_.find(index);
  // A gradient is a sum over the batch at most; what it was summed of was compared as it was made.
  if (kept != outcomes_.end() && now.defined())
    compare_one(kept->second, now, noise != outcome_noise_.end() ? noise->second : at::Tensor(),
                static_cast<double>(std::max<std::int64_t>(now.numel(), 1)), false, false, &out);
  return out;
}

}  // namespace finitude::replay
