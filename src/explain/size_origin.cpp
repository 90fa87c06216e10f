#include "explain/size_origin.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "explain/origin.h"
#include "explain/range.h"
#include "record/reported_range.h"

namespace finitude::explain {
namespace {

constexpr int kMaxReaders = 1024;
constexpr double kShare = 0.3;         // of the limit, as exponents: 1e11 in float32, 28 in float16
constexpr double kLost = 1e3;          // a call whose result is that much smaller has normalised what it was given
constexpr double kSameAsBefore = 0.5;  // of what it is now: the size is no news of the last steps

struct Largest {
  const record::TensorUse* use = nullptr;  // null: a number
  double absmax = 0;
};

Largest largest_operand(const record::Op& op) {
  Largest found;
  const std::string name = plain_name(op.name);
  for (const auto& use : op.inputs) {
    const bool overwritten = use.written && one_of(name, {"copy", "fill", "zero"});
    if (overwritten || use.health.numel == 0 || !use.health.ok() || use.health.absmax <= found.absmax) continue;
    found = {&use, use.health.absmax};
  }
  for (const auto& scalar : op.scalars)
    if (scalar.tensor_like && scalar.number && std::fabs(*scalar.number) > found.absmax)
      found = {nullptr, std::fabs(*scalar.number)};
  return found;
}

bool is_given(const record::Trace& trace, record::StorageId storage) {
  if (storage >= trace.storages.size()) return false;
  const auto& from = trace.storages[storage];
  return from.origin == record::Origin::kConstant ||
         (!from.name.empty() && (from.origin == record::Origin::kParameter || from.origin == record::Origin::kBuffer ||
                                 from.origin == record::Origin::kBatch));
}

bool is_parameter(const record::Trace& trace, record::StorageId storage) {
  return is_given(trace, storage) && trace.storages[storage].origin == record::Origin::kParameter;
}

// A division of ordinary values by something that the step began with, which is so small that the result is large.
std::optional<SizeOrigin> small_divisor(const record::Trace& trace, record::OpId id, double dividend, double limit) {
  const record::Op& op = trace.ops[id];
  if (!one_of(plain_name(op.name), {"div", "divide", "true_divide"}) || op.inputs.size() != 2) return std::nullopt;
  const record::TensorUse& by = op.inputs[1];
  if (by.health.numel == 0 || !by.health.ok() || by.health.absmax == 0) return std::nullopt;
  if (std::log(dividend / by.health.absmax) < kShare * std::log(limit)) return std::nullopt;
  if (!is_given(trace, by.storage)) return std::nullopt;  // a buffer also where this step has updated it
  return SizeOrigin{by.storage, id, by.health.absmax, true};
}

}  // namespace

std::optional<SizeOrigin> size_origin(const record::Trace& trace, record::OpId from, double limit) {
  record::OpId reader = from;
  double read = 0;  // by the call that came before on this way back; 0: none
  for (int step = 0; step < kMaxReaders && reader < trace.ops.size(); ++step) {
    const Largest largest = largest_operand(trace.ops[reader]);
    if (largest.absmax == 0 || (read != 0 && largest.absmax > kLost * read)) return std::nullopt;
    const bool is_large = std::log(largest.absmax) >= kShare * std::log(limit);
    if (const auto divisor = small_divisor(trace, reader, largest.absmax, limit); divisor && !is_large) return divisor;
    if (!largest.use) return is_large ? std::optional(SizeOrigin{record::kNone, reader, largest.absmax}) : std::nullopt;
    const record::OpId made = producer(trace, reader, *largest.use);
    // A parameter is where it comes from also where its initialisation is part of the trace, as in a first step.
    if (made == record::kNone || (is_large && is_parameter(trace, largest.use->storage))) {
      if (!is_large || !is_given(trace, largest.use->storage)) return std::nullopt;
      return SizeOrigin{largest.use->storage, reader, largest.absmax};
    }
    reader = made, read = largest.absmax;
  }
  return std::nullopt;
}

void report_size_origin(Finding& finding, const Evidence& evidence) {
  const Scene s(evidence);
  if (!one_of(finding.cause_class, {"overflow", "half-precision-overflow", "exp-overflow"})) return;
  const auto excess = s.first ? find_excess(*s.first) : std::nullopt;
  if (!excess || excess->integers || (excess->division && !sense::is_half(excess->dtype))) return;
  const auto origin = size_origin(s.trace, s.culprit, excess->limit);
  if (!origin) return;
  const bool is_number =
      origin->storage == record::kNone || s.trace.storages[origin->storage].origin == record::Origin::kConstant;
  if (is_number) {
    finding.text += "; the size comes from a number of the program, " + figure(origin->absmax) +
                    at_line(s.trace, s.trace.ops[origin->read_by]);
    return;
  }
  const record::Storage& from = s.trace.storages[origin->storage];
  if (origin->is_divisor) {
    finding.text += "; the size comes from a division by " + from.name + ", which is as small as " +
                    figure(origin->absmax) + at_line(s.trace, s.trace.ops[origin->read_by]);
    finding.fix_text = "look at what makes " + from.name + " so small, or clamp it above zero where it divides" +
                       (finding.fix_text.empty() ? "" : "; or " + finding.fix_text);
    return;
  }
  finding.text += "; the size comes from " + from.name + ", which reaches " + figure(origin->absmax);
  if (from.origin == record::Origin::kBatch && finding.cause_class == "overflow") {
    // What is computed of such a number in a wider format is as useless as the infinity was.
    finding.fix_text = "look at what " + from.name +
                       " holds there: a code for a missing value, or another unit, is to be " +
                       "filled, scaled or dropped when the data set is made";
    finding.fix_is_no_edit = true;
  }
  if (from.origin != record::Origin::kParameter) return;
  // The largest weight before the first step comes first.
  const StepHistory& history = s.evidence.history;
  const bool since_start = history.loss.empty() || (!history.param_absmax.empty() &&
                                                    history.param_absmax.front() >= kSameAsBefore * origin->absmax);
  if (!since_start) return;
  finding.text += history.loss.empty() ? " before the first step" : "; weights were as large before the first step";
  finding.fix_text = "initialise " + from.name + " with smaller values, or check what loaded it" +
                     (finding.fix_text.empty() ? "" : "; or " + finding.fix_text);
}

}  // namespace finitude::explain
