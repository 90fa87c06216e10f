// See evidence.h.
#include "explain/evidence.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <limits>

#include "explain/origin.h"
#include "locate/op_kinds.h"

namespace finitude::explain {

using record::kNone;

std::string plain_name(std::string_view name) {
  if (auto colons = name.rfind("::"); colons != std::string_view::npos) name.remove_prefix(colons + 2);
  if (auto dot = name.find('.'); dot != std::string_view::npos) name = name.substr(0, dot);
  while (!name.empty() && name.front() == '_') name.remove_prefix(1);
  while (!name.empty() && name.back() == '_') name.remove_suffix(1);
  constexpr std::string_view kForeach = "foreach_";
  if (name.starts_with(kForeach)) name.remove_prefix(kForeach.size());
  std::string_view node = name;
  while (!node.empty() && std::isdigit(static_cast<unsigned char>(node.back()))) node.remove_suffix(1);
  constexpr std::string_view kBackward = "Backward";
  if (node.size() > kBackward.size() && node.ends_with(kBackward))
    name = node.substr(0, node.size() - kBackward.size());
  return std::string(name);
}

bool one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_builtin_node(const record::Op& node) {
  std::string_view name = node.name;
  if (auto colons = name.rfind("::"); colons != std::string_view::npos) name.remove_prefix(colons + 2);
  if (one_of(name, {"AccumulateGrad", "CopySlices", "CopyBackwards", "GraphRoot", "Error", "NotImplemented"}))
    return true;
  if (name.empty() || !std::isdigit(static_cast<unsigned char>(name.back()))) return false;
  while (!name.empty() && std::isdigit(static_cast<unsigned char>(name.back()))) name.remove_suffix(1);
  return name.ends_with("Backward");
}

bool is_derivative(const record::Op& node) { return is_builtin_node(node) && !node.name.ends_with("AccumulateGrad"); }

double Operand::min() const { return tensor ? tensor->health.min : scalar ? scalar->number.value_or(0) : 0; }
double Operand::max() const { return tensor ? tensor->health.max : scalar ? scalar->number.value_or(0) : 0; }
double Operand::absmax() const { return tensor ? tensor->health.absmax : std::fabs(max()); }
std::uint64_t Operand::numel() const { return tensor ? tensor->health.numel : 1; }

std::uint64_t Operand::zeros() const {
  if (tensor) return tensor->health.zero;
  return scalar && scalar->number && *scalar->number == 0 ? 1 : 0;
}

bool Operand::has_inf() const {
  if (tensor) return tensor->health.inf() > 0;
  return scalar && scalar->number && std::isinf(*scalar->number);
}

bool Operand::has_nan() const {
  if (tensor) return tensor->health.nan > 0;
  return scalar && scalar->number && std::isnan(*scalar->number);
}

bool Operand::has(double value) const {
  if (value == 0) return zeros() > 0;
  if (tensor && tensor->health.finite() == 0) return false;
  return min() == value || max() == value;
}

sense::DType Operand::dtype() const { return tensor ? tensor->dtype : sense::DType::kOther; }

Operand operand(const record::Op& op, std::string_view arg, std::size_t place) {
  for (const auto& use : op.inputs)
    if (use.arg == arg) return {&use, nullptr};
  for (const auto& scalar : op.scalars)
    if (scalar.arg == arg) return {nullptr, &scalar};
  if (place < op.inputs.size() && op.inputs[place].arg.empty()) return {&op.inputs[place], nullptr};
  return {};
}

bool is_integral(const Operand& operand) { return operand.tensor && operand.tensor->dtype == sense::DType::kOther; }

bool is_constant(const record::Trace& trace, const Operand& operand) {
  if (operand.scalar) return operand.scalar->number.has_value();
  if (!operand.tensor || operand.tensor->storage >= trace.storages.size() || operand.tensor->health.numel > 1)
    return false;
  return trace.storages[operand.tensor->storage].origin == record::Origin::kConstant;
}

std::optional<double> constant(const record::Trace& trace, const Operand& operand) {
  if (operand.scalar) return operand.scalar->number;
  if (!is_constant(trace, operand) || operand.tensor->health.numel != 1) return std::nullopt;
  const auto& use = *operand.tensor;
  if (use.health.nan) return std::numeric_limits<double>::quiet_NaN();
  if (use.health.inf()) return use.health.neg_inf ? -INFINITY : INFINITY;
  return use.health.max;
}

std::vector<std::int64_t> dims_of(const record::Op& op) {
  std::vector<std::int64_t> dims;
  for (const auto& scalar : op.scalars) {
    if (scalar.arg != "dim") continue;
    if (scalar.number) return {static_cast<std::int64_t>(*scalar.number)};
    const char* at = scalar.text.c_str();
    while (*at != '\0') {
      char* end = nullptr;
      const std::int64_t dim = std::strtoll(at, &end, 10);
      if (end == at)
        ++at;  // a bracket or a comma
      else
        dims.push_back(dim), at = end;
    }
  }
  return dims;
}

bool inputs_finite(const record::Op& op) {
  if (bad_input(op)) return false;
  return std::none_of(op.scalars.begin(), op.scalars.end(),
                      [](const auto& scalar) { return scalar.number && !std::isfinite(*scalar.number); });
}

const record::TensorUse* bad_input(const record::Op& op) {
  for (const auto& use : op.inputs)
    if (!use.health.ok()) return &use;
  return nullptr;
}

const record::TensorUse* bad_output(const record::Op& op) {
  for (const auto& use : op.outputs)
    if (!use.health.ok()) return &use;
  return nullptr;
}

sense::DType result_dtype(const record::Op& op) {
  if (const auto* bad = bad_output(op)) return bad->dtype;
  for (const auto& use : op.outputs)
    if (use.dtype != sense::DType::kOther) return use.dtype;
  return sense::DType::kOther;
}

namespace {

const record::Op* op_at(const record::Trace& trace, record::OpId id) {
  return id < trace.ops.size() ? &trace.ops[id] : nullptr;
}

const locate::Birth& birth_of(const Evidence& evidence) {
  static const locate::Birth kNoBirth;
  return evidence.birth < evidence.located.births.size() ? evidence.located.births[evidence.birth] : kNoBirth;
}

}  // namespace

const record::Frame* top_frame(const record::Trace& trace, std::uint32_t stack) {
  if (stack >= trace.stacks.size() || trace.stacks[stack].frames.empty()) return nullptr;
  return &trace.stacks[stack].frames.front();
}

std::string at_line(const record::Trace& trace, const record::Op& op) {
  const auto* frame = top_frame(trace, op.stack);
  if (frame == nullptr) return {};
  return " at " + frame->file.substr(frame->file.rfind('/') + 1) + ":" + std::to_string(frame->line);
}

void mend_at(const record::Trace& trace, const record::Op& op, Finding* finding) {
  const auto* frame = top_frame(trace, op.stack);
  if (frame == nullptr) return;
  finding->fix_file = frame->file;
  finding->fix_line = frame->line;
}

Scene::Scene(const Evidence& e) : evidence(e), trace(e.trace), birth(birth_of(e)) {
  op = op_at(trace, birth.op);
  node = op_at(trace, birth.node);
  forward = op_at(trace, birth.forward);
  if (!op) return;
  backward = birth.kind == "backward" || (birth.kind.empty() && op->phase == record::Phase::kBackward);
  culprit = birth.op;
  const record::OpId start = backward ? birth.forward : birth.op;
  if (const auto* from = op_at(trace, start)) {
    if (const auto* use = bad_input(*from)) {
      const BadOrigin origin = bad_origin(trace, start, *use);
      const auto& meant = e.located.meant.ops;
      if (origin.op != kNone && !origin.intended && std::ranges::find(meant, origin.op) == meant.end())
        culprit = origin.op;
    } else if (backward && bad_output(*from)) {
      culprit = start;
    }
  }
  first = &trace.ops[culprit];
}

bool Scene::forward_bad() const { return forward && (bad_input(*forward) || bad_output(*forward)); }

// Whose derivative it is, as the program wrote it: of a derivative of a derivative, the call below both.
const record::Op* Scene::written_forward() const {
  const record::Op* call = backward && culprit == birth.op && node && is_builtin_node(*node) ? forward : nullptr;
  for (int depth = 0; call && call->stack == kNone && depth < 8;
       ++depth) {  // what a node computes again has a line of its own
    const record::Op* around = op_at(trace, call->node);
    const record::Op* below = around && is_builtin_node(*around) ? op_at(trace, around->forward) : nullptr;
    if (!below) break;
    call = below;
  }
  return call;
}

const record::Frame* Scene::frame() const {
  const record::Op* readers = op_at(trace, birth.first_reader);
  // The line of autograd.grad is that of its nodes; what there is to mend is where the forward call does.
  for (const record::Op* candidate : {written_forward(), first, forward, op, readers})
    if (candidate)
      if (const auto* found = top_frame(trace, candidate->stack)) return found;
  if (birth.storage < trace.storages.size()) return top_frame(trace, trace.storages[birth.storage].stack);
  return nullptr;
}

Finding finding(const Scene& scene, std::string_view cause_class, int score, std::string text, std::string fix) {
  Finding result;
  result.cause_class = cause_class;
  result.confidence = "possible";
  result.in_optimizer = scene.birth.kind == "optimizer";
  result.score = score;
  result.text = std::move(text);
  result.fix_text = std::move(fix);
  if (const auto* frame = scene.frame(); frame && !result.fix_text.empty()) {
    result.fix_file = frame->file;
    result.fix_line = frame->line;
  }
  return result;
}

std::string hidden_by(const Scene& scene) {
  const auto* select = op_at(scene.trace, scene.birth.absorbed_by);
  if (!select) return {};
  const std::string text = "; " + select->name + at_line(scene.trace, *select);
  if (!locate::is_select(*select)) return text + " takes it in and gives finite values";
  return text + " hides it in forward, but backward still runs through the branch that was not taken";
}

std::string figure(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Inf" : "+Inf";
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), std::fabs(value) < 1e6 ? "%.6g" : "%.4g", value);
  return text.data();
}

std::string counted(std::uint64_t n, std::string_view singular) {
  std::string text = std::to_string(n) + " ";
  if (n == 1) return text.append(singular);
  if (singular.ends_with('y')) return text.append(singular.substr(0, singular.size() - 1)).append("ies");
  return text.append(singular).append("s");
}

std::string zeros_of(const Operand& operand) {
  if (is_integral(operand)) return "an integer zero";
  const bool parts = sense::info(operand.dtype()).reals_per_element == 2;  // statistics count them one by one
  return counted(operand.zeros(), "zero") + " among " +
         (parts ? std::to_string(operand.numel()) + " real and imaginary parts" : counted(operand.numel(), "value"));
}

std::string at_rows(const locate::Birth& birth) {
  if (birth.rows.empty()) return {};
  constexpr std::size_t kShown = 5;
  std::string text = birth.rows.size() == 1 ? " at row " : " at rows ";
  for (std::size_t i = 0; i < std::min(birth.rows.size(), kShown); ++i)
    text += (i ? ", " : "") + std::to_string(birth.rows[i]);
  if (birth.rows.size() > kShown) text += " and " + std::to_string(birth.rows.size() - kShown) + " more";
  if (birth.rows_of != 0) text += " of the batch";
  return text;
}

std::string dtype_name(sense::DType dtype) { return std::string(sense::info(dtype).name); }

}  // namespace finitude::explain
