#include "capture/tape_file.h"

#include <algorithm>

#include "base/checksum.h"
#include "capture/tape_notes.h"
#include "capture/tape_values.h"

namespace finitude::capture {
namespace {

enum Where : std::uint8_t { kNowhere = 0, kHere = 1, kElsewhere = 2 };
constexpr std::size_t kAlignment = 64;
constexpr std::uint64_t kMaxStorage = std::uint64_t{1} << 48;

std::size_t aligned(std::size_t offset) { return (offset + kAlignment - 1) / kAlignment * kAlignment; }

std::uint32_t version_of(const Tape& tape) {
  return tape.devices.size() > 1 || !tape.generators.empty() ? kTapeVersion : kTapeVersionOnCpu;
}

void write_body(const Tape& tape, WireWriter& out, std::string& data) {
  const bool has_devices = version_of(tape) == kTapeVersion;
  out.var(tape.settings.size());
  for (const auto& [name, value] : tape.settings) {
    out.text(name);
    out.text(value);
  }
  if (has_devices) {
    out.var(tape.devices.size() - 1);
    for (std::size_t i = 1; i < tape.devices.size(); ++i) out.text(tape.devices[i]);
    out.var(tape.generators.size());
    for (const GeneratorHome& home : tape.generators) {
      out.u8(home.device);
      out.u8(home.is_default);
    }
  }
  out.var(tape.operators.size());
  for (const Operator& op : tape.operators) {
    out.text(op.name);
    out.text(op.overload);
  }
  out.var(tape.storages.size());
  for (const Storage& storage : tape.storages) {
    out.u8(storage.origin);
    out.u8(storage.misaligned);
    if (has_devices) out.u8(storage.device);
    out.var(storage.size_bytes);
    out.text(storage.kind);
    out.text(storage.name);
    if (storage.origin == Storage::kInput && !storage.external.empty()) {
      out.u8(kElsewhere);
      out.text(storage.external);
    } else if (storage.origin == Storage::kInput && storage.bytes.size() == storage.size_bytes) {
      out.u8(kHere);
      data.resize(aligned(data.size()));
      out.var(data.size());
      data += storage.bytes;
    } else {
      out.u8(kNowhere);
    }
  }
  out.var(tape.entries.size());
  for (const Entry& entry : tape.entries) {
    out.u8(entry.kind);
    out.var(entry.number);
    if (entry.kind == Entry::kCall) {
      out.u8(entry.grad_mode);
      write_values(out, entry.args);
      write_values(out, entry.results);
    } else {
      if (entry.kind == Entry::kFill) out.var(entry.offset);
      out.text(entry.bytes);
    }
  }
  out.var(tape.outcomes.size());
  for (const Outcome& outcome : tape.outcomes) {
    out.text(outcome.kind);
    out.text(outcome.name);
    out.u64(outcome.checksum);
    write_value(out, outcome.value);
  }
  out.var(tape.gaps.size());
  for (const std::string& gap : tape.gaps) out.text(gap);
}

Storage read_storage(WireReader& in, std::string_view data, bool has_device, std::size_t devices) {
  Storage storage;
  const std::uint8_t origin = in.u8();
  if (origin > Storage::kBlank) in.fail();
  storage.origin = static_cast<Storage::Origin>(origin);
  storage.misaligned = in.u8();
  if (has_device) storage.device = in.u8();
  if (storage.device >= devices) in.fail();
  storage.size_bytes = in.var(kMaxStorage);
  storage.kind = in.text();
  storage.name = in.text();
  const std::uint8_t where = in.u8();
  if (storage.misaligned >= kAlignment || where > kElsewhere) in.fail();
  if (where == kElsewhere) storage.external = in.text();
  if (where != kHere) return storage;
  const std::uint64_t offset = in.var();
  if (storage.origin != Storage::kInput || offset > data.size() || storage.size_bytes > data.size() - offset) in.fail();
  if (in.ok())
    storage.bytes = data.substr(static_cast<std::size_t>(offset), static_cast<std::size_t>(storage.size_bytes));
  return storage;
}

Entry read_entry(WireReader& in, const Tape& tape) {
  Entry entry;
  const std::uint8_t kind = in.u8();
  if (kind > Entry::kFill) in.fail();
  entry.kind = static_cast<Entry::Kind>(kind);
  entry.number = static_cast<std::uint32_t>(in.var(kNoStorage));
  if (entry.kind == Entry::kCall) {
    if (entry.number >= tape.operators.size()) in.fail();
    entry.grad_mode = in.u8() != 0;
    entry.args = read_values(in);
    entry.results = read_values(in);
  } else {
    if (entry.kind == Entry::kFill && entry.number >= tape.storages.size()) in.fail();
    if (entry.kind == Entry::kFill) entry.offset = in.var();
    entry.bytes = in.text();
  }
  const auto known = [&](const TensorRef& t) {
    if (t.storage != kNoStorage && t.storage >= tape.storages.size()) in.fail();
  };
  for_each_tensor(entry.args, known);
  for_each_tensor(entry.results, known);
  return entry;
}

void read_devices(WireReader& in, Tape& tape) {
  for (std::uint64_t n = in.var(kMaxDevices - 1); n > 0 && in.ok(); --n) {
    tape.devices.emplace_back(in.text());
    if (!is_device_name(tape.devices.back())) in.fail();
  }
  for (std::size_t n = in.count(); n > 0 && in.ok(); --n) {
    GeneratorHome home;
    home.device = in.u8();
    home.is_default = in.u8() != 0;
    if (home.device >= tape.devices.size()) in.fail();
    tape.generators.push_back(home);
  }
}

void read_body(WireReader& in, std::string_view data, bool has_devices, Tape& tape) {
  for (std::size_t n = in.count(); n > 0 && in.ok(); --n) {
    std::string name(in.text());
    tape.settings.emplace_back(std::move(name), in.text());
  }
  if (has_devices) read_devices(in, tape);
  for (std::size_t n = in.count(); n > 0 && in.ok(); --n) {
    Operator op;
    op.name = in.text();
    op.overload = in.text();
    tape.operators.push_back(std::move(op));
  }
  std::size_t bytes = 0;  // of all inputs: a tape that names one part of the file often is refused
  for (std::size_t n = in.count(); n > 0 && in.ok(); --n) {
    tape.storages.push_back(read_storage(in, data, has_devices, tape.devices.size()));
    bytes += tape.storages.back().bytes.size();
    if (bytes > data.size()) in.fail();
  }
  for (std::size_t n = in.count(); n > 0 && in.ok(); --n) tape.entries.push_back(read_entry(in, tape));
  for (std::size_t n = in.count(); n > 0 && in.ok(); --n) {
    Outcome outcome;
    outcome.kind = in.text();
    outcome.name = in.text();
    outcome.checksum = in.u64();
    outcome.value = read_value(in);
    for_each_tensor(outcome.value, [&](const TensorRef& t) {
      if (t.storage != kNoStorage && t.storage >= tape.storages.size()) in.fail();
    });
    tape.outcomes.push_back(std::move(outcome));
  }
  for (std::size_t n = in.count(); n > 0 && in.ok(); --n) tape.gaps.emplace_back(in.text());
}

}  // namespace

std::string write_tape(const Tape& tape) {
  std::string body, data;
  WireWriter out(&body);
  write_body(tape, out, data);
  std::string file;
  WireWriter header(&file);
  header.raw(kTapeMagic.data(), kTapeMagic.size());
  header.u64(version_of(tape) | std::uint64_t{kTapeHeaderBytes} << 32);
  header.u64(body.size());
  header.u64(base::checksum(body.data(), body.size()));
  header.u64(data.size());
  header.u64(base::checksum(data.data(), data.size()));
  const std::string notes = write_notes(tape);
  header.u64(notes.size());
  header.u64(base::checksum(file.data(), file.size()));
  file += body;
  if (!data.empty()) {
    file.resize(aligned(file.size()));
    file += data;
  }
  if (!notes.empty()) {
    file.resize(aligned(file.size()));
    file += notes;
  }
  return file;
}

Status read_tape(std::string_view bytes, Tape* tape) {
  if (bytes.size() < kTapeHeaderBytes || !bytes.starts_with(kTapeMagic))
    return Status(StatusCode::kCorrupt,
                  "is not a tape of Finitude: name a folder step-NNNNNN of a run, or a file of `finitude pack`");
  WireReader header(bytes.substr(kTapeMagic.size(), kTapeHeaderBytes - kTapeMagic.size()));
  const std::uint64_t version = header.u64();
  const std::uint64_t body_bytes = header.u64(), body_sum = header.u64(), data_bytes = header.u64(),
                      data_sum = header.u64(), notes_bytes = header.u64();
  const std::uint64_t number = version & 0xffffffff;
  if (number != kTapeVersion && number != kTapeVersionOnCpu) {
    return Status(StatusCode::kUnsupported, "is a tape of version " + std::to_string(number) +
                                                "; this program reads versions up to " + std::to_string(kTapeVersion));
  }
  if (header.u64() != base::checksum(bytes.data(), kTapeHeaderBytes - 8) || version >> 32 != kTapeHeaderBytes) {
    return Status(StatusCode::kCorrupt, "has a damaged header");
  }
  const std::string_view rest = bytes.substr(kTapeHeaderBytes);
  if (body_bytes > rest.size()) return Status(StatusCode::kCorrupt, "is cut off");
  const std::string_view body = rest.substr(0, static_cast<std::size_t>(body_bytes));
  std::string_view data;
  if (data_bytes != 0) {
    const std::size_t begin = aligned(kTapeHeaderBytes + body.size());
    if (begin > bytes.size() || data_bytes > bytes.size() - begin) return Status(StatusCode::kCorrupt, "is cut off");
    data = bytes.substr(begin, static_cast<std::size_t>(data_bytes));
  }
  const std::size_t body_end = kTapeHeaderBytes + body.size();
  const std::size_t notes_begin = aligned(data.empty() ? body_end : aligned(body_end) + data.size());
  if (notes_bytes != 0 && (notes_begin > bytes.size() || notes_bytes > bytes.size() - notes_begin))
    return Status(StatusCode::kCorrupt, "is cut off");
  if (body_sum != base::checksum(body.data(), body.size()) || data_sum != base::checksum(data.data(), data.size())) {
    return Status(StatusCode::kCorrupt, "is damaged: a checksum differs");
  }
  *tape = {};
  WireReader in(body);
  read_body(in, data, number == kTapeVersion, *tape);
  if (!in.ok() || !in.at_end())
    return Status(StatusCode::kCorrupt, "holds what cannot be: it was not written by finitude");
  if (notes_bytes == 0) return {};
  const std::string_view notes = bytes.substr(notes_begin, static_cast<std::size_t>(notes_bytes));
  return read_notes(notes, tape) ? Status() : Status(StatusCode::kCorrupt, "is damaged: its notes are none");
}

}  // namespace finitude::capture
