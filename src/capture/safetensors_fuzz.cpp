// Fuzzing the reader of safetensors: whatever the bytes say, what it hands out lies inside of them and is
// disjoint.
#include <cstdio>
#include <cstdlib>

#include "capture/safetensors.h"
#include "capture/wire.h"

namespace finitude::capture {
namespace {

void check(const std::string& file) {
  std::vector<NamedTensor> tensors;
  if (!read_safetensors(file, &tensors).ok()) return;
  std::size_t bytes = 0;
  for (const NamedTensor& tensor : tensors) {
    const bool inside =
        tensor.bytes.empty() ||
        (tensor.bytes.data() >= file.data() && tensor.bytes.data() + tensor.bytes.size() <= file.data() + file.size());
    bytes += tensor.bytes.size();
    if (!inside || bytes > file.size()) {
      std::fprintf(stderr, "a tensor outside of its file\n");
      std::abort();
    }
  }
}

}  // namespace
}  // namespace finitude::capture

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t size) {
  using namespace finitude::capture;
  const std::string bytes(reinterpret_cast<const char*>(input), size);
  check(bytes);
  std::string file;
  WireWriter(&file).u64(size);
  check(file + bytes + "12345678");
  // A sound header with bytes changed.
  static const std::string sound =
      safetensors_header({{"weight", "F32", {2, 1}, "12345678"}, {"bias", "BF16", {2}, "1234"}}) + "123456781234";
  std::string changed = sound;
  for (std::size_t i = 0; i + 1 < size; i += 2)
    changed[(input[i] * 3 + i) % changed.size()] = static_cast<char>(input[i + 1]);
  check(changed);
  return 0;
}
