#include "replay/tape_birth_torch.h"

#include <cmath>
#include <tuple>

#include "replay/tape_calls.h"
#include "replay/tape_statistics_torch.h"

namespace finitude::replay {
namespace {

bool is_finite_number(const c10::IValue& value) {
  if (value.isDouble()) return std::isfinite(value.toDouble());
  if (value.isComplexDouble())
    return std::isfinite(value.toComplexDouble().real()) && std::isfinite(value.toComplexDouble().imag());
  if (!value.isList()) return true;
  for (const c10::IValue& item : value.toListRef()) {
    if (!is_finite_number(item)) return false;
  }
  return true;
}

// The report names the innermost operator; a kernel for a list of tensors may have called it.
bool is_meant(const std::string& name, const std::string& wanted) {
  if (wanted.empty()) return false;
  constexpr std::string_view kAten = "aten::";
  return name == wanted || (wanted.starts_with(kAten) && name == "aten::_foreach_" + wanted.substr(kAten.size()));
}

}  // namespace

void FindBirth::before(const PlayedCall& call) {
  finite_in_ = true;
  nan_in_ = false;
  const auto& known = call.schema.arguments();
  for (std::size_t i = 0; i < call.arguments.size(); ++i) {
    if (i < known.size() && known[i].is_out()) continue;
    finite_in_ = finite_in_ && is_finite_number(call.arguments[i]);
  }
  for (const NamedTensor& input : tensors_of(known, call.arguments)) {
    const sense::Health health = health_of(input.tensor);
    finite_in_ = finite_in_ && health.ok();
    nan_in_ = nan_in_ || health.nan != 0;
  }
}

bool FindBirth::after(const PlayedCall& call) {
  if (gives_fresh_memory(call.schema.name())) return true;  // nobody put there what lies in it
  bool bad = false, nan = false;
  const auto look = [&](const std::vector<NamedTensor>& tensors) {
    for (const NamedTensor& t : tensors) {
      const sense::Health health = health_of(t.tensor);
      bad = bad || !health.ok();
      nan = nan || health.nan != 0;
    }
  };
  look(tensors_of(call.schema.returns(), call.results));
  look(written_of(call.schema, call.arguments));
  if (bad) suspects_.push_back({call.index, finite_in_ ? 3 : nan && !nan_in_ ? 2 : 1});
  return true;
}

std::optional<std::size_t> FindBirth::birth(const BirthHint& hint) const {
  std::optional<std::size_t> best;
  std::tuple<bool, bool, bool, int> best_score;
  for (const Suspect& suspect : suspects_) {
    const capture::Entry& entry = tape_.entries.at(suspect.index);
    const bool is_op = is_meant(tape_.operators.at(entry.number).name, hint.op);
    const bool is_line = entry.place < tape_.places.size() && tape_.places[entry.place].line == hint.line &&
                         tape_.places[entry.place].file == hint.file;
    // A call that only passes on what was bad is one only if the report means it.
    if (suspect.weight == 1 && !is_op) continue;
    const bool is_phase = entry.place != capture::kNoPlace && entry.of_backward == hint.backward;
    const std::tuple<bool, bool, bool, int> score{is_op, is_op && is_line, is_op && is_phase, suspect.weight};
    if (best && score <= best_score) continue;
    best = suspect.index;
    best_score = score;
  }
  return best;
}

}  // namespace finitude::replay
