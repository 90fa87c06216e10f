#include "recorder/engine_torch.h"

#include <torch/version.h>

#include <algorithm>
#include <cstdio>
#include <exception>

#include "incident/step_warning.h"
#include "observe/tracer_torch.h"
#include "show/findings.h"
#include "show/show.h"

namespace finitude::recorder {
namespace {

using incident::Alarm;

decide::Policy policy_of(OnAlarm word) {
  switch (word) {
    case OnAlarm::kSkip:
      return decide::Policy::kSkip;
    case OnAlarm::kWarn:
      return decide::Policy::kWarn;
    case OnAlarm::kRaise:
      return decide::Policy::kRaise;
    default:
      return decide::Policy::kStop;
  }
}

bool is_switched_on(const RecorderOptions& options) {
  // Read by itself: FINITUDE=0 holds where another variable is malformed, which options_from_environment() reports.
  const char* value = std::getenv("FINITUDE");
  const std::string_view word = value != nullptr ? value : "";
  return options.on && word != "0" && word != "off";
}

incident::ZeroRow zero_row_of(const Watched& watched) {
  return {watched.class_name(), watched.steps - watched.zero_steps(), watched.zero_steps()};
}

// Holds while a step is open, whichever way it ends.
class Inside {
 public:
  explicit Inside(bool* inside) : inside_(inside) { *inside_ = true; }
  ~Inside() { *inside_ = false; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  bool* inside_;
};

}  // namespace

Engine::Engine(RecorderOptions options)
    : options_(std::move(options)),
      policy_(policy_of(options_.on_alarm)),
      machine_(policy_, {.in_a_row = options_.max_skips, .total = options_.max_bad}),
      second_runs_(policy_),
      document_(FINITUDE_VERSION, TORCH_VERSION),
      on_(is_switched_on(options_)) {
  finished_ = !on_;  // there is nothing to say at the end
  if (!on_) document_.not_watched("anything: switched off");
}

void Engine::switch_off(const char* why) noexcept {
  if (!on_) return;
  on_ = false;
  try {
    const std::string text = std::string("the recorder turned itself off: ") + why;
    document_.not_watched("steps from " + std::to_string(counters_.steps) + " on: " + text);
    say("finitude: " + text + "\n");
  } catch (...) {
  }
}

void Engine::say(const std::string& text) const noexcept {
  try {
    if (options_.say)
      options_.say(text);
    else
      std::fwrite(text.data(), 1, text.size(), stderr);
  } catch (...) {
  }
}

Watched& Engine::of(torch::optim::Optimizer& optimizer) {
  for (const auto& watched : watched_) {
    if (&watched->optimizer() == &optimizer) return *watched;
  }
  watched_.push_back(std::make_unique<Watched>(optimizer, next_ordinal_++));
  counters_.optimizers = next_ordinal_;
  return *watched_.back();
}

nlohmann::json Engine::whole_report() const {
  std::vector<incident::ZeroRow> rows = ended_in_zeros_;
  for (const auto& watched : watched_) {
    if (watched->zero_steps() != 0) rows.push_back(zero_row_of(*watched));
  }
  return document_.whole(counters_, rows, std::max(1U, options_.max_skips));
}

void Engine::watch(torch::optim::Optimizer& optimizer, const NamedTensors& parameters, const NamedTensors& buffers) {
  safely([&] {
    Watched& watched = of(optimizer);
    watched.name(parameters);
    buffers_.add(watched.ordinal(), buffers);
  });
}

void Engine::watch(const at::Generator& generator) {
  safely([&] { generators_.add(generator); });
}

void Engine::forget(const torch::optim::Optimizer& optimizer) {
  for (const auto& watched : watched_) {
    if (&watched->optimizer() != &optimizer) continue;
    safely([&] {
      buffers_.forget(watched->ordinal());
      if (watched->zero_steps() != 0) ended_in_zeros_.push_back(zero_row_of(*watched));
    });
  }
  std::erase_if(watched_, [&](const auto& watched) { return &watched->optimizer() == &optimizer; });
}

void Engine::loss(const at::Tensor& loss) {
  if (!on_) return;
  safely([&] {
    if (again_ != nullptr)
      again_->begin_loss(loss);
    else
      losses_.push_back(look_at_loss(loss));
  });
}

void Engine::scan(torch::optim::Optimizer& optimizer) {
  if (on_ && again_ == nullptr) safely([&] { of(optimizer).look_at_gradients(); });
}

void Engine::input(const std::string& name, const at::Tensor& tensor) {
  if (!on_ || !tensor.defined()) return;
  safely([&] { (again_ == nullptr ? inputs_ : inputs_again_).emplace_back(name, tensor.getIntrusivePtr()); });
  if (again_ == nullptr) return;
  safely([&] { observe::Tracer::get().name_batch(*tensor.unsafeGetTensorImpl(), name); });
}

void Engine::begin(Watched& watched, bool* bad_at_start, StepResult* result) {
  losses_.clear();
  inputs_.clear();
  result->step = watched.steps;
  watched.begin_step(generators_);
  buffers_.begin_step();
  *bad_at_start = false;
  if (watched.has_begun) return;
  watched.has_begun = true;
  watched.largest_at_start = watched.largest_parameter();
  watched.found_finite_at_start();
  name_in_store(watched);
  std::optional<Alarm> alarm = alarm_at_start(watched, buffers_, policy_);
  if (!alarm) return;
  *bad_at_start = decide::vetoes(act(watched, std::move(*alarm), {}, Stepped::kNotYet, result));
}

void Engine::look(Watched& watched, const at::Tensor& returned, StepResult* result, bool written_only) {
  const bool is_reported = !losses_.empty() && losses_.back().tensor == returned.unsafeGetTensorImpl();
  if (returned.defined() && !is_reported) losses_.push_back(look_at_loss(returned));
  watched.look_at_gradients(written_only);
  counters_.gradients_scanned += watched.gradients_read();
  if (!losses_.empty()) result->loss = losses_.back().value;
  if (!watched.unread().empty()) document_.not_watched("gradients on " + watched.unread());
  for (const Loss& loss : losses_) {
    if (!loss.unread.empty()) document_.not_watched("losses on " + loss.unread);
  }
}

StepResult Engine::unwatched(torch::optim::Optimizer& optimizer, const Closure& closure) {
  StepResult result;
  if (searches(optimizer)) {
    optimizer.step(closure);
  } else {
    closure();
    optimizer.step();
  }
  return result;
}

StepResult Engine::step(torch::optim::Optimizer& optimizer, const Closure& closure) {
  if (!closure) {
    StepResult result;
    result.applied = false;
    result.status = Status(StatusCode::kInvalidArgument, "a step without a closure");
    return result;
  }
  if (again_ != nullptr) {  // within the second run of another: it was taken in the first
    if (!searches(optimizer)) closure();
    return {};
  }
  if (inside_) {
    safely([&] { document_.not_watched("steps within the closure of another step"); });
    return unwatched(optimizer, closure);
  }
  const Inside here(&inside_);
  return judged(optimizer, closure);
}

StepResult Engine::judged(torch::optim::Optimizer& optimizer, const Closure& closure) {
  StepResult result;
  Watched* watched = nullptr;
  bool bad_at_start = false;
  if (!on_ || !safely([&] {
        watched = &of(optimizer);
        begin(*watched, &bad_at_start, &result);
      })) {
    return unwatched(optimizer, closure);
  }
  if (bad_at_start) {
    ++watched->steps;
    ++counters_.steps;
    return result;
  }
  if (searches(optimizer)) return search(*watched, closure);
  at::Tensor returned;
  try {
    returned = closure();
  } catch (const std::exception& e) {
    look_at_thrown(*watched, e.what());
    throw;
  } catch (...) {
    look_at_thrown(*watched, "");
    throw;
  }
  ++counters_.backward_calls;
  bool leave_out = false;
  safely([&] {
    look(*watched, returned, &result);
    const decide::Verdict verdict = judge_step(*watched, buffers_, losses_);
    if (verdict.kind != decide::Verdict::Kind::kAlarm) return;
    const decide::Action action = act(*watched, alarm_of_step(*watched, buffers_, policy_, verdict, losses_),
                                      {&closure, nullptr, returned}, Stepped::kNotYet, &result);
    leave_out = decide::vetoes(action);
    // As if the step had never begun: what it draws and counts is drawn and counted again.
    if (leave_out) put_back(*watched);
    buffers_.settle();
  });
  if (leave_out) {
    ++watched->steps;
    ++counters_.steps;
    return result;
  }
  optimizer.step();
  apply(*watched, &result);
  return result;
}

void Engine::keep(Watched& watched, std::uint64_t step, double loss) {
  // A line search that has converged leaves zero gradients: that is its end, not a fault.
  if (!searches(watched.optimizer()))
    watched.count_zero_gradients(std::ranges::all_of(losses_, [](const Loss& one) { return one.value == 0; }));
  store_step(watched, step, loss);
  for (const signal::Warning& warning : watched.keep_history(step, loss)) {
    if (!incident::is_wanted(warning.what, options_.warnings)) continue;
    const auto entry = incident::to_json(warning, watched.names(), watched.class_name());
    document_.add_warning(entry);
    if (warning.what == signal::What::kOutlier) continue;  // it is over; one that stays is a spike
    if (++warning_lines_ > incident::kMaxWarningLines) continue;
    say("finitude: warning: step " + std::to_string(warning.step) + ": " + entry["text"].get<std::string>() +
        (warning_lines_ == incident::kMaxWarningLines ? "; further warnings are only recorded\n" : "\n"));
  }
}

void Engine::apply(Watched& watched, StepResult* result) {
  ++watched.steps;
  ++counters_.steps;
  if (!on_) return;
  safely([&] {
    if (!result->alarm) keep(watched, result->step, result->loss);
    if (watched.damaged) return;
    const std::int64_t bad = watched.look_at_written();
    if (bad < 0) return;
    if (result->alarm) {  // a bad step that was let through
      watched.damaged = true;
      return;
    }
    Alarm alarm = alarm_of_written(watched, policy_, static_cast<std::size_t>(bad), result->loss);
    alarm.step = result->step;
    act(watched, std::move(alarm), {}, Stepped::kAlready, result);
    watched.damaged = true;
  });
}

StepResult Engine::search(Watched& watched, const Closure& closure) {
  StepResult result;
  result.step = watched.steps;
  std::unique_ptr<SearchState> before;
  if (!safely([&] { before = std::make_unique<SearchState>(watched.optimizer()); })) {
    return unwatched(watched.optimizer(), closure);
  }
  // Its evaluations are not sinks: what it returns and leaves is judged.
  at::Tensor returned;
  try {
    returned = watched.optimizer().step(closure);
  } catch (const std::exception& e) {
    if (look_at_thrown(watched, e.what())) safely([&] { before->put_back(); });
    throw;
  } catch (...) {
    if (look_at_thrown(watched, "")) safely([&] { before->put_back(); });
    throw;
  }
  ++counters_.backward_calls;
  bool leave_out = false;
  safely([&] {
    losses_.clear();
    look(watched, returned, &result);
    decide::Verdict verdict = judge_step(watched, buffers_, losses_);
    Alarm alarm;
    if (verdict.kind == decide::Verdict::Kind::kAlarm) {
      verdict.harmless = false;  // the optimizer has gone by that loss already
      alarm = alarm_of_step(watched, buffers_, policy_, verdict, losses_);
    } else {
      ++watched.steps;  // all parameters of the first steps, else a slice
      const std::int64_t bad = watched.look_at_written();
      --watched.steps;
      if (bad < 0) return;
      alarm = alarm_of_written(watched, policy_, static_cast<std::size_t>(bad), result.loss);
      alarm.births.clear();
    }
    alarm.weights_damaged = false;  // they are put back
    leave_out =
        decide::vetoes(act(watched, std::move(alarm), {&closure, before.get(), returned}, Stepped::kNotYet, &result));
    if (leave_out) {
      before->put_back();
      put_back(watched);
    }
    buffers_.settle();
  });
  if (leave_out) {
    ++watched.steps;
    ++counters_.steps;
  } else {
    apply(watched, &result);
  }
  return result;
}

void Engine::put_back(Watched& watched) {
  generators_.put_back(watched.generators_at_start());
  buffers_.put_back();
}

StepResult Engine::gate(torch::optim::Optimizer& optimizer, const at::Tensor& loss) {
  StepResult result;
  safely([&] {
    if (!on_) return;
    Watched& watched = of(optimizer);
    bool bad_at_start = false;
    begin(watched, &bad_at_start, &result);
    look(watched, loss, &result);
    if (!bad_at_start) {
      const decide::Verdict verdict = judge_step(watched, buffers_, losses_);
      if (verdict.kind == decide::Verdict::Kind::kAlarm) {
        Alarm alarm = alarm_of_step(watched, buffers_, policy_, verdict, losses_);
        alarm.cause.text = "the step was not run again: Recorder::gate is given no closure";
        act(watched, std::move(alarm), {}, Stepped::kNotYet, &result);
        buffers_.settle();
      } else {
        keep(watched, watched.steps, result.loss);
      }
    }
    ++watched.steps;
    ++counters_.steps;
  });
  return result;
}

decide::Action Engine::act(Watched& watched, Alarm alarm, const Again& again, Stepped stepped, StepResult* result) {
  const std::string kind = alarm.sink.kind;
  const bool harmless = alarm.harmless;
  decide::SinkKind sink = decide::SinkKind::kGradient;
  for (const auto known :
       {decide::SinkKind::kLoss, decide::SinkKind::kParameter, decide::SinkKind::kState, decide::SinkKind::kBuffer}) {
    if (decide::report_word(known) == kind) sink = known;
  }
  // Should our own work fail from here on, what was decided still holds.
  if (again.closure != nullptr && (second_runs_.take(sink, harmless, false, false) ||
                                   (policy_ != decide::Policy::kWarn && second_runs_.take_in_place()))) {
    safely([&] { explain(watched, alarm, again); });
  } else if (again.closure != nullptr) {
    alarm.cause.text = policy_ == decide::Policy::kRaise ? "the step was not run again: the policy is raise"
                                                         : "the step was not run again: alarms before this one were";
  }
  const decide::Action action = machine_.on_alarm(watched.ordinal(), alarm.step, harmless);
  safely([&] { alarm.onset = incident::onset_of(watched.applied(), document_.warnings(), watched.class_name()); });
  result->alarm = true;
  result->applied = stepped == Stepped::kAlready || (stepped == Stepped::kNotYet && !decide::vetoes(action));
  if (result->applied && !harmless) alarm.weights_damaged = true;
  report_action(alarm, action, result->applied);
  if (stepped == Stepped::kAlready && action == decide::Action::kSkip) alarm.action = "reported, the step is applied";
  if (stepped == Stepped::kThrown) alarm.action = "the program's own exception";
  if (decide::ends(action)) {
    if (const std::string beyond = machine_.beyond(watched.ordinal()); !beyond.empty()) alarm.text += "; " + beyond;
    result->status = Status(StatusCode::kStopped, "step " + std::to_string(alarm.step) + ": " + alarm.text);
  }
  safely([&] {
    document_.add_alarm(alarm);
    // A program that stops here need not come to finish().
    report_unwritten(write_reports());
    say(show::terminal(document_.of_alarm(document_.settled(alarm), counters_), {}));
  });
  return action;
}

}  // namespace finitude::recorder
