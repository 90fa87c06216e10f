// Fuzzing the reader of packed capsules: whatever the archive says, a file that it gives is no larger than was asked
// for.
#include <cstdio>
#include <cstdlib>

#include "capture/capsule_files.h"
#include "capture/packed_capsule.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t size) {
  using namespace finitude::capture;
  constexpr std::uint64_t kMost = std::uint64_t{1} << 20;
  PackedCapsule capsule;
  if (!capsule.open_bytes(std::string(reinterpret_cast<const char*>(input), size)).ok()) return 0;
  for (const std::string_view name : kCapsuleFiles) {
    std::string bytes;
    if (capsule.read(name, kMost, &bytes).ok() && bytes.size() > kMost) {
      std::fprintf(stderr, "a file larger than asked for\n");
      std::abort();
    }
  }
  return 0;
}
