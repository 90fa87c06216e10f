// Fuzzing the readers of checkpoints: whatever a file says, each tensor lies within its storage and each storage within
// the file, and a scan ends.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "checkpoint/pickle.h"
#include "checkpoint/readers.h"
#include "checkpoint/scan.h"
#include "checkpoint/testing.h"
#include "checkpoint/views.h"

namespace finitude::checkpoint {
namespace {

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

void check(const std::string& bytes) {
  Checkpoint checkpoint;
  if (!read_torch_zip({File::of_bytes(bytes), 0, bytes.size()}, &checkpoint).ok()) return;
  for (const Tensor& tensor : checkpoint.tensors) {
    const Storage& storage = checkpoint.storages.at(tensor.storage);
    std::uint64_t span = 0;
    const bool fits = span_of(tensor.shape, tensor.strides, &span) &&
                      (span == 0 || (tensor.offset + span) * storage.type.bytes <= storage.data.bytes);
    if (!fits || storage.data.offset + storage.data.bytes > bytes.size()) die("a tensor outside of its file");
  }
  if (!scan(checkpoint, 1, nullptr).status.ok()) die("a storage that cannot be read");
}

}  // namespace
}  // namespace finitude::checkpoint

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t size) {
  using namespace finitude::checkpoint;
  const std::string bytes(reinterpret_cast<const char*>(input), size);
  Pickle pickle;
  (void)pickle.read(bytes);
  check(torch_file(bytes, {{1, 2, 3, 4}}));
  // A sound file with bytes changed.
  static const std::string sound =
      torch_file(pickled_dict({{"w", pickled_tensor("FloatStorage", "0", 4, 0, {2, 2}, {2, 1})},
                               {"exp_avg_sq", pickled_tensor("FloatStorage", "1", 6, 1, {2, 2}, {1, 2})}}),
                 {{1, 2, 3, 4}, {1, 2, 3, 4, 5, -6}});
  std::string changed = sound;
  for (std::size_t i = 0; i + 1 < size; i += 2)
    changed[(input[i] * 7u + i) % changed.size()] = static_cast<char>(input[i + 1]);
  check(changed);
  return 0;
}
