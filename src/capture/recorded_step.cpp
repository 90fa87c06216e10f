#include "capture/recorded_step.h"

#include <filesystem>

#include "base/file.h"
#include "capture/capsule.h"
#include "capture/tape_file.h"

namespace finitude::capture {

Status read_recorded_step(const std::string& path, nlohmann::json* about, Tape* tape) {
  std::error_code error;
  *about = nlohmann::json::object();
  if (std::filesystem::is_directory(path, error)) return read_capsule(path, about, tape);
  std::string bytes;
  if (const Status status = base::read_file(path, &bytes); !status.ok()) return status;
  if (bytes.starts_with("PK\x03\x04")) return Status("is a packed capsule: `finitude unpack` makes its folder again");
  if (std::filesystem::path(path).filename() == "capsule.json") return Status("is a part of a capsule: name the folder that it lies in");
  if (const Status status = read_tape(bytes, tape); !status.ok()) return status;
  for (const Storage& storage : tape->storages) {
    if (storage.origin == Storage::kInput && !storage.external.empty() && storage.bytes.empty())
      return Status("is the tape of a capsule, whose inputs lie in a file beside it: name the folder");
  }
  return {};
}

}  // namespace finitude::capture
