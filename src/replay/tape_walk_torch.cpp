#include "replay/tape_walk_torch.h"

#include <algorithm>
#include <cstdio>

namespace finitude::replay {
namespace {

bool all_finite(const std::vector<NamedTensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const NamedTensor& t) { return health_of(t.tensor).ok(); });
}

std::vector<NamedTensor> outputs_of(const PlayedCall& call) {
  std::vector<NamedTensor> found = tensors_of(call.schema.returns(), call.results);
  for (NamedTensor& written : written_of(call.schema, call.arguments)) {
    const bool is_result = std::any_of(found.begin(), found.end(), [&](const NamedTensor& result) {
      return result.tensor.unsafeGetTensorImpl() == written.tensor.unsafeGetTensorImpl();
    });
    if (!is_result) found.push_back(std::move(written));
  }
  return found;
}

}  // namespace

void EveryCall::before(const PlayedCall& call) {
  finite_before_ = all_finite(tensors_of(call.schema.arguments(), call.arguments));
}

bool EveryCall::after(const PlayedCall& call) {
  const std::vector<NamedTensor> outputs = outputs_of(call);
  char head[32];
  std::snprintf(head, sizeof head, "%5zu  ", call.index);
  std::string line = head + call_name(tape_, call.index);
  line.resize(std::max<std::size_t>(line.size(), 40), ' ');
  constexpr std::size_t kShown = 4;
  const bool fresh = gives_fresh_memory(call.schema.name());
  for (std::size_t i = 0; i < outputs.size() && i < kShown; ++i)
    line += (i == 0 ? "  " : "; ") + (fresh ? form_of(outputs[i].tensor) : describe(outputs[i].tensor));
  if (fresh) line += "  fresh memory";
  if (outputs.size() > kShown) line += "; and " + std::to_string(outputs.size() - kShown) + " more";
  if (!fresh && finite_before_ && !all_finite(outputs)) line += "   <- finite in, not out";
  say_(line + place_of(tape_, call.index) + "\n");
  return true;
}

void StopAt::before(const PlayedCall& call) {
  if (call.index != index_) return;
  inputs = tensors_of(call.schema.arguments(), call.arguments);
  for (NamedTensor& input : inputs) input.tensor = copy_of(input.tensor);
}

bool StopAt::after(const PlayedCall& call) {
  if (call.index != index_) return true;
  outputs = outputs_of(call);
  for (NamedTensor& output : outputs) output.tensor = copy_of(output.tensor);
  return false;
}

std::string report_stop(const capture::Tape& tape, const StopAt& stop) {
  std::string text = "stopped after call " + std::to_string(stop.index()) + ", " + call_name(tape, stop.index()) +
                     place_of(tape, stop.index()) + "\n";
  for (const auto* side : {&stop.inputs, &stop.outputs}) {
    for (const NamedTensor& named : *side) {
      std::string name = (side == &stop.inputs ? "  in   " : "  out  ") + named.name;
      name.resize(std::max<std::size_t>(name.size(), 20), ' ');
      text += name + "  " + describe(named.tensor) + "\n";
    }
  }
  return text;
}

void KeepOutcomes::outcome(std::size_t index, const at::Tensor& tensor) {
  const capture::Outcome& known = tape_.outcomes.at(index);
  outcomes.push_back({known.kind == known.name ? known.kind : known.kind + "." + known.name, copy_of(tensor)});
}

}  // namespace finitude::replay
