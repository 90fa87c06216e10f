#include "replay/tape_backward_torch.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "replay/call_copies_torch.h"
#include "replay/tape_observer_torch.h"
#include "replay/tape_statistics_torch.h"

namespace finitude::replay {
namespace {

constexpr std::size_t kMostCalls = 64, kMostGradients = 16;
constexpr std::uint64_t kMostBytes = std::uint64_t{256} << 20;  // of copies

// Tensors of the arguments in their order, those of lists among them; nothing where one of them is sparse, which a tape
// has as two.
std::vector<at::Tensor> flat(c10::ArrayRef<c10::IValue> arguments) {
  std::vector<at::Tensor> found;
  for (const c10::IValue& value : arguments) {
    const auto add = [&](const c10::IValue& one) {
      if (one.isTensor() && one.toTensor().defined()) found.push_back(one.toTensor());
    };
    add(value);
    if (!value.isList()) continue;
    for (const c10::IValue& item : value.toListRef()) add(item);
  }
  return found;
}

std::vector<const capture::TensorRef*> flat(const std::vector<capture::Value>& values) {
  std::vector<const capture::TensorRef*> found;
  capture::for_each_tensor(values, [&](const capture::TensorRef& t) { found.push_back(&t); });
  return found;
}

struct GradientAt {
  std::size_t call = 0, tensor = 0;  // of its arguments
};

// A call of forward that the node may belong to, and what may be the gradient that the node was given.
struct Candidate {
  std::size_t index = 0;
  std::vector<GradientAt> gradients;
};

std::vector<Candidate> candidates_of(const capture::Tape& tape, std::size_t birth) {
  const capture::Entry& born = tape.entries[birth];
  std::vector<Candidate> found;
  if (born.place == capture::kNoPlace || !born.of_backward) return found;
  std::vector<std::size_t>
      block;  // calls of that line's nodes: up to the birth, the nearest first, then those behind it
  const auto is_other = [&](std::size_t i) {
    const capture::Entry& entry = tape.entries[i];
    if (entry.kind != capture::Entry::kCall) return false;
    if (entry.of_backward && entry.place == born.place) block.push_back(i);
    return !entry.of_backward || entry.place != born.place;
  };
  for (std::size_t i = birth + 1; i-- > 0 && !is_other(i);) {
  }
  for (std::size_t i = birth + 1; i < tape.entries.size() && !is_other(i); ++i) {
  }
  for (std::size_t i = birth; i-- > 0 && found.size() < kMostCalls;) {
    const capture::Entry& entry = tape.entries[i];
    if (entry.kind != capture::Entry::kCall || entry.of_backward || entry.place != born.place) continue;
    std::set<capture::StorageId> own;
    for (const auto* side : {&entry.args, &entry.results})
      capture::for_each_tensor(*side, [&](const capture::TensorRef& t) { own.insert(t.storage); });
    Candidate candidate{i, {}};
    for (const capture::TensorRef* result : flat(entry.results)) {
      for (const std::size_t call : block) {
        const auto read = flat(tape.entries[call].args);
        for (std::size_t k = 0; k < read.size() && candidate.gradients.size() < kMostGradients; ++k) {
          if (read[k]->sizes == result->sizes && read[k]->dtype == result->dtype && !own.contains(read[k]->storage))
            candidate.gradients.push_back({call, k});
        }
      }
    }
    if (!candidate.gradients.empty()) found.push_back(std::move(candidate));
  }
  return found;
}

class TakeCalls : public PlayObserver {
 public:
  explicit TakeCalls(const std::vector<Candidate>& candidates) {
    for (const Candidate& candidate : candidates) {
      wanted_.insert(candidate.index);
      for (const GradientAt& at : candidate.gradients) wanted_.insert(at.call);
      last_ = *wanted_.rbegin();
    }
  }
  void before(const PlayedCall& call) override {
    if (!wanted_.contains(call.index) || left_ == 0) return;
    std::uint64_t bytes = 0;
    for (const at::Tensor& t : flat(call.arguments)) bytes += t.layout() == c10::kStrided ? t.nbytes() : 0;
    left_ -= std::min(left_, bytes);
    if (left_ == 0) return;
    schemas.emplace(call.index, call.schema);
    arguments.emplace(call.index, CallCopies().of(call.arguments));
  }
  bool after(const PlayedCall& call) override { return call.index != last_; }

  std::map<std::size_t, c10::FunctionSchema> schemas;
  std::map<std::size_t, std::vector<c10::IValue>> arguments;

 private:
  std::set<std::size_t> wanted_;
  std::size_t last_ = 0;
  std::uint64_t left_ = kMostBytes;
};

// The default generator of the CPU as it was.
at::Generator generator() { return at::detail::getDefaultCPUGenerator(); }
struct KeptGenerator {
  at::Tensor state = generator().get_state();
  ~KeptGenerator() { generator().set_state(state); }
};

bool may_be_leaf(const at::Tensor& t) {
  return t.defined() && t.layout() == c10::kStrided && (t.is_floating_point() || t.is_complex()) &&
         !t.unsafeGetTensorImpl()->is_wrapped_number();
}

// The call with its leaves; of each its copy, since it may be written.
struct Issued {
  std::vector<at::Tensor> leaves, results;
};

Issued issue(const c10::OperatorHandle& op, const BackwardCall& call) {
  Issued issued;
  std::map<const c10::TensorImpl*, at::Tensor> known;
  const auto given = [&](const at::Tensor& t, bool leaf, bool written) -> c10::IValue {
    if (!t.defined()) return t;
    at::Tensor& mine = known[t.unsafeGetTensorImpl()];
    if (!mine.defined()) {
      mine = t.layout() == c10::kStrided ? t.detach().clone() : copy_of(t);
      if (t.unsafeGetTensorImpl()->is_wrapped_number()) mine.unsafeGetTensorImpl()->set_wrapped_number(true);
      if (leaf) issued.leaves.push_back(mine.requires_grad_());
    }
    return written && mine.requires_grad() ? mine.clone() : mine;
  };
  torch::jit::Stack stack;
  for (std::size_t i = 0; i < call.arguments.size(); ++i) {
    const c10::IValue& value = call.arguments[i];
    const auto leaf = [&](std::size_t k) { return k < call.leaves[i].size() && call.leaves[i][k]; };
    if (value.isTensor()) {
      stack.push_back(given(value.toTensor(), leaf(0), call.written[i]));
    } else if (value.isList()) {
      c10::impl::GenericList list(value.toList().elementType());
      std::size_t k = 0;
      for (const c10::IValue& item : value.toListRef()) {
        if (item.isTensor())
          list.push_back(given(item.toTensor(), leaf(k), call.written[i]));
        else
          list.push_back(item);
        ++k;
      }
      stack.push_back(std::move(list));
    } else {
      stack.push_back(value);
    }
  }
  if (call.is_random) generator().set_current_seed(0);
  op.callBoxed(&stack);
  for (const c10::IValue& value : stack) issued.results.push_back(value.isTensor() ? value.toTensor() : at::Tensor());
  return issued;
}

// Which tensors autograd takes a gradient of: it refuses some by an exception (a running mean).
void find_leaves(const c10::OperatorHandle& op, BackwardCall& call) {
  std::vector<std::vector<bool>> found(call.arguments.size());
  for (std::size_t i = 0; i < call.arguments.size(); ++i) {
    const c10::IValue& value = call.arguments[i];
    std::vector<bool> wanted;
    const auto look = [&](const c10::IValue& one) { wanted.push_back(one.isTensor() && may_be_leaf(one.toTensor())); };
    if (value.isTensor()) look(value);
    if (value.isList()) std::for_each(value.toListRef().begin(), value.toListRef().end(), look);
    if (std::find(wanted.begin(), wanted.end(), true) == wanted.end()) continue;
    call.leaves.assign(call.arguments.size(), {});
    call.leaves[i] = wanted;
    try {
      const Issued issued = issue(op, call);
      for (const at::Tensor& result : issued.results) {
        if (result.defined() && result.requires_grad()) found[i] = wanted;
      }
    } catch (const std::exception&) {
    }
  }
  call.leaves = std::move(found);
}

bool makes_it_bad(const c10::OperatorHandle& op, BackwardCall& call, const std::string& node) {
  const Issued issued = issue(op, call);
  for (std::size_t k = 0; k < issued.results.size(); ++k) {
    const at::Tensor& result = issued.results[k];
    if (!result.defined() || !result.requires_grad() || !result.grad_fn()) continue;
    if (result.sizes() != call.gradient.sizes() || result.scalar_type() != call.gradient.scalar_type()) continue;
    if (!node.empty() && result.grad_fn()->name() != node) continue;
    const auto gradients = torch::autograd::grad({result}, issued.leaves, {call.gradient}, true, false, true);
    call.result = k;
    call.results = issued.results.size();
    for (const at::Tensor& gradient : gradients) {
      if (gradient.defined() && gradient.layout() == c10::kStrided && !health_of(gradient).ok()) return true;
    }
  }
  return false;
}

}  // namespace

std::optional<BackwardCall> backward_of(const capture::Tape& tape, std::size_t birth, const std::string& node,
                                        const PlayOptions& options) {
  const std::vector<Candidate> candidates = candidates_of(tape, birth);
  if (candidates.empty()) return {};
  TakeCalls taken(candidates);
  if (const Played played = play(tape, options, &taken); !played.missing.empty() || !played.why_not.empty()) return {};
  const at::AutoGradMode grad_mode(true);
  const KeptGenerator kept;
  for (const Candidate& candidate : candidates) {
    const auto schema = taken.schemas.find(candidate.index);
    if (schema == taken.schemas.end()) continue;
    const auto op = c10::Dispatcher::singleton().findSchema({schema->second.name(), schema->second.overload_name()});
    if (!op) continue;
    BackwardCall call;
    call.index = candidate.index;
    call.schema.emplace(schema->second);
    call.arguments = taken.arguments.at(candidate.index);
    call.is_random = op->hasTag(at::Tag::nondeterministic_seeded);
    for (const c10::Argument& argument : schema->second.arguments())
      call.written.push_back(argument.alias_info() != nullptr && argument.alias_info()->isWrite());
    bool finite = true;
    for (const at::Tensor& t : flat(call.arguments)) finite = finite && health_of(t).ok();
    if (!finite) continue;
    try {
      find_leaves(*op, call);
      for (const GradientAt& at : candidate.gradients) {
        const auto read = taken.arguments.find(at.call);
        if (read == taken.arguments.end()) continue;
        const std::vector<at::Tensor> tensors = flat(read->second);
        if (at.tensor >= tensors.size() || tensors.size() != flat(tape.entries[at.call].args).size()) continue;
        call.gradient = tensors[at.tensor];
        if (health_of(call.gradient).ok() && makes_it_bad(*op, call, node)) return call;
      }
    } catch (const std::exception&) {  // autograd does not take it: another call may be the one
    }
  }
  return {};
}

}  // namespace finitude::replay
