// What was there before the step: whose content the tape has to hold, and when it has to be copied.
#include <algorithm>

#include "base/checksum.h"
#include "observe/tape_recorder_torch.h"
#include "observe/tensor_view_torch.h"

namespace finitude::observe {
namespace {

constexpr std::size_t kSmall = 64;   // bytes of an input that are copied at once
constexpr std::int64_t kGrain = 64;  // parts of an input begin where a storage may

}  // namespace

capture::StorageId TapeRecorder::see(c10::StorageImpl& storage) {
  const auto [it, is_new] = ids_.try_emplace(&storage, static_cast<capture::StorageId>(known_.size()));
  if (is_new) {
    c10::raw::weak_intrusive_ptr::incref(&storage);
    Known& known = known_.emplace_back();
    known.impl = &storage;
    capture::RawStorage& raw = raw_.storages.emplace_back();
    raw.size_bytes = storage.nbytes();
    raw.first_seen = events_ + 1;
    raw.misaligned =
        static_cast<std::uint8_t>(reinterpret_cast<std::uintptr_t>(storage.data_ptr().get()) & 63);
  }
  return it->second;
}

bool TapeRecorder::within_limit(std::size_t more_bytes) {
  if (more_bytes > max_bytes_ - bytes_) full_ = too_large_ = true;
  if (!full_) bytes_ += more_bytes;
  return !full_;
}

bool TapeRecorder::hold(capture::StorageId id) {
  Known& known = known_[id];
  if (known.held) return true;
  auto* impl = c10::raw::weak_intrusive_ptr::lock(known.impl);
  if (impl == nullptr) return false;
  known.held = c10::intrusive_ptr<c10::StorageImpl>::reclaim(impl);
  return true;
}

void TapeRecorder::copy_input(capture::StorageId id, std::int64_t begin, std::int64_t end) {
  Known& known = known_[id];
  known.copied = true;
  if (!hold(id) || !within_limit(static_cast<std::size_t>(end - begin))) return;
  const auto* data = static_cast<const char*>(known.held->data_ptr().get());
  raw_.storages[id].begin = static_cast<std::uint64_t>(begin);
  raw_.storages[id].bytes.assign(data == nullptr ? "" : data + begin, static_cast<std::size_t>(end - begin));
}

namespace {

template <typename Use>
void for_each_tensor(const c10::IValue& value, const Use& use) {
  if (value.isTensor()) {
    use(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) for_each_tensor(item, use);
  }
}

}  // namespace

// A collective operation may write any of its tensors, at some time until it is waited for: what they hold is
// put on the tape when they are read next, so that a replay needs no other process.
void TapeRecorder::exchange(const at::RecordFunction& fn) {
  for (const c10::IValue& input : fn.inputs()) {
    for_each_tensor(input, [&](const at::Tensor& tensor) {
      TensorView view;
      if (!tensor.defined() || !view_of(*tensor.unsafeGetTensorImpl(), &view) || view.storage == nullptr) return;
      TapeUse use;
      use.storage = see(*const_cast<c10::StorageImpl*>(view.storage));
      known_[use.storage].allocation = record::kNone;  // another process writes it
      write(use, false);
      known_[use.storage].state = Known::kFresh;
      known_[use.storage].filled = 0;
    });
  }
}

// Memory that no operator wrote is what it is now; torch.tensor and numpy write unseen.
void TapeRecorder::fill(capture::StorageId id) {
  Known& known = known_[id];
  if (!hold(id)) return;
  const std::size_t size_bytes = known.held->nbytes();
  const void* data = known.held->data_ptr().get();
  const std::uint64_t sum = base::checksum(data, size_bytes, 1);
  if (size_bytes != 0 && sum != known.filled && within_limit(size_bytes)) {
    known.filled = sum;
    capture::WireWriter out(&raw_.events);
    out.u8(static_cast<std::uint8_t>(capture::RawEvent::kFill));
    out.var(id);
    out.var(0);
    out.text({static_cast<const char*>(data), size_bytes});
    // The same bytes again may be written as well. Whoever has it as a NumPy array has locked its size.
    const bool unwritten = known.allocation != record::kNone && sum == known.handed_out && known.held->resizable();
    out.var(unwritten ? std::uint64_t{known.allocation} + 1 : 0);
    ++events_;
  }
  known.held.reset();
}

// What torch.tensor and numpy write into it is seen by nobody; that it changed is.
void TapeRecorder::handed_out(capture::StorageId id, record::OpId by) {
  Known& known = known_[id];
  known.allocation = record::kNone;
  if (by == record::kNone || !hold(id)) return;
  if (known.held->device_type() == c10::DeviceType::CPU && known.held->nbytes() != 0) {
    known.handed_out = base::checksum(known.held->data_ptr().get(), known.held->nbytes(), 1);
    known.allocation = by;
  }
  known.held.reset();
}

void TapeRecorder::read(const TapeUse& use) {
  Known& known = known_[use.storage];
  known.used = true;
  if (known.state == Known::kFresh) return fill(use.storage);
  if (known.state == Known::kMade || (known.state == Known::kInput && known.copied)) return;
  capture::RawStorage& raw = raw_.storages[use.storage];
  const auto size_bytes = static_cast<std::int64_t>(raw.size_bytes);
  if (known.state == Known::kSeen) {
    known.state = Known::kInput;
    raw.is_input = true;
    known.begin = size_bytes;
    if (raw.size_bytes <= kSmall) {
      copy_input(use.storage, 0, size_bytes);
      known.held.reset();
      return;
    }
    if (!hold(use.storage)) return;
    held_bytes_ += raw.size_bytes;
    if (every_step_ && held_bytes_ > max_bytes_) full_ = too_large_ = lets_go_ = true;
  }
  if (use.begin == use.end) return;
  known.begin = std::min(known.begin, use.begin / kGrain * kGrain);
  known.end = std::max(known.end, use.end);
}

void TapeRecorder::write(const TapeUse& use, bool overwrites_all) {
  Known& known = known_[use.storage];
  capture::RawStorage& raw = raw_.storages[use.storage];
  if (known.state == Known::kFresh) {
    if (!overwrites_all) fill(use.storage);  // what it leaves as it is may be read
    known.state = Known::kMade;
  } else if (known.state == Known::kSeen && overwrites_all) {
    known.state = Known::kInput;
    known.copied = raw.is_input = raw.blank = true;
  } else if (known.state != Known::kMade && !known.copied) {
    known.state = Known::kInput;
    raw.is_input = true;
    copy_input(use.storage, 0, static_cast<std::int64_t>(raw.size_bytes));
    known.held.reset();  // never the last one: whoever calls the operator has it
  }
}

void TapeRecorder::name_storage(const c10::TensorImpl& tensor, const std::string& kind,
                                const std::string& name) {
  TensorView view;
  if (!view_of(tensor, &view)) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = ids_.find(view.storage);
  if (it == ids_.end() || !raw_.storages[it->second].name.empty()) return;
  raw_.storages[it->second].kind = kind;
  raw_.storages[it->second].name = name;
}

bool TapeRecorder::add_outcome(const std::string& kind, const std::string& name,
                               const at::Tensor& tensor) noexcept try {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::string written;
  capture::WireWriter out(&written);
  c10::SmallVector<TapeUse, 4> uses;
  bool known = true;
  const auto storage = [&](c10::StorageImpl& s) {
    const auto it = ids_.find(&s);
    known &= it != ids_.end();
    return known ? it->second : capture::kNoStorage;
  };
  const auto generator = [](const at::Generator&) { return std::int64_t{-1}; };
  if (!write_value(tensor, 0, {storage, generator}, out, uses) || !known || uses.empty()) return false;
  for (const TapeUse& use : uses) read(use);
  capture::WireReader in(written);
  raw_.outcomes.push_back({kind, name, capture::read_value(in), tape_checksum(tensor), tape_flaws(tensor)});
  return true;
} catch (...) {
  full_ = true;
  return false;
}

bool TapeRecorder::reads(const c10::TensorImpl& tensor) {
  TensorView view;
  if (!view_of(tensor, &view)) return false;
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = ids_.find(view.storage);
  return it != ids_.end() && (known_[it->second].state == Known::kInput || known_[it->second].used);
}

capture::RawTape TapeRecorder::take() {
  stop();
  capture::RawTape raw;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::size_t wanted = 0;  // told before anything is copied
    for (const Known& known : known_) {
      if (known.state == Known::kInput && !known.copied && known.end > known.begin)
        wanted += static_cast<std::size_t>(known.end - known.begin);
    }
    if (wanted > max_bytes_ - bytes_) full_ = too_large_ = true;
    for (capture::StorageId id = 0; id < known_.size(); ++id) {
      Known& known = known_[id];
      raw_.storages[id].traced = Tracer::get().storage_of(known.impl);
      if (known.state != Known::kInput || known.copied) continue;
      raw_.storages[id].blank = known.end <= known.begin;  // only parts of no elements were read
      if (!raw_.storages[id].blank && known.held &&
          known.held->nbytes() >= static_cast<std::size_t>(known.end))
        copy_input(id, known.begin, known.end);
    }
    if (too_large_)
      raw_.gaps.push_back("the step reads more than " + std::to_string(max_bytes_ >> 20) + " MB");
    if (full_ && !too_large_) raw_.gaps.emplace_back("the recorder failed, or the step has too many calls");
    raw = std::move(raw_);
    raw.places = places_.take();
    for (const auto& [name, calls] : exchanges_) {
      std::string* text = nullptr;
      for (auto& [key, value] : raw.settings) {
        if (key == "collectives") text = &value;
      }
      if (text == nullptr) text = &raw.settings.emplace_back("collectives", "").second;
      *text += (text->empty() ? "" : ", ") + std::to_string(calls) + " x " + name;
    }
    if (!autocast_.empty()) raw.settings.emplace_back("autocast", autocast_);
  }
  clear();
  return raw;
}

}  // namespace finitude::observe
