#include "finitude/capsule.h"

#include <exception>

#include "capture/capsule.h"
#include "show/report_reader.h"

namespace finitude {

Result<Capsule> read_capsule(const std::string& folder) try {
  show::Json about;
  capture::Tape tape;
  if (const Status status = capture::read_capsule(folder, &about, &tape); !status.ok()) return status.of(folder);
  Capsule capsule;
  capsule.alarm = show::alarm_of(show::at(about, "alarm"));
  capsule.step = static_cast<std::int64_t>(show::count(about, "step"));
  capsule.optimizer = show::text(about, "optimizer");
  capsule.torch = show::text(about, "torch");
  capsule.created = show::text(about, "created");
  capsule.machine = show::text(about, "machine");
  capsule.redacted = show::flag(about, "redacted");
  capsule.replay = show::text(about, "replay");
  capsule.settings = tape.settings;
  for (const capture::Storage& storage : tape.storages) {
    if (storage.origin == capture::Storage::kInput)
      capsule.inputs.push_back({storage.kind, storage.name, storage.size_bytes});
  }
  for (const capture::Entry& entry : tape.entries) {
    if (entry.kind != capture::Entry::kCall) continue;
    CapsuleCall& call = capsule.calls.emplace_back();
    call.op = tape.operators[entry.number].name;
    if (entry.place >= tape.places.size()) continue;
    const capture::Place& place = tape.places[entry.place];
    call.file = place.file;
    call.line = place.line;
    call.source = place.source;
  }
  for (const capture::Outcome& outcome : tape.outcomes) capsule.outcomes.emplace_back(outcome.kind, outcome.name);
  return capsule;
} catch (const std::exception& e) {
  return Status(StatusCode::kUnreadable, folder + " cannot be read: " + e.what());
}

}  // namespace finitude
