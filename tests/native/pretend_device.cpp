// A device that is none, for tests: torch's PrivateUse1 with memory of the host at addresses that nobody can read, so
// that whoever takes it for the CPU's ends with SIGSEGV. Every operator is computed on the CPU and its results put
// there. Its generator counts as Philox does: a seed and an offset. As on CUDA, a copy to the host that does not wait
// is there when the device was waited for, and every other copy to the host waits, as item() does.
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_cpu_dispatch.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/view_cpu_dispatch.h>
#include <ATen/record_function.h>
#include <c10/core/GeneratorImpl.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/GPUTrace.h>
#include <torch/library.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr std::uintptr_t kFar = std::uintptr_t{1} << 62;  // no address of a process

void* near(const void* far) { return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(far) - kFar); }

// Torch has this trace for CUDA and XPU only; so does this device report, as CUDA does.
template <typename Report>
void report(const Report& report_to) {
  if (const c10::impl::PyInterpreter* interpreter = c10::impl::GPUTrace::get_trace()) report_to(**interpreter);
}

// As CUDA's caching allocator: memory that was given back is handed out again at once where the size is the same.
struct Block {
  void* real;
  std::size_t size_bytes;
};
// Never destroyed: tensors are given back after the destructors of this library have run.
std::mutex& lock = *new std::mutex;
std::multimap<std::size_t, void*>& spare = *new std::multimap<std::size_t, void*>;

std::uintptr_t far_of(const void* real) { return reinterpret_cast<std::uintptr_t>(real) + kFar; }

void give_back(void* context) {
  auto* const block = static_cast<Block*>(context);
  report([&](const auto& to) { to.trace_gpu_memory_deallocation(c10::DeviceType::CUDA, far_of(block->real)); });
  const std::lock_guard guard(lock);
  spare.emplace(block->size_bytes, block->real);
  delete block;
}

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(std::size_t n) override {
    if (n == 0) return {nullptr, nullptr, &std::free, c10::Device(kType, 0)};
    void* real = nullptr;
    {
      const std::lock_guard guard(lock);
      if (const auto found = spare.find(n); found != spare.end()) {
        real = found->second;
        spare.erase(found);
      }
    }
    if (real == nullptr) real = std::malloc(n);
    std::memset(real, 0x5a, n);
    report([&](const auto& to) { to.trace_gpu_memory_allocation(c10::DeviceType::CUDA, far_of(real)); });
    return {reinterpret_cast<void*>(far_of(real)), new Block{real, n}, &give_back, c10::Device(kType, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t n) const override { std::memcpy(near(to), near(from), n); }
};
Memory memory;
REGISTER_ALLOCATOR(kType, &memory);

// Copies to the host that nobody has waited for: where to, and the values.
std::vector<std::pair<at::Tensor, at::Tensor>>& under_way = *new std::vector<std::pair<at::Tensor, at::Tensor>>;

void finish_copies() {
  std::vector<std::pair<at::Tensor, at::Tensor>> done;
  {
    const std::lock_guard guard(lock);
    done.swap(under_way);
  }
  const at::DisableRecordFunctionGuard unobserved;
  const at::NoGradGuard no_grad;
  for (auto& [to, values] : done) to.copy_(values);
}

// Not torch's NoOpDeviceGuardImpl, which is final in torch 2.7.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  static c10::Device zero() { return {kType, 0}; }
  c10::DeviceType type() const override { return kType; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Stream getDefaultStream(c10::Device) const override { return c10::Stream(c10::Stream::DEFAULT, zero()); }
  c10::Device exchangeDevice(c10::Device) const override { return zero(); }
  c10::Device getDevice() const override { return zero(); }
  static c10::Stream numbered(c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, zero(), id); }
  c10::Stream getStream(c10::Device) const noexcept override { return numbered(current); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return getNewStream(zero(), 0); }
  c10::Stream getNewStream(c10::Device, int) const override {
    const c10::StreamId id = ++streams;
    report(
        [&](const auto& to) { to.trace_gpu_stream_creation(c10::DeviceType::CUDA, static_cast<std::uintptr_t>(id)); });
    return numbered(id);
  }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override {
    return numbered(std::exchange(current, stream.id()));
  }
  // All work is done as it is given: an event is a number.
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) *event = reinterpret_cast<void*>(++events);
    report([&](const auto& to) {
      to.trace_gpu_event_record(c10::DeviceType::CUDA, reinterpret_cast<std::uintptr_t>(*event),
                                static_cast<std::uintptr_t>(stream.id()));
    });
  }
  void block(void* event, const c10::Stream& stream) const override {
    report([&](const auto& to) {
      to.trace_gpu_event_wait(c10::DeviceType::CUDA, reinterpret_cast<std::uintptr_t>(event),
                              static_cast<std::uintptr_t>(stream.id()));
    });
  }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream& stream) const override {
    finish_copies();
    report([&](const auto& to) {
      to.trace_gpu_stream_synchronization(c10::DeviceType::CUDA, static_cast<std::uintptr_t>(stream.id()));
    });
  }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
  void* getStreamNativeHandle(const c10::Stream stream) const {  // virtual since torch 2.12
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(stream.id()));
  }
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override { finish_copies(); }
  void synchronizeDevice(const c10::DeviceIndex) const override {
    finish_copies();
    report([](const auto& to) { to.trace_gpu_device_synchronization(c10::DeviceType::CUDA); });
  }
  static inline std::atomic<c10::StreamId> streams = 0;
  static inline std::atomic<std::uintptr_t> events = 0;
  static inline thread_local c10::StreamId current = 0;
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Counter final : c10::GeneratorImpl {
  Counter() : c10::GeneratorImpl(c10::Device(kType, 0), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}
  void set_current_seed(std::uint64_t seed) override { seed_ = seed, offset_ = 0; }
  void set_offset(std::uint64_t offset) override { offset_ = offset; }
  std::uint64_t get_offset() const override { return offset_; }
  std::uint64_t current_seed() const override { return seed_; }
  std::uint64_t seed() override { return seed_; }
  void set_state(const c10::TensorImpl&) override {}
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return nullptr; }
  Counter* clone_impl() const override { return new Counter(*this); }
  Counter(const Counter& o) : Counter() { seed_ = o.seed_, offset_ = o.offset_; }
  std::uint64_t seed_ = 67280421310721u, offset_ = 0;
};

const at::Generator& counter() {
  static const at::Generator one = at::make_generator<Counter>();
  return one;
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return counter(); }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::make_generator<Counter>(); }
  bool isPinnedPtr(const void*) const override { return false; }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    TORCH_CHECK(std::getenv("PRETEND_NO_PINNED") == nullptr, "no pinned memory");
    return c10::GetAllocator(c10::kCPU);
  }
};

at::Tensor make_empty(c10::IntArrayRef sizes, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                      std::optional<c10::Device>, std::optional<bool>, std::optional<c10::MemoryFormat> format) {
  return at::detail::empty_generic(sizes, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor make_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<c10::ScalarType> dtype,
                        std::optional<c10::Layout>, std::optional<c10::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(sizes, strides, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

// The same tensor as the CPU sees it.
at::Tensor seen(const at::Tensor& t) {
  if (t.device().is_cpu()) return t;
  char* base = static_cast<char*>(t.storage().data_ptr().get());
  if (base == nullptr) return at::empty(t.sizes(), t.options().device(at::kCPU));
  return at::from_blob(
      static_cast<char*>(near(base)) + t.storage_offset() * static_cast<std::int64_t>(t.element_size()), t.sizes(),
      t.strides(), t.options().device(at::kCPU));
}

thread_local bool computes = false;  // copies of ours to the CPU, and back, are kernels of the device

void wait_here() {
  if (computes) return;
  const Guard guard;
  guard.synchronizeStream(guard.getStream(Guard::zero()));
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool non_blocking) {
  const at::DisableRecordFunctionGuard unobserved;  // of the two tensors that see the memory at its other address
  if (to.is_cpu() && non_blocking) {
    at::Tensor values = seen(self).clone();
    const std::lock_guard guard(lock);
    under_way.emplace_back(to, std::move(values));
    return to;
  }
  if (to.is_cpu()) wait_here();
  seen(to).copy_(seen(self));
  return to;
}

at::Tensor copy_and_resize(const at::Tensor& self, const at::Tensor& to) { return copy_from(self, to, false); }
c10::Scalar item(const at::Tensor& self) {
  wait_here();
  return seen(self).item();
}
at::Tensor as_strided(const at::Tensor& self, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                      std::optional<std::int64_t> offset) {
  return at::cpu::as_strided(self, sizes, strides, offset);
}
at::Tensor view(const at::Tensor& self, c10::IntArrayRef sizes) { return at::cpu::view(self, sizes); }
at::Tensor reshape_alias(const at::Tensor& self, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  return at::cpu::_reshape_alias(self, sizes, strides);
}

void record_stream(at::Tensor&, c10::Stream) {}

void by_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  struct Computes {
    const bool before = std::exchange(computes, true);
    ~Computes() { computes = before; }
  } const guard;
  at::native::cpu_fallback(op, stack);
}
void drawn_by_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  by_cpu(op, stack);
  auto* impl = counter().unsafeGetGeneratorImpl();
  impl->set_offset(impl->get_offset() + 4);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", make_empty);
  m.impl("empty_strided", make_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_and_resize);
  m.impl("_local_scalar_dense", item);
  m.impl("as_strided", as_strided);
  m.impl("view", view);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("record_stream", record_stream);
  for (const char* drawing : {"bernoulli_.float", "normal_", "uniform_", "native_dropout", "randperm.generator_out"})
    m.impl(drawing, torch::CppFunction::makeFromBoxedFunction<&drawn_by_cpu>());
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&by_cpu>()); }

[[maybe_unused]] const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  return true;
}();

}  // namespace
