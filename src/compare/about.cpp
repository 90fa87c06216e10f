#include "compare/about.h"

#include <map>
#include <set>

namespace finitude::compare {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxText = 400, kMaxLeaves = 4096;
constexpr int kDeepest = 8;

struct Known {
  const char *group, *key;
};
// In the order in which they are reported.
constexpr Known kKnown[] = {{"versions", "torch"},   {"versions", "finitude"}, {"versions", "python"},
                            {"machine", "platform"}, {"machine", "machine"},   {"program", "command"},
                            {"program", "script"},   {"program", "git"},       {"program", "on_alarm"},
                            {"program", "level"},    {"step", "step"},         {"step", "micro_batch"},
                            {"step", "rank"},        {"step", "optimizer"}};

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

// A report of a run says less than a capsule: what it has no word of is no difference.
bool both_report(const json& a, const json& b, const char* key) {
  if (!a.is_object() || !b.is_object()) return false;
  const auto is_capsule = [](const json& one) { return at(one, "kind") == "finitude capsule"; };
  return (is_capsule(a) && is_capsule(b)) || (a.contains(key) && b.contains(key));
}

std::map<std::string, std::string> part(const json& from, const char* name) {
  std::map<std::string, std::string> out;
  if (!from.is_object() || !from.contains(name) || !from[name].is_object()) return out;
  for (const auto& [key, value] : from[name].items()) out[key] = as_text(value);
  return out;
}

void add_maps(const char* group, const std::map<std::string, std::string>& a,
              const std::map<std::string, std::string>& b, std::vector<AboutDifference>* out) {
  std::set<std::string> keys;
  for (const auto& [key, value] : a) keys.insert(key);
  for (const auto& [key, value] : b) keys.insert(key);
  for (const std::string& key : keys) {
    const auto in_a = a.find(key), in_b = b.find(key);
    const std::string x = in_a == a.end() ? "" : in_a->second, y = in_b == b.end() ? "" : in_b->second;
    if (x != y) out->push_back({group, key, x.substr(0, kMaxText), y.substr(0, kMaxText)});
  }
}

// Numbers, texts and flags within, by their way there: "optimizers[0].groups[0].lr".
void leaves(const json& from, const std::string& way, std::map<std::string, std::string>* out, int depth = 0) {
  if (depth > kDeepest || out->size() >= kMaxLeaves || from.is_null()) return;
  if (from.is_object()) {
    for (const auto& [key, value] : from.items()) leaves(value, way.empty() ? key : way + "." + key, out, depth + 1);
  } else if (from.is_array()) {
    for (std::size_t i = 0; i < from.size(); ++i) leaves(from[i], way + "[" + std::to_string(i) + "]", out, depth + 1);
  } else {
    (*out)[way.substr(0, kMaxText)] = as_text(from);
  }
}

// What drives the update: classes and settings of the optimizers, as the step began. Their state is compared where it
// is read.
std::map<std::string, std::string> update_of(const json& about) {
  std::map<std::string, std::string> out;
  if (!about.is_object() || !about.contains("start") || !about["start"].is_object()) return out;
  const json& start = about["start"];
  if (start.contains("optimizers") && start["optimizers"].is_array()) {
    for (std::size_t i = 0; i < start["optimizers"].size(); ++i) {
      const json& optimizer = start["optimizers"][i];
      for (const char* key : {"class", "groups"}) {
        if (optimizer.is_object() && optimizer.contains(key))
          leaves(optimizer[key], "optimizers[" + std::to_string(i) + "]." + key, &out);
      }
    }
  }
  for (const char* key : {"scaler", "schedulers", "data_sets"}) {
    if (start.contains(key)) leaves(start[key], key, &out);
  }
  return out;
}

}  // namespace

std::vector<AboutDifference> about_differences(const json& a, const Settings& settings_a, const json& b,
                                               const Settings& settings_b) {
  std::vector<AboutDifference> out;
  std::map<std::string, std::string> set_a(settings_a.begin(), settings_a.end()),
      set_b(settings_b.begin(), settings_b.end());
  set_a.erase("torch");  // reported by capsule.json
  set_b.erase("torch");
  if (!set_a.empty() && !set_b.empty()) add_maps("settings", set_a, set_b, &out);
  for (const Known& known : kKnown) {
    const std::string x = at(a, known.key), y = at(b, known.key);
    if (x != y && both_report(a, b, known.key)) out.push_back({known.group, known.key, x, y});
  }
  for (const char* name : {"flags", "seeds", "environment", "packages"}) {
    if (both_report(a, b, name)) add_maps(name, part(a, name), part(b, name), &out);
  }
  if (const auto of_a = update_of(a), of_b = update_of(b); !of_a.empty() && !of_b.empty())
    add_maps("update", of_a, of_b, &out);
  return out;
}

}  // namespace finitude::compare
