#include "show/capsule_ops.h"

#include <filesystem>

#include "capture/capsule.h"
#include "capture/packed_capsule.h"
#include "show/findings.h"

namespace finitude::show {

std::string ops_of_capsule(const std::string& path, nlohmann::json& about, nlohmann::json& ops) {
  record::Trace trace;
  const Status status = capture::read_capsule_statistics(path, &about, &trace);
  if (!status.ok()) return status.why();
  ops = op_table(trace, trace.ops.size());
  const std::vector<std::string> damage = capture::capsule_damage(path);  // of the files that are not read for it
  return damage.empty() ? "" : damage.front();
}

bool is_capsule(const std::string& path) {
  if (capture::is_packed_capsule(path)) return true;
  std::error_code error;
  const std::filesystem::path folder(path);
  return std::filesystem::is_directory(folder, error) && std::filesystem::exists(folder / "capsule.json", error) &&
         !std::filesystem::exists(folder / "report.json", error);
}

}  // namespace finitude::show
