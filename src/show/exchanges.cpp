#include "show/exchanges.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "record/exchange.h"

namespace finitude::show {
namespace {

using record::Op;
using record::OpId;

constexpr std::size_t kMost = 16;  // of one birth

bool is_exchange(const Op& op) { return record::exchanges_values(op.name) && !record::only_waits(op.name); }

// The call of the program's that it is a part of.
OpId outermost(const record::Trace& trace, OpId id) {
  for (OpId up = trace.ops[id].parent; up < trace.ops.size(); up = trace.ops[up].parent) {
    if (is_exchange(trace.ops[up])) id = up;
  }
  return id;
}

std::string scalar(const Op& op, std::initializer_list<std::string_view> args) {
  for (const record::ScalarUse& use : op.scalars) {
    if (std::ranges::find(args, use.arg) != args.end()) return use.text;
  }
  return "";
}

// The one rank of the group that its values come from.
std::optional<std::uint64_t> root_of(const Op& op) {
  const std::string text = scalar(op, {"src", "root_rank"});
  std::uint64_t rank = 0;
  const bool is_number = std::from_chars(text.data(), text.data() + text.size(), rank).ec == std::errc();
  const bool is_source = op.name.find("reduce") == std::string::npos && op.name.find("gather") == std::string::npos;
  return is_number && is_source ? std::optional(rank) : std::nullopt;
}

bool gives_bad_value(const Op& op) {
  return std::ranges::any_of(
      op.inputs, [](const record::TensorUse& use) { return !use.health.ok() && !use.arg.starts_with("output"); });
}

}  // namespace

nlohmann::json exchanges(const record::Trace& trace, OpId birth) {
  nlohmann::json found = nlohmann::json::array();
  const bool is_received = birth < trace.ops.size() && record::exchanges_values(trace.ops[birth].name);
  const OpId received = is_received ? outermost(trace, birth) : record::kNone;
  std::map<std::string, std::uint64_t> numbers;
  for (OpId id = 0; id < trace.ops.size() && found.size() < kMost; ++id) {
    const Op& op = trace.ops[id];
    if (!is_exchange(op) || outermost(trace, id) != id) continue;
    const std::string group = scalar(op, {"process_group", "group_name"});
    if (group.empty()) continue;
    // Between two ranks, which the others of the group do not count.
    const bool of_two = op.name.find("send") != std::string::npos || op.name.find("recv") != std::string::npos;
    const std::uint64_t number = of_two ? 0 : numbers[group]++;
    if (is_received ? id != received : of_two || !gives_bad_value(op)) continue;
    nlohmann::json one = {{"group", group}};
    if (!of_two) one["number"] = number;
    if (const auto root = root_of(op); is_received && root) one["root"] = *root;
    found.push_back(std::move(one));
  }
  return found;
}

}  // namespace finitude::show
