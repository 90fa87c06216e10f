#include "show/keywords.h"

#include <algorithm>
#include <array>

#include "show/read.h"

namespace finitude::show {
namespace {

struct Option {
  std::string_view name, values;  // values: words that it takes; empty: a number or a placeholder
};

// Those that texts name, and that finitude.watch has.
constexpr std::array kOptions{
    Option{"on-alarm", "stop skip warn raise rollback"},
    Option{"level", "gate tape trace"},
    Option{"checkpoints", "warn refuse quarantine off"},
    Option{"then", "rollback skip lower-rate stop raise"},
    Option{"stream-gradients", "auto on off"},
    Option{"verify", "every=N"},
    Option{"runs", "DIR"},
    Option{"report", "FILE"},
    Option{"restart-args", ""},
    Option{"max-skips", ""},
    Option{"max-bad", ""},
    Option{"max-bad-share", ""},
    Option{"undo-mb", ""},
    Option{"rollback-every", ""},
    Option{"rollback-mb", ""},
    Option{"rollback-skip-rows", ""},
    Option{"skip-rows", ""},
    Option{"tape-every", ""},
    Option{"replicas-every", ""},
    Option{"signals-together", ""},
    Option{"capsules", ""},
    Option{"capsule-max", ""},
    Option{"capsule-of-step", ""},
    Option{"experiments", ""},
    Option{"on-event", ""},
    Option{"dump", ""},
    Option{"dump-mb", ""},
    Option{"dump-only", ""},
    Option{"dump-steps", ""},
    Option{"golden", ""},
    Option{"redact", ""},
};

bool is_name(char c) { return (c >= 'a' && c <= 'z') || c == '-'; }
bool is_number(std::string_view word) {
  return word == "N" || (!word.empty() && std::ranges::all_of(word, [](char c) { return c >= '0' && c <= '9'; }));
}

std::string_view word_at(std::string_view text, std::size_t at) {
  std::size_t end = at;
  while (end < text.size() && (is_name(text[end]) || text[end] == '=' || (text[end] >= 'A' && text[end] <= 'Z') ||
                               (text[end] >= '0' && text[end] <= '9')))
    ++end;
  return at < text.size() ? text.substr(at, end - at) : std::string_view();
}

bool takes(const Option& option, std::string_view word) {
  if (option.values.empty()) return is_number(word);
  const std::size_t at = option.values.find(word);
  return !word.empty() && at != std::string_view::npos && (at == 0 || option.values[at - 1] == ' ') &&
         (at + word.size() == option.values.size() || option.values[at + word.size()] == ' ');
}

// The option that begins there; null: none.
const Option* option_at(std::string_view text, std::size_t at) {
  if (text.substr(at, 2) != "--" || (at > 0 && (is_name(text[at - 1]) || text[at - 1] == '.'))) return nullptr;
  const std::string_view name = word_at(text, at + 2);
  const auto* found = std::ranges::find(kOptions, name, &Option::name);
  return found == kOptions.end() ? nullptr : found;
}

}  // namespace

std::string as_keywords(std::string_view text) {
  std::string shown, given;  // given: keywords with their values, in a row
  bool in_command = false;
  const auto end_call = [&] {
    if (!given.empty()) shown += "watch(" + given + ")";
    given.clear();
  };
  for (std::size_t at = 0; at < text.size();) {
    const Option* option = in_command ? nullptr : option_at(text, at);
    if (option == nullptr) {
      const bool is_between = !given.empty() && text[at] == ' ' && option_at(text, at + 1) != nullptr;
      if (!is_between) end_call();
      in_command ^= text[at] == '`';
      if (!is_between) shown += text[at];
      ++at;
      continue;
    }
    at += 2 + option->name.size();
    std::string name(option->name);
    std::ranges::replace(name, '-', '_');
    const std::string_view value = at < text.size() && text[at] == ' ' ? word_at(text, at + 1) : std::string_view();
    if (!takes(*option, value)) {
      if (!given.empty()) end_call(), shown += ' ';
      shown += name;
      continue;
    }
    const bool quoted = !option->values.empty();
    given +=
        (given.empty() ? "" : ", ") + name + "=" + (quoted ? "\"" : "") + std::string(value) + (quoted ? "\"" : "");
    at += 1 + value.size();
  }
  end_call();
  return shown;
}

std::string in_words_of(const nlohmann::json& report, const std::string& text) {
  return flag(report, "by_watch") ? as_keywords(text) : text;
}

}  // namespace finitude::show
