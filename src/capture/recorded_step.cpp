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
  const Status status = base::read_file(path, &bytes);
  return status.ok() ? read_tape(bytes, tape) : status;
}

}  // namespace finitude::capture
