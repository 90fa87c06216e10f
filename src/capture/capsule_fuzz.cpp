// Fuzzing the reader of a capsule as a whole: any capsule.json, and files whose sizes and checksums it states right
// though their content is damaged. What is read is written and read again the same.
#include "capture/capsule.h"

#include <cstdio>
#include <cstdlib>
#include <iterator>

#include "base/checksum.h"
#include "base/edits.h"
#include "capture/step_statistics.h"
#include "capture/tape_file.h"
#include "capture/testing.h"
#include "capture/testing_trace.h"

namespace finitude::capture {
namespace {

using nlohmann::json;
using Files = std::map<std::string, std::string>;

std::string sum_of(const std::string& bytes) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx",
                static_cast<unsigned long long>(base::checksum(bytes.data(), bytes.size())));
  return text;
}

// With a list of its files that fits them.
std::string about_of(const Files& files) {
  json list = json::object();
  for (const auto& [name, bytes] : files) list[name] = {{"bytes", bytes.size()}, {"checksum", sum_of(bytes)}};
  return json{{"schema", 1},
              {"kind", "finitude capsule"},
              {"files", list},
              {"step", 3},
              {"start", {{"tensors", {{"state.w.exp_avg", {{"dtype", "float32"}, {"shape", {2}}}}}}}}}
      .dump();
}

Files sample_files() {
  Tape tape = sample_tape();
  Files files;
  std::string content;
  std::vector<NamedTensor> tensors;
  for (const Storage& storage : tape.storages) {
    if (storage.external.empty()) continue;
    content.assign(static_cast<std::size_t>(storage.size_bytes), 'x');
    tensors.push_back({storage.external, "U8", {static_cast<std::int64_t>(content.size())}, content});
    break;
  }
  files["tape.bin"] = write_tape(tape);
  if (!tensors.empty()) files["tensors.safetensors"] = safetensors_header(tensors) + content;
  files["statistics.bin"] = write_statistics(sample_trace(), false);
  files["start.safetensors"] = safetensors_header({{"state.w.exp_avg", "F32", {2}, "12345678"}}) + "12345678";
  return files;
}

void check(const Files& files, const std::string& about_text) {
  const auto source = [&](const char* name, std::uint64_t most_bytes, std::string* bytes) {
    const std::string_view asked(name);
    if (asked == "capsule.json") {
      *bytes = about_text;
    } else {
      const auto found = files.find(name);
      if (found == files.end()) return Status(StatusCode::kCorrupt, "is not there");
      *bytes = found->second;
    }
    return bytes->size() <= most_bytes ? Status() : Status(StatusCode::kTooLarge, "is larger than that");
  };
  json about;
  Tape tape;
  TensorBytes start;
  record::Trace trace;
  if (!read_capsule_statistics_from(source, &about, &trace).ok() && !trace.ops.empty()) std::abort();
  if (!read_capsule_from(source, &about, &tape, &start).ok()) return;
  std::size_t held = 0, given = 0;
  for (const auto& [name, bytes] : start) held += bytes.size();
  for (const auto& [name, bytes] : files) given += bytes.size();
  Tape again;
  if (held > given || !read_tape(write_tape(tape), &again).ok()) {
    std::fprintf(stderr, "a capsule that holds more than its files, or whose tape cannot be written\n");
    std::abort();
  }
}

}  // namespace
}  // namespace finitude::capture

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t size) {
  using namespace finitude::capture;
  static const Files files = sample_files();
  static const std::string about = about_of(files);
  check(files, std::string(reinterpret_cast<const char*>(input), size));
  check(files, finitude::base::edited(about, input, size));
  // Of the other files one: each has a target of its own.
  const auto& [name, bytes] =
      *std::next(files.begin(), static_cast<std::ptrdiff_t>((size == 0 ? 0 : input[size - 1]) % files.size()));
  Files damaged = files;
  damaged[name] = finitude::base::edited(bytes, input, size);
  check(damaged, about_of(damaged));
  return 0;
}
