// Fuzzing the reader of tapes and the linker: bytes become the body of a file whose checksums fit, and the
// events of a raw tape. Whatever they say, nothing crashes, and what was read is written and read again the
// same.
#include <cstdio>
#include <cstdlib>

#include "base/checksum.h"
#include "capture/link.h"
#include "capture/tape_file.h"
#include "capture/tape_notes.h"
#include "capture/testing.h"

namespace finitude::capture {
namespace {

std::string file_of(std::string_view body, std::string_view data, std::uint32_t version) {
  std::string file;
  WireWriter out(&file);
  out.raw(kTapeMagic.data(), kTapeMagic.size());
  out.u64(version | std::uint64_t{kTapeHeaderBytes} << 32);
  for (const std::string_view part : {body, data}) {
    out.u64(part.size());
    out.u64(base::checksum(part.data(), part.size()));
  }
  out.u64(0);
  out.u64(base::checksum(file.data(), file.size()));
  file += body;
  if (!data.empty()) file.resize((file.size() + 63) / 64 * 64);
  file += data;
  return file;
}

void check(const std::string& file) {
  Tape tape;
  if (!read_tape(file, &tape).ok()) return;
  const std::string again = write_tape(tape);
  Tape second;
  if (!read_tape(again, &second).ok() || write_tape(second) != again) {
    std::fprintf(stderr, "a tape that was read is not the one that was written\n");
    std::abort();
  }
}

// Notes whose checksum fits: places exist afterwards, and what was read is written and read again.
void check_notes(std::string_view parts) {
  std::string notes;
  WireWriter(&notes).u64(base::checksum(parts.data(), parts.size()));
  Tape tape = sample_tape();
  if (!read_notes(notes.append(parts), &tape)) return;
  for (const Entry& entry : tape.entries) {
    if (entry.place != kNoPlace && entry.place >= tape.places.size()) std::abort();
  }
  check(write_tape(tape));
}

}  // namespace
}  // namespace finitude::capture

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t size) {
  using namespace finitude::capture;
  const std::string_view bytes(reinterpret_cast<const char*>(input), size);
  const std::size_t cut = size == 0 ? 0 : input[0] * size / 256;
  check(file_of(bytes.substr(0, cut), bytes.substr(cut), kTapeVersionOnCpu));
  check(file_of(bytes.substr(0, cut), bytes.substr(cut), kTapeVersion));
  check(std::string(bytes));
  // A sound tape with a damaged body.
  static const std::string of_cpu = write_tape(sample_tape()), of_gpus = write_tape(sample_tape_of_gpus());
  for (const std::string* sound : {&of_cpu, &of_gpus}) {
    WireReader header(std::string_view(*sound).substr(16));
    std::string body = sound->substr(kTapeHeaderBytes, static_cast<std::size_t>(header.u64()));
    for (std::size_t i = 0; i + 1 < size; i += 2)
      body[(input[i] * 7 + i) % body.size()] = static_cast<char>(input[i + 1]);
    check(file_of(body, std::string_view(*sound).substr(sound->size() - 16),
                  sound == &of_cpu ? kTapeVersionOnCpu : kTapeVersion));
  }
  check_notes(bytes);
  static const std::string notes = write_notes(sample_tape_with_notes()).substr(8);
  std::string damaged = notes;
  for (std::size_t i = 0; i + 1 < size; i += 2)
    damaged[(input[i] * 7 + i) % damaged.size()] = static_cast<char>(input[i + 1]);
  check_notes(damaged);
  RawTape raw;
  raw.places = {{"a.py", 1, ""}, {"b.py", 2, "x"}};
  raw.operators = {{{"aten::mul", ""}, 0}, {{"aten::add_", ""}, 1}};
  raw.storages.resize(4);
  raw.storages[1].first_seen = 2;
  raw.storages[2].first_seen = 3;
  raw.storages[3].begin = 64;
  raw.events.assign(bytes);
  const Tape tape = link(std::move(raw));
  Tape read;
  if (!read_tape(write_tape(tape), &read).ok()) {
    std::fprintf(stderr, "a linked tape cannot be read\n");
    std::abort();
  }
  return 0;
}
