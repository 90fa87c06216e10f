#include "recorder/alarm_torch.h"

#include <torch/version.h>

#include <cmath>
#include <utility>

#include "capture/redact.h"
#include "incident/environment.h"
#include "incident/sentences.h"
#include "observe/settings_torch.h"
#include "observe/tensor_view_torch.h"
#include "recorder/optimizer_state_torch.h"
#include "show/findings.h"

namespace finitude::recorder {

using incident::Alarm;
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

std::string count_text(const sense::Health& health) { return incident::count_text(health.nan, health.inf()); }

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

Alarm new_alarm(const Watched& watched, decide::Policy policy, const std::string& kind, const std::string& name) {
  Alarm alarm;
  alarm.step = watched.steps;
  alarm.optimizer = watched.class_name();
  alarm.sink = {kind, name};
  alarm.weights_damaged = watched.damaged;
  alarm.policy = decide::name(policy);
  alarm.history = watched.history();
  return alarm;
}

Alarm alarm_of_step(const Watched& watched, const Buffers& buffers, decide::Policy policy,
                    const decide::Verdict& verdict, const std::vector<Loss>& losses) {
  incident::Gradients gradients;
  std::string first;
  watched.for_each([&](std::size_t index, const at::Tensor& p) {
    const at::Tensor* gradient = gradient_of(p);
    if (!watched.was_bad(index)) {
      gradients.clean += gradient != nullptr;
      return;
    }
    const std::string name = watched.name_of(index, p);
    if (first.empty()) first = name;
    if (gradient == nullptr) return;
    const sense::Health h = health_of(*gradient);
    gradients.bad.push_back({name, h.nan, h.inf(), h.numel});
  });
  std::string name = "loss", text;
  if (verdict.sink == decide::SinkKind::kBuffer) {
    for (const Buffer& buffer : buffers.live()) {
      const sense::Health h = health_of(buffer.tensor);
      if (h.nan == 0 || buffer.had_nan) continue;
      name = buffer.name;
      text = "the buffer " + name + " took in " + count_text(h);
      if (!losses.empty() || gradients.clean != 0)
        text += "; " + incident::parts_of_step(!losses.empty(), gradients.clean != 0) +
                (gradients.clean != 0 ? " are finite" : " is finite");
      break;
    }
  } else if (verdict.loss != decide::kNoLoss) {
    text = incident::loss_text(std::isnan(losses[verdict.loss].value), verdict.harmless);
  } else {
    name = first;
    text = incident::gradient_text(name);
  }
  Alarm alarm = new_alarm(watched, policy, std::string(decide::report_word(verdict.sink)), name);
  alarm.harmless = verdict.harmless && !watched.damaged;
  alarm.micro_batch = verdict.micro_batch;
  if (!losses.empty()) alarm.loss = losses.back().value;
  alarm.gradients = std::move(gradients);
  alarm.text = text;
  return alarm;
}

std::optional<Alarm> alarm_at_start(const Watched& watched, const Buffers& buffers, decide::Policy policy) {
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
  if (!found.defined()) return std::nullopt;
  Alarm alarm = new_alarm(watched, policy, kind, name);
  const std::string count = count_text(health_of(found));
  alarm.text = incident::held_before_text(name, count);
  alarm.cause.name = "corrupted-state";
  alarm.cause.confidence = "likely";
  alarm.cause.text = name + " held " + count + " before any step was taken: a bad checkpoint or initial value";
  json birth = incident::bare_birth("state");
  birth["outputs"].push_back(statistics_of(name, found));
  alarm.births.push_back(std::move(birth));
  return alarm;
}

Alarm alarm_of_written(const Watched& watched, decide::Policy policy, std::size_t index, double loss) {
  std::string name;
  at::Tensor parameter;
  watched.for_each([&](std::size_t i, const at::Tensor& p) {
    if (i != index) return;
    name = watched.name_of(i, p);
    parameter = p;
  });
  Alarm alarm = new_alarm(watched, policy, "parameter", name);
  alarm.weights_damaged = true;
  alarm.loss = loss;
  alarm.text = name + " holds " + count_text(health_of(parameter)) + " although loss and gradients were finite";
  json birth = incident::bare_birth("optimizer", watched.class_name() + "::step");
  birth["outputs"].push_back(statistics_of(name, parameter));
  alarm.births.push_back(std::move(birth));
  return alarm;
}

void report_action(Alarm& alarm, decide::Action action, bool applied) {
  // Weights that a step before this one has damaged, or that were bad before any.
  const bool at_start = !applied && alarm.weights_damaged;
  alarm.action = incident::action_text(action, {.applied = applied, .at_start = at_start});
}

json about_capsule(const Alarm& alarm, const Document& document, bool redact) {
  json about = {{"kind", "finitude capsule"},
                {"created", time_text(std::chrono::system_clock::now())},
                {"finitude", FINITUDE_VERSION},
                {"torch", TORCH_VERSION},
                {"python", nullptr},
                {"step", alarm.step},
                {"micro_batch", alarm.micro_batch},
                {"rank", 0},
                {"optimizer", alarm.optimizer},
                {"alarm", json(to_json(alarm))},
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
  about["environment"] = incident::environment();
  return about;
}

}  // namespace finitude::recorder
