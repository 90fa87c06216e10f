#include "capture/recorded_step.h"

#include <filesystem>

#include "base/file.h"
#include "capture/capsule.h"
#include "capture/packed_capsule.h"
#include "capture/tape_file.h"

namespace finitude::capture {
namespace {

// Of a folder that is no capsule, as that of a run: the first of those that lie in it, by name, or empty.
std::string capsule_in(const std::string& folder) {
  std::string first;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code unknown;
    const std::string name = it->path().filename().string();
    const bool is_one =
        name.find(".partial-") == std::string::npos && std::filesystem::exists(it->path() / "capsule.json", unknown);
    if (is_one && (first.empty() || name < first)) first = name;
  }
  return first;
}

}  // namespace

Status read_recorded_step(const std::string& path, nlohmann::json* about, Tape* tape) {
  std::error_code error;
  *about = nlohmann::json::object();
  if (std::filesystem::is_directory(path, error)) {
    const std::filesystem::path folder(path);
    const std::string inside = std::filesystem::exists(folder / "capsule.json", error) ? "" : capsule_in(path);
    if (!inside.empty())
      return Status(StatusCode::kInvalidArgument,
                    "is no capsule, but one lies in it: name " + (folder / inside).string());
    return read_capsule(path, about, tape);
  }
  if (is_packed_capsule(path)) return read_capsule(path, about, tape);
  std::string bytes;
  if (const Status status = base::read_file(path, &bytes); !status.ok()) return status;
  if (std::filesystem::path(path).filename() == "capsule.json")
    return Status(StatusCode::kInvalidArgument, "is a part of a capsule: pass the folder of the capsule");
  if (const Status status = read_tape(bytes, tape); !status.ok()) return status;
  for (const Storage& storage : tape->storages) {
    if (storage.origin == Storage::kInput && !storage.external.empty() && storage.bytes.empty())
      return Status(StatusCode::kInvalidArgument,
                    "is the tape of a capsule, whose inputs are in another file: pass the folder of the capsule");
  }
  return {};
}

}  // namespace finitude::capture
