#include "locate/meant.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "locate/intent.h"
#include "locate/op_kinds.h"

namespace finitude::locate {
namespace {

using record::kNone;
using record::Op;
using record::OpId;
using record::TensorUse;

// Of the operators that give finite values where they read others, those by which a program says so. An
// activation does it by chance.
bool drops(const Op& op) {
  constexpr std::array kDrops = {"where",        "masked_fill", "masked_select", "masked_scatter", "index",
                                 "index_select", "index_put",   "gather",        "take",           "minimum",
                                 "maximum",      "fmin",        "fmax",          "clamp",          "clamp_min",
                                 "clamp_max",    "clip",        "nan_to_num"};
  return std::ranges::find(kDrops, base_name(op.name)) != kDrops.end();
}

bool only_infinities(const TensorUse& use) { return use.health.nan == 0 && use.health.inf() != 0; }

// Zeros and one other number, or truth values.
bool is_mask(const TensorUse& use) {
  const sense::Health& h = use.health;
  if (use.dtype == sense::DType::kOther) return !use.shape.empty();
  if (use.requires_grad || !h.ok() || h.zero == 0 || (h.min != 0 && h.max != 0)) return false;
  const double other = h.min == 0 ? h.max : h.min;
  const double expected = static_cast<double>(h.finite() - h.zero) * other * other;
  return std::abs(h.sum_sq - expected) <= 1e-6 * expected;
}

// The first on the path that makes NaN of the infinities multiplies a mask on, which is zero at each of them.
bool masked_by_product(const record::Trace& trace, const Birth& birth) {
  for (const OpId id : birth.path) {
    if (id >= trace.ops.size()) return false;
    const Op& op = trace.ops[id];
    const auto bad = std::ranges::find_if(op.inputs, only_infinities);
    if (op.outputs.empty() || bad == op.inputs.end()) continue;
    const TensorUse& out = op.outputs.front();
    if (out.health.nan == 0) continue;
    const auto masks = [&](const TensorUse& use) { return &use != &*bad && is_mask(use); };
    return base_name(op.name) == "mul" && std::ranges::any_of(op.inputs, masks) && out.health.inf() == 0;
  }
  return false;
}

// The values that the birth brought in, as its first reader saw them; null where they are not infinities of
// the data.
const TensorUse* infinite_data(const record::Trace& trace, const Birth& birth) {
  // A buffer that holds infinities is data too: limits that mean none.
  const bool buffer = birth.kind == "state" && birth.op == kNone && birth.storage < trace.storages.size() &&
                      trace.storages[birth.storage].origin == record::Origin::kBuffer;
  if (birth.kind != "data" && !buffer) return nullptr;
  if (birth.op != kNone) {
    const bool handed_over = birth.op < trace.ops.size() && base_name(trace.ops[birth.op].name) == "lift_fresh";
    if (!handed_over || trace.ops[birth.op].outputs.empty()) return nullptr;
    const TensorUse& out = trace.ops[birth.op].outputs.front();
    return only_infinities(out) ? &out : nullptr;
  }
  if (birth.first_reader >= trace.ops.size()) return nullptr;
  // Of samples that were stacked each is to hold infinities alone.
  const auto& read = trace.ops[birth.first_reader].inputs;
  if (birth.rows_of != 0 && std::ranges::any_of(read, [](const TensorUse& use) { return use.health.nan != 0; }))
    return nullptr;
  for (const TensorUse& use : trace.ops[birth.first_reader].inputs)
    if (use.storage == birth.storage && only_infinities(use)) return &use;
  return nullptr;
}

// Does the program ask whether values that came in there are infinite? It knows of them then.
bool asked_about(const record::Trace& trace, const Birth& birth) {
  constexpr std::array kAsks = {"isinf", "isfinite", "isposinf", "isneginf"};
  const record::StorageId storage =
      birth.op != kNone ? trace.ops[birth.op].outputs.front().storage : birth.storage;  // of infinite_data
  const Op* stack = birth.rows_of != 0 ? &trace.ops[birth.first_reader] : nullptr;
  const record::StorageId batch =
      stack != nullptr && !stack->outputs.empty() ? stack->outputs.front().storage : storage;
  return std::ranges::any_of(trace.ops, [&](const Op& op) {
    return std::ranges::find(kAsks, base_name(op.name)) != kAsks.end() &&
           std::ranges::any_of(op.inputs, [&](const TensorUse& use) {
             return (use.storage == storage || use.storage == batch) && only_infinities(use);
           });
  });
}

}  // namespace

Meant dropped_by_program(const record::Trace& trace, const Located& located) {
  Meant meant;
  for (const Birth& birth : located.births) {
    if (infinite_data(trace, birth) == nullptr) continue;
    const bool is_hidden = birth.absorbed_by < trace.ops.size();
    const bool chosen_away = is_hidden && (drops(trace.ops[birth.absorbed_by]) || asked_about(trace, birth));
    if (!chosen_away && !masked_by_product(trace, birth)) continue;
    if (birth.op != kNone) {
      meant.ops.push_back(birth.op);
      continue;
    }
    meant.storages.push_back(birth.storage);
    if (birth.rows_of == 0) continue;
    for (const TensorUse& use : trace.ops[birth.first_reader].inputs)
      if (use.storage != birth.storage && only_infinities(use)) meant.storages.push_back(use.storage);
  }
  return meant;
}

bool overwrites_data(const record::Trace& trace, OpId writer, OpId reader) {
  const Op& op = trace.ops[writer];
  if (op.outputs.empty()) return false;
  const TensorUse& part = op.outputs.front();
  if (part.health.finite() != 0) return !is_mask_like(part.health, record::Origin::kUnknown);  // some elements of it
  if (!op.name.ends_with('_')) return false;
  const TensorUse* seen = nullptr;  // as the first that reads more of it
  bool in_product = false;
  for (OpId id = writer + 1; id <= reader && id < trace.ops.size(); ++id)
    for (const TensorUse& use : trace.ops[id].inputs) {
      if (use.storage != part.storage || use.health.numel <= part.health.numel || use.health.finite() == 0) continue;
      if (seen == nullptr) seen = &use;
      in_product |= is_product(trace.ops[id]);
    }
  return seen != nullptr && (in_product || !is_mask_like(seen->health, record::Origin::kUnknown));
}

bool spreads(const Op& op) {
  constexpr std::array kSums = {"sum",        "mean", "prod", "linalg_vector_norm", "mse_loss", "smooth_l1_loss",
                                "huber_loss", "var",  "std",  "var_mean",           "std_mean"};
  if (!is_product(op) && std::ranges::find(kSums, base_name(op.name)) == kSums.end()) return false;
  return std::ranges::none_of(op.inputs, [](const TensorUse& use) {
    return use.health.nan != 0 || (use.health.ok() && use.health.zero != 0 && use.shape.size() > 1);
  });
}

bool is_for_masks(const Op& op) {
  const std::string_view name = base_name(op.name);
  return name.find("softmax") != std::string_view::npos || name.find("logsumexp") != std::string_view::npos ||
         drops(op);
}

}  // namespace finitude::locate
