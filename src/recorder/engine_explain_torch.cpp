// A bad step is explained: by calling its closure once more, or by what there is to see where that cannot be done.
#include <algorithm>
#include <exception>
#include <optional>

#include "incident/sentences.h"
#include "recorder/engine_torch.h"

namespace finitude::recorder {
namespace {

using incident::Alarm;
using incident::Cause;
using nlohmann::json;

std::string first_line(std::string text) {
  text = text.substr(0, text.find('\n'));
  return text.size() > 200 ? text.substr(0, 200) + "..." : text;
}

// The name of the first bad gradient, where all of them may have been bad as the step began and nothing else is. Else
// empty.
std::string carried_gradient(const Watched& watched, const std::vector<Loss>& losses) {
  if (std::any_of(losses.begin(), losses.end(), [](const Loss& loss) { return loss.bad; })) return "";
  std::string first;
  bool all = true;
  watched.for_each([&](std::size_t index, const at::Tensor& p) {
    if (!watched.was_bad(index)) return;
    all &= watched.began_bad(index, p);
    if (first.empty()) first = watched.name_of(index, p);
  });
  return all ? first : "";
}

// The second run came out finite. carried: see above.
void report_finite(Alarm& alarm, const RunFacts& first, const RunFacts& second, const std::string& carried) {
  Cause& cause = alarm.cause;
  if (!carried.empty()) {
    alarm.rerun.text = "closure: it came out finite, with gradients that began without what they held before";
    cause.text = "the gradient of " + carried +
                 " was bad already when the closure began: a backward before it, outside of the closure, "
                 "has added to it, or no zero_grad() came after a bad step. What the closure holds all of is explained";
    return;
  }
  std::string what;
  switch (compare(first, second, &what)) {
    case Sameness::kSame:
      alarm.rerun.outcome = "transient";
      alarm.rerun.by = "closure";
      alarm.rerun.text =
          "the closure was called again; the step came out finite, and what was finite before has the same bits";
      cause.text =
          "it did not come again in the same computation: memory that nothing had written or that another thread "
          "wrote, "
          "or a fault of the machine";
      return;
    case Sameness::kOther:
      alarm.rerun.text = "closure: it computed something else the second time: " + what;
      cause.text = "not known: the closure computed something else the second time (" + what + ")";
      break;
    case Sameness::kUnknown:
      alarm.rerun.text = "closure: it came out finite the second time";
      cause.text =
          "not known: the step came out finite the second time, and nothing that was finite in the first shows whether "
          "the "
          "closure computed the same";
      break;
  }
  if (!first.bad_input.empty()) {
    cause.name = "bad-data";
    cause.confidence = "likely";
    cause.text = first.bad_input + " in the first call of the closure, which was given something else in the second";
  } else {
    cause.text = cause.text + ". A batch or a counter has to be taken outside of it";
  }
}

// What was born before the step began, in a parameter that was finite when it was read last: the optimizer wrote it, or
// the program.
void report_written_before(Watched& watched, Alarm& alarm) {
  if (alarm.births.empty()) return;
  json& birth = alarm.births[0];
  if (birth["phase"] != "state" || alarm.cause.name != "corrupted-state") return;
  const std::string name = birth.value("name", "");
  watched.for_each([&](std::size_t index, const at::Tensor& p) {
    const std::optional<std::uint64_t> finite_after = watched.steps_when_finite(index);
    if (watched.name_of(index, p) != name || !finite_after || is_finite(p)) return;
    watched.damaged = true;
    alarm.weights_damaged = true;
    const std::uint64_t from = *finite_after, to = watched.steps;
    const std::string was = name + " is not finite, and was " +
                            (from == 0 ? "before the first step" : "after step " + std::to_string(from - 1));
    Cause& cause = alarm.cause;
    if (watched.is_written_since_step(index, p)) {
      cause.text = was + ": the program wrote it, after the optimizer's step " +
                   (to == 0 ? "" : std::to_string(to - 1) + " ") + "and outside of any. " + cause.text;
      return;
    }
    const std::string steps = from + 1 >= to
                                  ? "step " + std::to_string(to - 1)
                                  : "one of the steps " + std::to_string(from) + " to " + std::to_string(to - 1);
    cause = Cause();
    cause.name = "optimizer-arithmetic";
    cause.confidence = "likely";
    cause.text = was + ": " + watched.class_name() + " wrote it in " + steps + ", from gradients that were finite";
    alarm.fix.emplace().text =
        "check the optimizer's epsilon and hyper-parameters, and continue from a checkpoint made before " +
        (from + 1 >= to ? steps : "step " + std::to_string(from));
    birth["phase"] = "optimizer";
    birth["op"] = watched.class_name() + "::step";
    for (const char* key : {"file", "source", "module"}) birth[key] = "";  // those of what read it
    birth["line"] = 0;
  });
}

}  // namespace

bool Engine::look_at_thrown(Watched& watched, const char* what) {
  bool leaves_out = false;
  if (!on_) return false;
  safely([&] {
    StepResult result;
    result.step = watched.steps;
    look(watched, at::Tensor(), &result, true);
    const decide::Verdict verdict = judge_step(watched, buffers_, losses_);
    if (verdict.kind != decide::Verdict::Kind::kAlarm) return;
    Alarm alarm = alarm_of_step(watched, buffers_, policy_, verdict, losses_);
    const std::string line = first_line(what);
    alarm.text += "; the program itself threw" + (line.empty() ? "" : ": " + line);
    alarm.cause.text = "the step was not run again: its closure threw";
    leaves_out = decide::vetoes(act(watched, std::move(alarm), {}, Stepped::kThrown, &result));
    buffers_.settle();
  });
  return leaves_out;
}

void Engine::explain(Watched& watched, Alarm& alarm, const Again& again) {
  const Fingerprint first = fingerprint(losses_, watched, generators_);
  const RunFacts facts = facts_of(losses_, again.returned, inputs_, watched, buffers_, generators_);
  const std::string carried = carried_gradient(watched, losses_);
  SecondRun run(watched, generators_, buffers_, again.before);
  const bool keeps = options_.capsules != 0 && !options_.runs.empty();
  if (!run.begin({options_.debug_lines, keeps || options_.experiments > 0 ? options_.capsule_max_bytes : 0},
                 again.returned, watched_)) {
    alarm.rerun.text = "closure: another recorder of this process was explaining a step";
    alarm.cause.text = "the step was not run again: another recorder of this process was explaining one";
    return;
  }
  std::string why;
  at::Tensor returned;
  inputs_again_.clear();
  again_ = &run;
  try {
    returned = again.before != nullptr ? watched.optimizer().step(*again.closure) : (*again.closure)();
  } catch (const std::exception& e) {
    why = std::string("the second run raised ") + e.what();
  } catch (...) {
    why = "the second run raised an exception";
  }
  again_ = nullptr;
  run.end(returned);
  const bool same = why.empty() && run.bits() == first;
  if (why.empty() && !same && !run.failed_again()) {
    report_finite(alarm, facts, facts_of(run.losses(), returned, inputs_again_, watched, buffers_, generators_),
                  carried);
    return;
  }
  if (!why.empty()) {
    const std::string line = first_line(why);
    alarm.rerun.text = "closure: " + line;
    alarm.cause.text = "not known: " + line;
    return;
  }
  alarm.rerun.outcome = "persistent";
  alarm.rerun.by = "closure";
  alarm.rerun.verified = same;
  const bool gradients = std::ranges::any_of(first.gradients, [](std::uint64_t sum) { return sum != 0; });
  const std::string what = incident::parts_of_step(!first.losses.empty(), gradients);
  alarm.rerun.text = std::string("the closure was called again") +
                     (same ? "; " + what + " came out with the same bits" : "; it failed again, with other bits");
  json found = run.analyse(watched.history(), options_.experiments);
  if (!found["births"].empty()) {
    alarm.adopt(found);
  } else {
    alarm.cause.text = "the second run shows no operator that made it";
  }
  report_written_before(watched, alarm);
  if (keeps && options_.capsule_max_bytes != 0) write_capsule(watched, alarm, run);
}

}  // namespace finitude::recorder
