// Fuzzing the reader of traces: what it takes refers to nothing that is not there, and is written and read again the
// same.
#include <cstdio>
#include <cstdlib>

#include "base/edits.h"
#include "record/trace_jsonl.h"

namespace finitude::record {
namespace {

bool exists(StorageId id, const Trace& trace) { return id == kNone || id < trace.storages.size(); }

void check(const std::string& text) {
  Trace trace, again;
  std::string error;
  if (!from_jsonl(text, &trace, &error)) {
    if (error.empty() || !trace.ops.empty()) std::abort();
    return;
  }
  bool fine = true;
  for (const Op& op : trace.ops) {
    fine &= op.stack == kNone || op.stack < trace.stacks.size();
    for (const auto* uses : {&op.inputs, &op.outputs}) {
      for (const TensorUse& use : *uses) fine &= exists(use.storage, trace);
    }
  }
  const std::string written = to_jsonl(trace);
  fine &= from_jsonl(written, &again, &error) && to_jsonl(again) == written;
  if (fine) return;
  std::fprintf(stderr, "a trace that cannot be: %s\n", error.c_str());
  std::abort();
}

std::string sample() {
  Trace t;
  t.storages = {{Origin::kParameter, "head.weight", kNone}, {}, {Origin::kBatch, "batch[0]", 1}};
  t.stacks = {{{{"/home/train.py", 3, "forward"}}, "Classifier.head", ""}, {{}, "", "context"}};
  Op log;
  log.name = "aten::log";
  log.stack = 0;
  log.end_order = 0;
  TensorUse use;
  use.storage = 0;
  use.shape = {2, 3};
  use.health = {6, 1, 0, 2, 1, 0, 1.0, -1.0, 1.0, 2.5};
  use.bad_rows = {1};
  use.arg = "self";
  log.inputs = {use};
  use.storage = 2;
  log.outputs = {use};
  log.scalars = {{"eps", "1e-08", 1e-8, false}};
  t.ops = {log};
  return to_jsonl(t);
}

}  // namespace
}  // namespace finitude::record

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t size) {
  using namespace finitude::record;
  static const std::string sound = sample();
  check(std::string(reinterpret_cast<const char*>(input), size));
  check(finitude::base::edited(sound, input, size));
  check(finitude::base::edited(sound, input, size, 1));
  return 0;
}
