#include "rewind/snapshot_torch.h"

#include <ATen/core/Generator.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "base/immortal.h"
#include "gate/state_torch.h"
#include "observe/device_memory_torch.h"
#include "observe/generator_state_torch.h"
#include "observe/tensor_view_torch.h"
#include "pyhost/meter.h"

namespace finitude::bindings {
namespace {

std::uintptr_t numpy_address = 0;
base::Immortal<Object> the_python_random;

// random's global instance is held by set_python_random(), so that the address stays valid. Its state lies behind the
// header.
char* python_random_memory() noexcept {
  PyObject* const random = (*the_python_random).get();
  return random == nullptr ? nullptr : reinterpret_cast<char*>(random) + sizeof(PyObject);
}

bool same(const TorchRng& a, const TorchRng& b) {
  return a.taken == b.taken && (!a.taken || (a.engine.left_ == b.engine.left_ && a.engine.next_ == b.engine.next_ &&
                                             a.engine.state_ == b.engine.state_ && a.next_float == b.next_float &&
                                             a.next_double == b.next_double));
}

bool same(const TwisterRng& a, const TwisterRng& b) { return a.taken == b.taken && (!a.taken || a.bytes == b.bytes); }

}  // namespace

void set_numpy_state_address(std::uintptr_t address) noexcept { numpy_address = address; }

void set_python_random(PyObject* instance) noexcept { *the_python_random = Object::share(instance); }

namespace {

base::Immortal<std::vector<at::Generator>> the_own, of_devices;
std::vector<at::Generator>& own_generators() { return *the_own; }
std::vector<at::Generator>& device_generators() { return *of_devices; }

// Takes only numbers that the host has: nothing waits for the device. While a graph is captured torch throws, and the
// state counts as not taken.
void take_device(const at::Generator& generator, DeviceRng* state) noexcept {
  state->taken = false;
  try {
    c10::GeneratorImpl* impl = generator.unsafeGetGeneratorImpl();
    const std::lock_guard<std::mutex> lock(impl->mutex_);
    state->seed = impl->current_seed();
    state->offset = impl->get_offset();
    state->taken = true;
  } catch (...) {
  }
}

void restore_device(const at::Generator& generator, const DeviceRng& state) noexcept {
  if (!state.taken) return;
  try {
    c10::GeneratorImpl* impl = generator.unsafeGetGeneratorImpl();
    const std::lock_guard<std::mutex> lock(impl->mutex_);
    impl->set_current_seed(state.seed);
    impl->set_offset(state.offset);
  } catch (...) {
  }
}

// Where the engine lies in a CPUGeneratorImpl, which gives it out by value only (twice 2.5 KB): found once, by what a
// generator of known seed holds. -1: not found.
std::ptrdiff_t engine_offset() noexcept {
  static const std::ptrdiff_t offset = []() noexcept -> std::ptrdiff_t {
    try {
      constexpr std::uint64_t kSeed = 0x243f6a8885a308d3ull;
      const at::Generator generator = at::detail::createCPUGenerator(kSeed);
      auto* impl = at::check_generator<at::CPUGeneratorImpl>(generator);
      const at::mt19937_data_pod wanted = impl->engine().data();
      const char* const begin = reinterpret_cast<const char*>(impl);
      for (std::size_t at = 0; at + sizeof(wanted) <= sizeof(at::CPUGeneratorImpl);
           at += alignof(at::mt19937_data_pod)) {
        const auto* found = reinterpret_cast<const at::mt19937_data_pod*>(begin + at);
        if (found->seed_ == wanted.seed_ && found->left_ == wanted.left_ && found->next_ == wanted.next_ &&
            found->state_ == wanted.state_) {
          return static_cast<std::ptrdiff_t>(at);
        }
      }
    } catch (...) {
    }
    return -1;
  }();
  return offset;
}

// Are these the 624 words of a copy? 128 bits of them are compared, which other words share once in 10^38 times.
bool same_words(const void* live, const void* copy) noexcept { return std::memcmp(live, copy, 16) == 0; }

// Saves 2.5 KB of copying in most steps. A generator draws 624 words in advance; as long as it uses these, only the
// position changes.
void take_engine(at::CPUGeneratorImpl& impl, TorchRng* state) noexcept {
  const std::ptrdiff_t offset = engine_offset();
  if (offset < 0) {
    state->engine = impl.engine().data();
    return;
  }
  const auto& live = *reinterpret_cast<const at::mt19937_data_pod*>(reinterpret_cast<const char*>(&impl) + offset);
  if (!state->taken || !same_words(live.state_.data(), state->engine.state_.data())) {
    state->engine = live;
    return;
  }
  state->engine.seed_ = live.seed_;
  state->engine.left_ = live.left_;
  state->engine.seeded_ = live.seeded_;
  state->engine.next_ = live.next_;
}

// The lock is torch's own: another thread may draw from the generator without the GIL.
void take_generator(const at::Generator& generator, TorchRng* state) noexcept {
  try {
    auto* impl = at::check_generator<at::CPUGeneratorImpl>(generator);
    const std::lock_guard<std::mutex> lock(impl->mutex_);
    take_engine(*impl, state);
    state->next_float = impl->next_float_normal_sample();
    state->next_double = impl->next_double_normal_sample();
    state->taken = true;
  } catch (...) {
    state->taken = false;
  }
}

void restore_generator(const at::Generator& generator, const TorchRng& state) noexcept {
  if (!state.taken) return;
  try {
    auto* impl = at::check_generator<at::CPUGeneratorImpl>(generator);
    const std::lock_guard<std::mutex> lock(impl->mutex_);
    // Through torch's interface, although take_engine() reads the memory: this happens only in a second run, and the
    // offset may not be known.
    at::mt19937 engine;
    engine.set_data(state.engine);
    impl->set_engine(engine);
    impl->set_next_float_normal_sample(state.next_float);
    impl->set_next_double_normal_sample(state.next_double);
  } catch (...) {
  }
}

// `words`, `position`: where they begin, in bytes.
void take_twister(const char* memory, std::size_t words, std::size_t position, TwisterRng* state) noexcept {
  const bool known = state->taken;
  state->taken = memory != nullptr;
  if (!state->taken) return;
  char* copy = reinterpret_cast<char*>(state->bytes.data());
  // Four bytes: the position is an int in CPython and in numpy.
  if (known && same_words(memory + words, copy + words))
    std::memcpy(copy + position, memory + position, 4);
  else
    std::memcpy(copy, memory, state->bytes.size());
}

void restore_twister(char* memory, const TwisterRng& state) noexcept {
  if (memory != nullptr && state.taken) std::memcpy(memory, state.bytes.data(), state.bytes.size());
}

}  // namespace

// The lists hold the generators: as long as one is listed, no other has its address.
void watch_generators(std::vector<at::Generator> generators) { own_generators() = std::move(generators); }

void watch_device_generators(std::vector<at::Generator> generators) { device_generators() = std::move(generators); }

std::string device_of_generator(std::size_t index) {
  return index < device_generators().size() ? observe::device_name(device_generators()[index].device()) : "";
}

bool same(const RngState& a, const RngState& b) {
  return same(a.torch_cpu, b.torch_cpu) && same(a.python, b.python) && same(a.numpy, b.numpy) &&
         std::ranges::equal(a.own, b.own, [](const TorchRng& x, const TorchRng& y) { return same(x, y); }) &&
         std::ranges::equal(a.devices, b.devices, [](const DeviceRng& x, const DeviceRng& y) {
           return x.taken == y.taken && (!x.taken || (x.seed == y.seed && x.offset == y.offset));
         });
}

void take_rng(RngState* state) noexcept {
  const Metered rng(Piece::kRng);
  static const at::Generator& of_cpu =
      at::detail::getDefaultCPUGenerator();  // the one object for the life of the process
  take_generator(of_cpu, &state->torch_cpu);
  state->own.resize(own_generators().size());
  for (std::size_t i = 0; i < state->own.size(); ++i) {
    const void* of = own_generators()[i].unsafeGetGeneratorImpl();
    if (state->own[i].of != of) state->own[i].taken = false;  // another one's words
    take_generator(own_generators()[i], &state->own[i]);
    state->own[i].of = of;
  }
  take_streams(&state->streams);
  state->devices.resize(device_generators().size());
  for (std::size_t i = 0; i < state->devices.size(); ++i) take_device(device_generators()[i], &state->devices[i]);
  take_twister(python_random_memory(), 4, 0, &state->python);
  take_twister(reinterpret_cast<const char*>(numpy_address), 0, 624 * 4, &state->numpy);
}

void restore_rng(const RngState& state) noexcept {
  // A state can be older than the lists, which may have got longer since: only what has a state is set.
  for (std::size_t i = 0; i < state.devices.size() && i < device_generators().size(); ++i)
    restore_device(device_generators()[i], state.devices[i]);
  restore_generator(at::detail::getDefaultCPUGenerator(), state.torch_cpu);
  for (std::size_t i = 0; i < state.own.size(); ++i) {
    for (std::size_t k = 0; k < own_generators().size(); ++k) {  // one out of a capsule is known by its place
      const at::Generator& own = own_generators()[k];
      if (state.own[i].of == nullptr ? i == k : state.own[i].of == own.unsafeGetGeneratorImpl())
        restore_generator(own, state.own[i]);
    }
  }
  restore_streams(state.streams);
  restore_twister(python_random_memory(), state.python);
  restore_twister(reinterpret_cast<char*>(numpy_address), state.numpy);
}

std::string tape_state(const TorchRng& state) {
  if (!state.taken) return {};
  const at::Generator generator = at::detail::createCPUGenerator();
  restore_generator(generator, state);
  return observe::generator_state(generator);
}

void BufferSnapshot::take() noexcept {
  const Metered buffers(Piece::kBuffers);
  observe::BufferSnapshot::take();
}

bool BufferSnapshot::turned_nan() const noexcept {
  const Metered check(Piece::kBufferCheck);
  return observe::BufferSnapshot::turned_nan();
}

// The program has a new source of random numbers, which has drawn nothing since. Programs that make one in every step
// are searched less and less often; that other numbers were drawn shows in the second run. GIL held, no error set; runs
// Python code.
void watch_new_stream(RngState* state) {
  static std::uint64_t searches = 0, next = 0;
  if (live().windows_closed < next) return;
  ++searches;
  next = live().windows_closed + searches * searches / 4;
  if (!call_cold("on_stream_met",
                 Py_None)) {  // Ctrl-C: it is the program's, and comes up where Python looks for it next
    PyErr_Clear();
    PyErr_SetInterrupt();
    return;
  }
  take_rng(state);
}

}  // namespace finitude::bindings
