#include "recorder/alarm_torch.h"

#include <torch/version.h>

#include <cmath>

#include "capture/redact.h"
#include "observe/settings_torch.h"
#include "observe/tensor_view_torch.h"
#include "recorder/optimizer_state_torch.h"
#include "show/findings.h"
#include "show/words.h"

namespace finitude::recorder {

using nlohmann::json;

namespace {

sense::Health health_of(const at::Tensor& tensor) {
  observe::TensorView v;
  return tensor.defined() && observe::view_of(*tensor.unsafeGetTensorImpl(), &v) ? observe::full(v) : sense::Health();
}

json statistics_of(const std::string& name, const at::Tensor& tensor) {
  record::TensorUse use;
  observe::TensorView v;
  if (observe::view_of(*tensor.unsafeGetTensorImpl(), &v)) {
    use.dtype = v.dtype;
    use.shape.assign(v.sizes.begin(), v.sizes.end());
    use.health = observe::full(v);
  }
  use.arg = name;
  return show::statistics(use);
}

// "3 NaN and 1 Inf"
std::string count_text(const sense::Health& health) {
  std::string text = health.nan != 0 ? std::to_string(health.nan) + " NaN" : "";
  if (health.inf() != 0) text += (text.empty() ? "" : " and ") + std::to_string(health.inf()) + " Inf";
  return text.empty() ? "no" : text;
}

json bare_birth(const std::string& phase, const std::string& op = "") {
  return {{"phase", phase},
          {"op", op},
          {"file", ""},
          {"line", 0},
          {"source", ""},
          {"module", ""},
          {"node", ""},
          {"inputs", json::array()},
          {"outputs", json::array()},
          {"rows", json::array()}};
}

// Lines and files wherever they are named.
json series(const std::vector<double>& values) {
  json out = json::array();
  for (const double value : values) out.push_back(show::number(value));
  return out;
}

}  // namespace

decide::Verdict judge_step(const Watched& watched, Buffers& buffers, const std::vector<Loss>& losses) {
  std::vector<decide::LossFact> facts_of_losses;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    decide::LossFact& fact = facts_of_losses.emplace_back();
    fact.bad = losses[i].bad;
    fact.micro_batch = static_cast<std::uint32_t>(i);
  }
  decide::WindowFacts facts;
  facts.losses = facts_of_losses;
  for (std::size_t i = 0; i < watched.marks().size(); ++i) {
    facts.bad_gradients += watched.was_bad(i);
    facts.clean_gradients += !watched.was_bad(i) && watched.marks()[i].state == observe::GradMark::kClean;
  }
  facts.parameters = static_cast<std::uint32_t>(watched.marks().size());
  decide::Verdict verdict = decide::judge(facts);
  if (verdict.kind == decide::Verdict::Kind::kNothing && buffers.turned_nan()) {
    facts.buffers_turned_nan = true;
    verdict = decide::judge(facts);
  }
  return verdict;
}

json new_alarm(const Watched& watched, decide::Policy policy, const std::string& kind, const std::string& name) {
  const explain::StepHistory history = watched.history();
  return {{"step", watched.steps},
          {"micro_batch", 0},
          {"rank", 0},
          {"optimizer", watched.class_name()},
          {"sink", {{"kind", kind}, {"name", name}}},
          {"weights", watched.damaged ? "damaged" : "clean"},
          {"rerun", "not-run"},
          {"rerun_by", "none"},
          {"rerun_verified", false},
          {"rerun_text", ""},
          {"births", json::array()},
          {"cause",
           {{"class", "unknown"},
            {"confidence", "possible"},
            {"text", "the step was not run again"},
            {"experiments", json::array()}}},
          {"fix", nullptr},
          {"capsule", nullptr},
          {"harmless", false},
          {"text", ""},
          {"loss", nullptr},
          {"path", json::array()},
          {"policy", std::string(decide::name(policy))},
          {"history", {{"loss", series(history.loss)}, {"grad_absmax", series(history.grad_absmax)}}}};
}

json alarm_of_step(const Watched& watched, const Buffers& buffers, decide::Policy policy,
                   const decide::Verdict& verdict, const std::vector<Loss>& losses) {
  json bad = json::array();
  std::string first;
  std::size_t clean = 0;
  watched.for_each([&](std::size_t index, const at::Tensor& p) {
    const at::Tensor* gradient = gradient_of(p);
    if (!watched.was_bad(index)) {
      clean += gradient != nullptr;
      return;
    }
    const std::string name = watched.name_of(index, p);
    if (first.empty()) first = name;
    if (gradient == nullptr) return;
    const sense::Health h = health_of(*gradient);
    bad.push_back({{"name", name}, {"nan", h.nan}, {"inf", h.inf()}, {"numel", h.numel}});
  });
  std::string name = "loss", text;
  if (verdict.sink == decide::SinkKind::kBuffer) {
    for (const Buffer& buffer : buffers.live()) {
      const sense::Health h = health_of(buffer.tensor);
      if (h.nan == 0 || buffer.had_nan) continue;
      name = buffer.name;
      text = "the buffer " + name + " took in " + count_text(h) + "; loss and gradients are finite";
      break;
    }
  } else if (verdict.loss != decide::kNoLoss) {
    text = std::string("loss is ") + (std::isnan(losses[verdict.loss].value) ? "NaN" : "Inf");
    if (verdict.harmless) text += "; gradients are finite, weights were not in danger";
  } else {
    name = first;
    text = "gradient of " + name + " is not finite";
  }
  json alarm = new_alarm(watched, policy, std::string(decide::report_word(verdict.sink)), name);
  alarm["harmless"] = verdict.harmless && !watched.damaged;
  alarm["micro_batch"] = verdict.micro_batch;
  if (!losses.empty()) alarm["loss"] = show::number(losses.back().value);
  alarm["gradients"] = {{"bad", bad}, {"clean", clean}};
  alarm["text"] = text;
  return alarm;
}

json alarm_at_start(const Watched& watched, const Buffers& buffers, decide::Policy policy) {
  std::string kind, name;
  at::Tensor found;
  watched.for_each([&](std::size_t index, const at::Tensor& p) {
    if (found.defined() || !p.defined() || !p.requires_grad() || health_of(p).ok()) return;
    kind = "parameter";
    name = watched.name_of(index, p);
    found = p;
  });
  for (const Buffer& buffer : buffers.live()) {
    const bool statistic = buffer.name.ends_with("running_mean") || buffer.name.ends_with("running_var");
    if (found.defined() || !statistic || buffer.owner != watched.ordinal() || health_of(buffer.tensor).nan == 0)
      continue;
    kind = "buffer";
    name = buffer.name;
    found = buffer.tensor;
  }
  watched.for_each([&](std::size_t index, const at::Tensor& p) {
    if (!p.defined()) return;
    for (const auto& [part, tensor] : state_of(watched.optimizer(), p)) {
      if (found.defined() || health_of(tensor).nan == 0) continue;
      kind = "state";
      name = watched.name_of(index, p) + "." + part;
      found = tensor;
    }
  });
  if (!found.defined()) return nullptr;
  json alarm = new_alarm(watched, policy, kind, name);
  const std::string count = count_text(health_of(found));
  alarm["text"] = name + " already held " + count + " before the first step";
  alarm["cause"] = {
      {"class", "corrupted-state"},
      {"confidence", "likely"},
      {"experiments", json::array()},
      {"text", name + " held " + count + " before any step was taken: a bad checkpoint or initial value"}};
  json birth = bare_birth("state");
  birth["outputs"].push_back(statistics_of(name, found));
  alarm["births"].push_back(birth);
  return alarm;
}

json alarm_of_written(const Watched& watched, decide::Policy policy, std::size_t index, double loss) {
  std::string name;
  at::Tensor parameter;
  watched.for_each([&](std::size_t i, const at::Tensor& p) {
    if (i != index) return;
    name = watched.name_of(i, p);
    parameter = p;
  });
  json alarm = new_alarm(watched, policy, "parameter", name);
  alarm["weights"] = "damaged";
  alarm["loss"] = show::number(loss);
  alarm["text"] = name + " holds " + count_text(health_of(parameter)) + " although loss and gradients were finite";
  json birth = bare_birth("optimizer", watched.class_name() + "::step");
  birth["outputs"].push_back(statistics_of(name, parameter));
  alarm["births"].push_back(birth);
  return alarm;
}

void report_action(json& alarm, decide::Action action, bool applied) {
  const bool was_damaged = !applied && alarm["weights"] == "damaged";  // by a step before this one
  alarm["action"] = decide::ends(action)                 ? was_damaged ? "stopped before the optimizer" : "stopped"
                    : applied || !decide::vetoes(action) ? "reported, the step is applied"
                                                         : "the step was skipped";
}

json about_capsule(const json& alarm, const Document& document, bool redact) {
  json about = {{"kind", "finitude capsule"},
                {"created", time_text(std::chrono::system_clock::now())},
                {"finitude", FINITUDE_VERSION},
                {"torch", TORCH_VERSION},
                {"python", nullptr},
                {"step", alarm["step"]},
                {"micro_batch", alarm["micro_batch"]},
                {"rank", 0},
                {"optimizer", alarm["optimizer"]},
                {"alarm", alarm},
                {"flags", json::object()}};
  for (const auto& [name, value] : observe::torch_settings()) about["flags"][name] = value;
  const MachineName machine = machine_name();
  about["platform"] = machine.platform;
  about["machine"] = machine.machine;
  if (redact) {
    capture::redact_alarm(about["alarm"]);
    return about;
  }
  about["command"] = document.process().command;
  about["script"] = document.process().program;
  about["environment"] = environment();
  return about;
}

}  // namespace finitude::recorder
