// The generators that a step draws from: their numbers on the tape, and their states before calls that draw.
#include <algorithm>

#include "observe/generator_state_torch.h"
#include "observe/tape_recorder_torch.h"

namespace finitude::observe {

std::int64_t TapeRecorder::generator_number(const at::Generator& generator) {
  for (std::size_t i = 0; i < generators_.size(); ++i) {
    if (generators_[i].unsafeGetGeneratorImpl() == generator.unsafeGetGeneratorImpl())
      return static_cast<std::int64_t>(i);
  }
  if (!generator.defined() || (!generator.device().is_cpu() && generator_state(generator).empty())) return -1;
  const std::uint8_t device = device_number(generator.device());
  if (device != 0) {
    while (raw_.generators.size() < generators_.size()) raw_.generators.push_back({0, raw_.generators.empty()});
    const at::Generator* const usual = &at::globalContext().defaultGenerator(generator.device());
    raw_.generators.push_back({device, usual->unsafeGetGeneratorImpl() == generator.unsafeGetGeneratorImpl()});
  } else if (!raw_.generators.empty()) {
    raw_.generators.push_back({});
  }
  generators_.push_back(generator);
  random_states_.emplace_back();
  return static_cast<std::int64_t>(generators_.size()) - 1;
}

void TapeRecorder::random_before(std::int64_t generator) {
  const auto index = static_cast<std::size_t>(generator);
  std::string now = generator_state(generators_[index]);
  if (now == random_states_[index]) return;
  capture::WireWriter out(&raw_.events);
  out.u8(static_cast<std::uint8_t>(capture::RawEvent::kRandom));
  out.var(index);
  out.text(now);
  ++events_;
  ++randoms_;
  random_states_[index] = std::move(now);
}

std::size_t TapeRecorder::note_random() {
  const std::lock_guard<std::mutex> lock(mutex_);
  random_states_[0].clear();
  random_before(0);
  return randoms_ - 1;
}

void TapeRecorder::random_after(std::int64_t generator) {
  random_states_[static_cast<std::size_t>(generator)] =
      generator_state(generators_[static_cast<std::size_t>(generator)]);
}

bool TapeRecorder::moved(std::int64_t generator) {
  const auto index = static_cast<std::size_t>(generator);
  return !generators_[index].device().is_cpu() && generator_state(generators_[index]) != random_states_[index];
}

std::int64_t TapeRecorder::default_generator(c10::ArrayRef<TapeUse> uses, c10::ArrayRef<c10::IValue> inputs) {
  std::uint8_t device = 0;
  for (const TapeUse& use : uses) device = std::max(device, raw_.storages[use.storage].device);
  for (const c10::IValue& input : inputs) {
    if (device == 0 && input.isDevice()) device = device_number(input.toDevice());
  }
  if (device == 0) return 0;
  try {
    return generator_number(at::globalContext().defaultGenerator(c10::Device(raw_.devices[device])));
  } catch (...) {
    return -1;  // a backend without one
  }
}

}  // namespace finitude::observe
