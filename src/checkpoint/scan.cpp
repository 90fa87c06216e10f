#include "checkpoint/scan.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <thread>

#include "checkpoint/views.h"
#include "finitude/scan.h"
#include "sense/format.h"

namespace finitude::checkpoint {
namespace {

using sense::DType;

constexpr std::uint64_t kMostEffort = std::uint64_t{1} << 26;  // of all searches for the elements at a place

// A tensor and the elements of its storage that it reaches.
struct Placed {
  std::size_t tensor;
  std::uint64_t begin, end;
  View view;
  bool is_not_negative, is_mark;
};

// Lightning's callbacks begin their best score as Inf. `_is_mark` in python/finitude/report/saved_values.py is the
// same.
bool is_mark(const Tensor& tensor) { return tensor.shape.empty() && tensor.name.starts_with("callbacks."); }

// What is read of a storage, and the tensors there.
struct Part {
  const Storage* storage;
  std::uint64_t begin = 0, end = 0;  // elements
  std::vector<Placed> tensors;       // by begin
};

std::vector<Part> parts_of(const Checkpoint& checkpoint) {
  std::vector<Part> parts(checkpoint.storages.size());
  for (std::size_t i = 0; i < parts.size(); ++i) parts[i].storage = &checkpoint.storages[i];
  for (std::size_t i = 0; i < checkpoint.tensors.size(); ++i) {
    const Tensor& tensor = checkpoint.tensors[i];
    Part& part = parts[tensor.storage];
    std::uint64_t span = 0;
    if (part.storage->type.dtype == DType::kOther || !span_of(tensor.shape, tensor.strides, &span) || span == 0)
      continue;
    const std::uint64_t begin = tensor.offset, end = begin + span;
    part.begin = part.tensors.empty() ? begin : std::min(part.begin, begin);
    part.end = std::max(part.end, end);
    part.tensors.push_back(
        {i, begin, end, View(tensor.shape, tensor.strides), tensor.sign == Sign::kNotNegative, is_mark(tensor)});
  }
  std::erase_if(parts, [](const Part& part) { return part.tensors.empty(); });
  for (Part& part : parts) {
    std::sort(part.tensors.begin(), part.tensors.end(),
              [](const Placed& a, const Placed& b) { return a.begin < b.begin; });
  }
  return parts;
}

void keep_first(std::optional<std::uint64_t>* first, std::uint64_t place) {
  *first = first->has_value() ? std::min(**first, place) : place;
}

class Scan {
 public:
  Scan(const Checkpoint& checkpoint, const std::function<void(std::uint64_t)>& progress)
      : parts_(parts_of(checkpoint)), progress_(progress) {
    result_.tensors.resize(checkpoint.tensors.size());
    for (const Tensor& tensor : checkpoint.tensors)
      result_.skipped += checkpoint.storages[tensor.storage].type.dtype == DType::kOther;
    if (!parts_.empty()) next_ = parts_[0].begin;
  }

  void work() {
    std::vector<char> window(kWindow);
    std::uint64_t begin = 0, end = 0;
    while (const Part* part = take(&begin, &end)) {
      const ElementType& type = part->storage->type;
      const Status status = part->storage->data.read(begin * type.bytes, window.data(), (end - begin) * type.bytes);
      if (!status.ok()) {
        fail(status);
        return;
      }
      look(*part, window.data(), begin, end);
      count_read((end - begin) * type.bytes);
    }
  }

  Scanned take_result() { return std::move(result_); }

 private:
  // The next window that nobody has taken; null: there is none.
  const Part* take(std::uint64_t* begin, std::uint64_t* end) {
    const std::lock_guard lock(mutex_);
    if (part_ == parts_.size() || !result_.status.ok()) return nullptr;
    const Part& part = parts_[part_];
    *begin = next_;
    *end = std::min(part.end, next_ + kWindow / part.storage->type.bytes);
    next_ = *end;
    if (next_ == part.end && ++part_ != parts_.size()) next_ = parts_[part_].begin;
    return &part;
  }

  void fail(const Status& status) {
    const std::lock_guard lock(mutex_);
    if (result_.status.ok()) result_.status = status;
  }

  void count_read(std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    result_.bytes += bytes;
    if (progress_) progress_(result_.bytes);
  }

  void look(const Part& part, const char* window, std::uint64_t begin, std::uint64_t end) {
    const ElementType& type = part.storage->type;
    const bool bad = sense::quick_scan(window, end - begin, type.dtype).bad;
    for (const Placed& placed : part.tensors) {
      if (placed.begin >= end) break;
      if (placed.end <= begin || (!bad && !placed.is_not_negative)) continue;
      const std::uint64_t from = std::max(begin, placed.begin), to = std::min(end, placed.end);
      look_at(placed, type, window + (from - begin) * type.bytes, from, to);
    }
  }

  // data: the elements `from` to `to` of the storage.
  void look_at(const Placed& placed, const ElementType& type, const char* data, std::uint64_t from, std::uint64_t to) {
    const sense::Health health = sense::full_scan(data, to - from, type.dtype);
    const bool is_negative = placed.is_not_negative && health.min < 0;
    if ((health.ok() && !is_negative) || (placed.is_mark && health.nan == 0)) return;
    TensorHealth found;
    std::uint64_t effort = effort_left();
    const std::uint64_t before = effort;
    if (placed.view.is_contiguous()) {
      found.nan = health.nan;
      found.pos_inf = health.pos_inf;
      found.neg_inf = health.neg_inf;
      if (!health.ok()) found.first = from - placed.begin + sense::first_non_finite(data, to - from, type.dtype);
    } else if (!health.ok()) {
      each_bad(placed, type, data, from, to, &effort, &found);
    }
    if (is_negative) each_negative(placed, type, data, from, to, &effort, &found);
    merge(placed.tensor, found, before - effort);
  }

  std::uint64_t effort_left() {
    const std::lock_guard lock(mutex_);
    return effort_;
  }

  // Elements of the tensor at a place of the storage.
  static View::Found elements_at(const Placed& placed, std::uint64_t place, std::uint64_t* effort) {
    if (placed.view.is_contiguous()) return {1, place - placed.begin};
    const View::Found found = placed.view.find(place - placed.begin, effort);
    // Where that is not known it counts as one: no bad value is kept back.
    return *effort == 0 && found.count == 0 ? View::Found{1, 0} : found;
  }

  void each_bad(const Placed& placed, const ElementType& type, const char* data, std::uint64_t from, std::uint64_t to,
                std::uint64_t* effort, TensorHealth* into) {
    for (std::uint64_t at = from; at < to; ++at) {
      const char* here = data + (at - from) * type.bytes;
      at += sense::first_non_finite(here, to - at, type.dtype);
      if (at >= to) return;
      const sense::Health one = sense::full_scan(data + (at - from) * type.bytes, 1, type.dtype);
      const View::Found found = elements_at(placed, at, effort);
      if (found.count == 0) continue;
      into->nan += one.nan * found.count;
      into->pos_inf += one.pos_inf * found.count;
      into->neg_inf += one.neg_inf * found.count;
      keep_first(&into->first, found.first);
    }
  }

  void each_negative(const Placed& placed, const ElementType& type, const char* data, std::uint64_t from,
                     std::uint64_t to, std::uint64_t* effort, TensorHealth* into) {
    const sense::BitFormat format = sense::bit_format(type.dtype);
    const auto size = static_cast<std::size_t>(format.bits / 8);
    if (size != type.bytes) return;  // complex numbers have no sign
    for (std::uint64_t at = from; at < to; ++at) {
      std::uint64_t code = 0;
      std::memcpy(&code, data + (at - from) * size, size);
      if ((code & format.sign_mask()) == 0 || (code & format.magnitude_mask()) == 0 ||
          (code & format.magnitude_mask()) >= format.first_non_finite()) {
        continue;
      }
      const View::Found found = elements_at(placed, at, effort);
      if (found.count == 0) continue;
      into->negative += found.count;
      keep_first(&into->first_negative, found.first);
      into->least = std::min(into->least, sense::decode(code, format));
    }
  }

  void merge(std::size_t tensor, const TensorHealth& found, std::uint64_t effort) {
    const std::lock_guard lock(mutex_);
    effort_ -= std::min(effort_, effort);
    result_.is_exact &= effort_ != 0;
    TensorHealth& health = result_.tensors[tensor];
    health.nan += found.nan;
    health.pos_inf += found.pos_inf;
    health.neg_inf += found.neg_inf;
    health.negative += found.negative;
    health.least = std::min(health.least, found.least);
    if (found.first) keep_first(&health.first, *found.first);
    if (found.first_negative) keep_first(&health.first_negative, *found.first_negative);
  }

  const std::vector<Part> parts_;
  const std::function<void(std::uint64_t)>& progress_;
  std::mutex mutex_;  // of all that follows
  std::size_t part_ = 0;
  std::uint64_t next_ = 0, effort_ = kMostEffort;
  Scanned result_;
};

}  // namespace

std::uint64_t bytes_to_scan(const Checkpoint& checkpoint) {
  std::uint64_t bytes = 0;
  for (const Part& part : parts_of(checkpoint)) bytes += (part.end - part.begin) * part.storage->type.bytes;
  return bytes;
}

Scanned scan(const Checkpoint& checkpoint, unsigned threads, const std::function<void(std::uint64_t)>& progress) {
  Scan scan(checkpoint, progress);
  std::vector<std::thread> others;
  for (unsigned i = 1; i < threads; ++i) others.emplace_back([&] { scan.work(); });
  scan.work();
  for (std::thread& other : others) other.join();
  return scan.take_result();
}

}  // namespace finitude::checkpoint
