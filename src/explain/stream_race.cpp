#include "explain/stream_race.h"

#include <string>

#include "explain/changed_memory.h"
#include "explain/evidence.h"

namespace finitude::explain {
namespace {

using record::kNone;
using record::OpId;
using record::StreamRace;

std::string call_of(const record::Trace& trace, OpId id) {
  return id < trace.ops.size() ? call_words(trace, outermost(trace, id)) : "an operation before this step";
}

std::string stream_words(std::uint64_t stream) {
  if (stream == 0) return "the default stream";
  constexpr char kDigits[] = "0123456789abcdef";
  std::string digits;
  for (; stream != 0; stream /= 16) digits.insert(digits.begin(), kDigits[stream % 16]);
  return "stream 0x" + digits;
}

std::string memory_words(const record::Trace& trace, const StreamRace& race) {
  const std::string size = with_commas(race.size_bytes) + " bytes of ";
  for (const record::Storage& storage : trace.storages)
    if (storage.address == race.address && !storage.name.empty()) return size + storage.name;
  return with_commas(race.size_bytes) + " bytes of memory of the device";
}

}  // namespace

std::optional<Finding> finding_of_races(const std::vector<StreamRace>& races, const record::Trace& trace) {
  if (races.empty()) return std::nullopt;
  const StreamRace& race = races.front();
  const bool is_reused = race.kind == StreamRace::kReuse;
  Finding finding;
  finding.cause_class = "memory-corruption";
  finding.confidence = "likely";
  finding.text = memory_words(trace, race) + ": " + call_of(trace, race.first) +
                 (race.first_writes ? " writes it on " : " reads it on ") + stream_words(race.first_stream);
  if (is_reused) {
    finding.text += ", it was given back";
    if (race.given_back < trace.ops.size()) finding.text += " in " + call_of(trace, race.given_back);
    finding.text += " and handed out again";
  }
  finding.text += is_reused ? ", and " : "; ";
  finding.text += call_of(trace, race.second) + (race.second_writes ? " writes it on " : " reads it on ") +
                  stream_words(race.second_stream) + "; no event and no wait of the host orders the two";
  finding.fix_text = is_reused
                         ? "call record_stream() of the tensor with the stream that still uses it, before the last "
                           "reference to it goes"
                         : "let the second stream wait for the first one before it uses the memory: "
                           "stream.wait_stream(other), or an event";
  if (race.second < trace.ops.size()) {
    finding.born_in = outermost(trace, race.second);
    mend_at(trace, trace.ops[finding.born_in], &finding);
  }
  finding.experiments.push_back({"streams and events of the device, as the program started again gives them",
                                 counted(races.size(), "pair") + " of operations in no order", true});
  return finding;
}

}  // namespace finitude::explain
