#include "standby/open_tape_torch.h"

#include <optional>
#include <string>
#include <utility>

#include "capture/link.h"
#include "capture/step_statistics.h"
#include "observe/tape_recorder_torch.h"

namespace finitude::bindings {
namespace {

// The tape of a recording that has ended; nothing while one runs, and after it was taken. Leaked on purpose.
std::optional<capture::Tape>& linked() {
  static auto* const tape = new std::optional<capture::Tape>();
  return *tape;
}

// Those of the step whose tape is waiting. They come from the trace, which is gone when the tape is written.
std::string& statistics_in_hand() {
  static auto* const bytes = new std::string();
  return *bytes;
}

}  // namespace

void put_statistics_in_hand(const record::Trace& trace) {
  statistics_in_hand().clear();
  if (linked() || observe::TapeRecorder::get().has_any())
    statistics_in_hand() = capture::write_statistics(trace, false);
}

// Without the GIL in some callers (see the header): the link of a large tape takes long. The caller gets the only copy.
capture::Tape take_tape() {
  std::optional<capture::Tape> found = std::exchange(linked(), std::nullopt);
  capture::Tape tape = found ? *std::move(found) : capture::link(observe::TapeRecorder::get().take());
  tape.statistics = std::exchange(statistics_in_hand(), {});
  return tape;
}

// Borrowed; valid until the tape is taken or another one replaces it.
capture::Tape* recorded_tape() {
  auto& recorder = observe::TapeRecorder::get();
  if (recorder.on() || !recorder.has_any()) return nullptr;
  linked() = capture::link(recorder.take());
  return &*linked();
}

capture::Tape* put_tape_in_hand(capture::Tape tape) {
  linked() = std::move(tape);
  return &*linked();
}

void drop_tape_in_hand() {
  linked().reset();
  statistics_in_hand().clear();
}

}  // namespace finitude::bindings
