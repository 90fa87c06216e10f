// The place in the program that an operator is called from, as a number of the trace.
#include <string>
#include <unordered_map>
#include <utility>

#include "observe/tracer_torch.h"

namespace finitude::observe {

std::uint32_t Tracer::intern_stack() {
  // Most ops come from a place that an op came from before; naming it costs more than the op.
  thread_local std::unordered_map<std::string, std::uint32_t> seen_before;
  thread_local std::uint64_t seen_in = 0;
  thread_local std::string key;
  const Places* places = places_;
  if (places == nullptr || !places->key(&key)) return record::kNone;
  const std::uint64_t generation = sink_.generation();
  if (seen_in != generation) {
    seen_before.clear();
    seen_in = generation;
  }
  const auto [place, is_new] = seen_before.try_emplace(key, record::kNone);
  if (is_new) {
    record::Stack stack;
    if (places->fill_stack(&stack)) place->second = sink_.stack(std::move(stack));
  }
  return place->second;
}

}  // namespace finitude::observe
