#include "cli/replay/replay_command_torch.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "capture/capsule.h"
#include "capture/packed_capsule.h"
#include "capture/recorded_step.h"
#include "cli/replay/replay_distance.h"
#include "cli/replay/replay_exit.h"
#include "cli/replay/replay_perturb_torch.h"
#include "cli/replay/replay_stress_torch.h"
#include "replay/crash_line_posix.h"
#include "replay/tape_calls.h"
#include "replay/tape_compare_torch.h"
#include "replay/tape_device_torch.h"
#include "replay/tape_libraries_torch.h"
#include "replay/tape_perturb_torch.h"
#include "replay/tape_save_torch.h"
#include "replay/tape_script_torch.h"
#include "replay/tape_verdict.h"
#include "replay/tape_walk_torch.h"
#include "show/capsule_report.h"
#include "show/printable.h"
#include "show/show.h"

namespace finitude::cli {
namespace {

using replay::Played;
using replay::Reported;
using replay::Say;

// Several that look on at once.
class Observers : public replay::PlayObserver {
 public:
  void add(replay::PlayObserver* one) { all_.push_back(one); }
  replay::PlayObserver* get() { return all_.empty() ? nullptr : this; }
  void change(std::size_t index, const c10::FunctionSchema& schema, std::vector<c10::IValue>& arguments) override {
    for (auto* one : all_) one->change(index, schema, arguments);
  }
  std::optional<std::vector<c10::IValue>> computed(const replay::PlayedCall& call) override {
    for (auto* one : all_) {
      if (auto results = one->computed(call)) return results;
    }
    return std::nullopt;
  }
  void before(const replay::PlayedCall& call) override {
    for (auto* one : all_) one->before(call);
  }
  bool after(const replay::PlayedCall& call) override {
    bool goes_on = true;
    for (auto* one : all_) goes_on = one->after(call) && goes_on;
    return goes_on;
  }
  void outcome(std::size_t index, const at::Tensor& tensor) override {
    for (auto* one : all_) one->outcome(index, tensor);
  }

 private:
  std::vector<replay::PlayObserver*> all_;
};

class Command {
 public:
  Command(const ReplayOptions& options, const Say& out, const Say& err, StoppedCall* stopped)
      : options_(options), out_(out), err_(err), stopped_(stopped) {}

  // A file that a replay does not read may be damaged as well.
  int run() {
    const int code = run_sound();
    std::error_code error;
    const bool is_capsule = std::filesystem::is_directory(options_.capsule, error) ||
                            capture::is_packed_capsule(options_.capsule);  // else a tape
    if ((code != kDone && code != kNotReproduced) || options_.check || options_.on_core || !is_capsule) return code;
    const std::vector<std::string> damage = capture::capsule_damage(options_.capsule);
    for (const std::string& why : damage) err_(options_.capsule + ": " + why + "\n");
    return damage.empty() ? code : kUnreadable;
  }

 private:
  int run_sound() {
    if (const std::string why = replay::load_operators(options_.libraries, &options_.play.namespaces); !why.empty()) {
      err_(why + "\n");
      return kUnreadable;
    }
    nlohmann::json about;
    if (const Status status = capture::read_recorded_step(options_.capsule, &about, &tape_); !status.ok()) {
      err_(options_.capsule + " " + status.why() + "\n");
      return kUnreadable;
    }
    if (options_.report) return report(about);
    namespace fs = std::filesystem;
    for (const fs::path& file : {fs::path(options_.save_tensors), fs::path(options_.script),
                                 fs::path(options_.script).replace_extension(".safetensors")}) {
      if (!would_replace_part(file)) continue;
      err_(file.string() + " is a file of the capsule itself: name another one\n");
      return kUsage;
    }
    if (about.contains("redacted") && about["redacted"] != false) {
      err_(options_.capsule +
           " was made with --redact: it holds no values, so it cannot be replayed. `finitude dump` shows "
           "the statistics of its operations\n");
      return kCannotHere;
    }
    if (options_.check) return checked();
    if (options_.on_core) return play_on_core(options_, tape_, out_, err_);
    if (options_.stress) return run_stress(options_, tape_, out_, err_);
    const bool on_cpu =
        !options_.play.dtype.empty() || !options_.script.empty();  // what converts, and what is written as numbers
    const replay::DeviceMap devices = replay::map_devices(tape_, on_cpu ? "cpu" : options_.play.device);
    if (!devices.missing.empty()) {
      err_(devices.missing + "\n");
      return kCannotHere;
    }
    out_(replay::report_devices(tape_, devices, !options_.play.device.empty() || on_cpu));
    elsewhere_ = devices.elsewhere;
    if (!options_.script.empty()) return script(about);
    if (!options_.perturb.empty()) return run_perturb(options_, tape_, out_, err_);
    const std::string& word = options_.stop_at.empty() ? options_.break_at : options_.stop_at;
    if (!word.empty()) return stop_at(word);
    int code = kDone;
    for (int i = 0; i < std::max(options_.times, 1) && code != kCannotHere; ++i)
      code = std::max(code, options_.play.dtype.empty() ? replayed() : retyped());
    return code;
  }

  bool would_replace_part(const std::filesystem::path& file) const {
    std::error_code error;
    const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
    return file.has_filename() && std::filesystem::is_regular_file(file, error) &&
           std::filesystem::is_directory(options_.capsule, error) &&
           std::filesystem::equivalent(folder, options_.capsule, error);
  }

  int say(const Reported& reported) {
    (reported.code == kCannotHere ? err_ : out_)(reported.text);
    return reported.code;
  }

  int checked() {
    const std::string how = replay::outcome_of(replay::play(tape_, options_.play));
    out_(how.substr(0, how.find('\n')) + "\n");
    return how == "identical" ? kDone : kNotReproduced;
  }

  // A call without a deterministic kernel says so by failing.
  int report_failure(const Played& played) {
    Reported reported = replay::report_runs({played}, tape_);
    if (options_.play.deterministic && played.why_not.find("deterministic") != std::string::npos)
      reported.code = kCannotHere;
    if (played.waited) reported.code = kCannotHere;
    return say(reported);
  }
  static bool has_failed(const Played& played) { return !played.missing.empty() || !played.why_not.empty(); }

  int save(const std::vector<replay::NamedTensor>& tensors) {
    if (options_.save_tensors.empty()) return kDone;
    const Status status = replay::save_tensors(options_.save_tensors, tensors);
    if (status.ok()) return kDone;
    err_(options_.save_tensors + " " + status.why() + "\n");
    return kCannotHere;
  }

  int replayed() {
    replay::EveryCall every(tape_, out_);
    replay::KeepOutcomes kept(tape_);
    replay::PerturbedCalls unfused(tape_, replay::Perturb::kUnfused, all_calls());
    Observers observers;
    if (options_.unfused) observers.add(&unfused);  // first: the others see what it gives
    if (options_.step_through) observers.add(&every);
    if (!options_.save_tensors.empty()) observers.add(&kept);
    std::vector<Played> runs{replay::play(tape_, options_.play, observers.get())};
    // The other ranks do not know that the bits of this one differ: they would not play again.
    while (!options_.play.together && !replay::is_decided(runs)) {
      replay::PerturbedCalls again(tape_, replay::Perturb::kUnfused, all_calls());
      runs.push_back(replay::play(tape_, options_.play, options_.unfused ? &again : nullptr));
    }
    if (has_failed(runs[0])) return report_failure(runs[0]);
    Reported reported = replay::report_runs(runs, tape_);
    if (!runs[0].identical()) reported.text += report_distances(tape_, runs[0]);
    if (elsewhere_) reported.text += report_ways(runs[0]);
    if (options_.unfused) reported.text += report_unfused(unfused);
    return std::max(say(reported), save(kept.outcomes));
  }

  // Only --unfused asks for them.
  std::vector<std::size_t> all_calls() const {
    std::vector<std::size_t> calls;
    for (std::size_t i = 0; options_.unfused && i < tape_.entries.size(); ++i) {
      if (tape_.entries[i].kind == capture::Entry::kCall) calls.push_back(i);
    }
    return calls;
  }

  static std::string report_unfused(const replay::PerturbedCalls& unfused) {
    std::string names, text;
    for (const auto& [name, count] : unfused.done())
      names += (names.empty() ? "" : ", ") + name + (count > 1 ? " (" + std::to_string(count) + " calls)" : "");
    text = names.empty() ? "no call of this step has a plain form\n" : "computed by plain operations: " + names + "\n";
    for (const auto& [name, why] : unfused.as_usual()) text += "computed as usual: " + name + " (" + why + ")\n";
    return text;
  }

  bool has_float16() const {
    bool found = false;
    for (const capture::Entry& entry : tape_.entries) {
      for (const auto* values : {&entry.args, &entry.results}) {
        capture::for_each_tensor(*values, [&](const capture::TensorRef& t) {
          found = found || t.dtype == static_cast<std::uint8_t>(c10::ScalarType::Half);
        });
      }
    }
    return found;
  }

  int retyped() {
    if (options_.play.dtype == "bfloat16" && !has_float16()) {
      err_("bfloat16 takes the place of float16, which this step does not have: nothing would be computed otherwise\n");
      return kCannotHere;
    }
    replay::PlayOptions as_it_was = options_.play;
    as_it_was.dtype.clear();
    replay::KeepOutcomes usual(tape_), changed(tape_);
    if (const Played played = replay::play(tape_, as_it_was, &usual); has_failed(played)) return report_failure(played);
    replay::EveryCall every(tape_, out_);
    Observers observers;
    observers.add(&changed);
    if (options_.step_through) observers.add(&every);
    const Played played = replay::play(tape_, options_.play, observers.get());
    if (has_failed(played)) return report_failure(played);
    return std::max(say(replay::compare_dtypes(options_.play.dtype, usual.outcomes, changed.outcomes, played)),
                    save(changed.outcomes));
  }

  int stop_at(const std::string& word) {
    std::string why;
    const std::optional<std::size_t> index = replay::find_call(tape_, word, &why);
    if (!index) {
      err_(why + "\n");
      return kUsage;
    }
    replay::EveryCall every(tape_, out_);
    replay::StopAt stop(*index);
    Observers observers;
    if (options_.step_through) observers.add(&every);
    observers.add(&stop);
    const Played played = replay::play(tape_, options_.play, observers.get());
    if (has_failed(played)) return report_failure(played);
    out_(replay::report_stop(tape_, stop));
    std::vector<replay::NamedTensor> both;
    for (const auto& input : stop.inputs) both.push_back({"input." + input.name, input.tensor});
    for (const auto& output : stop.outputs) both.push_back({"output." + output.name, output.tensor});
    if (stopped_ != nullptr) *stopped_ = {true, stop.inputs, stop.outputs};
    return save(both);
  }

  int report(const nlohmann::json& about) {
    constexpr int kWidth = 80;
    nlohmann::json report;
    if (const std::string why = show::report_of_capsule(about, options_.capsule, report); !why.empty()) {
      err_(options_.capsule + " " + why + "\n");
      return kUnreadable;
    }
    out_(show::terminal(report, {false, kWidth, true}));
    return kDone;
  }

  int script(const nlohmann::json& about) {
    Played played;
    replay::PlayOptions play = options_.play;
    play.device = "cpu";
    const Status status =
        replay::write_script(options_.script, tape_, about, play, {options_.imported, options_.libraries}, &played);
    if (has_failed(played)) return report_failure(played);
    if (!status.ok()) {
      err_(options_.script + " " + status.why() + "\n");
      return kCannotHere;
    }
    out_("written: " + options_.script + "\n");
    return kDone;
  }

  ReplayOptions options_;
  const Say& out_;
  const Say& err_;
  StoppedCall* const stopped_;
  capture::Tape tape_;
  bool elsewhere_ = false;
};

// A capsule names operators, results and lines of a program as it likes. The layout of lines and columns is ours.
Say printable(const Say& say) {
  return [&say](std::string_view text) {
    std::string shown;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.find_first_of("\n\t", at), text.size());
      shown += show::printable(text.substr(at, end - at));
      if (end < text.size()) shown += text[end];
      at = end + 1;
    }
    say(shown);
  };
}

}  // namespace

int run_replay(const ReplayOptions& options, const Say& out, const Say& err) {
  return run_replay(options, out, err, nullptr);
}

int run_replay(const ReplayOptions& options, const Say& out, const Say& err, StoppedCall* stopped) {
  const Say shown = printable(out), reported = printable(err);
  const replay::CrashLine crash(kUnreadable);
  return Command(options, shown, reported, stopped).run();
}

}  // namespace finitude::cli
