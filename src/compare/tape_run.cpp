#include "compare/tape_run.h"

#include <algorithm>
#include <cstdio>

#include "base/checksum.h"

namespace finitude::compare {
namespace {

using capture::Entry;
using capture::Tape;
using capture::TensorRef;
using capture::Value;

constexpr std::size_t kMaxValueText = 400;

std::string real_text(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

}  // namespace

std::vector<std::uint32_t> calls_by_entry(const Tape& tape) {
  std::vector<std::uint32_t> calls;
  calls.reserve(tape.entries.size());
  std::uint32_t count = 0;
  for (std::size_t i = 0; i < tape.entries.size(); ++i)
    calls.push_back(tape.entries[i].kind == Entry::kRandom ? kNone : goes_on_filling(tape, i) ? count - 1 : count++);
  return calls;
}

bool goes_on_filling(const Tape& tape, std::size_t index) {
  const Entry& entry = tape.entries[index];
  return index > 0 && entry.kind == Entry::kFill && tape.entries[index - 1].kind == Entry::kFill &&
         tape.entries[index - 1].number == entry.number && entry.number < tape.storages.size() &&
         tape.storages[entry.number].origin == capture::Storage::kBlank;
}

Call memory_call(const Tape& tape, std::size_t index) {
  const Entry& entry = tape.entries[index];
  Call call;
  call.op = kMemory;
  Tensor& t = call.outputs.emplace_back();
  t.element = {Number::kUInt8, 1, "bytes"};
  t.storage = entry.number;
  t.begin = static_cast<std::int64_t>(entry.offset);
  t.end = t.begin + static_cast<std::int64_t>(entry.bytes.size());
  t.checksum = base::checksum(entry.bytes.data(), entry.bytes.size());
  std::int64_t size_bytes = static_cast<std::int64_t>(entry.bytes.size());
  for (std::size_t i = index + 1; i < tape.entries.size() && goes_on_filling(tape, i); ++i) {
    const Entry& more = tape.entries[i];
    size_bytes += static_cast<std::int64_t>(more.bytes.size());
    t.end = static_cast<std::int64_t>(more.offset + more.bytes.size());
    // Other rows of the same content are other data.
    t.checksum = base::checksum(more.bytes.data(), more.bytes.size(), t.checksum ^ more.offset);
  }
  t.shape = {size_bytes};
  t.has_checksum = true;
  return call;
}

bool is_number(const TensorRef& ref) { return ref.storage == capture::kNoStorage && ref.sizes.empty(); }

std::string number_text(const TensorRef& ref) {
  const Element element = element_of_scalar_type(ref.dtype);
  const std::size_t need = info(element.number).size_bytes * static_cast<std::size_t>(element.reals);
  if (need == 0 || ref.constant.size() < need) return "";
  std::string text = real_text(decode(ref.constant.data(), element.number, 0));
  if (element.reals == 2) text += "+" + real_text(decode(ref.constant.data(), element.number, 1)) + "j";
  return text;
}

std::string argument_text(const Value& value) {
  switch (value.kind) {
    case Value::kInt:
      return std::to_string(value.number);
    case Value::kDouble:
      return real_text(value.real);
    case Value::kFalse:
      return "False";
    case Value::kTrue:
      return "True";
    case Value::kComplex:
      return real_text(value.real) + "+" + real_text(value.imag) + "j";
    case Value::kString:
    case Value::kDevice:
      return value.text.substr(0, kMaxValueText);
    case Value::kTensor:
      return value.tensors.size() == 1 && is_number(value.tensors[0]) ? number_text(value.tensors[0]) : "";
    case Value::kList: {
      std::string text;
      for (const Value& item : value.items) {
        const std::string one = argument_text(item);
        if (one.empty()) continue;
        if (text.size() > kMaxValueText) break;
        text += (text.empty() ? "[" : ", ") + one;
      }
      return text.empty() ? "" : text + "]";
    }
    default:
      return "";
  }
}

Tensor described(const Tape& tape, const TensorRef& ref) {
  Tensor t;
  t.element = element_of_scalar_type(ref.dtype);
  t.shape = ref.sizes;
  if (ref.storage >= tape.storages.size()) return t;
  t.storage = ref.storage;
  const capture::Storage& storage = tape.storages[ref.storage];
  if (!storage.name.empty()) t.name = storage.kind.empty() ? storage.name : storage.kind + " " + storage.name;
  // Bounded: a tape from elsewhere may name sizes that no memory has; a replay refuses those.
  double last = static_cast<double>(ref.offset);
  bool empty = false;
  for (std::size_t d = 0; d < ref.sizes.size(); ++d) {
    empty |= ref.sizes[d] == 0;
    last += static_cast<double>(ref.sizes[d] - 1) * static_cast<double>(ref.strides[d]);
  }
  const double item = static_cast<double>(capture::item_bytes(ref.dtype));
  const double most = static_cast<double>(storage.size_bytes);
  t.begin = static_cast<std::int64_t>(std::min(most, static_cast<double>(ref.offset) * item));
  t.end = empty ? t.begin : static_cast<std::int64_t>(std::min(most, (last + 1) * item));
  return t;
}

}  // namespace finitude::compare
