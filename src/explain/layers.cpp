#include "explain/layers.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string_view>
#include <vector>

#include "explain/evidence.h"
#include "explain/origin.h"
#include "explain/range.h"
#include "record/reported_range.h"

namespace finitude::explain {
namespace {

constexpr int kMaxOps = 8192;
constexpr std::size_t kFewestLayers = 3;
constexpr double kGrows = 1.5;      // a layer
constexpr double kGrowth = 1e3;     // in all
constexpr std::size_t kSparse = 3;  // of so many layers one grows
constexpr double kOneLayer = 0.6;   // of the growth in a single layer: that one is named

// One block of a stack of modules, or one iteration of a loop: the same call of a module, or the same line.
struct Layer {
  std::string name;
  double size = 0;                       // norm of what it passed on
  record::OpId last_op = record::kNone;  // that computed it
};

bool is_number(std::string_view part) {
  return !part.empty() && std::ranges::all_of(part, [](unsigned char c) { return std::isdigit(c) != 0; });
}

// "GPT.blocks.3" of "GPT.blocks.3.attention.out": up to the first number, which counts the blocks of a stack.
std::string_view layer_of(std::string_view module) {
  for (std::size_t begin = 0; begin < module.size();) {
    const std::size_t end = std::min(module.find('.', begin), module.size());
    if (is_number(module.substr(begin, end - begin))) return module.substr(0, end);
    begin = end + 1;
  }
  return module;
}

// Of an operation of backward: the one of forward that its node belongs to.
const record::Op& in_forward(const record::Trace& trace, const record::Op& op) {
  if (op.phase == record::Phase::kBackward && op.node < trace.ops.size() &&
      trace.ops[op.node].forward < trace.ops.size())
    return trace.ops[trace.ops[op.node].forward];
  return op;
}

// The stack of the innermost call around `op` that has one.
const record::Stack* stack_of(const record::Trace& trace, const record::Op& op) {
  const record::Op* at = &in_forward(trace, op);
  for (int depth = 0; depth < 16; ++depth) {
    if (at->stack < trace.stacks.size()) return &trace.stacks[at->stack];
    if (at->parent >= trace.ops.size()) break;
    at = &trace.ops[at->parent];
  }
  return nullptr;
}

// The block of a stack of modules, or the module, or outside of modules the line.
std::string name_of(const record::Trace& trace, const record::Op& op) {
  const record::Stack* stack = stack_of(trace, op);
  if (!stack) return {};
  if (!stack->module.empty()) return std::string(layer_of(stack->module));
  if (stack->frames.empty()) return {};
  const record::Frame& frame = stack->frames.front();
  return frame.file.substr(frame.file.rfind('/') + 1) + ":" + std::to_string(frame.line);
}

bool is_block_of_stack(std::string_view name) { return is_number(name.substr(name.rfind('.') + 1)); }

// Two calls of one operation from one place: one of them is an iteration after the other.
bool is_same_call(const record::Trace& trace, record::OpId one, record::OpId other) {
  const record::Op &a = trace.ops[one], &b = trace.ops[other];
  if (a.name != b.name) return false;
  const record::Stack *of_a = stack_of(trace, a), *of_b = stack_of(trace, b);
  if (!of_a || !of_b || of_a->frames.empty() || of_b->frames.empty()) return false;
  const record::Frame &f = of_a->frames.front(), &g = of_b->frames.front();
  return f.file == g.file && f.line == g.line && f.site == g.site && of_a->module == of_b->module;
}

double norm_of(const record::TensorUse& use) {
  return record::has_range(use.health) && use.health.ok() ? std::sqrt(use.health.sum_sq) : 0;
}

// From the birth towards the beginning of the pass along the largest operand that the pass itself computed; then turned
// round, in the order in which they ran.
std::vector<Layer> layers_before(const Scene& s, record::OpId from) {
  const record::Phase phase = s.trace.ops[from].phase;
  std::vector<Layer> layers;
  record::OpId reader = from;
  for (int step = 0; step < kMaxOps; ++step) {
    const record::TensorUse* largest = nullptr;
    record::OpId made_by = record::kNone;
    for (const auto& use : s.trace.ops[reader].inputs) {
      const record::OpId made = producer(s.trace, reader, use);
      if (made == record::kNone || made >= reader || s.trace.ops[made].phase != phase) continue;
      if (!largest || norm_of(use) > norm_of(*largest)) largest = &use, made_by = made;
    }
    if (!largest) break;
    const double size = norm_of(*largest);
    const std::string name = name_of(s.trace, s.trace.ops[made_by]);
    const bool is_next = layers.empty() || layers.back().name != name ||
                         (!is_block_of_stack(name) && is_same_call(s.trace, layers.back().last_op, made_by));
    if (!name.empty() && size > 0 && is_next) layers.push_back({name, size, made_by});
    reader = made_by;
  }
  // What lies outside of all modules, as an initialization, is no part of a model that has them.
  const auto is_in_module = [&](const Layer& layer) {
    const record::Stack* stack = stack_of(s.trace, s.trace.ops[layer.last_op]);
    return stack && !stack->module.empty();
  };
  if (std::ranges::any_of(layers, is_in_module)) std::erase_if(layers, std::not_fn(is_in_module));
  std::ranges::reverse(layers);
  return layers;
}

std::string factor_word(double factor) {
  char text[32];
  std::snprintf(text, sizeof text, factor < 1e4 ? "x%.3g" : "x%.1e", factor);
  return text;
}

}  // namespace

void report_layers(Finding& finding, const Evidence& evidence) {
  const Scene s(evidence);
  if (!s.first || !find_excess(*s.first)) return;
  const std::vector<Layer> layers = layers_before(s, s.culprit);
  if (layers.size() <= kFewestLayers) return;
  // From where it was smallest. Activations and the like lie between layers that grow.
  const auto least = std::ranges::min_element(layers, {}, &Layer::size);
  const Layer &first = *least, &last = layers.back();
  std::vector<std::size_t> grew;
  for (auto i = static_cast<std::size_t>(least - layers.begin()) + 1; i < layers.size(); ++i)
    if (layers[i].size >= kGrows * layers[i - 1].size) grew.push_back(i);
  const auto passed = static_cast<std::size_t>(layers.end() - least) - 1;
  if (grew.size() < kFewestLayers || kSparse * grew.size() < passed || !(last.size >= kGrowth * first.size)) return;
  const bool backward = s.trace.ops[s.culprit].phase == record::Phase::kBackward;
  const double whole = std::log(last.size / first.size);
  const auto factor = [&](std::size_t i) { return layers[i].size / layers[i - 1].size; };
  const std::size_t steepest = *std::ranges::max_element(grew, {}, factor);
  const std::string &earliest = layers[grew.front()].name, &latest = layers[grew.back()].name;
  const std::string count = std::to_string(grew.size());
  const bool is_loop = std::ranges::all_of(grew, [&](std::size_t i) { return layers[i].name == latest; });
  finding.text += std::string("; the norm of the ") + (backward ? "gradient" : "values") + " grew " +
                  factor_word(std::exp(whole / static_cast<double>(grew.size()))) +
                  (is_loop ? " an iteration over " + count + " iterations of " + latest
                           : " a layer over " + count + " layers (" + earliest + " to " + latest + ")") +
                  ", from " + figure(first.size) + " to " + figure(last.size);
  if (!is_loop && std::log(factor(steepest)) >= kOneLayer * whole)
    finding.text += ", most of it in " + layers[steepest].name + " (" + factor_word(factor(steepest)) + ")";
}

}  // namespace finitude::explain
