#include "incident/step_warning.h"

#include <algorithm>

namespace finitude::incident {
namespace {

std::string name_at(std::uint32_t parameter, const std::vector<std::string>& names) {
  return parameter < names.size() ? names[parameter] : "parameter " + std::to_string(parameter);
}

// The name of the parameter that it is of; else the quantity.
std::string name_of(const signal::Warning& warning, const std::vector<std::string>& names) {
  using signal::Quantity;
  const bool is_of_all =
      warning.what == signal::What::kGrowth && warning.of != Quantity::kWeight && warning.is_widespread;
  if (warning.what == signal::What::kLogits || warning.what == signal::What::kAttention)
    return std::string(signal::word(warning.what));
  if (warning.what == signal::What::kDropped) return "steps";
  if (warning.parameter == signal::kNoParameter || is_of_all)
    return std::string(signal::word(warning.of == Quantity::kLoss ? Quantity::kLoss : Quantity::kGradient));
  return name_at(warning.parameter, names);
}

// Calls each with the names between the commas, and says whether one of them returned true.
template <typename Each>
bool any_name(std::string_view option, Each&& each) {
  while (true) {
    const std::size_t end = std::min(option.find(','), option.size());
    std::string_view name = option.substr(0, end);
    while (!name.empty() && name.front() == ' ') name.remove_prefix(1);
    while (!name.empty() && name.back() == ' ') name.remove_suffix(1);
    if (each(name)) return true;
    if (end == option.size()) return false;
    option.remove_prefix(end + 1);
  }
}

}  // namespace

bool is_wanted(signal::What what, std::string_view option) noexcept {
  if (option == "all") return true;
  return any_name(option, [&](std::string_view name) { return name == signal::word(what); });
}

bool is_warnings_option(std::string_view option) noexcept {
  if (option == "all" || option == "off") return true;
  return !any_name(option, [](std::string_view name) {
    return std::ranges::none_of(signal::kAllWhats, [&](signal::What what) { return name == signal::word(what); });
  });
}

nlohmann::ordered_json to_json(const signal::Warning& warning, const std::vector<std::string>& names,
                               const std::string& optimizer) {
  const std::string name = name_of(warning, names);
  nlohmann::ordered_json one;
  one["what"] = signal::word(warning.what);
  one["name"] = name;
  if (warning.what == signal::What::kGrowth) one["quantity"] = signal::word(warning.of);
  one["step"] = warning.step;
  one["since"] = warning.since;
  one["optimizer"] = optimizer;
  one["text"] = signal::in_words(warning, name, name_at(warning.last_parameter, names));
  one["evidence"] = {
      {"from", warning.from}, {"to", warning.to}, {"factor_per_step", warning.factor}, {"learning_rate", warning.lr}};
  if (warning.what == signal::What::kDropped)
    one["evidence"]["by_scaler"] = warning.layers;
  else if (warning.layers != 0)
    one["evidence"]["layers"] = warning.layers;
  one["horizon"] = warning.horizon ? nlohmann::ordered_json(*warning.horizon) : nlohmann::ordered_json();
  return one;
}

}  // namespace finitude::incident
