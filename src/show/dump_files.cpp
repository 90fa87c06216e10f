#include "show/dump_files.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "archive/file_posix.h"
#include "compare/joined_parts.h"
#include "compare/msprobe_records.h"
#include "compare/record_document.h"
#include "show/json_file.h"
#include "show/rank_dumps.h"
#include "show/run_about.h"

namespace finitude::show {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::size_t kMostMapBytes = std::size_t{4} << 20;
constexpr int kDeepestDump = 32;
constexpr std::uint64_t kFrontBytes = 4096;  // in which a dump of msprobe shows what it is
enum DumpCode { kAgree = 0, kDiverge = 1, kNotRead = 3, kNotHere = 4 };

// msprobe's file, in the folder that was named or in one of its first subfolders (step0/rank/dump.json).
std::string dump_json_of(const std::string& path) {
  std::error_code error;
  fs::path folder(path);
  if (!fs::is_directory(folder, error))
    return folder.filename() == "dump.json" || folder.extension() == ".json" ? path : "";
  for (int depth = 0; depth < 3; ++depth) {
    if (fs::is_regular_file(folder / "dump.json", error)) return (folder / "dump.json").string();
    std::string first;
    std::size_t entries = 0;
    for (fs::directory_iterator at(folder, error), end; !error && at != end && ++entries < 10'000;
         at.increment(error)) {
      const std::string name = at->path().filename().string();
      if (at->is_directory(error) && (first.empty() || name < first)) first = name;
    }
    if (first.empty()) return {};
    folder /= first;
  }
  return {};
}

// In the order of its keys, which are the calls.
std::string parse_in_order(const std::string& bytes, nlohmann::ordered_json& value) {
  bool is_deep = false;
  try {
    value = nlohmann::ordered_json::parse(
        bytes, [&](int depth, nlohmann::ordered_json::parse_event_t, nlohmann::ordered_json&) {
          is_deep = is_deep || depth > kDeepestDump;
          return !is_deep;
        });
  } catch (const nlohmann::json::exception&) {
    return "is not JSON";
  }
  return is_deep ? "is nested deeper than 32" : "";
}

finitude::Result<DumpRead> read_msprobe(const std::string& file) {
  DumpRead dump;
  std::string bytes;
  nlohmann::ordered_json document;
  if (const std::string why = read_file(file, kMaxFile, bytes); !why.empty())
    return Status(StatusCode::kUnreadable, why);
  if (const std::string why = parse_in_order(bytes, document); !why.empty()) return Status(StatusCode::kCorrupt, why);
  if (!compare::is_msprobe_dump(document)) return Status(StatusCode::kUnsupported, "is no dump of msprobe");
  json stack;
  std::error_code error;
  const fs::path stack_file = fs::path(file).parent_path() / "stack.json";
  if (fs::is_regular_file(stack_file, error) && read_file(stack_file.string(), kMaxFile, bytes).empty())
    (void)parse_json(bytes, stack);
  dump.records = compare::records_of_msprobe(document, stack);
  dump.is_by_name = true;
  return dump;
}

// What is compared, as one dump, or before it is joined one of each rank.
struct Side {
  std::vector<compare::Dump> ranks;
  json about;
  compare::JoinCounts joined;
};

// Empty: *out says why.
std::optional<Side> read_side(const std::string& path, bool of_all_ranks, ComparedDumps* out) {
  Side side;
  const std::vector<std::string> files = of_all_ranks ? dumps_of_ranks(path) : std::vector<std::string>{path};
  if (files.size() > compare::kMostJoinedRanks) {
    *out = {kNotHere, path + " is of " + std::to_string(files.size()) + " ranks; --join takes 1024", {}};
    return std::nullopt;
  }
  for (const std::string& file : files) {
    auto read = read_dump(file);
    if (!read.ok()) {
      *out = {read.code() == StatusCode::kUnsupported ? kNotHere : kNotRead, file + " " + read.why(), {}};
      return std::nullopt;
    }
    if (of_all_ranks && !read->is_by_name) {
      *out = {kNotHere, file + " is of operators; --join is for dumps of modules (checksums, tensors)", {}};
      return std::nullopt;
    }
    auto values = compare::DumpedValues::open(read->values);
    if (!values.ok()) {
      *out = {kNotRead, read->values + " " + values.why(), {}};
      return std::nullopt;
    }
    if (side.ranks.empty()) side.about = std::move(read->about);
    side.ranks.push_back({std::move(read->records), std::move(*values)});
  }
  return side;
}

// Both as one dump each.
void join(Side* a, Side* b, const compare::NameMap& map) {
  compare::JoinedSides joined = compare::join_parts(a->ranks, b->ranks, map);
  for (auto [side, made] : {std::pair(a, &joined.a), std::pair(b, &joined.b)}) {
    side->joined = made->counts;
    side->ranks.clear();
    side->ranks.push_back(std::move(made->dump));
  }
}

json counts_of(const compare::JoinCounts& counts) {
  return {{"ranks", counts.ranks},
          {"joined", counts.joined},
          {"other", counts.other},
          {"unjoined", counts.unjoined},
          {"skipped", counts.skipped}};
}

finitude::Result<compare::NameMap> read_names(const std::string& path) {
  std::string bytes;
  if (path.empty()) return compare::NameMap();
  if (const std::string why = read_file(path, kMostMapBytes, bytes); !why.empty())
    return Status(StatusCode::kUnreadable, why);
  return compare::parse_name_map(bytes);
}

}  // namespace

bool is_msprobe(const std::string& path) {
  std::error_code error;
  const std::string file = dump_json_of(path);
  if (file.empty() || (fs::is_directory(path, error) && fs::exists(fs::path(path) / "run.json", error))) return false;
  const auto opened = archive::File::open(file);
  if (!opened.ok()) return false;
  std::string front(static_cast<std::size_t>(std::min<std::uint64_t>((*opened)->bytes(), kFrontBytes)), '\0');
  if (!(*opened)->read(0, front.data(), front.size()).ok()) return false;
  return front.find("\"schema\"") == std::string::npos && front.find("\"data\"") != std::string::npos &&
         (front.find("\"task\"") != std::string::npos || front.find("\"level\"") != std::string::npos);
}

std::string values_file_of(const std::string& path) {
  return path.ends_with(".json") ? path.substr(0, path.size() - 5) + ".safetensors" : "";
}

finitude::Result<DumpRead> read_dump(const std::string& path) {
  if (is_msprobe(path)) return read_msprobe(dump_json_of(path));
  DumpRead dump;
  if (Status status = read_report_json(path, kMaxFile, dump.about); !status.ok()) return status;
  if (!dump.about.contains("trace")) return Status(StatusCode::kUnsupported, "holds no trace");
  dump.is_by_name = compare::has_module_records(dump.about["trace"]);
  dump.records = compare::records_of_trace(dump.about["trace"]);
  dump.about.erase("trace");
  const json run = about_of_run(path);
  for (const auto& [key, value] : run.items()) dump.about[key] = value;
  dump.values = values_file_of(path);
  return dump;
}

ComparedDumps compare_dumps(const std::string& path_a, const std::string& path_b, const DumpOptions& options) {
  ComparedDumps out;
  const auto map = read_names(options.names);
  if (!map.ok()) return {kNotRead, options.names + " " + map.why(), {}};
  std::optional<Side> a = read_side(path_a, options.joins_parts, &out), b;
  if (a) b = read_side(path_b, options.joins_parts, &out);
  if (!a || !b) return out;
  std::vector<Side> repeats;
  for (const std::string& path : options.noise) {
    auto repeat = read_side(path, options.joins_parts, &out);
    if (!repeat) return out;
    if (Side other = *b; options.joins_parts) join(&*repeat, &other, *map);
    repeats.push_back(std::move(*repeat));
  }
  if (options.joins_parts) join(&*a, &*b, *map);
  const compare::Dump &in_a = a->ranks[0], &in_b = b->ranks[0];
  compare::LearnedNoise learned;
  for (const Side& repeat : repeats) compare::learn(in_a, repeat.ranks[0], &learned);
  const auto rows = compare::match_records(in_a.records, in_b.records, *map);
  const auto pairs = compare::measure_records(in_a, in_b, rows, learned);
  const auto judgement = compare::judge_records(in_a, in_b, rows, pairs);
  if (judgement.same + judgement.noise + judgement.differ == 0) {
    return {kNotHere,
            "there is nothing to compare: no record of " + path_a + " (" + std::to_string(in_a.records.size()) +
                " records) corresponds to one of " + path_b + " (" + std::to_string(in_b.records.size()) + ")",
            {}};
  }
  const auto about = compare::about_differences(a->about, {}, b->about, {});
  out.document = compare::record_document({in_a, in_b, rows, pairs, about, path_a, path_b}, judgement);
  if (const std::size_t of_a = dumps_of_ranks(path_a).size(), of_b = dumps_of_ranks(path_b).size();
      !options.joins_parts && of_a != of_b)
    out.document["ranks"] = {{"a", of_a}, {"b", of_b}};
  if (options.joins_parts) out.document["joined"] = {{"a", counts_of(a->joined)}, {"b", counts_of(b->joined)}};
  out.code = out.document["verdict"] == "divergence" || out.document["verdict"] == "incomplete" ? kDiverge : kAgree;
  return out;
}

}  // namespace finitude::show
