// `dump FILE`: each op of a recorded step, in a report or a capsule, as one JSON line; a file of JSON lines is checked
// and passed through.
#include <filesystem>
#include <string_view>

#include <nlohmann/json.hpp>

#include "cli/newest.h"
#include "incident/run_folder.h"
#include "show/capsule_ops.h"
#include "show/dump_files.h"
#include "show/growth_table.h"
#include "show/json_file.h"

namespace finitude::cli {
namespace {

constexpr std::size_t kMaxLine = std::size_t{16} << 20;

std::string one_line(const nlohmann::json& value) {
  return value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) + "\n";
}

// JSON Lines: the first line that is not blank is an object by itself, and that object is no report.
bool is_json_lines(const std::string& bytes) {
  const std::size_t start = bytes.find_first_not_of(" \t\r\n");
  if (start == std::string::npos) return false;
  nlohmann::json first;
  const std::string line = bytes.substr(start, bytes.find('\n', start) - start);
  return line.size() <= kMaxLine && show::parse_json(line, first).empty() && first.is_object() &&
         !first.contains("schema");
}

int pass_lines(const std::string& file, std::string_view bytes, const Console& console) {
  for (std::size_t number = 1; !bytes.empty(); ++number) {
    const std::size_t end = bytes.find('\n');
    const std::string line(bytes.substr(0, end));
    bytes.remove_prefix(end == std::string_view::npos ? bytes.size() : end + 1);
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    nlohmann::json value;
    std::string reason = line.size() > kMaxLine ? "is longer than 16 MiB" : show::parse_json(line, value);
    if (reason.empty() && !value.is_object()) reason = "is not a JSON object";
    if (!reason.empty()) {
      console.complain(file + " line " + std::to_string(number) + " " + reason);
      return kUnreadable;
    }
    console.out << one_line(value);
  }
  return kDone;
}

int put_growth(const std::vector<compare::Record>& records, const DumpWords& words, const Console& console) {
  const nlohmann::json document = show::growth_document(records);
  if (words.json) {
    console.out << one_line(document);
  } else if (!console.quiet) {
    console.out << show::growth_table(document, {console.screen.colour, 0, console.screen.unicode});
  }
  return kDone;
}

int put_msprobe(const std::string& file, const DumpWords& words, const Console& console) {
  const auto dump = show::read_dump(file);
  if (!dump.ok()) {
    console.complain(file + " " + dump.why());
    return kUnreadable;
  }
  if (words.growth) return put_growth(dump->records, words, console);
  for (const compare::Record& record : dump->records) console.out << one_line(show::record_line(record));
  return kDone;
}

int put_ops(const nlohmann::json& trace, const DumpWords& words, const Console& console) {
  if (words.growth) return put_growth(compare::records_of_trace(trace), words, console);
  for (const nlohmann::json& op : trace["ops"]) console.out << one_line(op);
  return kDone;
}

}  // namespace

int dump_command(const DumpWords& words, const Console& console) {
  const std::string file = words.file.empty() ? take_newest(Wanted::kRecording, console) : words.file;
  if (file.empty()) return kUnreadable;
  if (show::is_msprobe(file)) return put_msprobe(file, words, console);
  if (show::is_capsule(file)) {
    nlohmann::json about, ops;
    const std::string why = show::ops_of_capsule(file, about, ops);
    if (why.empty()) return put_ops({{"ops", ops}}, words, console);
    for (const nlohmann::json& op : ops) console.out << one_line(op);
    console.complain(file + " " + why);
    return kUnreadable;
  }
  std::error_code error;
  const bool folder = std::filesystem::is_directory(file, error);
  std::string bytes;
  std::string reason = show::read_file(folder ? file + "/report.json" : file, show::kMaxFile, bytes);
  if (reason.empty() && !folder && is_json_lines(bytes)) return pass_lines(file, bytes, console);
  nlohmann::json report;
  if (reason.empty()) reason = show::parse_report_json(bytes, report);
  if (!reason.empty()) {
    console.complain(file + (folder ? "/report.json " : " ") + reason);
    return kUnreadable;
  }
  const auto trace = report.find("trace");
  if (trace == report.end() || !trace->is_object()) {
    console.complain(file + " holds no trace: record one with `finitude run --level trace --report FILE ...`");
    return kUnreadable;
  }
  return put_ops(*trace, words, console);
}

}  // namespace finitude::cli
