#include "compare/trace_run.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "record/argument_words.h"

namespace finitude::compare {
namespace {

using nlohmann::json;

constexpr std::size_t kMostInside = 10'000;  // ops inside of one that are looked through

const json& part(const json& from, const char* key) {
  static const json none;
  const auto found = from.find(key);
  return found == from.end() ? none : *found;
}
double real(const json& value) {
  if (value.is_number()) return value.get<double>();
  if (!value.is_string()) return 0;
  const std::string& text = value.get_ref<const std::string&>();
  return text == "NaN" ? std::nan("") : text == "Infinity" ? HUGE_VAL : text == "-Infinity" ? -HUGE_VAL : 0;
}
std::uint64_t count(const json& value) {
  const double number = value.is_number() ? value.get<double>() : 0;
  return number > 0 && number < 9.0e15 ? static_cast<std::uint64_t>(number) : 0;
}
std::string text(const json& value) { return value.is_string() ? value.get<std::string>() : std::string(); }

Tensor tensor(const json& from) {
  Tensor t;
  t.element = element_of_name(text(part(from, "dtype")));
  for (const json& size : part(from, "shape")) t.shape.push_back(static_cast<std::int64_t>(count(size)));
  sense::Health& h = t.health;
  h.numel = count(part(from, "numel"));
  h.nan = count(part(from, "nan"));
  h.neg_inf = count(part(from, "neg_inf"));
  h.pos_inf = count(part(from, "inf")) - std::min(h.neg_inf, count(part(from, "inf")));
  h.zero = count(part(from, "zero"));
  h.min = real(part(from, "min"));
  h.max = real(part(from, "max"));
  h.absmax = real(part(from, "absmax"));
  h.sum_sq = real(part(from, "sum_sq"));
  h.numel = std::max(h.numel, h.non_finite());
  t.arg = text(part(from, "arg"));
  t.name = text(part(from, "text"));
  t.key = text(part(from, "values"));
  if (const std::string digits = text(part(from, "checksum")); digits.size() == 16)
    t.has_checksum = std::from_chars(digits.data(), digits.data() + 16, t.checksum, 16).ptr == digits.data() + 16;
  if (const json& storage = part(from, "storage"); storage.is_number()) {
    t.storage = static_cast<std::uint32_t>(std::min<std::uint64_t>(count(storage), kNone - 1));
    t.begin = static_cast<std::int64_t>(count(part(from, "begin")));
    t.end = static_cast<std::int64_t>(count(part(from, "end")));
  }
  return t;
}

std::string number_text(double value) {
  char written[40];
  std::snprintf(written, sizeof written, "%.9g", value);
  return written;
}

Call call(const json& op) {
  Call out;
  out.op = text(part(op, "op"));
  out.file = text(part(op, "file"));
  out.line = static_cast<int>(std::min<std::uint64_t>(count(part(op, "line")), 1 << 30));
  out.module = text(part(op, "module"));
  out.fresh = part(op, "allocates") == true;
  out.random = part(op, "random") == true;
  out.of_gradient = text(part(op, "phase")) == "backward";
  for (const json& t : part(op, "inputs")) {
    // A number that the program wrote down is an argument, as it is on tapes.
    if (const double value = real(part(t, "max"));
        part(t, "constant") == true && count(part(t, "nan")) + count(part(t, "inf")) == 0) {
      out.scalars.push_back({text(part(t, "arg")), number_text(value)});
    } else {
      out.inputs.push_back(tensor(t));
    }
  }
  for (const json& t : part(op, "outputs")) out.outputs.push_back(tensor(t));
  for (Tensor& t : out.outputs) t.name.clear();
  for (const json& s : part(op, "scalars")) {
    out.scalars.push_back({text(part(s, "arg")), record::argument_word(text(part(s, "arg")), text(part(s, "text")))});
  }
  return out;
}

bool is_view(const json& op) { return part(op, "view") == true; }

std::set<std::uint64_t> storages(const json& op, const char* key) {
  std::set<std::uint64_t> out;
  for (const json& t : part(op, key)) {
    if (part(t, "storage").is_number()) out.insert(count(part(t, "storage")));
  }
  return out;
}

// Whether the ops inside of it, up to `end`, stand for it: what it reads they read, and what it gives they
// write. Else they are how it is done: a product that first copies its bias.
bool hands_on(const json& ops, std::size_t at, std::size_t end) {
  std::set<std::uint64_t> left = storages(ops[at], "inputs"), unwritten = storages(ops[at], "outputs");
  bool any = false;
  for (std::size_t i = at + 1; i < end; ++i) {
    if (is_view(ops[i]) || part(ops[i], "allocates") == true) continue;
    any = true;
    for (const std::uint64_t storage : storages(ops[i], "inputs")) left.erase(storage);
    for (const std::uint64_t storage : storages(ops[i], "outputs")) unwritten.erase(storage);
  }
  return any && left.empty() && unwritten.empty();
}

// What the step leaves in memory that has a name: parameters, statistics, optimizer state.
std::vector<Result> left_behind(const Run& run) {
  std::map<std::uint32_t, std::string> names;
  for (const Call& call : run.calls) {
    for (const Tensor& t : call.inputs) {
      if (!t.name.empty() && t.storage != kNone) names[t.storage] = t.name;
    }
  }
  std::map<std::uint32_t, const Tensor*> written;
  for (const Call& call : run.calls) {
    for (const Tensor& t : call.outputs) {
      if (names.contains(t.storage)) written[t.storage] = &t;
    }
  }
  std::vector<Result> results;
  for (const auto& [storage, tensor] : written) results.push_back({"memory", names[storage], *tensor});
  return results;
}

}  // namespace

Run run_of_trace(const json& report) {
  Run run;
  const json& ops = part(part(report, "trace"), "ops");
  std::vector<std::size_t> ends(ops.size(), ops.size());  // behind the last op inside of each
  std::vector<std::size_t> open;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    for (; !open.empty() && count(part(ops[open.back()], "depth")) >= count(part(ops[i], "depth")); open.pop_back())
      ends[open.back()] = i;
    open.push_back(i);
  }
  for (std::size_t i = 0; i < ops.size();) {
    const bool short_enough = ends[i] - i <= kMostInside;
    if (is_view(ops[i]) || (ends[i] > i + 1 && short_enough && hands_on(ops, i, ends[i]))) {
      ++i;
      continue;
    }
    run.calls.push_back(call(ops[i]));
    i = ends[i];
  }
  run.results_are_all = false;
  run.results = left_behind(run);
  connect(run);
  return run;
}

}  // namespace finitude::compare
