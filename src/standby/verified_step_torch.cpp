#include "standby/verified_step_torch.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/immortal.h"
#include "capture/link.h"
#include "gate/gradients_torch.h"
#include "gate/param_groups_torch.h"
#include "observe/tape_recorder_torch.h"
#include "observe/tape_values_torch.h"
#include "observe/tracer_torch.h"
#include "pyhost/is_tensor_torch.h"
#include "replay/replay_values_torch.h"
#include "replay/verified_play_torch.h"
#include "standby/template_tape_torch.h"

namespace finitude::bindings {
namespace {

using observe::TapeRecorder;
using replay::VerifiedStep;

// Memory that nobody but an optimizer may write while a step is computed, as it was when the recording began.
struct AtRest {
  c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
  const void* data = nullptr;
  std::uint32_t version = 0;
  std::uint64_t digest = 0;
  std::uint32_t ordinal = 0;  // of the optimizer that it belongs to
  std::string kind, name;     // name: number of the parameter, with a key of its state
};

struct Verified {
  VerifiedCounts counts;
  std::set<std::string> nondeterministic;
  std::vector<AtRest> at_rest;
  nlohmann::json news = nlohmann::json::array();
};
base::Immortal<Verified> the_verified;

void rest(const at::Tensor& tensor, std::uint32_t ordinal, std::string kind, std::string name) {
  if (!tensor.defined() || !tensor.is_cpu() || tensor.layout() != c10::kStrided || tensor.is_inference()) return;
  at::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  if (observe::tape_storage(*impl) == nullptr) return;
  (*the_verified)
      .at_rest.push_back({c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr()), tensor.const_data_ptr(),
                          impl->version_counter().current_version(), observe::tape_checksum(tensor), ordinal,
                          std::move(kind), std::move(name)});
}

// Parameters, and optimizer.state[parameter], one level deep: use(tensor, kind, name) as AtRest has them.
// PyDict_GetItem makes no entries in a defaultdict.
template <typename Use>
void for_each_written(const OptimizerEntry& entry, const Use& use) {
  const Object state = Object::take(PyObject_GetAttrString(entry.self, "state"));
  PyErr_Clear();
  for_each_parameter(entry.self, [&](std::uint32_t index, PyObject* p) {
    if (!is_tensor_object(p)) return;
    const std::string number = std::to_string(index);
    use(THPVariable_Unpack(p), "parameter", number);
    PyObject* const of_parameter = state && PyDict_Check(state.get()) ? PyDict_GetItem(state.get(), p) : nullptr;
    if (of_parameter == nullptr || !PyDict_Check(of_parameter)) return;
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(of_parameter, &at, &key, &value)) {
      if (!is_tensor_object(value)) continue;
      const char* const word = PyUnicode_Check(key) ? PyUnicode_AsUTF8(key) : nullptr;
      use(THPVariable_Unpack(value), "state", number + "." + (word != nullptr ? word : "?"));
    }
  });
  PyErr_Clear();
}

// The line and the module of a call; of a backward node those of the forward call that made it.
void add_place(const capture::Tape& tape, const record::Trace& trace, std::size_t entry, nlohmann::json* found) {
  const capture::Entry& e = tape.entries[entry];
  (*found)["op"] = tape.operators[e.number].name;
  (*found)["backward"] = e.of_backward;
  if (e.place < tape.places.size()) {
    (*found)["file"] = tape.places[e.place].file;
    (*found)["line"] = tape.places[e.place].line;
  }
  if (e.traced >= trace.ops.size()) return;
  const record::Op* op = &trace.ops[e.traced];
  if (op->node < trace.ops.size() && trace.ops[op->node].forward < trace.ops.size())
    op = &trace.ops[trace.ops[op->node].forward];
  if (op->stack < trace.stacks.size()) (*found)["module"] = trace.stacks[op->stack].module;
}

// Which memory a call read: what it is, or which call made it.
void add_memory(const capture::Tape& tape, const VerifiedStep& step, nlohmann::json* found) {
  (*found)["argument"] = step.argument;
  const auto& args = tape.entries[step.entry].args;
  if (step.argument >= args.size()) return;
  capture::StorageId id = capture::kNoStorage;
  capture::for_each_tensor(args[step.argument], [&](const capture::TensorRef& t) {
    if (id == capture::kNoStorage) id = t.storage;
  });
  if (id >= tape.storages.size()) return;
  (*found)["memory"] = tape.storages[id].kind;
  (*found)["name"] = tape.storages[id].name;
  for (std::size_t i = step.entry; i-- > 0;) {
    const capture::Entry& e = tape.entries[i];
    if (e.kind != capture::Entry::kCall) continue;
    bool makes = false;
    capture::for_each_tensor(e.results, [&](const capture::TensorRef& t) { makes |= t.storage == id; });
    if (!makes) continue;
    (*found)["made_by"] = tape.operators[e.number].name;
    return;
  }
}

void note(nlohmann::json found, std::uint64_t step) {
  constexpr std::size_t kMost = 64;  // of a step
  found["step"] = step;
  ++(*the_verified).counts.mismatches;
  if ((*the_verified).news.size() < kMost) (*the_verified).news.push_back(std::move(found));
}

// An operator of the program that writes there is recorded, or changes the version. Writes through NumPy are not known.
void check_at_rest(const OptimizerEntry& entry, const std::vector<bool>& written) {
  auto& all = (*the_verified).at_rest;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto impl = all[i].tensor.lock();
    if (!impl || written[i] || all[i].ordinal != entry.ordinal) continue;
    const at::Tensor tensor(impl);
    if (tensor.const_data_ptr() != all[i].data || impl->version_counter().current_version() != all[i].version) continue;
    if (observe::tape_checksum(tensor) == all[i].digest) continue;
    note({{"what", "at-rest"},
          {"memory", all[i].kind},
          {"name", all[i].name},
          {"address", reinterpret_cast<std::uint64_t>(all[i].data)},
          {"size_bytes", tensor.nbytes()}},
         entry.step);
  }
}

// Plays what the recorder has. outcomes: what its outcomes are in the program, in their order. `step`: its number.
// of_optimizer: it is the optimizer's own step; of a class outside torch.optim code that is no operator may write, too.
std::string play_recorded(const std::vector<at::Tensor>& outcomes, std::uint64_t step_number, bool of_optimizer,
                          bool only_operators_write) {
  TapeRecorder& recorder = TapeRecorder::get();
  replay::StepDigests step;
  step.calls = recorder.take_digests();
  // The content of inputs is copied here: the memory is that of the step until the optimizer writes it.
  capture::RawTape raw = recorder.take();
  const record::Trace trace = observe::Tracer::get().take_trace();
  if (!raw.refused.empty()) return raw.refused.front() + " cannot be recorded";
  if (!raw.gaps.empty()) return raw.gaps.front();
  if (trace.truncated) return "it has too many operations";
  capture::Tape tape = capture::link(std::move(raw));
  if (!tape.gaps.empty()) return tape.gaps.front();
  replay::report_lines(trace, &tape);
  // Outcomes keep their order: losses come first, and have no tensor to compare with.
  step.outcomes.resize(tape.outcomes.size());
  std::size_t next = 0;
  for (std::size_t i = 0; i < tape.outcomes.size(); ++i) {
    if (tape.outcomes[i].kind != "loss" && next < outcomes.size()) step.outcomes[i] = outcomes[next++];
  }
  const VerifiedStep found = replay::verify_step(tape, step, &(*the_verified).nondeterministic);
  nlohmann::json news = {{"plays", found.plays}, {"of_optimizer", of_optimizer}};
  if ((found.kind == VerifiedStep::kMemory || found.kind == VerifiedStep::kOutcome) && !only_operators_write)
    return "its optimizer writes without operators of torch";
  switch (found.kind) {
    case VerifiedStep::kNotPlayed:
      return found.why_not;
    case VerifiedStep::kUnjudged:
      ++(*the_verified).counts.unjudged;
      break;
    case VerifiedStep::kSame:
      break;
    case VerifiedStep::kOperation:
      news["what"] = "operation";
      news["core"] = found.core;
      news["other_core"] = found.other_core;
      news["odd_core"] = found.odd_core;
      news["threads"] = found.other_threads;
      news["gives"] = found.gives == VerifiedStep::kOfPlays  ? "plays"
                      : found.gives == VerifiedStep::kOfStep ? "step"
                                                             : "others";
      add_place(tape, trace, found.entry, &news);
      note(std::move(news), step_number);
      break;
    case VerifiedStep::kMemory:
      news["what"] = "memory";
      add_place(tape, trace, found.entry, &news);
      add_memory(tape, found, &news);
      note(std::move(news), step_number);
      break;
    case VerifiedStep::kOutcome:
      news["what"] = "result";
      news["memory"] = tape.outcomes[found.outcome].kind;
      news["name"] = tape.outcomes[found.outcome].name;
      news["bytes"] = found.bytes.bytes;
      news["bits"] = found.bytes.bits;
      news["first"] = found.bytes.first;
      news["last"] = found.bytes.last;
      news["address"] = found.bytes.address;
      news["block"] = found.bytes.block;
      note(std::move(news), step_number);
      break;
  }
  return "";
}

std::string verify(const OptimizerEntry& entry, std::uint64_t since) {
  TapeRecorder& recorder = TapeRecorder::get();
  std::vector<const LossNote*> losses;
  if (!losses_since(since, &losses) || losses.empty()) return "it has no loss of its own";
  std::vector<at::Tensor> gradients;
  for_each_parameter(entry.self, [&](std::uint32_t index, PyObject* p) {
    const at::Tensor* grad = gradient_of(p);
    if (grad != nullptr && recorder.add_outcome("gradient", std::to_string(index), *grad, false))
      gradients.push_back(*grad);
  });
  std::vector<bool> written;
  for (const AtRest& one : (*the_verified).at_rest) {
    const auto impl = one.tensor.lock();
    written.push_back(!impl || recorder.writes(*impl));
    if (impl && one.ordinal == entry.ordinal) recorder.name_storage(*impl, one.kind, one.name);
  }
  if (std::string why = play_recorded(gradients, entry.step, false, true); !why.empty()) return why;
  check_at_rest(entry, written);
  ++(*the_verified).counts.steps;
  return "";
}

}  // namespace

void verified_step_begins() {
  (*the_verified).at_rest.clear();
  TapeRecorder::get().keep_digests(true);
  for (const auto& entry : live().optimizers) {
    if (!is_alive(*entry)) continue;
    for_each_written(*entry, [&](const at::Tensor& tensor, const char* kind, const std::string& name) {
      rest(tensor, entry->ordinal, kind, name);
    });
  }
}

namespace {

// Recorder and tracer are stopped first: what follows calls operators that are no part of the step.
template <typename Verify>
bool end_recording(const Verify& verify) {
  observe::Tracer::get().stop();
  TapeRecorder::get().stop();
  std::string why = verify();
  const bool is_played = why.empty();
  if (!is_played) {
    ++(*the_verified).counts.not_played;
    (*the_verified).counts.why_not = std::move(why);
  }
  (*the_verified).at_rest.clear();
  observe::Tracer::get().clear();
  TapeRecorder::get().keep_digests(false);
  TapeRecorder::get().clear();
  return is_played;
}

}  // namespace

bool verify_recorded_step(const OptimizerEntry& entry, std::uint64_t since) {
  return end_recording([&] { return verify(entry, since); });
}

void verified_optimizer_begins() { TapeRecorder::get().keep_digests(true); }

// The entry counts the step already.
void verify_optimizer_step(const OptimizerEntry& entry) {
  end_recording([&]() -> std::string {
    TapeRecorder& recorder = TapeRecorder::get();
    std::vector<at::Tensor> outcomes;
    for_each_written(entry, [&](const at::Tensor& tensor, const char* kind, const std::string& name) {
      if (!tensor.defined()) return;
      recorder.name_storage(*tensor.unsafeGetTensorImpl(), kind, name);
      if (recorder.add_outcome(kind, name, tensor, false)) outcomes.push_back(tensor);
    });
    for_each_parameter(entry.self, [&](std::uint32_t index, PyObject* p) {
      if (const at::Tensor* grad = gradient_of(p); grad != nullptr && grad->defined())
        recorder.name_storage(*grad->unsafeGetTensorImpl(), "gradient", std::to_string(index));
    });
    if (outcomes.empty()) return "its optimizer writes without operators of torch";
    std::string why = play_recorded(outcomes, entry.step - 1, true, entry.in_torch);
    if (why.empty()) ++(*the_verified).counts.optimizer_steps;
    return why;
  });
}

void forget_verified_steps() noexcept { *the_verified = {}; }

bool verified_has_news() noexcept { return !(*the_verified).news.empty(); }

bool report_verified(OptimizerEntry& entry) {
  const nlohmann::json news = std::exchange((*the_verified).news, nlohmann::json::array());
  if (news.empty()) return true;
  const std::string text = news.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  const Object object = Object::take(PyUnicode_FromString(text.c_str()));
  return object && call_cold("on_verified", entry.self, object.get());
}

VerifiedCounts verified_counts() {
  VerifiedCounts counts = (*the_verified).counts;
  counts.nondeterministic.assign((*the_verified).nondeterministic.begin(), (*the_verified).nondeterministic.end());
  return counts;
}

}  // namespace finitude::bindings
