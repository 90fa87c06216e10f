#include "observe/generator_state_torch.h"

#include <ATen/CPUGeneratorImpl.h>

#include <cstring>
#include <mutex>
#include <optional>

#include "capture/wire.h"

namespace finitude::observe {
namespace {

at::CPUGeneratorImpl* cpu(const at::Generator& generator) {
  return generator.defined() && generator.device().is_cpu() ? at::check_generator<at::CPUGeneratorImpl>(generator)
                                                            : nullptr;
}

// Seed and offset are all that there is to it. Both are on the host.
c10::GeneratorImpl* philox(const at::Generator& generator) {
  return generator.defined() && (generator.device().is_cuda() || generator.device().is_privateuseone())
             ? generator.unsafeGetGeneratorImpl()
             : nullptr;
}

constexpr std::uint64_t kPhiloxStep = 4;  // offsets are multiples of it

std::string philox_state(c10::GeneratorImpl& impl) noexcept try {
  std::string bytes;
  const std::lock_guard<std::mutex> lock(impl.mutex_);
  capture::WireWriter out(&bytes);
  out.u64(impl.current_seed());
  out.u64(impl.get_offset());
  return bytes;
} catch (...) {
  return {};  // a graph is being captured, or the backend counts in another way
}

bool set_philox_state(c10::GeneratorImpl& impl, const std::string& state) {
  capture::WireReader in(state);
  const std::uint64_t seed = in.u64(), offset = in.u64();
  if (!in.ok() || !in.at_end() || offset % kPhiloxStep != 0) return false;
  const std::lock_guard<std::mutex> lock(impl.mutex_);
  impl.set_current_seed(seed);
  impl.set_offset(offset);
  return true;
}

}  // namespace

std::string generator_state(const at::Generator& generator) {
  std::string bytes;
  at::CPUGeneratorImpl* impl = cpu(generator);
  if (impl == nullptr) return philox(generator) == nullptr ? bytes : philox_state(*philox(generator));
  const std::lock_guard<std::mutex> lock(impl->mutex_);
  const at::mt19937_data_pod engine = impl->engine().data();
  const auto next_float = impl->next_float_normal_sample();
  const auto next_double = impl->next_double_normal_sample();
  bytes.reserve(48 + sizeof engine.state_);
  capture::WireWriter out(&bytes);
  out.u64(engine.seed_);
  out.var(static_cast<std::uint64_t>(engine.left_));
  out.var(engine.next_);
  out.u8(engine.seeded_);
  out.u8(static_cast<std::uint8_t>(next_float.has_value() | next_double.has_value() << 1));
  out.f64(next_float.value_or(0.0f));
  out.f64(next_double.value_or(0.0));
  for (const std::uint32_t word : engine.state_) out.raw(&word, sizeof word);
  return bytes;
}

bool set_generator_state(const at::Generator& generator, const std::string& state) {
  at::CPUGeneratorImpl* impl = cpu(generator);
  if (impl == nullptr) return philox(generator) != nullptr && set_philox_state(*philox(generator), state);
  capture::WireReader in(state);
  at::mt19937_data_pod engine;
  engine.seed_ = in.u64();
  engine.left_ = static_cast<int>(in.var(at::MERSENNE_STATE_N));
  engine.next_ = static_cast<std::uint32_t>(in.var(at::MERSENNE_STATE_N));
  engine.seeded_ = in.u8() != 0;
  const std::uint8_t has = in.u8();
  const double next_float = in.f64(), next_double = in.f64();
  for (std::uint32_t& word : engine.state_) {
    const std::string_view bytes = in.raw(sizeof word);
    if (in.ok()) std::memcpy(&word, bytes.data(), sizeof word);
  }
  // next_ may be the size only right before left_ runs out: the engine then begins a new block.
  if (!in.ok() || !in.at_end() || engine.left_ < 1 ||
      engine.left_ + static_cast<int>(engine.next_) > at::MERSENNE_STATE_N + 1) {
    return false;
  }
  const std::lock_guard<std::mutex> lock(impl->mutex_);
  at::mt19937 twister;
  twister.set_data(engine);
  impl->set_engine(twister);
  impl->set_next_float_normal_sample((has & 1) != 0 ? std::optional<float>(static_cast<float>(next_float))
                                                    : std::nullopt);
  impl->set_next_double_normal_sample((has & 2) != 0 ? std::optional<double>(next_double) : std::nullopt);
  return true;
}

}  // namespace finitude::observe
