#include "compare/capsules.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <functional>
#include <unordered_map>

#include "base/checksum.h"
#include "compare/tape_run.h"
#include "compare/values_torch.h"
#include "observe/generator_state_torch.h"
#include "replay/tape_observer_torch.h"
#include "replay/tape_player.h"

namespace finitude::compare {
namespace {

using capture::Entry;
using capture::Tape;

constexpr std::uint32_t kOutputs = 1U << 30;  // slots of outputs count from here

// What one tape is, beside its Run, for the observers of both passes.
struct Played {
  const Tape& tape;
  std::vector<std::uint32_t> call_of_entry;
  std::vector<Slots> slots;                                // by call
  std::unordered_map<std::uint32_t, OperatorFacts> facts;  // by operator of the tape
  explicit Played(const Tape& t) : tape(t), call_of_entry(calls_by_entry(t)) {}

  const OperatorFacts& facts_at(std::size_t entry) {
    const std::uint32_t number = tape.entries[entry].number;
    const auto known = facts.find(number);
    if (known != facts.end()) return known->second;
    const capture::Operator& op = tape.operators.at(number);
    return facts
        .emplace(number, facts_of(c10::Dispatcher::singleton().findSchemaOrThrow(op.name.c_str(), op.overload.c_str())))
        .first->second;
  }
};

// The first pass: every call with statistics and checksums.
class Recorder : public replay::PlayObserver {
 public:
  Recorder(Played& played, Run* run) : played_(played), run_(*run) {}

  void before(const replay::PlayedCall& at) override {
    catch_up(at.index);
    const Entry& entry = played_.tape.entries[at.index];
    Slots slots;
    call_ = call_of(played_.tape, entry, played_.facts_at(at.index), &slots);
    const std::vector<at::Tensor> arguments = flat(at.arguments);
    for (std::size_t k = 0; k < slots.inputs.size(); ++k) measure(arguments.at(slots.inputs[k]), &call_.inputs[k]);
    if (call_.random) call_.random_state = random_state(at.arguments);
    played_.slots.push_back(std::move(slots));
  }
  bool after(const replay::PlayedCall& at) override {
    const std::vector<at::Tensor> outputs = outputs_of(played_.slots.back(), flat(at.arguments), flat(at.results));
    for (std::size_t k = 0; k < outputs.size(); ++k) measure(outputs[k], &call_.outputs[k]);
    // Attention without dropout may draw, and does not.
    if (call_.random && on_host(outputs)) call_.random = random_state(at.arguments) != call_.random_state;
    run_.calls.push_back(std::move(call_));
    return true;
  }
  void outcome(std::size_t index, const at::Tensor& tensor) override {
    catch_up(played_.tape.entries.size());
    const capture::Outcome& outcome = played_.tape.outcomes[index];
    Result result{outcome.kind, outcome.name, {}};
    if (outcome.value.kind == capture::Value::kTensor && outcome.value.tensors.size() == 1) {
      result.value = described(played_.tape, outcome.value.tensors[0]);
      measure(tensor, &result.value);
    }
    run_.results.push_back(std::move(result));
  }

 private:
  // Memory that no operator wrote.
  void catch_up(std::size_t entry) {
    for (; next_ < entry; ++next_) {
      if (played_.tape.entries[next_].kind != Entry::kFill || goes_on_filling(played_.tape, next_)) continue;
      run_.calls.push_back(memory_call(played_.tape, next_));
      played_.slots.emplace_back();
    }
    next_ = entry + 1;
  }

  static bool on_host(const std::vector<at::Tensor>& tensors) {
    return std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor& t) { return t.device().is_cpu(); });
  }
  static std::uint64_t random_state(c10::ArrayRef<c10::IValue> arguments) {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    for (const c10::IValue& value : arguments) {
      if (value.isGenerator()) generator = value.toGenerator();
    }
    const std::string state = observe::generator_state(generator);
    return base::checksum(state.data(), state.size());
  }

  Played& played_;
  Run& run_;
  Call call_;
  std::size_t next_ = 0;
};

// Values of tensors of A, as many as fit. Equal ones lie there once.
class Values {
 public:
  explicit Values(std::uint64_t max_bytes) : left_(max_bytes) {}

  void put(std::uint64_t key, std::uint64_t checksum, const at::Tensor& tensor) {
    const auto [known, is_new] = by_checksum_.try_emplace(checksum ^ tensor.nbytes(), content_.size());
    if (is_new) {
      if (tensor.nbytes() > left_) {
        by_checksum_.erase(known);
        ++left_out_;
        return;
      }
      left_ -= tensor.nbytes();
      content_.push_back(plain(tensor).clone());
    }
    by_key_[key] = known->second;
  }
  const at::Tensor* find(std::uint64_t key) const {
    const auto found = by_key_.find(key);
    return found == by_key_.end() ? nullptr : &content_[found->second];
  }
  std::uint64_t left_out() const { return left_out_; }

 private:
  std::unordered_map<std::uint64_t, std::size_t> by_checksum_, by_key_;
  std::vector<at::Tensor> content_;
  std::uint64_t left_, left_out_ = 0;
};

std::uint64_t key_of(std::size_t call, std::size_t slot) { return static_cast<std::uint64_t>(call) << 31 | slot; }

// Different, and of forms that are compared by element.
bool worth(const Tensor& a, const Tensor& b) {
  if (a.element.number == Number::kOther || b.element.number == Number::kOther || a.shape != b.shape) return false;
  if (a.element.reals != b.element.reals || !a.has_checksum || !b.has_checksum) return false;
  return a.checksum != b.checksum || a.element.number != b.element.number;
}

Distance between(const at::Tensor& a, const at::Tensor& b, const Tensor& ta, const Tensor& tb) {
  const auto reals = static_cast<std::uint64_t>(ta.element.reals);
  const std::uint64_t n = static_cast<std::uint64_t>(a.numel()) * reals;
  const std::uint64_t row = a.dim() >= 1 && a.size(0) > 0 ? n / static_cast<std::uint64_t>(a.size(0)) : 0;
  const at::Tensor pa = plain(a), pb = plain(b);
  return distance(static_cast<const char*>(pa.const_data_ptr()), ta.element.number,
                  static_cast<const char*>(pb.const_data_ptr()), tb.element.number, n, row);
}

// Rows by call, and for each call whether its values are wanted.
struct Plan {
  std::vector<std::size_t> row_of;  // by call; kNoRow: it has no partner
  std::vector<std::uint32_t> partner;
};
constexpr std::size_t kNoRow = static_cast<std::size_t>(-1);

Plan plan_of(const std::vector<Row>& rows, std::size_t calls, bool of_a) {
  Plan plan{std::vector<std::size_t>(calls, kNoRow), std::vector<std::uint32_t>(calls, kNone)};
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (rows[r].a == kGap || rows[r].b == kGap) continue;
    plan.row_of[of_a ? rows[r].a : rows[r].b] = r;
    plan.partner[of_a ? rows[r].a : rows[r].b] = of_a ? rows[r].b : rows[r].a;
  }
  return plan;
}

void check_steady(const at::Tensor& tensor, Tensor* known) {
  Tensor again;
  measure(tensor, &again);
  known->unsteady |= again.checksum != known->checksum;
}

// The second pass over A.
class Keeper : public replay::PlayObserver {
 public:
  Keeper(Played& played, Compared& compared, Values& values)
      : played_(played),
        compared_(compared),
        values_(values),
        plan_(plan_of(compared.rows, compared.a.calls.size(), true)) {}

  void before(const replay::PlayedCall& at) override {
    const std::uint32_t call = played_.call_of_entry[at.index];
    if (plan_.partner[call] == kNone) return;
    Call &mine = compared_.a.calls[call], &other = compared_.b.calls[plan_.partner[call]];
    const std::vector<at::Tensor> arguments = flat(at.arguments);
    for (std::size_t k = 0; k < std::min(mine.inputs.size(), other.inputs.size()); ++k) {
      if (worth(mine.inputs[k], other.inputs[k]))
        keep(key_of(call, k), arguments.at(played_.slots[call].inputs[k]), mine.inputs[k]);
    }
  }
  bool after(const replay::PlayedCall& at) override {
    const std::uint32_t call = played_.call_of_entry[at.index];
    if (plan_.partner[call] == kNone) return true;
    Call &mine = compared_.a.calls[call], &other = compared_.b.calls[plan_.partner[call]];
    const std::vector<at::Tensor> outputs = outputs_of(played_.slots[call], flat(at.arguments), flat(at.results));
    for (std::size_t k = 0; k < std::min(mine.outputs.size(), other.outputs.size()); ++k) {
      if (!worth(mine.outputs[k], other.outputs[k])) continue;
      check_steady(outputs[k], &mine.outputs[k]);
      keep(key_of(call, kOutputs + k), outputs[k], mine.outputs[k]);
    }
    return true;
  }
  void outcome(std::size_t index, const at::Tensor& tensor) override {
    if (index < compared_.a.results.size() && compared_.a.results[index].value.has_checksum)
      keep(key_of(compared_.a.calls.size(), index), tensor, compared_.a.results[index].value);
  }

 private:
  void keep(std::uint64_t key, const at::Tensor& tensor, const Tensor& known) {
    values_.put(key, known.checksum * 31 + static_cast<std::uint64_t>(known.element.number), tensor);
  }

  Played& played_;
  Compared& compared_;
  Values& values_;
  Plan plan_;
};

// The second pass over B.
class Comparer : public replay::PlayObserver {
 public:
  Comparer(Played& played, Compared& compared, const Values& values)
      : played_(played),
        compared_(compared),
        values_(values),
        plan_(plan_of(compared.rows, compared.b.calls.size(), false)),
        same_(same_results(compared.a, compared.b)) {}

  void before(const replay::PlayedCall& at) override {
    const std::uint32_t call = played_.call_of_entry[at.index], other = plan_.partner[call];
    if (other == kNone) return;
    const Call &cb = compared_.b.calls[call], &ca = compared_.a.calls[other];
    Pair& pair = compared_.pairs[plan_.row_of[call]];
    pair.inputs.resize(std::min(ca.inputs.size(), cb.inputs.size()));
    const std::vector<at::Tensor> arguments = flat(at.arguments);
    bool differ = false, all = ca.inputs.size() == cb.inputs.size();
    std::vector<at::Tensor> swapped = arguments;
    for (std::size_t k = 0; k < pair.inputs.size(); ++k) {
      const Tensor &ta = ca.inputs[k], &tb = cb.inputs[k];
      const std::uint32_t slot = played_.slots[call].inputs[k];
      if (!worth(ta, tb)) {
        all = all && ta.shape == tb.shape && ta.has_checksum && tb.has_checksum && ta.checksum == tb.checksum;
        continue;
      }
      const at::Tensor* mine = values_.find(key_of(other, k));
      all = all && mine != nullptr;
      if (mine == nullptr) continue;
      pair.inputs[k] = between(*mine, arguments.at(slot), ta, tb);
      differ |= pair.inputs[k].differing != 0;
      swapped.at(slot) = *mine;
    }
    if (all && differ && !cb.random && cb.op == ca.op) try_on(at, call, other, arguments, std::move(swapped), pair);
  }
  bool after(const replay::PlayedCall& at) override {
    const std::uint32_t call = played_.call_of_entry[at.index], other = plan_.partner[call];
    if (other == kNone) return true;
    Call &cb = compared_.b.calls[call], &ca = compared_.a.calls[other];
    Pair& pair = compared_.pairs[plan_.row_of[call]];
    pair.outputs.resize(std::min(ca.outputs.size(), cb.outputs.size()));
    const std::vector<at::Tensor> outputs = outputs_of(played_.slots[call], flat(at.arguments), flat(at.results));
    for (std::size_t k = 0; k < pair.outputs.size(); ++k) {
      if (!worth(ca.outputs[k], cb.outputs[k])) continue;
      check_steady(outputs[k], &cb.outputs[k]);
      if (const at::Tensor* mine = values_.find(key_of(other, kOutputs + k)))
        pair.outputs[k] = between(*mine, outputs[k], ca.outputs[k], cb.outputs[k]);
    }
    return true;
  }
  void outcome(std::size_t index, const at::Tensor& tensor) override {
    if (index >= compared_.b.results.size()) return;
    const Result& mine = compared_.b.results[index];
    for (std::size_t i = 0; i < same_.size(); ++i) {
      const Result& other = compared_.a.results[i];
      if (same_[i] != index || other.value.shape != mine.value.shape) continue;
      if (other.value.element.number == Number::kOther || other.value.element.reals != mine.value.element.reals)
        continue;
      if (const at::Tensor* kept = values_.find(key_of(compared_.a.calls.size(), i));
          kept != nullptr && mine.value.has_checksum)
        compared_.results[i] = between(*kept, tensor, other.value, mine.value);
    }
  }

 private:
  // B's call on A's inputs: with the same outcome as A's it is no cause of what differs behind it.
  void try_on(const replay::PlayedCall& at, std::uint32_t call, std::uint32_t other,
              const std::vector<at::Tensor>& arguments, std::vector<at::Tensor> swapped, Pair& pair) {
    const OperatorFacts& facts = played_.facts_at(at.index);
    const Call &cb = compared_.b.calls[call], &ca = compared_.a.calls[other];
    try {
      for (std::size_t i = 0; i < swapped.size(); ++i) {
        const at::Tensor& usual = arguments[i];
        const bool taken = swapped[i].unsafeGetTensorImpl() != usual.unsafeGetTensorImpl();
        if (taken) {
          // In the form that B's kernel is used to, so that it goes the same way.
          at::Tensor like = at::empty_strided_symint(usual.sym_sizes(), usual.sym_strides(), usual.options());
          if (!usual.is_non_overlapping_and_dense()) like = at::empty(usual.sizes(), usual.options());
          like.copy_(swapped[i]);
          swapped[i] = like;
        } else if (facts.writes != 0) {
          swapped[i] = usual.clone();
        }
      }
      torch::jit::Stack stack = with_tensors(at.arguments, swapped);
      const torch::jit::Stack given = stack;
      facts.handle.callBoxed(&stack);
      const std::vector<at::Tensor> outputs = outputs_of(played_.slots[call], flat(given), flat(stack));
      const Noise noise = noise_of(ca, cb);
      bool any = false, agrees = true;
      for (std::size_t k = 0; k < std::min(ca.outputs.size(), outputs.size()); ++k) {
        if (!ca.outputs[k].used || !worth(ca.outputs[k], cb.outputs[k])) continue;
        const at::Tensor* mine = values_.find(key_of(other, kOutputs + k));
        if (mine == nullptr || mine->sizes() != outputs[k].sizes()) return;
        const Distance d = between(*mine, outputs[k], ca.outputs[k], cb.outputs[k]);
        any = true;
        agrees = agrees && level(d, noise.bound(d.scale)) != Level::kDiffers;
      }
      if (any) pair.tried = agrees ? Pair::kAgrees : Pair::kDisagrees;
    } catch (const std::exception&) {  // sizes that do not go together, or an operator that refuses: not tried
    }
  }

  Played& played_;
  Compared& compared_;
  const Values& values_;
  Plan plan_;
  std::vector<std::uint32_t> same_;
};

std::string cannot(const char* letter, const replay::Played& played) {
  if (!played.missing.empty()) {
    std::string text = std::string(letter) + " calls operators that cannot be called here:";
    for (const std::string& name : played.missing) text += " " + name;
    return text;
  }
  return played.why_not.empty() ? "" : std::string(letter) + " cannot be replayed here: " + played.why_not;
}

std::string both(const Tape& tape_a, const Tape& tape_b, const PlayedOptions& options, Compared* out) {
  replay::PlayOptions play_options;
  play_options.namespaces = options.namespaces;
  play_options.threads = options.threads;
  Played a(tape_a), b(tape_b);
  const auto pass = [&](const char* letter, const Tape& tape, replay::PlayObserver&& observer, bool* same = nullptr) {
    const replay::Played played = replay::play(tape, play_options, &observer);
    if (same != nullptr) *same = played.outcomes.empty() || played.identical();
    return cannot(letter, played);
  };
  if (std::string why = pass("A", tape_a, Recorder(a, &out->a), &out->reproduced_a); !why.empty()) return why;
  if (std::string why = pass("B", tape_b, Recorder(b, &out->b), &out->reproduced_b); !why.empty()) return why;
  connect(out->a);
  connect(out->b);
  out->rows = rows_of(out->a, out->b, &out->pairs);
  for (std::size_t r = 0; r < out->rows.size(); ++r) {
    if (out->pairs[r].swapped) std::swap(b.slots[out->rows[r].b].inputs.at(0), b.slots[out->rows[r].b].inputs.at(1));
  }
  out->results.resize(out->a.results.size());
  Values values(options.max_bytes);
  if (std::string why = pass("A", tape_a, Keeper(a, *out, values)); !why.empty()) return why;
  if (std::string why = pass("B", tape_b, Comparer(b, *out, values)); !why.empty()) return why;
  out->values_left_out = values.left_out();
  fill_in(out->a, out->b, out->rows, out->pairs, out->results);
  return "";
}

}  // namespace

std::string play_both(const Tape& a, const Tape& b, const PlayedOptions& options, Compared* out) {
  try {
    return both(a, b, options, out);
  } catch (const std::exception& e) {
    return e.what();
  }
}

std::string play_one(const Tape& tape, const PlayedOptions& options, Run* out) {
  try {
    Played played(tape);
    Recorder recorder(played, out);
    replay::PlayOptions play_options;
    play_options.namespaces = options.namespaces;
    play_options.threads = options.threads;
    std::string why = cannot("it", replay::play(tape, play_options, &recorder));
    connect(*out);
    return why;
  } catch (const std::exception& e) {
    return e.what();
  }
}

}  // namespace finitude::compare
