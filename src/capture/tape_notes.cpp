#include "capture/tape_notes.h"

#include <algorithm>

#include "base/checksum.h"
#include "capture/wire.h"

namespace finitude::capture {
namespace {

enum Part : std::uint8_t { kPlaces = 1, kFlaws = 2, kSamples = 3 };
constexpr std::uint64_t kMaxLine = std::uint64_t{1} << 31;

std::string places_of(const Tape& tape) {
  std::string bytes;
  WireWriter out(&bytes);
  out.var(tape.places.size());
  for (const Place& place : tape.places) {
    out.text(place.file);
    out.var(place.line);
    out.text(place.source);
  }
  out.var(tape.entries.size());
  for (const Entry& entry : tape.entries) {
    const bool reported = entry.place < tape.places.size();
    out.var(reported ? (std::uint64_t{entry.place} + 1) * 2 + entry.of_backward : 0);
  }
  return bytes;
}

std::string flaws_of(const Tape& tape) {
  std::string bytes;
  WireWriter out(&bytes);
  out.var(tape.outcomes.size());
  for (const Outcome& outcome : tape.outcomes) {
    out.u8(outcome.flaws.known);
    out.var(outcome.flaws.nan);
    out.var(outcome.flaws.inf);
  }
  return bytes;
}

std::string samples_of(const Tape& tape) {
  std::string bytes;
  WireWriter out(&bytes);
  out.var(tape.outcomes.size());
  for (const Outcome& outcome : tape.outcomes) {
    out.var(outcome.sample_every);
    out.text(outcome.sample);
  }
  return bytes;
}

bool read_places(WireReader in, Tape* tape) {
  for (std::size_t n = in.count(); n > 0 && in.ok(); --n) {
    Place& place = tape->places.emplace_back();
    place.file = in.text();
    place.line = static_cast<std::uint32_t>(in.var(kMaxLine));
    place.source = in.text();
  }
  if (in.count() != tape->entries.size()) return false;
  for (Entry& entry : tape->entries) {
    const std::uint64_t word = in.var(tape->places.size() * 2 + 1);
    if (word == 1) in.fail();
    if (word == 0) continue;
    entry.place = static_cast<std::uint32_t>(word / 2 - 1);
    entry.of_backward = (word & 1) != 0;
  }
  return in.ok() && in.at_end();
}

bool read_flaws(WireReader in, Tape* tape) {
  if (in.count() != tape->outcomes.size()) return false;
  for (Outcome& outcome : tape->outcomes) {
    outcome.flaws.known = in.u8() != 0;
    outcome.flaws.nan = in.var();
    outcome.flaws.inf = in.var();
  }
  return in.ok() && in.at_end();
}

bool read_samples(WireReader in, Tape* tape) {
  if (in.count() != tape->outcomes.size()) return false;
  for (Outcome& outcome : tape->outcomes) {
    outcome.sample_every = in.var();
    outcome.sample = in.text();
  }
  return in.ok() && in.at_end();
}

bool read_parts(std::string_view bytes, Tape* tape) {
  WireReader in(bytes);
  const std::uint64_t sum = in.u64();
  if (!in.ok() || sum != base::checksum(bytes.data() + 8, bytes.size() - 8)) return false;
  for (std::size_t n = in.count(); n > 0; --n) {
    const std::uint64_t part = in.var();
    const WireReader content(in.text());
    if (!in.ok()) return false;
    if (part == kPlaces && (!tape->places.empty() || !read_places(content, tape))) return false;
    if (part == kFlaws && !read_flaws(content, tape)) return false;
    if (part == kSamples && !read_samples(content, tape)) return false;
  }
  return in.ok() && in.at_end();
}

}  // namespace

std::string write_notes(const Tape& tape) {
  const bool flaws = std::any_of(tape.outcomes.begin(), tape.outcomes.end(),
                                 [](const Outcome& outcome) { return outcome.flaws.known; });
  const bool samples = std::any_of(tape.outcomes.begin(), tape.outcomes.end(),
                                   [](const Outcome& outcome) { return outcome.sample_every != 0; });
  if (tape.places.empty() && !flaws && !samples) return {};
  std::string parts;
  WireWriter out(&parts);
  out.var(std::uint64_t{!tape.places.empty()} + flaws + samples);
  if (!tape.places.empty()) {
    out.var(kPlaces);
    out.text(places_of(tape));
  }
  if (flaws) {
    out.var(kFlaws);
    out.text(flaws_of(tape));
  }
  if (samples) {
    out.var(kSamples);
    out.text(samples_of(tape));
  }
  std::string bytes;
  WireWriter(&bytes).u64(base::checksum(parts.data(), parts.size()));
  return bytes + parts;
}

bool read_notes(std::string_view bytes, Tape* tape) {
  if (read_parts(bytes, tape)) return true;
  tape->places.clear();
  for (Entry& entry : tape->entries) {
    entry.place = kNoPlace;
    entry.of_backward = false;
  }
  for (Outcome& outcome : tape->outcomes) {
    outcome.flaws = {};
    outcome.sample_every = 0;
    outcome.sample.clear();
  }
  return false;
}

}  // namespace finitude::capture
