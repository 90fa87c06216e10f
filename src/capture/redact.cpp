#include "capture/redact.h"

#include <algorithm>
#include <map>

#include "capture/step_statistics.h"
#include "finitude/scan.h"

namespace finitude::capture {
namespace {

using nlohmann::json;

sense::DType scan_dtype(std::uint8_t dtype) {
  switch (dtype) {
    case 5:
      return sense::DType::kFloat16;
    case 6:
      return sense::DType::kFloat32;
    case 7:
      return sense::DType::kFloat64;
    case 9:
      return sense::DType::kComplex64;
    case 10:
      return sense::DType::kComplex128;
    case 15:
      return sense::DType::kBFloat16;
    default:
      return sense::DType::kOther;
  }
}

json statistics_of(const Storage& storage, std::uint8_t dtype) {
  const std::size_t numel = storage.bytes.size() / std::max<std::size_t>(item_bytes(dtype), 1);
  json found = {{"kind", storage.kind}, {"bytes", storage.size_bytes}};
  if (scan_dtype(dtype) == sense::DType::kOther || storage.bytes.empty()) return found;
  const sense::Health health = sense::full_scan(storage.bytes.data(), numel, scan_dtype(dtype));
  found.update({{"numel", numel}, {"nan", health.nan}, {"inf", health.inf()}, {"zero", health.zero}});
  if (health.finite() != 0 && numel > 1) found.update({{"min", health.min}, {"max", health.max}});
  return found;
}

void forget(std::vector<Value>& values) {
  for (Value& value : values) {
    value.real = value.imag = 0;
    if (value.kind == Value::kString) value.text.clear();
    for (TensorRef& tensor : value.tensors) tensor.constant.assign(tensor.constant.size(), '\0');
    forget(value.items);
  }
}

}  // namespace

json redact(Tape& tape) {
  std::map<StorageId, std::uint8_t> dtypes;
  for (const Entry& entry : tape.entries) {
    for_each_tensor(entry.args, [&](const TensorRef& t) { dtypes.try_emplace(t.storage, t.dtype); });
  }
  json found = json::object();
  for (StorageId id = 0; id < tape.storages.size(); ++id) {
    Storage& storage = tape.storages[id];
    if (storage.origin == Storage::kInput && dtypes.contains(id)) {
      found[storage.name.empty() ? "input." + std::to_string(id) : storage.name] =
          statistics_of(storage, dtypes[id]);
    }
    storage.bytes.clear();
  }
  for (Entry& entry : tape.entries) {
    entry.bytes.clear();
    forget(entry.args);
  }
  for (Entry& entry : tape.entries) entry.place = kNoPlace;
  tape.places.clear();
  for (Outcome& outcome : tape.outcomes) {
    outcome.checksum = outcome.sample_every = 0;
    outcome.sample.clear();
  }
  if (record::Trace trace; !tape.statistics.empty()) {
    const bool known = read_statistics(tape.statistics, &trace).ok();
    tape.statistics = known ? write_statistics(trace, true) : "";
  }
  tape.gaps.push_back("its values were left out (redacted)");
  return found;
}

}  // namespace finitude::capture
