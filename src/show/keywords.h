// Options in the words of a program that calls finitude.watch.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace finitude::show {

// As as_keywords() has it, where the report is of a program that called finitude.watch.
std::string in_words_of(const nlohmann::json& report, const std::string& text);

// `--on-alarm rollback --rollback-every N` is watch(on_alarm="rollback", rollback_every=N); without a value the keyword
// alone. What is between backticks is a command, and stays.
std::string as_keywords(std::string_view text);

}  // namespace finitude::show
