// What was there before the step: whose content the tape has to hold, and when it has to be copied.
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "base/checksum.h"
#include "observe/device_memory_torch.h"
#include "observe/tape_recorder_torch.h"

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
    raw.device = device_number(storage.device());
    known.on_device = raw.device != 0;
    if (!known.on_device)
      raw.misaligned = static_cast<std::uint8_t>(reinterpret_cast<std::uintptr_t>(storage.data_ptr().get()) & 63);
  }
  return it->second;
}

std::uint8_t TapeRecorder::device_number(const c10::Device& device) {
  if (device.is_cpu()) return 0;
  // Without a number it is the one that is current, and memory always has one.
  const c10::DeviceIndex index =
      device.has_index() ? device.index() : c10::impl::VirtualGuardImpl(device.type()).getDevice().index();
  const std::string name = device_name(c10::Device(device.type(), index));
  const auto found = std::find(raw_.devices.begin(), raw_.devices.end(), name);
  if (found == raw_.devices.end()) {
    TORCH_CHECK(raw_.devices.size() < capture::kMaxDevices, "too many devices");
    raw_.devices.push_back(name);
    return static_cast<std::uint8_t>(raw_.devices.size() - 1);
  }
  return static_cast<std::uint8_t>(found - raw_.devices.begin());
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
  raw_.storages[id].begin = static_cast<std::uint64_t>(begin);
  copy_bytes(known.held, begin, end, &raw_.storages[id].bytes);  // what could not be had is a gap: the linker says it
}

// Nothing knows what is in this memory: it goes onto the tape when it is read next.
void TapeRecorder::lose(capture::StorageId id) {
  known_[id].allocation = record::kNone;
  known_[id].state = Known::kFresh;
  known_[id].filled = 0;
}

// Memory that no operator wrote is what it is now; torch.tensor and numpy write unseen.
void TapeRecorder::fill(capture::StorageId id) {
  Known& known = known_[id];
  if (!hold(id)) return;
  const std::size_t size_bytes = known.held->nbytes();
  const void* data = known.held->data_ptr().get();
  std::string copied;
  if (known.on_device) {
    TORCH_CHECK(copy_bytes(known.held, 0, static_cast<std::int64_t>(size_bytes), &copied),
                "memory of a device cannot be read");
    data = copied.data();
  }
  // Kernels whose calls are not on the tape may have made it larger than it was.
  if (raw_.storages[id].size_bytes == 0) raw_.storages[id].size_bytes = size_bytes;
  const std::uint64_t sum = base::checksum(data, size_bytes, 1);
  if (size_bytes != 0 && sum != known.filled && within_limit(size_bytes)) {
    known.filled = sum;
    capture::WireWriter out(&raw_.events);
    out.u8(static_cast<std::uint8_t>(capture::RawEvent::kFill));
    out.var(id);
    out.var(0);
    out.text({static_cast<const char*>(data), size_bytes});
    // The same bytes again may be written as well. The caller that has it as a NumPy array has locked its size.
    const bool unwritten = known.allocation != record::kNone && sum == known.handed_out && known.held->resizable();
    out.var(unwritten ? std::uint64_t{known.allocation} + 1 : 0);
    ++events_;
  }
  known.held.reset();
}

// What a call on a device drew: the numbers that its generator gives depend on the device, and no other one gives them.
// They go onto the tape, behind the call, all of a call or nothing, up to a quarter of what may be copied.
void TapeRecorder::keep_drawn(c10::ArrayRef<TapeUse> results, c10::ArrayRef<TapeUse> arguments, std::uint64_t writes) {
  c10::SmallVector<TapeUse, 4> made;
  const auto add = [&](const TapeUse& use) {
    const bool known = std::any_of(made.begin(), made.end(), [&](const TapeUse& other) {
      return other.storage == use.storage && other.begin == use.begin && other.end == use.end;
    });
    if (!known && known_[use.storage].on_device && use.end > use.begin) made.push_back(use);
  };
  for (const TapeUse& use : results) add(use);
  for (const TapeUse& use : arguments) {
    if (use.arg < 64 && ((writes >> use.arg) & 1) != 0) add(use);
  }
  std::size_t size_bytes = 0;
  for (const TapeUse& use : made) size_bytes += static_cast<std::size_t>(use.end - use.begin);
  std::vector<std::string> copies(made.size());
  bool kept = size_bytes <= max_bytes_ / 4 - drawn_bytes_ && size_bytes <= max_bytes_ - bytes_;
  for (std::size_t i = 0; kept && i < made.size(); ++i) {
    Known& known = known_[made[i].storage];
    const bool is_held = known.held.defined();
    kept = hold(made[i].storage) && copy_bytes(known.held, made[i].begin, made[i].end, &copies[i]);
    if (!is_held) known.held.reset();
  }
  if (!kept) {
    ++draws_left_out_;
    return;
  }
  bytes_ += size_bytes;
  drawn_bytes_ += size_bytes;
  for (std::size_t i = 0; i < made.size(); ++i) {
    capture::WireWriter out(&raw_.events);
    out.u8(static_cast<std::uint8_t>(capture::RawEvent::kFill));
    out.var(made[i].storage);
    out.var(static_cast<std::uint64_t>(made[i].begin));
    out.text(copies[i]);
    out.var(0);
    ++events_;
  }
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

void TapeRecorder::read(const TapeUse& use, const std::vector<capture::ByteRange>* rows) {
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
    if (raw.size_bytes >= kLarge) known.parts = std::make_unique<ReadParts>(raw.size_bytes);
    held_bytes_ += raw.size_bytes;
    if (every_step_ && held_bytes_ > max_bytes_) full_ = too_large_ = lets_go_ = true;
  }
  if (use.begin == use.end) return;
  known.begin = std::min(known.begin, use.begin / kGrain * kGrain);
  known.end = std::max(known.end, use.end);
  if (!known.parts) return;
  const auto add = [&](const capture::ByteRange& part) { return known.parts->add(part); };
  const bool few = rows != nullptr ? std::all_of(rows->begin(), rows->end(), add)
                                   : add({static_cast<std::uint64_t>(use.begin), static_cast<std::uint64_t>(use.end)});
  if (!few) known.parts.reset();
}

void TapeRecorder::write(const TapeUse& use, bool overwrites_all) {
  Known& known = known_[use.storage];
  known.written = true;
  known.parts.reset();
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
    known.held.reset();  // never the last one: the caller that calls the operator has it
  }
}

void TapeRecorder::name_storage(const c10::TensorImpl& tensor, const std::string& kind, const std::string& name) {
  const c10::StorageImpl* const storage = tape_storage(tensor);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = ids_.find(storage);
  if (it == ids_.end() || !raw_.storages[it->second].name.empty()) return;
  raw_.storages[it->second].kind = kind;
  raw_.storages[it->second].name = name;
}

bool TapeRecorder::add_outcome(const std::string& kind, const std::string& name, const at::Tensor& tensor,
                               bool with_values) noexcept try {
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
  if (!with_values) {
    raw_.outcomes.push_back({kind, name, capture::read_value(in)});
    return true;
  }
  const at::Tensor host = on_host(tensor);
  if (!host.defined()) return false;
  auto [every, sample] = tape_sample(host);
  raw_.outcomes.push_back(
      {kind, name, capture::read_value(in), tape_checksum(host), tape_flaws(host), every, std::move(sample)});
  return true;
} catch (...) {
  full_ = true;
  return false;
}

bool TapeRecorder::reads(const c10::TensorImpl& tensor) {
  const c10::StorageImpl* const storage = tape_storage(tensor);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = ids_.find(storage);
  return it != ids_.end() && (known_[it->second].state == Known::kInput || known_[it->second].used);
}

capture::StorageId TapeRecorder::number_of(const c10::StorageImpl* storage) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = ids_.find(storage);
  return it == ids_.end() ? capture::kNoStorage : it->second;
}

void TapeRecorder::seal() {
  stop();
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const std::string& device : raw_.devices) wait_for_device(c10::Device(device));  // whichever stream wrote it
  finish_inputs();
}

capture::RawTape TapeRecorder::take() {
  seal();
  return taken();
}

capture::RawTape TapeRecorder::take_template(c10::function_ref<bool(const c10::StorageImpl&)> later,
                                             std::vector<Input>* inputs) {
  stop();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (capture::StorageId id = 0; id < known_.size(); ++id) {
      known_[id].parts.reset();  // another step reads other rows
      leave_out(id, later, inputs);
    }
    finish_inputs();
  }
  return taken();
}

void TapeRecorder::leave_out(capture::StorageId id, c10::function_ref<bool(const c10::StorageImpl&)> later,
                             std::vector<Input>* inputs) {
  Known& known = known_[id];
  capture::RawStorage& raw = raw_.storages[id];
  if (known.state != Known::kInput && !raw.is_input) return;
  const bool was_held = known.held.defined();
  if (raw.blank || (!known.copied && known.end <= known.begin) || !hold(id)) return;
  inputs->push_back({id, c10::weak_intrusive_ptr<c10::StorageImpl>(known.held), known.written});
  const std::size_t size_bytes = known.copied ? raw.bytes.size() : static_cast<std::size_t>(known.end - known.begin);
  if (size_bytes > kMaxKept || later(*known.held)) {
    if (!known.copied) raw.begin = static_cast<std::uint64_t>(known.begin);
    raw.later_bytes = size_bytes;
    raw.bytes = {};
    known.copied = true;  // nothing is to be copied any more
  }
  if (!was_held) known.held.reset();
}

void TapeRecorder::finish_inputs() {
  std::size_t wanted = 0;  // reported before anything is copied
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
    if (!raw_.storages[id].blank && known.held && known.held->nbytes() >= static_cast<std::size_t>(known.end))
      copy_input(id, known.begin, known.end);
    if (known.parts) raw_.storages[id].parts = known.parts->take(static_cast<std::uint64_t>(known.begin));
  }
}

capture::RawTape TapeRecorder::taken() {
  capture::RawTape raw;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (too_large_) raw_.gaps.push_back("the step reads more than " + std::to_string(max_bytes_ >> 20) + " MB");
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
    if (draws_left_out_ != 0) raw.settings.emplace_back("draws_left_out", std::to_string(draws_left_out_));
    if (!autocast_.empty()) raw.settings.emplace_back("autocast", autocast_);
  }
  clear();
  return raw;
}

}  // namespace finitude::observe
