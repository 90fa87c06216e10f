// Checksums and values of what operators read and gave while a step is traced, for a dump that asks for them.
#pragma once

#include <c10/core/TensorImpl.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "observe/tensor_view_torch.h"
#include "record/event_sink.h"
#include "record/kept_values.h"

namespace finitude::observe {

// Of which operators. Patterns as of the shell, of which one has to fit; none: all do.
struct KeptOperators {
  std::vector<std::string> ops, modules;
  std::vector<record::Phase> phases;
  std::size_t most_bytes = 0;  // of values; 0: checksums only
};

// One per process. Any thread may call any of it, between start() and stop() and else.
class ValueKeeper {
 public:
  static ValueKeeper& get();

  void start(KeptOperators operators);
  // What was kept, and of how many tensors the values were not, as there was no room.
  record::KeptCalls stop(std::size_t* beyond);
  bool on() const noexcept { return on_.load(std::memory_order_acquire); }

  bool wants(const std::string& op, record::Phase phase) const;
  // with_values: of an operator that is called by no other.
  record::KeptValue look(const c10::TensorImpl& tensor, bool with_values);
  record::KeptValue look(TensorView view, caffe2::TypeMeta type, bool with_values);
  // module: that it belongs to. Only calls of one trace are kept: those of the last.
  void put(const record::EventSink::Token& call, const std::string& module, record::KeptCall&& kept);

 private:
  std::shared_ptr<const std::string> kept(std::uint64_t checksum, const TensorView& view, std::size_t item);
  void forget(std::uint64_t checksum, const std::shared_ptr<const std::string>& bytes);

  std::atomic<bool> on_ = false, keeps_values_ = false;
  mutable std::mutex mutex_;  // guards the rest
  std::size_t room_ = 0, beyond_ = 0;
  std::unordered_multimap<std::uint64_t, std::shared_ptr<const std::string>> by_checksum_;
  KeptOperators operators_;
  record::KeptCalls calls_;
  std::uint64_t generation_ = 0;
};

}  // namespace finitude::observe
