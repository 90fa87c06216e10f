#include "compare/record_match.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <optional>

#include "base/checksum.h"

namespace finitude::compare {
namespace {

constexpr std::array<std::string_view, 5> kWrappers = {"module", "_orig_mod", "_fsdp_wrapped_module",
                                                       "_checkpoint_wrapped_module", "_forward_module"};
constexpr std::size_t kMostEntries = 10'000, kMostNameBytes = 1000;

std::uint64_t hashed(std::string_view text, std::uint64_t seed = 11) {
  return base::checksum(text.data(), text.size(), seed) | 1;  // 0 means unknown
}

// What `*` is in a name, where the pattern fits it.
std::optional<std::vector<std::string>> captured(std::string_view pattern, std::string_view name) {
  const std::size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == name ? std::optional(std::vector<std::string>()) : std::nullopt;
  if (name.substr(0, star) != pattern.substr(0, star)) return std::nullopt;
  const std::string_view rest = pattern.substr(star + 1), left = name.substr(star);
  if (rest.find('*') == std::string_view::npos) {
    if (left.size() < rest.size() || left.substr(left.size() - rest.size()) != rest) return std::nullopt;
    return std::vector<std::string>{std::string(left.substr(0, left.size() - rest.size()))};
  }
  const std::string_view next = rest.substr(0, rest.find('*'));  // the shortest text that ends where that begins
  const std::size_t end = left.find(next);
  if (end == std::string_view::npos) return std::nullopt;
  auto more = captured(rest, left.substr(end));
  if (!more) return std::nullopt;
  more->insert(more->begin(), std::string(left.substr(0, end)));
  return more;
}

std::string filled(std::string_view pattern, const std::vector<std::string>& texts) {
  std::string out;
  std::size_t next = 0;
  for (const char c : pattern) {
    if (c == '*' && next < texts.size()) {
      out += texts[next++];
    } else {
      out += c;
    }
  }
  return out;
}

// The next word of a line: quoted, or up to a blank or `=`.
std::string next_word(std::string_view& line) {
  while (!line.empty() && (line[0] == ' ' || line[0] == '\t' || line[0] == '=')) line.remove_prefix(1);
  if (line.empty() || line[0] == '#') return {};
  std::size_t end = 0;
  if (line[0] == '"' || line[0] == '\'') {
    end = line.find(line[0], 1);
    if (end == std::string_view::npos) return {};
    std::string word(line.substr(1, end - 1));
    line.remove_prefix(end + 1);
    return word;
  }
  end = std::min(line.find_first_of(" \t=#"), line.size());
  std::string word(line.substr(0, end));
  line.remove_prefix(end);
  return word;
}

// What names the calls of one module: all calls of a key are numbered in order.
using KeyOf = std::function<std::string(const Record&, bool of_a)>;

// Of an operator its plain name says all.
std::string stem_of_class(const Record& record) { return record.module == record.op ? "" : record.op; }

std::string shapes(const std::vector<RecordValue>& values) {
  std::string text;
  for (const RecordValue& v : values) {
    text += std::string(v.element.dtype) + "[";
    for (const std::int64_t size : v.shape) text += std::to_string(size) + ",";
  }
  return text;
}
std::uint64_t identities(const std::vector<RecordValue>& values) {
  std::string text;
  for (const RecordValue& v : values) text += v.identity() + ";";
  return text.empty() ? 0 : hashed(text);
}

Key key_of(const Record& r, std::uint64_t name) {
  Key key;
  key.name = name;
  key.shapes = hashed(shapes(r.inputs) + "|" + shapes(r.outputs));
  key.form = hashed(shapes(r.inputs) + "|" + shapes(r.outputs), name);
  key.scalars = hashed(r.settings);
  key.place = r.line == 0 ? 0 : hashed(r.file + std::to_string(r.line));
  key.values = identities(r.outputs);
  key.reads = identities(r.inputs);
  key.magnitude = r.outputs.empty() ? 0 : r.outputs[0].health.absmax;
  return key;
}

class Matcher {
 public:
  Matcher(const std::vector<Record>& a, const std::vector<Record>& b)
      : a_(a), b_(b), of_a_(a.size()), of_b_(b.size()) {}

  // Pairs those whose keys are one and that have no partner yet.
  void by(const KeyOf& key, MatchedBy how) {
    std::map<std::string, std::pair<std::vector<std::uint32_t>, std::vector<std::uint32_t>>> groups;
    for (std::uint32_t i = 0; i < a_.size(); ++i) {
      if (!of_a_[i]) groups[key(a_[i], true) + "\n" + a_[i].phase].first.push_back(i);
    }
    for (std::uint32_t j = 0; j < b_.size(); ++j) {
      if (!of_b_[j]) groups[key(b_[j], false) + "\n" + b_[j].phase].second.push_back(j);
    }
    for (const auto& [name, group] : groups) {
      if (name[0] == '\n' && how != MatchedBy::kPlainName) continue;  // no key
      if (group.first.size() == group.second.size()) {
        for (std::size_t k = 0; k < group.first.size(); ++k) pair(group.first[k], group.second[k], how);
      } else if (!group.first.empty() && !group.second.empty()) {
        aligned(
            group.first, group.second, [](const Record&) { return std::uint64_t{1}; }, how);
      }
    }
  }

  // Modules of one class, called in the same order.
  void by_structure() {
    std::vector<std::uint32_t> a, b;
    for (std::uint32_t i = 0; i < a_.size(); ++i) {
      if (!of_a_[i]) a.push_back(i);
    }
    for (std::uint32_t j = 0; j < b_.size(); ++j) {
      if (!of_b_[j]) b.push_back(j);
    }
    aligned(
        a, b,
        [](const Record& r) {
          const std::string form = r.is_parameter() ? shapes(r.outputs) : "";
          return hashed(r.op + "\n" + r.phase + "\n" + form);
        },
        MatchedBy::kStructure);
  }

  std::vector<RecordRow> rows() const {
    std::vector<RecordRow> rows;
    std::vector<bool> written(b_.size());
    const auto put_alone = [&](std::uint32_t from) {  // those of B that follow, up to the next with a partner
      for (std::uint32_t j = from; j < b_.size() && !of_b_[j] && !written[j]; ++j) {
        rows.push_back({kGap, j, MatchedBy::kName});
        written[j] = true;
      }
    };
    put_alone(0);
    for (std::uint32_t i = 0; i < a_.size(); ++i) {
      rows.push_back(of_a_[i] ? *of_a_[i] : RecordRow{i, kGap, MatchedBy::kName});
      if (of_a_[i]) put_alone(of_a_[i]->b + 1);
    }
    return rows;
  }

 private:
  void pair(std::uint32_t i, std::uint32_t j, MatchedBy how) {
    of_a_[i] = RecordRow{i, j, how};
    of_b_[j] = true;
  }

  void aligned(const std::vector<std::uint32_t>& a, const std::vector<std::uint32_t>& b,
               const std::function<std::uint64_t(const Record&)>& name, MatchedBy how) {
    std::vector<Key> keys_a, keys_b;
    for (const std::uint32_t i : a) keys_a.push_back(key_of(a_[i], name(a_[i])));
    for (const std::uint32_t j : b) keys_b.push_back(key_of(b_[j], name(b_[j])));
    for (const Row& row : align(keys_a, keys_b)) {
      if (row.a != kGap && row.b != kGap) pair(a[row.a], b[row.b], how);
    }
  }

  const std::vector<Record>& a_;
  const std::vector<Record>& b_;
  std::vector<std::optional<RecordRow>> of_a_;
  std::vector<bool> of_b_;
};

}  // namespace

std::string NameMap::of(const std::string& name) const {
  for (const auto& [pattern, other] : entries) {
    if (const auto texts = captured(pattern, name)) return filled(other, *texts);
    const bool is_within = name.size() > pattern.size() && name.starts_with(pattern) && name[pattern.size()] == '.';
    if (is_within && pattern.find('*') == std::string::npos) return other + name.substr(pattern.size());
  }
  return {};
}

finitude::Result<NameMap> parse_name_map(std::string_view text) {
  NameMap map;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    const std::size_t start = line.find_first_not_of(" \t");
    if (start == std::string_view::npos || line[start] == '#' || line[start] == '[') continue;
    std::string a = next_word(line), b = next_word(line);
    if (a.empty() || b.empty() || a.size() > kMostNameBytes || b.size() > kMostNameBytes || !next_word(line).empty() ||
        std::count(a.begin(), a.end(), '*') > 4)
      return Status(StatusCode::kCorrupt, "line " + std::to_string(number) + " is not `NAME_IN_A = NAME_IN_B`");
    if (map.entries.size() >= kMostEntries) return Status(StatusCode::kTooLarge, "has too many names");
    map.entries.emplace_back(std::move(a), std::move(b));
  }
  return map;
}

std::string plain_name(const Record& record) {
  std::string_view name = record.name();
  if (name.find("::") != std::string_view::npos) name.remove_prefix(name.find("::") + 2);
  if (record.module == record.op) {
    while (name.size() > 1 && name.ends_with('_') && !name.ends_with("__")) name.remove_suffix(1);
  }
  std::string plain;
  bool is_first = !record.is_parameter() && name.size() > 0 && name[0] >= 'A' && name[0] <= 'Z';  // class of the model
  for (std::size_t at = 0; at <= name.size();) {
    const std::size_t end = std::min(name.find('.', at), name.size());
    const std::string_view part = name.substr(at, end - at);
    at = end + 1;
    const bool is_wrapper = std::find(kWrappers.begin(), kWrappers.end(), part) != kWrappers.end();
    if (!is_first && !is_wrapper) plain += (plain.empty() ? "" : ".") + std::string(part);
    is_first = false;
  }
  return plain;
}

std::string_view word(MatchedBy by) noexcept {
  switch (by) {
    case MatchedBy::kMap:
      return "map";
    case MatchedBy::kPlainName:
      return "plain name";
    case MatchedBy::kStructure:
      return "structure";
    case MatchedBy::kName:
      break;
  }
  return "name";
}

std::vector<RecordRow> match_records(const std::vector<Record>& a, const std::vector<Record>& b, const NameMap& map) {
  Matcher matcher(a, b);
  const auto mapped = [&](const std::string& name, bool of_a) { return of_a ? map.of(name) : name; };
  if (!map.entries.empty()) {
    matcher.by([&](const Record& r, bool of_a) { return mapped(r.name(), of_a); }, MatchedBy::kMap);
    matcher.by([&](const Record& r, bool of_a) { return mapped(plain_name(r), of_a); }, MatchedBy::kMap);
  }
  // A name of another class may be that of its neighbour: something was inserted into a Sequential.
  matcher.by([](const Record& r, bool) { return r.name() + "\n" + r.op; }, MatchedBy::kName);
  matcher.by([](const Record& r, bool) { return plain_name(r) + "\n" + stem_of_class(r); }, MatchedBy::kPlainName);
  matcher.by_structure();
  matcher.by([](const Record& r, bool) { return plain_name(r); }, MatchedBy::kPlainName);
  return matcher.rows();
}

}  // namespace finitude::compare
