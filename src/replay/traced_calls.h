// Which entries of a tape stand for which ops of the trace that was taken along with it.
#pragma once

#include <cstddef>
#include <optional>

#include "capture/tape.h"
#include "record/trace.h"

namespace finitude::replay {

class TracedCalls {
 public:
  // Both outlive this.
  TracedCalls(const capture::Tape& tape, const record::Trace& trace) : tape_(tape), trace_(trace) {}

  // The tape and the trace saw the same calls; an op that only the trace shows has another name.
  bool stands_for(const capture::Entry& entry, record::OpId op) const;
  bool is_within(record::OpId inner, record::OpId outer) const;
  // The entry that is the op, else the one that the op is a part of, else the only one that is a part of it.
  std::optional<std::size_t> entry_of(record::OpId op) const;

 private:
  const capture::Tape& tape_;
  const record::Trace& trace_;
};

}  // namespace finitude::replay
