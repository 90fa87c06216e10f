#include "compare/about.h"

#include <map>
#include <set>

namespace finitude::compare {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxText = 400;

struct Known {
  const char *group, *key;
};
// In the order in which they are told.
constexpr Known kKnown[] = {{"versions", "torch"},   {"versions", "finitude"}, {"versions", "python"},
                            {"machine", "platform"}, {"machine", "machine"},   {"program", "command"},
                            {"program", "script"},   {"program", "git"},       {"step", "step"},
                            {"step", "micro_batch"}, {"step", "rank"},         {"step", "optimizer"}};

std::string as_text(const json& value) {
  if (value.is_null()) return "";
  std::string text;
  if (value.is_string()) {
    text = value.get<std::string>();
  } else if (value.is_array()) {  // a command
    for (const json& word : value) {
      if (text.size() > kMaxText) break;
      text += (text.empty() ? "" : " ") + (word.is_string() ? word.get<std::string>() : std::string("..."));
    }
  } else if (value.is_object()) {
    for (const auto& [key, item] : value.items()) {
      if (text.size() > kMaxText) break;
      if (item.is_primitive() && !item.is_null()) text += (text.empty() ? "" : " ") + key + " " + as_text(item);
    }
  } else {
    text = value.dump();
  }
  return text.substr(0, kMaxText);
}

std::string at(const json& from, const char* key) {
  if (!from.is_object()) return "";
  const auto found = from.find(key);
  return found == from.end() ? "" : as_text(*found);
}

std::map<std::string, std::string> part(const json& from, const char* name) {
  std::map<std::string, std::string> out;
  if (!from.is_object() || !from.contains(name) || !from[name].is_object()) return out;
  for (const auto& [key, value] : from[name].items()) out[key] = as_text(value);
  return out;
}

void add_maps(const char* group, const std::map<std::string, std::string>& a, const std::map<std::string, std::string>& b,
              std::vector<AboutDifference>* out) {
  std::set<std::string> keys;
  for (const auto& [key, value] : a) keys.insert(key);
  for (const auto& [key, value] : b) keys.insert(key);
  for (const std::string& key : keys) {
    const auto in_a = a.find(key), in_b = b.find(key);
    const std::string x = in_a == a.end() ? "" : in_a->second, y = in_b == b.end() ? "" : in_b->second;
    if (x != y) out->push_back({group, key, x.substr(0, kMaxText), y.substr(0, kMaxText)});
  }
}

}  // namespace

std::vector<AboutDifference> about_differences(const json& a, const Settings& settings_a, const json& b,
                                               const Settings& settings_b) {
  std::vector<AboutDifference> out;
  std::map<std::string, std::string> set_a(settings_a.begin(), settings_a.end()), set_b(settings_b.begin(), settings_b.end());
  set_a.erase("torch");  // told by capsule.json
  set_b.erase("torch");
  if (!set_a.empty() && !set_b.empty()) add_maps("settings", set_a, set_b, &out);
  for (const Known& known : kKnown) {
    const std::string x = at(a, known.key), y = at(b, known.key);
    if (x != y) out.push_back({known.group, known.key, x, y});
  }
  for (const char* name : {"flags", "seeds", "environment"}) add_maps(name, part(a, name), part(b, name), &out);
  return out;
}

}  // namespace finitude::compare
