// Fuzzing the reader of the ring of steps: whatever the bytes say, it hands out no more records than it has slots, in
// order of step.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/checksum.h"
#include "base/edits.h"
#include "record/ring_posix.h"

namespace finitude::record {
namespace {

void check(const std::string& bytes) {
  std::vector<std::uint64_t> words((bytes.size() + 7) / 8);  // for the alignment
  if (!bytes.empty()) std::memcpy(words.data(), bytes.data(), bytes.size());
  RingContents contents;
  std::string error;
  if (!read_ring({reinterpret_cast<const std::byte*>(words.data()), bytes.size()}, &contents, &error)) {
    if (!error.empty()) return;
  } else {
    bool fine = contents.records.size() + contents.torn <= contents.capacity && contents.capacity <= kMaxRingCapacity;
    for (std::size_t i = 1; i < contents.records.size(); ++i)
      fine &= contents.records[i - 1].step <= contents.records[i].step;
    if (fine) return;
  }
  std::fprintf(stderr, "a ring that cannot be\n");
  std::abort();
}

std::string sample() {
  RingWriter writer("", 8);
  for (std::uint64_t step = 0; step < 11; ++step) writer.push({step, 0, 1, 0.5, 2.0, 0.1, step * 1000});
  const auto bytes = writer.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Damage behind the checksum of the header is what a reader meets in a file that looks right.
std::string with_sum(std::string ring) {
  if (ring.size() < sizeof(RingHeader)) return ring;
  RingHeader header{};
  std::memcpy(&header, ring.data(), offsetof(RingHeader, pushed));
  header.checksum = base::checksum(&header, offsetof(RingHeader, checksum));
  std::memcpy(ring.data(), &header, offsetof(RingHeader, pushed));
  return ring;
}

}  // namespace
}  // namespace finitude::record

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t size) {
  using namespace finitude::record;
  static const std::string sound = sample();
  check(std::string(reinterpret_cast<const char*>(input), size));
  check(finitude::base::edited(sound, input, size));
  const std::string header = sound.substr(0, 64), slots = sound.substr(kRingHeaderBytes);
  check(with_sum(finitude::base::edited(header, input, size).substr(0, 64)) + sound.substr(64));
  check(sound.substr(0, kRingHeaderBytes) + finitude::base::edited(slots, input, size));
  return 0;
}
