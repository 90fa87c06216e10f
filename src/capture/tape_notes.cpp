#include "capture/tape_notes.h"

#include <algorithm>

#include "base/checksum.h"
#include "capture/tape_values.h"
#include "capture/wire.h"

namespace finitude::capture {
namespace {

enum Part : std::uint8_t { kPlaces = 1, kFlaws = 2, kSamples = 3, kExchanges = 4, kModules = 5 };
constexpr std::uint64_t kMaxLine = std::uint64_t{1} << 31;

// 0: not known.
std::uint64_t word_of_place(const Tape& tape, std::uint32_t place, bool of_backward) {
  return place < tape.places.size() ? (std::uint64_t{place} + 1) * 2 + of_backward : 0;
}

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
  for (const Entry& entry : tape.entries) out.var(word_of_place(tape, entry.place, entry.of_backward));
  return bytes;
}

bool has_modules(const Tape& tape) {
  return std::any_of(tape.places.begin(), tape.places.end(), [](const Place& place) { return !place.module.empty(); });
}

std::string modules_of(const Tape& tape) {
  std::string bytes;
  WireWriter out(&bytes);
  out.var(tape.places.size());
  for (const Place& place : tape.places) out.text(place.module);
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

std::string exchanges_of(const Tape& tape) {
  std::string bytes;
  WireWriter out(&bytes);
  out.var(tape.exchanges.size());
  for (const Exchange& one : tape.exchanges) {
    out.var(one.before);
    out.text(one.op);
    out.var(word_of_place(tape, one.place, one.of_backward));
    write_values(out, one.args);
  }
  return bytes;
}

void read_word_of_place(WireReader& in, const Tape& tape, std::uint32_t* place, bool* of_backward) {
  const std::uint64_t word = in.var(tape.places.size() * 2 + 1);
  if (word == 1) in.fail();
  if (word == 0) return;
  *place = static_cast<std::uint32_t>(word / 2 - 1);
  *of_backward = (word & 1) != 0;
}

bool read_places(WireReader in, Tape* tape) {
  for (std::size_t n = in.count(); n > 0 && in.ok(); --n) {
    Place& place = tape->places.emplace_back();
    place.file = in.text();
    place.line = static_cast<std::uint32_t>(in.var(kMaxLine));
    place.source = in.text();
  }
  if (in.count() != tape->entries.size()) return false;
  for (Entry& entry : tape->entries) read_word_of_place(in, *tape, &entry.place, &entry.of_backward);
  return in.ok() && in.at_end();
}

bool read_modules(WireReader in, Tape* tape) {
  if (in.count() != tape->places.size()) return false;
  for (Place& place : tape->places) place.module = in.text();
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

bool read_exchanges(WireReader in, Tape* tape) {
  std::uint64_t before = 0;
  for (std::size_t n = in.count(); n > 0 && in.ok(); --n) {
    Exchange& one = tape->exchanges.emplace_back();
    one.before = static_cast<std::size_t>(in.var(tape->entries.size()));
    if (one.before < before) in.fail();
    before = one.before;
    one.op = in.text();
    read_word_of_place(in, *tape, &one.place, &one.of_backward);
    one.args = read_values(in);
    for_each_tensor(one.args, [&](const TensorRef& t) {
      if (t.storage != kNoStorage && t.storage >= tape->storages.size()) in.fail();
    });
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
    if (part == kModules && !read_modules(content, tape)) return false;
    if (part == kFlaws && !read_flaws(content, tape)) return false;
    if (part == kSamples && !read_samples(content, tape)) return false;
    if (part == kExchanges && (!tape->exchanges.empty() || !read_exchanges(content, tape))) return false;
  }
  return in.ok() && in.at_end();
}

}  // namespace

std::string write_notes(const Tape& tape) {
  const bool flaws = std::any_of(tape.outcomes.begin(), tape.outcomes.end(),
                                 [](const Outcome& outcome) { return outcome.flaws.known; });
  const bool samples = std::any_of(tape.outcomes.begin(), tape.outcomes.end(),
                                   [](const Outcome& outcome) { return outcome.sample_every != 0; });
  if (tape.places.empty() && !flaws && !samples && tape.exchanges.empty()) return {};
  std::string parts;
  WireWriter out(&parts);
  const bool modules = has_modules(tape);
  out.var(std::uint64_t{!tape.places.empty()} + flaws + samples + !tape.exchanges.empty() + modules);
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
  if (!tape.exchanges.empty()) {
    out.var(kExchanges);
    out.text(exchanges_of(tape));
  }
  if (modules) {  // behind the lines, which say how many there are
    out.var(kModules);
    out.text(modules_of(tape));
  }
  std::string bytes;
  WireWriter(&bytes).u64(base::checksum(parts.data(), parts.size()));
  return bytes + parts;
}

bool read_notes(std::string_view bytes, Tape* tape) {
  if (read_parts(bytes, tape)) return true;
  tape->places.clear();
  tape->exchanges.clear();
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
