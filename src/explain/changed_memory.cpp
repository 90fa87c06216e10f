#include "explain/changed_memory.h"

#include <array>
#include <cstdio>
#include <optional>
#include <string_view>

#include "explain/evidence.h"
#include "locate/neighbours.h"
#include "record/unseen_write.h"

namespace finitude::explain {
namespace {

using locate::Life;
using locate::Owner;

std::string byte_words(std::uint64_t count) { return with_commas(count) + (count == 1 ? " byte" : " bytes"); }

std::optional<std::uint64_t> number_of(const record::Op& op, std::string_view name) {
  for (const record::ScalarUse& scalar : op.scalars)
    if (scalar.arg == name && scalar.number) return static_cast<std::uint64_t>(*scalar.number);
  return std::nullopt;
}

std::string address_word(std::uint64_t address) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "0x%llx", static_cast<unsigned long long>(address));
  return text.data();
}

std::string origin_word(record::Origin origin) {
  switch (origin) {
    case record::Origin::kParameter:
      return "the parameter ";
    case record::Origin::kBuffer:
      return "the buffer ";
    case record::Origin::kOptimizerState:
      return "the optimizer state ";
    case record::Origin::kGradient:
      return "the gradient of ";
    case record::Origin::kBatch:
      return "the batch ";
    default:
      return {};
  }
}

// "the result of aten::sin at train.py:9", "the parameter head.weight".
std::string owner_name(const record::Trace& trace, const Owner& owner) {
  const record::Storage& storage = trace.storages[owner.storage];
  if (!storage.name.empty()) return origin_word(storage.origin) + storage.name;
  if (owner.made_by < trace.ops.size()) {
    const record::Op& op = trace.ops[owner.made_by];
    const std::string line = at_line(trace, op);
    return "the result of " + op.name + (line.empty() && op.phase == record::Phase::kBackward ? " in backward" : line);
  }
  if (owner.last_used >= trace.ops.size()) return "a tensor from before the step";
  const record::Op& op = trace.ops[owner.last_used];
  return "a tensor from before the step, which " + op.name + at_line(trace, op) + " used last";
}

std::string owner_words(const record::Trace& trace, const Owner& owner) {
  const record::Storage& storage = trace.storages[owner.storage];
  std::string text =
      owner_name(trace, owner) + " (" + byte_words(static_cast<std::uint64_t>(storage.size_bytes)) + "), ";
  switch (owner.life) {
    case Life::kInUse:
      return text + "still in use";
    case Life::kNotKnown:
      return text + "in use or given back: not known";
    case Life::kGivenBack:
      break;
  }
  text += "given back by then";
  if (owner.last_used >= trace.ops.size() || owner.last_used == owner.made_by) return text;
  const record::Op& op = trace.ops[owner.last_used];
  return text + "; last used by " + op.name + at_line(trace, op);
}

std::vector<Experiment> owner_lines(const record::Trace& trace, const std::optional<locate::Around>& around) {
  std::vector<Experiment> lines;
  const auto add = [&](std::string name, std::string outcome) {
    lines.push_back({std::move(name), std::move(outcome), false, false});
  };
  if (!around) return lines;
  add("address", address_word(around->first));
  if (around->before)
    add("before that tensor, " + byte_words(static_cast<std::uint64_t>(around->before->gap)) + " away",
        owner_words(trace, *around->before));
  if (around->after)
    add("after that tensor, " + byte_words(static_cast<std::uint64_t>(around->after->gap)) + " away",
        owner_words(trace, *around->after));
  for (const Owner& owner : around->same)
    add(owner.life == Life::kInUse ? "shares that memory" : "had that memory before", owner_words(trace, owner));
  return lines;
}

}  // namespace

record::OpId outermost(const record::Trace& trace, record::OpId id) {
  while (id < trace.ops.size() && trace.ops[id].parent < id) id = trace.ops[id].parent;
  return id;
}

std::string call_words(const record::Trace& trace, record::OpId id) {
  const record::Op& op = trace.ops[id];
  return op.name + at_line(trace, op);
}

std::string with_commas(std::uint64_t value) {
  std::string digits = std::to_string(value);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<std::size_t>(at), 1, ',');
  return digits;
}

std::string changed_bytes(const record::Op& change) {
  const auto bytes = number_of(change, record::kChangedBytes);
  if (!bytes) return "values changed between writer and reader";
  const std::uint64_t first = number_of(change, record::kFirstByte).value_or(0),
                      end = number_of(change, record::kEndByte).value_or(0);
  const bool is_one_run = end - first == *bytes;
  std::string text = (number_of(change, record::kAtLeast) ? "at least " : "") + with_commas(*bytes) +
                     " bytes changed between writer and reader (bytes " + with_commas(first) + " to " +
                     with_commas(end - 1) + " of " +
                     with_commas(static_cast<std::uint64_t>(change.outputs[0].end - change.outputs[0].begin));
  text += is_one_run ? ", without a gap" : ", with gaps";
  for (const std::uint64_t block : {2048u, 512u}) {
    if (*bytes % block == 0) return text + "; a multiple of " + with_commas(block) + ")";
  }
  return text + ")";
}

std::vector<Experiment> around_change(const record::Trace& trace, record::OpId change) {
  const record::Op& op = trace.ops[change];
  const record::TensorUse& span = op.outputs.front();
  const std::int64_t first = static_cast<std::int64_t>(number_of(op, record::kFirstByte).value_or(0));
  const auto end = number_of(op, record::kEndByte);
  return owner_lines(trace,
                     locate::memory_around(trace, span.storage, span.begin + first,
                                           end ? span.begin + static_cast<std::int64_t>(*end) : span.end, change));
}

std::vector<Experiment> around_use(const record::Trace& trace, const record::TensorUse& use, record::OpId reader) {
  return owner_lines(trace, locate::memory_around(trace, use.storage, use.begin, use.end, reader));
}

}  // namespace finitude::explain
