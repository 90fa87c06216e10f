#include "cli/replay/replay_options.h"

#include <charconv>
#include <functional>
#include <map>
#include <optional>
#include <utility>

namespace finitude::cli {
namespace {

bool number(const std::string& text, int* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size() && *value >= 1 && *value <= 1024;
}

bool core(const std::string& text, std::optional<int>* value) {
  int found = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), found);
  const bool is_number = error == std::errc() && end == text.data() + text.size() && found >= 0;
  *value = is_number ? found : -1;
  return is_number || text == "any";
}

bool seconds(const std::string& text, int* value) {
  constexpr int kDays = 7 * 24 * 3600;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size() && *value >= 1 && *value <= kDays;
}

// An option that another one would leave without effect is reported of.
std::string at_odds(const ReplayOptions& o) {
  const std::map<std::string, bool> given = {{"--report", o.report},
                                             {"--script", !o.script.empty()},
                                             {"--check", o.check},
                                             {"--stress", o.stress},
                                             {"--perturb", !o.perturb.empty()},
                                             {"--unfused", o.unfused},
                                             {"--step-through", o.step_through},
                                             {"--stop-at", !o.stop_at.empty()},
                                             {"--break", !o.break_at.empty()},
                                             {"--save-tensors", !o.save_tensors.empty()},
                                             {"--dtype", !o.play.dtype.empty()},
                                             {"--threads", o.play.threads > 0},
                                             {"--times", o.times > 1}};
  const std::vector<std::string> looks = {"--step-through", "--stop-at", "--break", "--save-tensors", "--dtype"};
  struct Rule {
    std::string option, does;
    std::vector<std::string> without;  // besides `looks`
  };
  const Rule rules[] = {
      {"--report",
       "shows what the run said of the step, and computes nothing",
       {"--script", "--check", "--stress", "--perturb", "--unfused", "--times"}},
      {"--script", "writes the call of the birth", {"--check", "--stress", "--perturb", "--unfused", "--times"}},
      {"--check", "computes the step once and says one line", {"--stress", "--perturb", "--unfused", "--times"}},
      {"--stress", "compares cores, each with one thread", {"--perturb", "--unfused", "--threads"}},
      {"--perturb", "compares the step with itself", {"--unfused", "--times"}},
  };
  for (const Rule& rule : rules) {
    if (!given.at(rule.option)) continue;
    std::vector<std::string> without = rule.without;
    without.insert(without.end(), looks.begin(), looks.end());
    for (const std::string& name : without) {
      if (given.at(name)) return rule.option + " " + rule.does + ": leave " + name + " out";
    }
  }
  for (const char* name : {"--stop-at", "--break", "--dtype"}) {
    if (o.unfused && given.at(name))
      return std::string("--unfused computes the whole step by plain operations: leave ") + name + " out";
  }
  if (!o.at.empty() && o.perturb.empty()) return "--at says where --perturb changes something: which --perturb?";
  if (o.timeout > 0 && !o.stress && o.perturb.empty()) return "--timeout is of --stress, --perturb and --with";
  if (o.stress && !o.imported.empty())
    return "--stress plays in processes without Python: name the library of the operators with --library";
  return "";
}

}  // namespace

std::string parse_replay(const std::vector<std::string>& words, ReplayOptions* options) {
  const auto text = [](std::string* into) {
    return [into](const std::string& value) { return *into = value, !value.empty(); };
  };
  const auto one_of = [](std::string* into, std::vector<std::string> known) {
    return [into, known](const std::string& value) {
      *into = value;
      for (const std::string& k : known) {
        if (k == value) return true;
      }
      return false;
    };
  };
  const std::map<std::string, std::function<bool(const std::string&)>> with_value = {
      {"--threads", [&](const std::string& v) { return number(v, &options->play.threads); }},
      {"--times", [&](const std::string& v) { return number(v, &options->times); }},
      {"--allow", [&](const std::string& v) { return options->play.namespaces.push_back(v), !v.empty(); }},
      {"--imported",
       [&](const std::string& v) {
         return options->imported.push_back(v), !v.empty();
       }},  // by `finitude replay`, not by people
      {"--library", [&](const std::string& v) { return options->libraries.push_back(v), !v.empty(); }},
      {"--stop-at", text(&options->stop_at)},
      {"--break", text(&options->break_at)},
      {"--save-tensors", text(&options->save_tensors)},
      {"--script", text(&options->script)},
      {"--dtype", one_of(&options->play.dtype, {"float32", "float64", "bfloat16"})},
      {"--device", one_of(&options->play.device, {"cpu", "cuda"})},
      {"--perturb", one_of(&options->perturb, {"noise", "float64", "float32", "layout", "unfused", "deterministic"})},
      {"--at", text(&options->at)},
      {"--timeout", [&](const std::string& v) { return seconds(v, &options->timeout); }},
      {"--player", text(&options->player)},                                             // by `finitude replay`
      {"--on-core", [&](const std::string& v) { return core(v, &options->on_core); }},  // by --stress
  };
  bool only_paths = false;  // after --
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--" && !only_paths) {
      only_paths = true;
      continue;
    }
    if (only_paths) {
      if (!options->capsule.empty()) return "one capsule at a time";
      options->capsule = word;
      continue;
    }
    const std::size_t equals = word.starts_with("--") ? word.find('=') : std::string::npos;  // --threads=2
    const std::string name = word.substr(0, equals);
    if (const auto option = with_value.find(name); option != with_value.end()) {
      if (equals == std::string::npos && i + 1 >= words.size()) return word + " needs a value";
      const std::string value = equals == std::string::npos ? words[++i] : word.substr(equals + 1);
      if (!option->second(value)) return name + " cannot be " + value;
    } else if (word == "--step-through") {
      options->step_through = true;
    } else if (word == "--check") {
      options->check = true;
    } else if (word == "--report") {
      options->report = true;
    } else if (word == "--stress") {
      options->stress = true;
    } else if (word == "--unfused") {
      options->unfused = true;
    } else if (word == "--no-progress") {  // by `finitude replay --quiet`
      options->shows_progress = false;
    } else if (word == "--deterministic") {
      options->play.deterministic = true;
    } else if (word.starts_with("-")) {
      return "unknown option " + word;
    } else if (!options->capsule.empty()) {
      return "one capsule at a time";
    } else {
      options->capsule = word;
    }
  }
  if (options->capsule.empty()) return "which capsule?";
  if (options->play.device == "cuda" && (!options->play.dtype.empty() || !options->script.empty()))
    return std::string(options->script.empty() ? "--dtype" : "--script") +
           " computes on the CPU: leave --device cuda out";
  if (const std::string why = at_odds(*options); !why.empty()) return why;
  if (!options->stop_at.empty() && !options->break_at.empty()) return "--stop-at or --break, not both";
  return "";
}

std::string replay_usage(const std::string& program) {
  return "usage: " + program + " [options] CAPSULE\n" +
         R"(Issues the calls of a recorded step again and compares loss, gradients and all
else that was recorded, bit by bit.
CAPSULE is the folder of a capsule, or the file of a tape that holds its inputs
itself. Options marked with * are those of `finitude replay` only, which without
a CAPSULE takes the newest one in finitude-runs.

  --threads N           with so many threads; as many as there were by default
  --allow NAMESPACE     operators of this library may be called; aten always
  --library FILE.so     load this library of operators first; those that it
                        registers may be called too. As often as needed
  --import MODULE     * import this Python module first, likewise
  --times N             so often; every time has to come out the same
  --deterministic       with deterministic kernels only
  --unfused             fused operators by plain operations, where known
  --dtype float32|float64|bfloat16   all floating numbers in this dtype
                        (bfloat16: all that were float16): are the same results
                        non-finite, and how far apart is the rest?
  --device cpu|cuda     where; otherwise where it was recorded, if there is such
                        a device here, or on the CPU. On another device the bits
                        may differ: how far is reported
  --stress              on every CPU core with one thread (of a step of a GPU:
                        on every GPU), --times N (4) plays each: which core
                        computes other bits than the others?
  --perturb HOW         calls are computed in another way: how far do loss and
                        gradients move? HOW: noise (inputs times 1 + at most
                        2 ulps), float64, float32, layout (inputs with other
                        strides), unfused, deterministic. Every operator in
                        turn, and a table; with --at only what that names
  --at WHERE            calls for --perturb: as CALL below, all of an operator
                        (log), of a line (model.py:87) or of a module (head)
  --timeout SECONDS     for the whole of --stress or --perturb (600)
  --report              show the report of the step, and compute nothing
  --check               once, and one line that says how it came out, as
                        "replay" in capsule.json does
  --step-through        a line for each call: what it gave, and the line of the
                        program
  --stop-at CALL        end after this call and show what it read and gave.
                        CALL: its number, a name (aten::log or log), or name#k,
                        the k-th call of it
  --save-tensors FILE   the results as a safetensors file; with --stop-at what
                        that call read and gave
  --script FILE.py      write a PyTorch script of the call in which the bad
                        value was born, with its inputs
  --break CALL        * as --stop-at, then a Python prompt with the tensors
  --with "COMMAND"    * puts this step into another program and says whether it
                        is fixed there: is the change the cure?
                        (--timeout SECONDS (3600) for the whole of it)
  --against "COMMAND" * the unchanged program, for --with: the change is a fix
                        only if all values that the birth did not touch keep
                        their bits
  --json              * the outcome as JSON
  -q, --quiet         * only the exit code, failures, and --json where given

The folder of a run of several ranks: each rank's capsule, one after another.
All ranks together, with their collective operations issued again (*; another
rank is waited for 60 s, or --timeout SECONDS):
  torchrun --standalone --nproc-per-node N -m finitude replay RUN

Exit codes: 0 the same bits, or the same class of failure; 1 not reproduced;
2 usage; 3 it is unreadable or corrupt; 4 it cannot be replayed here.
)";
}

}  // namespace finitude::cli
