#include "signal/warning.h"

#include <cmath>
#include <cstdio>

#include <nlohmann/json.hpp>

namespace finitude::signal {
namespace {

std::string figure(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

std::string steps_between(std::uint64_t least, std::uint64_t most) {
  if (least != most) return std::to_string(least) + " to " + std::to_string(most) + " steps";
  return std::to_string(least) + (least == 1 ? " step" : " steps");
}

// Where the gradients of a first matrix are the smaller ones, they have vanished on the way to it.
std::string depth_in_words(const Warning& w, const std::string& name, const std::string& last_name) {
  const bool vanish = w.what == What::kVanishingDepth;
  return "the gradients " + std::string(vanish ? "vanish" : "explode") + " over the depth: largest magnitude " +
         figure(w.to) + " in " + last_name + ", " + figure(w.from) + " in " + name + "; by a factor of " +
         figure(w.factor) + " a layer over " + std::to_string(w.layers) + " weight matrices, since step " +
         std::to_string(w.since);
}

}  // namespace

std::string_view word(What what) noexcept {
  switch (what) {
    case What::kGrowth:
      return "growth";
    case What::kSpike:
      return "spike";
    case What::kOutlier:
      return "outlier";
    case What::kVanishing:
      return "vanishing";
    case What::kScale:
      return "scale";
    case What::kDead:
      return "dead";
    case What::kClipping:
      return "clipping";
    case What::kNorm:
      return "norm";
    case What::kNoLearning:
      return "no-learning";
    case What::kHeadroom:
      return "headroom";
    case What::kVanishingDepth:
      return "vanishing-depth";
    case What::kExplodingDepth:
      return "exploding-depth";
    case What::kLogits:
      return "logits";
    case What::kAttention:
      return "attention";
    case What::kDropped:
      return "dropped";
  }
  return "";
}

std::string_view word(Quantity quantity) noexcept {
  switch (quantity) {
    case Quantity::kGradient:
      return "gradient";
    case Quantity::kLoss:
      return "loss";
    case Quantity::kWeight:
      return "weight";
  }
  return "";
}

std::string as_json(const std::vector<Warning>& warnings) {
  nlohmann::json all = nlohmann::json::array();
  for (const Warning& w : warnings) {
    nlohmann::json one = {{"what", word(w.what)},
                          {"of", word(w.of)},
                          {"step", w.step},
                          {"since", w.since},
                          {"from", w.from},
                          {"to", w.to},
                          {"factor", w.factor},
                          {"lr", w.lr},
                          {"widespread", w.is_widespread},
                          {"by_weights", w.is_by_weights}};
    one["parameter"] = w.parameter == kNoParameter ? nlohmann::json() : nlohmann::json(w.parameter);
    one["last_parameter"] = w.last_parameter == kNoParameter ? nlohmann::json() : nlohmann::json(w.last_parameter);
    one["layers"] = w.layers;
    one["horizon"] = w.horizon ? nlohmann::json(*w.horizon) : nlohmann::json();
    all.push_back(std::move(one));
  }
  return all.dump();
}

std::vector<Warning> from_json(const std::string& text) {
  std::vector<Warning> warnings;
  for (const nlohmann::json& one : nlohmann::json::parse(text)) {
    Warning w;
    for (const What what : kAllWhats) {
      if (one.at("what") == word(what)) w.what = what;
    }
    for (const Quantity of : {Quantity::kGradient, Quantity::kLoss, Quantity::kWeight}) {
      if (one.at("of") == word(of)) w.of = of;
    }
    w.step = one.at("step");
    w.since = one.at("since");
    w.from = one.at("from");
    w.to = one.at("to");
    w.factor = one.at("factor");
    w.lr = one.at("lr");
    w.is_widespread = one.at("widespread");
    w.is_by_weights = one.at("by_weights");
    if (!one.at("parameter").is_null()) w.parameter = one.at("parameter");
    if (!one.at("last_parameter").is_null()) w.last_parameter = one.at("last_parameter");
    w.layers = one.at("layers");
    if (!one.at("horizon").is_null()) w.horizon = one.at("horizon").get<std::array<std::uint64_t, 2>>();
    warnings.push_back(w);
  }
  return warnings;
}

std::string in_words(const Warning& w, const std::string& name, const std::string& last_name) {
  const std::string since = " since step " + std::to_string(w.since),
                    range = " (" + figure(w.from) + " to " + figure(w.to) + ")";
  const std::string rate = w.lr > 0 ? "; learning rate " + figure(w.lr) : "";
  switch (w.what) {
    case What::kGrowth: {
      const bool is_weight = w.of == Quantity::kWeight;
      std::string text = is_weight                 ? "the largest weight of " + name
                         : w.of == Quantity::kLoss ? std::string("the loss")
                                                   : std::string("the largest gradient");
      text += " grew " + figure(w.to / w.from) + "-fold" + since + ", by " + figure(w.factor) + " a step" + range;
      if (is_weight)
        text += w.is_widespread ? ", and most others grew as much" : "";
      else if (w.is_by_weights)
        text += ", with the weights of " + name;
      else if (w.parameter != kNoParameter && w.of == Quantity::kLoss)
        text += w.is_widespread ? ", with most gradients" : ", with the gradient of " + name;
      else if (w.parameter != kNoParameter)
        text += w.is_widespread ? ", in most parameters" : ", most in " + name;
      text += rate;
      if (w.horizon) text += "; if it continues, values overflow in " + steps_between((*w.horizon)[0], (*w.horizon)[1]);
      return text;
    }
    case What::kSpike:
      return "the loss jumped " + figure(w.to / w.from) + "-fold at step " + std::to_string(w.since) + range +
             " and has not come back" + rate;
    case What::kOutlier:
      return "the loss of this step alone is " + figure(w.to / w.from) + " times the usual one" + range +
             ", with gradients far above the usual ones" + rate;
    case What::kVanishing:
      return "the gradients shrank to " + figure(w.to) + " from " + figure(w.from) +
             " of the first steps, and the loss has not come down";
    case What::kScale:
      return "the loss scale fell to " + figure(w.to) + " from " + figure(w.from) +
             ": the gradients overflow again and again";
    case What::kDead:
      return "the gradient of " + name + " has been exactly zero" + since;
    case What::kClipping:
      return "every gradient" + since + " was clipped to less than a tenth (norm " + figure(w.to) + " to " +
             figure(w.from) + ")" + rate;
    case What::kNorm:
      return "the norm of the gradients is " + figure(w.to) + ", above " + figure(w.from) + rate;
    case What::kNoLearning:
      return "no parameter has changed" + since + ", though gradients are not zero" + rate;
    case What::kHeadroom:
      return "the gradient of " + name + " reaches " + figure(w.to) + ", " + figure(std::log2(w.from / w.to)) +
             " bits below the largest number of the dtype it is computed in (" + figure(w.from) + ")" + rate +
             (w.horizon ? "; it grows by " + figure(w.factor) + " a step: if it continues, it overflows in " +
                              std::to_string((*w.horizon)[0]) + " to " + std::to_string((*w.horizon)[1]) + " steps"
                        : std::string());
    case What::kVanishingDepth:
    case What::kExplodingDepth:
      return depth_in_words(w, name, last_name);
    case What::kLogits:
    case What::kAttention:
      return "the logits of " + std::string(w.what == What::kLogits ? "the loss" : "attention") + " reach " +
             figure(w.to) + ", " + figure(w.to / w.from) + " times those of the first steps, by " + figure(w.factor) +
             " a step" + since + ": a softmax of them gives one 1, and zeros without a gradient" + rate;
    case What::kDropped: {
      const std::string by_program = figure(w.to - w.layers), by_scaler = std::to_string(w.layers);
      return figure(w.to) + " of the last " + figure(w.from) + " steps were not applied," + since + ": " +
             (w.to > w.layers ? "the program dropped " + by_program + " of them" : std::string()) +
             (w.to > w.layers && w.layers > 0 ? ", " : "") +
             (w.layers > 0 ? "a GradScaler skipped " + by_scaler : std::string()) + rate;
    }
  }
  return "";
}

}  // namespace finitude::signal
