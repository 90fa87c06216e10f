// The words about one tensor and one place in the code.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string_view>

#include "finitude/dtype.h"
#include "show/words.h"

namespace finitude::show {
namespace {

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos || slash == 0 ? std::string() : path.substr(0, slash + 1);
}

}  // namespace

std::string place(const Json& report, const Json& located) {
  std::string file = text(located, "file");
  if (file.empty()) return {};
  const std::string folder = folder_of(text(report, "script"));
  if (!folder.empty() && folder[0] == '/' && file.size() > folder.size() &&
      file.compare(0, folder.size(), folder) == 0) {
    file.erase(0, folder.size());
  }
  return count(located, "line") > 0 ? file + ":" + std::to_string(count(located, "line")) : file;
}

std::string born_at(const Json& birth) {
  const std::string op = text(birth, "op"), node = text(birth, "node");
  if (!node.empty()) return op.empty() || op == node ? node : node + " (" + op + ")";
  if (!op.empty()) return op;
  if (const std::string name = text(birth, "name"); !name.empty()) return name;
  return text(birth, "phase") == "data" ? "a batch without a name" : "";
}

std::vector<std::string> scalars_words(const Json& birth) {
  constexpr std::size_t kShown = 8;
  std::vector<std::string> out;
  const Json& all = list(birth, "scalars");
  for (std::size_t i = 0; i < std::min(kShown, all.size()); ++i) {
    const std::string arg = text(all[i], "arg");
    out.push_back((arg.empty() ? "" : arg + " = ") + text(all[i], "text"));
  }
  if (all.size() > kShown) out.push_back("and " + grouped(all.size() - kShown) + " more");
  return out;
}

std::string tensor_type(const Json& statistics) {
  const Json& shape = list(statistics, "shape");
  std::string out = "[";
  for (std::size_t i = 0; i < std::min<std::size_t>(shape.size(), 8); ++i) {
    out += (i ? "," : "") + digits(shape[i]);
  }
  out += shape.size() > 8 ? ",...]" : "]";
  const std::string dtype = text(statistics, "dtype");
  return dtype.empty() ? out : out + " " + (dtype == "other" ? "integer" : dtype);
}

bool is_empty(const Json& statistics) {
  const Json& shape = list(statistics, "shape");
  return std::any_of(shape.begin(), shape.end(), [](const Json& size) { return size == 0; });
}

std::string rows_words(const Json& rows) {
  if (!rows.is_array() || rows.empty()) return {};
  constexpr std::size_t kShown = 8;
  std::string out = rows.size() == 1 ? "at row" : "at rows";
  for (std::size_t i = 0; i < std::min(kShown, rows.size()); ++i) {
    out += (i ? ", " : " ") + digits(rows[i]);
  }
  return rows.size() > kShown ? out + " and " + grouped(rows.size() - kShown) + " more" : out;
}

namespace {

constexpr std::size_t kShownSamples = 8;

// " 4, 9 and 12 more"
std::string numbers(const Json& list) {
  std::string out;
  for (std::size_t i = 0; i < std::min(kShownSamples, list.size()); ++i) out += (i ? ", " : " ") + digits(list[i]);
  return list.size() > kShownSamples ? out + " and " + grouped(list.size() - kShownSamples) + " more" : out;
}

const char* plural(const Json& list) { return list.size() == 1 ? "" : "s"; }

}  // namespace

std::string samples_words(const Json& birth) {
  const Json &rows = list(birth, "rows"), &samples = list(birth, "samples");
  const bool named = rows.size() == samples.size();
  if (rows.empty() || (!named && !has_count(birth, "rows_of"))) return {};
  const std::string which = std::string("row") + plural(rows) + numbers(rows) + " of the batch";
  if (named) return which + " = sample" + plural(rows) + numbers(samples) + " of the data set";
  return which + ", which has " + grouped(count(birth, "rows_of"));
}

std::string experiment_words(const Json& experiment) {
  const Json& samples = list(experiment, "samples");
  if (samples.empty()) return text(experiment, "name");
  return text(experiment, "name") + " (sample" + plural(samples) + numbers(samples) + " of the data set)";
}

std::string rows_of(const Json& statistics, const Json& rows_of_birth) {
  const Json& own = list(statistics, "rows");
  if (statistics.contains("rows")) return rows_words(own);  // none: those of the birth are of something else
  const bool bad = count(statistics, "nan") + count(statistics, "inf") + count(statistics, "pos_inf") +
                       count(statistics, "neg_inf") !=
                   0;
  const Json& shape = list(statistics, "shape");
  if (!bad || shape.empty() || !shape[0].is_number_integer() || !rows_of_birth.is_array()) return {};
  // Rows of the birth are samples of the batch; a tensor with a smaller first dimension has none of that number.
  const auto has = [&](const Json& row) {
    return row.is_number_integer() && row.get<std::int64_t>() < shape[0].get<std::int64_t>();
  };
  return std::all_of(rows_of_birth.begin(), rows_of_birth.end(), has) ? rows_words(rows_of_birth) : std::string();
}

namespace {

constexpr double kNearLimit = 3;  // bits: a product with 8 leaves the format

double limit_of(const std::string& dtype) {
  for (int i = 0; i < static_cast<int>(sense::DType::kOther); ++i) {
    const sense::DTypeInfo& known = sense::info(static_cast<sense::DType>(i));
    if (known.name == dtype) return known.max_finite;
  }
  return 0;
}

// "0.15 bits below the limit of float32": that a tensor is finite does not make it sound. Empty where it is far below.
std::string near_limit(const Json& statistics) {
  const std::string dtype = text(statistics, "dtype");
  const double limit = limit_of(dtype);
  if (limit == 0 || !known(at(statistics, "max")) || !known(at(statistics, "min"))) return {};
  const double largest = std::max(std::fabs(real(at(statistics, "max"))), std::fabs(real(at(statistics, "min"))));
  if (!(largest > 0) || !(largest <= limit) || std::log2(limit / largest) >= kNearLimit) return {};
  char bits[32];
  std::snprintf(bits, sizeof bits, "%.2g", std::log2(limit / largest));
  return std::string(bits) + " bits below the limit of " + dtype;
}

}  // namespace

std::vector<std::string> tensor_values(const Json& statistics, const Json& rows_of_birth) {
  std::vector<std::string> out;
  const std::uint64_t numel = count(statistics, "numel"), nan = count(statistics, "nan");
  const std::uint64_t pos = count(statistics, "pos_inf"), neg = count(statistics, "neg_inf");
  const std::uint64_t inf = std::max(count(statistics, "inf"), pos + neg), zero = count(statistics, "zero");
  if (numel == 0 && has_count(statistics, "numel")) out.push_back(is_empty(statistics) ? "empty" : "not scanned");
  if (nan + inf < numel) {
    if (known(at(statistics, "min"))) out.push_back("min " + number_text(real(at(statistics, "min"))));
    if (known(at(statistics, "max"))) out.push_back("max " + number_text(real(at(statistics, "max"))));
    if (known(at(statistics, "mean"))) out.push_back("mean " + number_text(real(at(statistics, "mean"))));
    if (std::string near = nan + inf == 0 ? near_limit(statistics) : ""; !near.empty()) out.push_back(std::move(near));
    if (const std::uint64_t tiny = count(statistics, "subnormal"); tiny != 0)
      out.push_back(tiny == numel ? "all subnormal" : grouped(tiny) + " subnormal");
  }
  const std::size_t before = out.size();
  if (nan) out.push_back(grouped(nan) + " x NaN");
  if (pos) out.push_back(grouped(pos) + " x Inf");
  if (neg) out.push_back(grouped(neg) + " x -Inf");
  if (inf > pos + neg) out.push_back(grouped(inf - pos - neg) + (pos + neg ? " more x Inf" : " x Inf"));
  if (zero) out.push_back(zero == numel ? "all zero" : counted(zero, "zero"));
  const std::string rows = rows_of(statistics, rows_of_birth);
  // Rows belong to the first kind of value that is out: the non-finite ones, else the zeros.
  if (!rows.empty() && out.size() > before)
    out[before] += " " + rows;
  else if (!rows.empty())
    out.push_back(rows);
  if (out.size() > before && text(statistics, "dtype").starts_with("complex"))
    out.push_back("of " + grouped(numel) + " real and imaginary parts");
  const std::string said = text(statistics, "text");
  if (!said.empty()) out.push_back(said);
  return out;
}

bool is_of_cpp(const Json& report) { return report.contains("python") && report["python"].is_null(); }

std::string capsule_command(const Json& report, const std::string& capsule, const std::string& word) {
  const std::string program = !is_of_cpp(report)   ? "finitude" + word
                              : word == " replay " ? "finitude-replay "
                                                   : "finitude-offline" + word;
  constexpr std::string_view kSafe = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-+/=:,@%";
  if (!capsule.empty() && capsule[0] != '-' && capsule.find_first_not_of(kSafe) == std::string::npos) {
    return program + capsule;
  }
  std::string quoted = program + "-- '";
  for (const char c : capsule) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

CapsuleNote capsule_note(const Json& report, const Json& alarm) {
  const bool redacted = flag(alarm, "capsule_redacted");
  return {flag(alarm, "capsule_pending") ? "being written; then:" : "",
          capsule_command(report, text(alarm, "capsule"), redacted ? " dump " : " replay "),
          redacted ? "shows the statistics of its operations; it holds no values" : ""};
}

std::string CapsuleNote::joined() const {
  return before + (before.empty() ? "" : " ") + command + (after.empty() ? "" : " ") + after;
}

}  // namespace finitude::show
