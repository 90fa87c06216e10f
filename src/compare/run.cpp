#include "compare/run.h"

#include <map>
#include <string_view>
#include <unordered_map>

namespace finitude::compare {
namespace {

constexpr std::size_t kLookBack = 256;  // writes to one storage that are looked through

struct Write {
  std::int64_t begin, end;
  std::uint32_t call, output;
};
using Writes = std::unordered_map<std::uint32_t, std::vector<Write>>;

void find_source(Run& run, const Writes& writes, Tensor& input) {
  const auto found = writes.find(input.storage);
  if (input.storage == kNone || found == writes.end()) return;
  std::size_t looked = 0;
  for (std::size_t i = found->second.size(); i-- > 0 && looked < kLookBack; ++looked) {
    const Write& write = found->second[i];
    if (write.begin >= input.end || write.end <= input.begin) continue;
    if (input.source == kNone) {
      input.source = write.call;
    } else if (write.call != input.source) {
      input.beneath.push_back(write.call);
    }
    run.calls[write.call].outputs[write.output].used = true;
    if (write.begin <= input.begin && write.end >= input.end) return;  // nothing older shines through
  }
}

}  // namespace

void connect(Run& run) {
  Writes writes;
  bool known = false;
  for (std::uint32_t i = 0; i < run.calls.size(); ++i) {
    for (Tensor& input : run.calls[i].inputs) find_source(run, writes, input);
    for (std::uint32_t k = 0; k < run.calls[i].outputs.size(); ++k) {
      Tensor& output = run.calls[i].outputs[k];
      if (output.storage == kNone) continue;
      known = true;
      output.used = false;
      writes[output.storage].push_back({output.begin, output.end, i, k});
    }
  }
  for (Result& result : run.results) find_source(run, writes, result.value);
  if (!known || run.says_results()) return;
  // What nobody reads may be a result.
  for (Call& call : run.calls) {
    for (Tensor& output : call.outputs) output.used = true;
  }
}

bool takes_form(const Call& call) noexcept {
  const std::string_view op = call.op;
  return op.ends_with("_like") || op.starts_with("aten::new_");
}

std::vector<std::vector<std::uint32_t>> readers_of(const Run& run) {
  std::vector<std::vector<std::uint32_t>> readers(run.calls.size());
  const auto note = [&](const Tensor& input, std::size_t reader) {
    const auto by = [&](std::uint32_t call) {
      if (call < readers.size() && (readers[call].empty() || readers[call].back() != reader))
        readers[call].push_back(static_cast<std::uint32_t>(reader));
    };
    by(input.source);
    for (const std::uint32_t call : input.beneath) by(call);
  };
  for (std::size_t i = 0; i < run.calls.size(); ++i) {
    for (const Tensor& input : run.calls[i].inputs) note(input, i);
  }
  for (std::size_t i = 0; i < run.results.size(); ++i) note(run.results[i].value, run.calls.size() + i);
  return readers;
}

std::vector<std::uint32_t> same_results(const Run& a, const Run& b) {
  // Of several of one name (the losses of micro-batches, or of two optimizers) the first represents the first.
  std::map<std::pair<std::string, std::string>, std::vector<std::uint32_t>> of_b;
  for (std::uint32_t i = 0; i < b.results.size(); ++i) of_b[{b.results[i].kind, b.results[i].name}].push_back(i);
  std::map<std::pair<std::string, std::string>, std::size_t> taken;
  std::vector<std::uint32_t> same;
  for (const Result& result : a.results) {
    const std::pair<std::string, std::string> name{result.kind, result.name};
    const auto found = of_b.find(name);
    const std::size_t number = taken[name]++;
    same.push_back(found == of_b.end() || number >= found->second.size() ? kNone : found->second[number]);
  }
  return same;
}

}  // namespace finitude::compare
