#include "observe/first_forward_torch.h"

#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "observe/op_tensors_torch.h"
#include "observe/traced_torch.h"

namespace finitude::observe {
namespace {

constexpr std::size_t kMostCopies = 8;
constexpr std::size_t kMostBytes = 64u << 20;  // of all copies, but for one
constexpr std::uint64_t kMostOps =
    200'000;  // of what comes before a first step: a long evaluation is not slowed down to its end

struct BegunWith {
  std::uint64_t node;  // the next autograd node of that thread
  BufferSnapshot buffers;
};

struct Coming {
  std::mutex mutex;
  BufferSnapshot buffers;                 // what is looked at
  std::vector<BegunWith> copies;          // where a graph began with other buffers than the one before
  std::uint64_t thread = 0;               // that builds graphs
  std::uint64_t first_node = UINT64_MAX;  // that backward has gone through
  std::uint64_t ops = 0;
};

Coming& coming() {
  static Coming* instance = new Coming();
  return *instance;
}

std::atomic<at::CallbackHandle> coming_handle = 0;
thread_local int ops_open = 0;

struct OpContext : at::ObserverContext {};

// All that it reads and that requires a gradient are leaves: no earlier graph continues in it.
bool begins_graph(const at::RecordFunction& fn) {
  bool leaf = false, inner = false;
  for (const c10::IValue& value : fn.inputs()) {
    for_each_tensor(value, [&](const at::Tensor& t) {
      if (!t.defined() || !t.requires_grad()) return;
      (t.is_leaf() ? leaf : inner) = true;
    });
  }
  return leaf && !inner;
}

void look_at_graph(const at::RecordFunction& fn) {
  Coming& c = coming();
  if (fn.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    const std::lock_guard<std::mutex> lock(c.mutex);
    if (fn.seqNr() >= 0 && fn.forwardThreadId() == c.thread)
      c.first_node = std::min(c.first_node, static_cast<std::uint64_t>(fn.seqNr()));
    return;
  }
  if (ops_open > 1) return;
  const bool begins = at::GradMode::is_enabled() && begins_graph(fn);
  const std::lock_guard<std::mutex> lock(c.mutex);
  if (++c.ops > kMostOps) {
    if (const auto mine = coming_handle.exchange(0)) at::removeCallback(mine);
    c.copies.clear();
    return;
  }
  if (!begins || c.first_node != UINT64_MAX) return;
  const std::uint64_t thread = at::RecordFunction::currentThreadId();
  if (c.copies.empty()) c.thread = thread;
  if (thread != c.thread || (!c.copies.empty() && c.copies.back().buffers.is_current())) return;
  const std::size_t most =
      std::clamp(kMostBytes / std::max<std::size_t>(1, c.buffers.size_bytes()), std::size_t{1}, kMostCopies);
  if (c.copies.size() >= most) c.copies.erase(c.copies.begin());
  c.copies.push_back({at::sequence_number::peek(), c.buffers});
  c.copies.back().buffers.take();
}

std::unique_ptr<at::ObserverContext> on_op_begins(const at::RecordFunction& fn) {
  ++ops_open;
  try {
    if (!is_traced()) look_at_graph(fn);
    return std::make_unique<OpContext>();
  } catch (...) {  // the operator that is under way is the program's
  }
  --ops_open;
  return nullptr;
}

void on_op_ends(const at::RecordFunction&, at::ObserverContext* context) {
  if (context != nullptr) --ops_open;
}

}  // namespace

void first_forward_begins(const BufferSnapshot& buffers) {
  Coming& c = coming();
  const std::lock_guard<std::mutex> lock(c.mutex);
  if (buffers.size_bytes() == 0 || buffers.is_elsewhere()) return;
  c.buffers = buffers;
  if (coming_handle != 0) return;
  c.ops = 0;
  coming_handle = at::addGlobalCallback(at::RecordFunctionCallback(&on_op_begins, &on_op_ends)
                                            .needsInputs(true)
                                            .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

std::optional<BufferSnapshot> first_forward_over(std::uint64_t node) {
  const auto mine = coming_handle.exchange(0);
  if (mine == 0) return std::nullopt;
  at::removeCallback(mine);
  Coming& c = coming();
  const std::lock_guard<std::mutex> lock(c.mutex);
  std::optional<BufferSnapshot> found;
  c.first_node = std::min(c.first_node, node);
  for (BegunWith& copy : c.copies) {
    if (c.first_node != UINT64_MAX && copy.node <= c.first_node) found = std::move(copy.buffers);
  }
  c.copies.clear();
  c.buffers = {};
  c.first_node = UINT64_MAX;
  return found;
}

}  // namespace finitude::observe
