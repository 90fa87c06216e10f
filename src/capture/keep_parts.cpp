#include "capture/keep_parts.h"

#include <iterator>
#include <unordered_map>
#include <utility>
#include <vector>

#include "capture/tape_values.h"

namespace finitude::capture {
namespace {

// What a fill takes beside its bytes, about.
constexpr std::uint64_t kPerFill = 64;

bool is_worth_it(const Storage& storage) {
  if (storage.origin != Storage::kInput || storage.parts.empty() || !storage.kind.empty() || !storage.name.empty())
    return false;
  if (storage.bytes.size() != storage.size_bytes) return false;
  std::uint64_t kept = 0, before = 0;
  for (const ByteRange& part : storage.parts) {
    if (part.begin < before || part.end < part.begin || part.end > storage.size_bytes) return false;
    kept += part.end - part.begin + kPerFill;
    before = part.end;
  }
  return kept < storage.size_bytes / 2;
}

}  // namespace

void keep_parts(Tape& tape) {
  std::unordered_map<StorageId, std::vector<Entry>> fills;
  for (StorageId id = 0; id < tape.storages.size(); ++id) {
    Storage& storage = tape.storages[id];
    if (!is_worth_it(storage)) continue;
    for (const ByteRange& part : storage.parts) {
      Entry& fill = fills[id].emplace_back();
      fill.kind = Entry::kFill;
      fill.number = id;
      fill.offset = part.begin;
      fill.bytes =
          storage.bytes.substr(static_cast<std::size_t>(part.begin), static_cast<std::size_t>(part.end - part.begin));
    }
    storage.origin = Storage::kBlank;
    storage.bytes = {};
    storage.parts.clear();
  }
  if (fills.empty()) return;
  std::vector<Entry> entries;
  const auto fill = [&](const TensorRef& t) {
    const auto found = fills.find(t.storage);
    if (found == fills.end()) return;
    std::move(found->second.begin(), found->second.end(), std::back_inserter(entries));
    fills.erase(found);
  };
  auto exchange = tape.exchanges.begin();
  const auto move_exchanges = [&](std::size_t before) {
    for (; exchange != tape.exchanges.end() && exchange->before == before; ++exchange) {
      for_each_tensor(exchange->args, fill);
      exchange->before = entries.size();
    }
  };
  for (std::size_t i = 0; i < tape.entries.size(); ++i) {
    move_exchanges(i);
    Entry& entry = tape.entries[i];
    for_each_tensor(entry.args, fill);
    for_each_tensor(entry.results, fill);
    entries.push_back(std::move(entry));
  }
  move_exchanges(tape.entries.size());
  for (const Outcome& outcome : tape.outcomes) for_each_tensor(outcome.value, fill);
  tape.entries = std::move(entries);
}

}  // namespace finitude::capture
