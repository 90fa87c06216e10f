// The alarms of a C++ program, made of what its recorder watches.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "decide/policy.h"
#include "decide/window.h"
#include "incident/alarm.h"
#include "recorder/buffers_torch.h"
#include "recorder/document.h"
#include "recorder/losses_torch.h"

namespace finitude::recorder {

// What its loss and gradients make of the step that is open.
decide::Verdict judge_step(const Watched& watched, Buffers& buffers, const std::vector<Loss>& losses);

// Before anything is known of its reason. kind, name: of the sink.
incident::Alarm new_alarm(const Watched& watched, decide::Policy policy, const std::string& kind,
                          const std::string& name);
incident::Alarm alarm_of_step(const Watched& watched, const Buffers& buffers, decide::Policy policy,
                              const decide::Verdict& verdict, const std::vector<Loss>& losses);
// The first parameter that is not finite, or normalisation statistic or optimizer state that is NaN, before any step.
// Nothing: there is none.
std::optional<incident::Alarm> alarm_at_start(const Watched& watched, const Buffers& buffers, decide::Policy policy);
// A parameter that is not finite after the optimizer has written it.
incident::Alarm alarm_of_written(const Watched& watched, decide::Policy policy, std::size_t index, double loss);

// What was done about it, into the alarm. applied: the optimizer has stepped or will.
void report_action(incident::Alarm& alarm, decide::Action action, bool applied);

// capsule.json of it.
nlohmann::json about_capsule(const incident::Alarm& alarm, const Document& document, bool redact);

}  // namespace finitude::recorder
