// Fuzzing the reader of statistics: bytes become a body whose checksums fit. What is read refers to nothing that is not
// there, and is written and read again the same.
#include <cstdio>
#include <cstdlib>

#include "base/checksum.h"
#include "base/edits.h"
#include "capture/step_statistics.h"
#include "capture/testing_trace.h"
#include "capture/wire.h"

namespace finitude::capture {
namespace {

std::string file_of(std::string_view body) {
  std::string file;
  WireWriter out(&file);
  out.raw(kStatisticsMagic.data(), kStatisticsMagic.size());
  out.u64(kStatisticsVersion | std::uint64_t{kStatisticsHeaderBytes} << 32);
  out.u64(body.size());
  out.u64(base::checksum(body.data(), body.size()));
  out.u64(base::checksum(file.data(), file.size()));
  return file.append(body);
}

bool exists(std::uint32_t id, std::size_t limit) { return id == record::kNone || id < limit; }

void check(const std::string& file) {
  record::Trace trace, again;
  if (!read_statistics(file, &trace).ok()) {
    if (!trace.ops.empty()) std::abort();
    return;
  }
  bool fine = true;
  for (std::size_t i = 0; i < trace.ops.size(); ++i) {
    const record::Op& op = trace.ops[i];
    fine &= exists(op.stack, trace.stacks.size()) && exists(op.parent, i) && exists(op.node, trace.ops.size()) &&
            exists(op.forward, trace.ops.size());
    for (const auto* uses : {&op.inputs, &op.outputs}) {
      for (const record::TensorUse& use : *uses) {
        fine &= exists(use.storage, trace.storages.size()) && use.begin <= use.end &&
                use.health.non_finite() <= use.health.numel;
      }
    }
  }
  for (const bool redact : {false, true}) {
    const std::string written = write_statistics(trace, redact);
    fine &= read_statistics(written, &again).ok() && write_statistics(again, redact) == written;
  }
  if (fine) return;
  std::fprintf(stderr, "statistics that cannot be, or are not written as they were read\n");
  std::abort();
}

}  // namespace
}  // namespace finitude::capture

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t size) {
  using namespace finitude::capture;
  static const std::string sound = write_statistics(sample_trace(), false);
  static const std::string body = sound.substr(kStatisticsHeaderBytes);
  const std::string_view bytes(reinterpret_cast<const char*>(input), size);
  check(std::string(bytes));
  check(file_of(bytes));
  check(file_of(finitude::base::edited(body, input, size)));
  check(finitude::base::edited(sound, input, size, 1));
  return 0;
}
