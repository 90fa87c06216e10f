// `scan PATH...`: the tensors of checkpoints that hold NaN, Inf, or values that cannot be.
#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint.h"
#include "checkpoint/scan.h"
#include "checkpoint/views.h"
#include "cli/checkpoint_words.h"
#include "cli/commands.h"

namespace finitude::cli {
namespace {

namespace fs = std::filesystem;
using checkpoint::Checkpoint;
using checkpoint::FileKind;
using checkpoint::Scanned;
using checkpoint::Tensor;
using checkpoint::TensorHealth;
using nlohmann::json;

constexpr std::size_t kMostEntriesSeen = 1'000'000;               // of a folder and those below
constexpr std::uint64_t kShowsProgress = std::uint64_t{1} << 28;  // bytes: a smaller file takes no second
constexpr unsigned kMaxThreads = 4;

// Checkpoints below a folder, by name. A folder of DCP is one.
std::vector<std::string> found_in(const std::string& folder, bool* all) {
  std::vector<std::string> found;
  std::error_code error;
  std::size_t seen = 0;
  for (fs::recursive_directory_iterator at(folder, fs::directory_options::skip_permission_denied, error), end;
       !error && at != end; at.increment(error)) {
    if (++seen > kMostEntriesSeen) {
      *all = false;
      break;
    }
    const bool is_folder = at->is_directory(error);
    const FileKind kind = checkpoint::kind_of(at->path().string());
    if (kind == FileKind::kNone || kind == FileKind::kDcpPart) continue;
    if (is_folder) at.disable_recursion_pending();
    found.push_back(at->path().string());
  }
  *all &= !error;
  std::sort(found.begin(), found.end());
  return found;
}

// On the last line of a terminal, and gone when the file is read.
class Progress {
 public:
  Progress(const Console& console, const std::string& path, std::uint64_t bytes)
      : console_(console), path_(path), bytes_(bytes) {
    is_shown_ = console.screen.shows_progress && !console.quiet && bytes >= kShowsProgress;
  }
  ~Progress() {
    if (is_shown_) console_.err << "\r\x1b[K" << std::flush;
  }
  void operator()(std::uint64_t done) {
    const std::uint64_t percent = bytes_ != 0 ? done * 100 / bytes_ : 100;
    if (!is_shown_ || percent == percent_) return;
    percent_ = percent;
    console_.err << "\r\x1b[K" << percent << " % of " << shown_bytes(bytes_) << ' ' << shown(path_, console_)
                 << std::flush;
  }

 private:
  const Console& console_;
  const std::string& path_;
  std::uint64_t bytes_, percent_ = 101;
  bool is_shown_;
};

// The place in the whole tensor, in row-major order, of one in a piece of it.
std::uint64_t place_in_whole(const Tensor& piece, std::uint64_t place) {
  if (piece.full_shape.empty()) return place;
  const std::vector<std::int64_t> indices = checkpoint::indices_of(place, piece.shape);
  std::uint64_t whole = 0;
  for (std::size_t i = 0; i < indices.size(); ++i)
    whole = whole * static_cast<std::uint64_t>(piece.full_shape[i]) +
            static_cast<std::uint64_t>(piece.begins[i] + indices[i]);
  return whole;
}

void take_lower(std::optional<std::uint64_t>* into, const std::optional<std::uint64_t>& place, const Tensor& piece) {
  if (!place) return;
  const std::uint64_t whole = place_in_whole(piece, *place);
  *into = into->has_value() ? std::min(**into, whole) : whole;
}

// A tensor with all of its pieces. Places are those in the whole.
struct Whole {
  const Tensor* tensor;
  TensorHealth health;
};

std::vector<Whole> wholes_of(const Checkpoint& checkpoint, const Scanned& scanned) {
  std::vector<Whole> wholes;
  std::map<std::string_view, std::size_t> cut;  // those that are in pieces
  for (std::size_t i = 0; i < checkpoint.tensors.size(); ++i) {
    const Tensor& tensor = checkpoint.tensors[i];
    std::size_t at = wholes.size();
    if (!tensor.full_shape.empty()) at = cut.emplace(tensor.name, at).first->second;
    if (at == wholes.size()) wholes.push_back({&tensor, {}});
    TensorHealth& health = wholes[at].health;
    const TensorHealth& piece = scanned.tensors[i];
    health.nan += piece.nan;
    health.pos_inf += piece.pos_inf;
    health.neg_inf += piece.neg_inf;
    health.negative += piece.negative;
    health.least = std::min(health.least, piece.least);
    take_lower(&health.first, piece.first, tensor);
    take_lower(&health.first_negative, piece.first_negative, tensor);
  }
  return wholes;
}

std::string line_of(const Checkpoint& checkpoint, const Whole& whole) {
  const Tensor& tensor = *whole.tensor;
  const TensorHealth& health = whole.health;
  std::string line = tensor.name + " (" + described(checkpoint, tensor);
  if (!tensor.parameter.empty()) line += ", of " + tensor.parameter;
  line += "):";
  if (health.first) {
    line += " " + std::to_string(health.nan) + " NaN, " + std::to_string(health.pos_inf) + " +Inf, " +
            std::to_string(health.neg_inf) + " -Inf, first at " +
            shown_list(checkpoint::indices_of(*health.first, whole_shape(tensor)));
  }
  if (health.first_negative) {
    line += (health.first ? ";" : "") + std::string(" ") + std::to_string(health.negative) +
            " negative, which a mean of squares cannot be: least " + shown_number(health.least) + ", first at " +
            shown_list(checkpoint::indices_of(*health.first_negative, whole_shape(tensor)));
  }
  return line;
}

json json_of(const Checkpoint& checkpoint, const Whole& whole) {
  const Tensor& tensor = *whole.tensor;
  const TensorHealth& health = whole.health;
  json object = {{"tensor", tensor.name},
                 {"parameter", tensor.parameter.empty() ? json() : json(tensor.parameter)},
                 {"dtype", checkpoint.storages[tensor.storage].type.name},
                 {"shape", whole_shape(tensor)},
                 {"nan", health.nan},
                 {"pos_inf", health.pos_inf},
                 {"neg_inf", health.neg_inf},
                 {"negative", health.negative},
                 {"first", nullptr},
                 {"first_negative", nullptr}};
  if (health.first) object["first"] = checkpoint::indices_of(*health.first, whole_shape(tensor));
  if (health.first_negative)
    object["first_negative"] = checkpoint::indices_of(*health.first_negative, whole_shape(tensor));
  return object;
}

class ScanCommand {
 public:
  ScanCommand(const ScanWords& words, const Console& console) : words_(words), console_(console) {}

  int run() {
    for (const std::string& path : words_.paths) {
      std::error_code error;
      if (!fs::is_directory(path, error) || checkpoint::kind_of(path) == FileKind::kDcpFolder) {
        one(path);
        continue;
      }
      bool all = true;
      const std::vector<std::string> found = found_in(path, &all);
      for (const std::string& each : found) one(each);
      if (!all) failed(path, "cannot be read to its end", kUnreadable);
      if (all && found.empty())
        failed(path, "holds no checkpoint of torch.save, safetensors or DCP, also not below", kUnreadable);
    }
    const int code = exit_code();
    if (words_.json) {
      const json document = {{"schema", 1}, {"bad", bad_}, {"files", files_}};
      console_.out << document.dump(2, ' ', true, json::error_handler_t::replace) << '\n';
    }
    return code;
  }

 private:
  // A bad value is what was looked for: it has precedence.
  int exit_code() const {
    if (bad_ != 0) return kFindingIsBad;
    return seen_[kUnreadable] ? kUnreadable : seen_[kCannotHere] ? kCannotHere : kDone;
  }

  void failed(const std::string& path, const std::string& why, int code) {
    seen_[static_cast<std::size_t>(code)] = true;
    console_.complain(path + " " + why);
    files_.push_back({{"path", path}, {"error", why}});
  }

  void one(const std::string& path) {
    const Result<Checkpoint> read = checkpoint::read_checkpoint(path);
    if (!read.ok())
      return failed(path, read.why(), read.code() == StatusCode::kUnsupported ? kCannotHere : kUnreadable);
    const Checkpoint& found = *read;
    const Scanned scanned = scanned_of(path, found);
    say(path, found, scanned);
    if (!scanned.status.ok()) failed(path, scanned.status.why(), kUnreadable);
  }

  Scanned scanned_of(const std::string& path, const Checkpoint& found) const {
    Progress progress(console_, path, checkpoint::bytes_to_scan(found));
    const unsigned threads = std::clamp(std::thread::hardware_concurrency(), 1u, kMaxThreads);
    return checkpoint::scan(found, threads, [&](std::uint64_t done) { progress(done); });
  }

  static std::string outcome(const Checkpoint& found, const Scanned& scanned, std::size_t bad, std::size_t all) {
    std::string text = bad != 0 ? std::to_string(bad) + " of " : "";
    text += (all == 0 ? "no" : std::to_string(all)) + (all == 1 ? " tensor" : " tensors");
    const bool is_one = bad == 1 || (bad == 0 && all == 1);
    text += is_one ? " is " : " are ";
    if (all == 0 && scanned.status.ok())
      text += "of floating point";
    else
      text += bad != 0 ? "bad" : scanned.status.ok() ? "finite" : "read in part";
    text += " (" + found.format + ", " + shown_bytes(scanned.bytes);
    if (scanned.skipped != 0) text += ", " + std::to_string(scanned.skipped) + " of integers and the like not read";
    return text + ")";
  }

  void say(const std::string& path, const Checkpoint& found, const Scanned& scanned) {
    const bool prints = !words_.json && !console_.quiet;
    json bad = json::array();
    const std::vector<Whole> wholes = wholes_of(found, scanned);
    const std::uint64_t before = bad_;
    for (const Whole& whole : wholes) {
      if (!whole.health.is_bad()) continue;
      ++bad_;
      if (words_.json) bad.push_back(json_of(found, whole));
      if (prints) console_.out << shown(path + ": " + line_of(found, whole), console_) << '\n';
    }
    if (prints) {
      const auto read = std::ranges::count_if(wholes, [&](const Whole& one) {
        return found.storages[one.tensor->storage].type.dtype != sense::DType::kOther;
      });
      console_.out << shown(path + ": " + outcome(found, scanned, bad_ - before, static_cast<std::size_t>(read)),
                            console_)
                   << '\n';
      if (!scanned.is_exact) console_.complain(path + " has a tensor whose elements overlap: counts are too low");
    }
    if (!words_.json || !scanned.status.ok()) return;
    files_.push_back({{"path", path},
                      {"format", found.format},
                      {"tensors", wholes.size()},
                      {"not_read", scanned.skipped},
                      {"bytes", scanned.bytes},
                      {"exact", scanned.is_exact},
                      {"bad", std::move(bad)}});
  }

  const ScanWords& words_;
  const Console& console_;
  std::array<bool, 8> seen_{};  // exit codes of failures
  std::uint64_t bad_ = 0;       // tensors
  json files_ = json::array();
};

}  // namespace

int scan_command(const ScanWords& words, const Console& console) { return ScanCommand(words, console).run(); }

}  // namespace finitude::cli
