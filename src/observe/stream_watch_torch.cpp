#include "observe/stream_watch_torch.h"

#include <ATen/record_function.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>

#include "observe/device_memory_torch.h"
#include "observe/op_info_torch.h"
#include "observe/op_tensors_torch.h"
#include "observe/stream_order.h"
#include "observe/traced_torch.h"
#include "observe/tracer_torch.h"

namespace finitude::observe {
namespace {

using HandleOf = void* (*)(const c10::Stream&);
std::atomic<HandleOf> stream_handle = nullptr;  // null: operators are not watched
std::once_flag begun;

StreamOrder& order() {
  static auto* const one = new StreamOrder();  // leaked on purpose: callbacks may outlive main
  return *one;
}

std::uint64_t number_of(const c10::Stream& stream) {
  return reinterpret_cast<std::uint64_t>(stream_handle.load()(stream));
}

std::uint64_t current_stream(const c10::Device& device) {
  return number_of(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

struct Context : at::ObserverContext {
  const OpInfo* info = nullptr;
  std::vector<const void*> given;  // memory of the arguments
};

void use(const at::Tensor& given, bool writes, Context* context, bool is_result) {
  TensorView v;
  const at::Tensor t = with_memory(given);
  if (!t.defined() || !place_of(*t.unsafeGetTensorImpl(), &v) || !v.on_device) return;
  const bool was_given = std::find(context->given.begin(), context->given.end(), v.storage) != context->given.end();
  if (is_result && was_given) return;  // a view, or what was written
  if (!is_result) context->given.push_back(v.storage);
  const auto address = reinterpret_cast<std::uint64_t>(v.storage->data_ptr().get());
  order().used({address, v.storage->nbytes(), static_cast<std::uint64_t>(v.begin), static_cast<std::uint64_t>(v.end),
                current_stream(v.storage->device()), Tracer::open_op(), writes, Tracer::get().number()});
}

// Tensor.record_stream(stream).
void note_record_stream(c10::ArrayRef<c10::IValue> inputs) {
  if (inputs.size() != 2 || !inputs[0].isTensor() || !inputs[1].isStream()) return;
  TensorView v;
  if (!place_of(*inputs[0].toTensor().unsafeGetTensorImpl(), &v)) return;
  order().recorded_on(reinterpret_cast<std::uint64_t>(v.storage->data_ptr().get()), number_of(inputs[1].toStream()));
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& fn) {
  try {
    if (at_own_work() || fn.isAsync() || is_traced()) return nullptr;
    const OpInfo& info = op_info(fn);
    if (!info.is_op || info.composite) return nullptr;
    auto inputs = fn.inputs();
    if (inputs.size() > info.args.size()) inputs = inputs.slice(inputs.size() - info.args.size());
    if (info.name == "aten::record_stream") {
      note_record_stream(inputs);
      return nullptr;
    }
    auto context = std::make_unique<Context>();
    context->info = &info;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const bool writes = i < 64 && ((info.writes >> i) & 1) != 0;
      if (info.may_view && !writes) {  // it reads nothing
        for_each_tensor(inputs[i], [&](const at::Tensor& t) { context->given.push_back(memory_of(t)); });
        continue;
      }
      for_each_tensor(inputs[i], [&](const at::Tensor& t) { use(t, writes, context.get(), false); });
    }
    return context;
  } catch (...) {
    return nullptr;
  }
}

void on_end(const at::RecordFunction& fn, at::ObserverContext* begun_context) {
  if (begun_context == nullptr) return;
  try {
    auto* const context = static_cast<Context*>(begun_context);
    if (context->info->allocates) return;
    const auto& results = fn.outputs();
    const std::size_t count = std::min(results.size(), context->info->returns.size());
    for (std::size_t i = results.size() - count; i < results.size(); ++i)
      for_each_tensor(results[i], [&](const at::Tensor& t) { use(t, true, context, true); });
  } catch (...) {
  }
}

void watch_operators(HandleOf handle_of) {
  std::call_once(begun, [&] {
    stream_handle = handle_of;
    at::addGlobalCallback(at::RecordFunctionCallback(&on_start, &on_end)
                              .needsInputs(true)
                              .needsOutputs(true)
                              .scopes({at::RecordScope::FUNCTION}));
  });
}

}  // namespace

void stream_event(StreamEvent kind, std::uint64_t first, std::uint64_t second, HandleOf handle_of) noexcept try {
  if (at_own_work()) return;
  switch (kind) {
    case StreamEvent::kStreamMade:
      return watch_operators(handle_of);
    case StreamEvent::kRecorded:
      watch_operators(handle_of);
      return order().event_recorded(first, second);
    case StreamEvent::kAwaited:
      return order().event_awaited(first, second);
    case StreamEvent::kHostAwaitsStream:
      return order().host_awaited_stream(first);
    case StreamEvent::kHostAwaitsEvent:
      return order().host_awaited_event(first);
    case StreamEvent::kHostAwaitsDevice:
      return order().host_awaited_device();
    case StreamEvent::kHandedOut:
      return order().handed_out(first);
    case StreamEvent::kGivenBack:
      return order().given_back(first, Tracer::open_op(), Tracer::get().number());
  }
} catch (...) {
}

std::vector<record::StreamRace> stream_races() {
  return stream_handle.load() == nullptr ? std::vector<record::StreamRace>() : order().races();
}

}  // namespace finitude::observe
