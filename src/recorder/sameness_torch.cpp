#include "recorder/sameness_torch.h"

#include <torch/csrc/autograd/function.h>

#include <functional>
#include <unordered_set>

#include "observe/tensor_view_torch.h"

namespace finitude::recorder {
namespace {

RunFacts::Value value_of(std::string name, const c10::TensorImpl& tensor, sense::Health* health = nullptr) {
  RunFacts::Value value{std::move(name)};
  observe::TensorView v;
  if (!observe::view_of(tensor, &v)) return value;
  const sense::Health h = observe::full(v);
  if (health != nullptr) *health = h;
  value.sum = observe::checksum(v);
  value.finite = h.ok();
  value.is_distinctive = h.ok() && h.min != h.max;
  return value;
}

// The nodes are compared by what they are called: their addresses are others in each run.
std::uint64_t graph_of(const at::Tensor& loss) {
  using torch::autograd::Node;
  if (!loss.defined() || !loss.grad_fn()) return 0;
  std::uint64_t sum = 1;
  std::unordered_set<const Node*> seen{loss.grad_fn().get()};
  std::vector<const Node*> open{loss.grad_fn().get()};
  while (!open.empty()) {
    const Node* const node = open.back();
    open.pop_back();
    sum = sum * 1099511628211u + std::hash<std::string>()(node->name());
    for (const auto& edge : node->next_edges()) {
      if (edge.function && seen.insert(edge.function.get()).second) open.push_back(edge.function.get());
    }
  }
  return sum;
}

}  // namespace

RunFacts facts_of(const std::vector<Loss>& losses, const at::Tensor& returned, const NamedInputs& inputs,
                  const Watched& watched, const Buffers& buffers, const Generators& generators) {
  RunFacts facts;
  for (const Loss& loss : losses) {
    const bool finite = !loss.bad && loss.unread.empty();
    facts.values.push_back({"the loss", loss.sum, finite, finite});
  }
  for (const auto& [name, weak] : inputs) {
    const auto tensor = weak.lock();
    if (!tensor) continue;
    sense::Health health;
    facts.values.push_back(value_of("the input " + name, *tensor, &health));
    if (!health.ok() && facts.bad_input.empty())
      facts.bad_input = "the input " + name + " held " + std::to_string(health.nan) + " NaN and " +
                        std::to_string(health.inf()) + " Inf";
  }
  watched.for_each([&](std::size_t index, const at::Tensor& p) {
    if (const at::Tensor* gradient = gradient_of(p))
      facts.values.push_back(
          value_of("the gradient of " + watched.name_of(index, p), *gradient->unsafeGetTensorImpl()));
  });
  for (const Buffer& buffer : buffers.live()) {
    facts.values.push_back(value_of("the buffer " + buffer.name, *buffer.tensor.unsafeGetTensorImpl()));
    facts.values.back().is_distinctive &=
        buffers.is_written(buffer);  // one that the step leaves alone is the same in any
  }
  generators.take(&facts.generators);
  facts.graph = graph_of(returned);
  return facts;
}

Sameness compare(const RunFacts& first, const RunFacts& second, std::string* what) {
  const auto other = [&](const std::string& text) {
    *what = text;
    return Sameness::kOther;
  };
  if (first.graph != 0 && second.graph != 0 && first.graph != second.graph) return other("it called other operators");
  if (first.generators != second.generators) return other("it drew other random numbers");
  if (first.values.size() != second.values.size()) return other("it has other losses, inputs or gradients");
  bool reported = false;
  for (std::size_t i = 0; i < first.values.size(); ++i) {
    const auto &before = first.values[i], &now = second.values[i];
    if (before.name != now.name) return other("it has other losses, inputs or gradients");
    if (!before.finite) continue;
    if (before.sum != now.sum) return other(before.name + ", which was finite, has other bits");
    reported |= before.is_distinctive;
  }
  return reported ? Sameness::kSame : Sameness::kUnknown;
}

}  // namespace finitude::recorder
