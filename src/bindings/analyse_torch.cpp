// Where the bad value was born and why, reported of the trace that was taken; and, where the step is on a tape as well,
// what came of trying the fix on it.
#include "bindings/analyse_python.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "bindings/own_rules_python.h"
#include "bindings/tape_python.h"
#include "explain/explain.h"
#include "explain/fill.h"
#include "explain/guard_damage.h"
#include "explain/made.h"
#include "explain/stream_race.h"
#include "gate/script_nan_checks_torch.h"
#include "gate/window_torch.h"
#include "locate/last_seen.h"
#include "locate/script_nodes.h"
#include "observe/stream_watch_torch.h"
#include "observe/tracer_torch.h"
#include "observe/zoned_memory_torch.h"
#include "pyhost/is_tensor_torch.h"
#include "pyhost/tensor_subclass_torch.h"
#include "replay/fill_unwritten_torch.h"
#include "replay/lab_torch.h"
#include "replay/replay_values_torch.h"
#include "replay/step_lab_torch.h"
#include "replay/unseen_bytes_torch.h"
#include "show/analysis.h"
#include "show/findings.h"
#include "standby/bound_template_torch.h"
#include "standby/open_tape_torch.h"

namespace finitude::bindings {
namespace {

namespace py = pybind11;
using nlohmann::json;

double as_double(const json& j, const char* key, double fallback) {
  const auto it = j.find(key);
  if (it == j.end()) return fallback;
  if (it->is_number()) return it->get<double>();
  if (!it->is_string()) return fallback;
  const auto& s = it->get_ref<const std::string&>();
  return s == "NaN" ? NAN : s == "Infinity" ? INFINITY : s == "-Infinity" ? -INFINITY : fallback;
}

explain::StepHistory history_from(const std::string& text) {
  explain::StepHistory h;
  const json j = json::parse(text, nullptr, false);
  if (!j.is_object()) return h;
  for (const auto& point : j.value("points", json::array())) {
    h.loss.push_back(as_double(point, "loss", 0));
    h.grad_absmax.push_back(as_double(point, "grad", 0));
    h.learning_rate.push_back(as_double(point, "lr", 0));
  }
  for (const auto& value : j.value("param_absmax", json::array())) {
    if (value.is_number()) h.param_absmax.push_back(value.get<double>());
  }
  h.lr_now = as_double(j, "lr_now", 0);
  h.lr_least = as_double(j, "lr_least", 0);
  h.half_parameters = j.value("half_parameters", false);
  h.scaler_active = j.value("scaler_active", false);
  h.scale = as_double(j, "scale", 0);
  h.left_scale = as_double(j, "left_scale", 0);
  h.scaler_skips_in_row = j.value("scaler_skips_in_row", 0u);
  h.optimizer = j.value("optimizer", "");
  h.optimizer_eps = as_double(j, "optimizer_eps", 0);
  for (const auto& count : j.value("samples", json::array())) {
    if (count.is_number_integer()) h.samples.push_back(count.get<std::int64_t>());
  }
  return h;
}

// Asks Python: a list of (name, parameter, values before), or a text that says why that is not known.
replay::LastUpdate ask_last_update(const py::object& last) {
  const py::gil_scoped_acquire gil;
  replay::LastUpdate update;
  try {
    const py::object reported = last();
    if (py::isinstance<py::str>(reported)) {
      update.why_not = reported.cast<std::string>();
      return update;
    }
    const auto tensor = [](const py::handle& item) {
      if (!is_tensor_object(item.ptr())) throw py::type_error("no tensor");
      return local_of(THPVariable_Unpack(item.ptr()));
    };
    for (const py::handle& item : py::list(reported)) {
      const auto change = py::reinterpret_borrow<py::tuple>(item);
      update.changes.push_back({change[0].cast<std::string>(), tensor(change[1]), tensor(change[2])});
    }
  } catch (const std::exception& e) {  // of a state that is not what it should be
    update.changes.clear();
    update.why_not = e.what();
  }
  return update;
}

constexpr int kMoreReplays = 2;  // of a step that came out with other bits, to see whether that is chance

// The trace gets its values from a replay of the tape. reported: why_not, or "" and the verdict on the step. False: it
// has none. is_own: the tape is that of the step; else that of one before it, and no other bits will do.
bool fill_from(capture::Tape* tape, bool is_own, observe::Tracer& tracer, record::Trace* trace, json* reported) {
  std::string why;
  replay::Played played;
  if (tape == nullptr)
    why = "nothing was recorded";
  else if (!tape->gaps.empty())
    why = tape->gaps.front();
  else if (trace->truncated)
    why = "the step has too many operations";
  else if (tape->outcomes.empty())
    why = "the step has no loss or gradient to compare a replay with";
  bool varies = false;
  if (why.empty()) {
    replay::report_lines(*trace, tape);
    played = replay::see_again(*tape, tracer, trace);
    if (!played.missing.empty())
      why = "operators of other libraries: " + played.missing.front();
    else if (!played.why_not.empty())
      why = played.why_not;
    else if (trace->truncated)
      why = "the step has too many operations";
  }
  for (int i = 0; is_own && i < kMoreReplays && why.empty() && !played.identical() && !varies; ++i) {
    const replay::Played again = replay::play(*tape, {});
    for (std::size_t o = 0; o < again.outcomes.size(); ++o) varies |= again.outcomes[o].got != played.outcomes[o].got;
  }
  if (why.empty() && !played.identical() && !varies)
    why = is_own ? "a replay of the recorded step comes out with other bits" : "it comes out with other bits";
  *reported = {{"why_not", why},
               {"verified", played.identical()},
               {"verdict", varies ? "order-dependent" : "persistent"},
               {"bad_again", !played.bad().empty()},
               {"refused", tape == nullptr ? std::vector<std::string>() : tape->refused}};
  return why.empty();
}

// What the script dropped is a sink where nothing else of the step is bad: else the step failed by something else.
void settle_dropped(record::Trace* trace) {
  constexpr std::string_view kDropped = kDroppedByScript;
  const auto is_dropped = [&](const record::Sink& sink) { return std::string_view(sink.kind).starts_with(kDropped); };
  const bool others = std::ranges::any_of(trace->sinks, [&](const record::Sink& sink) {
    return !is_dropped(sink) && sink.kind != kLeftByBackward && sink.kind != "start" && !sink.value.health.ok();
  });
  if (others) std::erase_if(trace->sinks, is_dropped);
  for (record::Sink& sink : trace->sinks)
    if (is_dropped(sink)) sink.kind.erase(0, kDropped.size());
}

// Gradients as a backward left them are sinks where nothing else of the step is bad: the script has clamped them since,
// and a clamp is no veto. Those of the last backward, which added up what the others left. True: they are the sinks.
bool settle_gradients(record::Trace* trace) {
  std::uint64_t last = 0;
  bool others = false;
  for (const record::Sink& sink : trace->sinks) {
    if (sink.kind == kLeftByBackward)
      last = std::max<std::uint64_t>(last, sink.at_end_order);
    else
      others |= !sink.value.health.ok();
  }
  std::erase_if(trace->sinks, [&](const record::Sink& sink) {
    return sink.kind == kLeftByBackward && (others || sink.at_end_order != last);
  });
  bool kept = false;
  for (record::Sink& sink : trace->sinks) {
    if (sink.kind != kLeftByBackward) continue;
    sink.kind = "gradient";
    kept = true;
  }
  return kept;
}

// Of memory that the program began with (a sink of kind "start"), which call made it, and whether anything has written
// it since.
json take_start(record::Trace* trace) {
  json reported;
  for (const record::Sink& sink : trace->sinks) {
    if (sink.kind != "start") continue;
    const auto made = explain::made_of(*trace, sink.value);
    const bool unwritten = made && made->unwritten;
    locate::Birth birth;
    birth.op = unwritten ? made->op : explain::allocation_of(*trace, sink.value);
    birth.kind = "memory";
    if (birth.op != record::kNone) reported = {{"unwritten", unwritten}, {"birth", show::birth(*trace, birth)}};
  }
  std::erase_if(trace->sinks, [](const record::Sink& sink) { return sink.kind == "start"; });
  return reported;
}

// Of a step that was bad in its first run and is finite in this one: {births, cause, fix, path} where it depends on
// memory that nobody had written, else null.
json by_chance(const record::Trace& trace, const capture::Tape* tape, double seconds) {
  if (tape == nullptr || !tape->gaps.empty()) return {};
  const auto finding =
      explain::finding_of_chance(replay::fill_unwritten_of_finite(*tape, seconds), trace, replay::judged_in(*tape));
  if (!finding) return {};
  locate::Located located;
  locate::Birth& birth = located.births.emplace_back();
  birth.op = finding->born_in;
  birth.kind = "memory";
  return show::findings(trace, located, *finding);
}

// Where the tensors of this process have guard zones and one is damaged: its findings, which replace those of the
// values. Null: none is.
json by_guards(const record::Trace& trace, const json& out) {
  const auto finding = explain::finding_of_damage(observe::guard_damages(), trace);
  if (!finding) return {};
  locate::Located located;
  if (out["births"].empty() && finding->born_in < trace.ops.size()) {
    locate::Birth& birth = located.births.emplace_back();
    birth.kind = "memory";
    birth.first_reader = finding->born_in;
  }
  json found = show::findings(trace, located, *finding);
  found["guarded"] = out["births"].empty() ? "finite" : "bad";
  if (!out["births"].empty()) {
    found["births"] = out["births"];
    found["path"] = out["path"];
  }
  return found;
}

// Where two streams of a device use the same memory in no order: its findings, which replace those of values that came
// out finite, or of which no more is known than that memory changed. Null: no such memory, or something else is known.
json by_streams(const record::Trace& trace, const json& out) {
  const bool is_finite = out["births"].empty();
  if (!is_finite) {
    const std::string known = out["cause"].value("class", "");
    if (known != "memory-corruption" && known != "uninitialised-memory" && known != "unknown") return {};
  }
  const auto finding = explain::finding_of_races(observe::stream_races(), trace);
  if (!finding) return {};
  locate::Located located;
  if (is_finite && finding->born_in < trace.ops.size()) {
    locate::Birth& birth = located.births.emplace_back();
    birth.kind = "memory";
    birth.first_reader = finding->born_in;
  }
  json found = show::findings(trace, located, *finding);
  found["guarded"] = is_finite ? "finite" : "bad";
  if (!is_finite) {
    found["births"] = out["births"];
    found["path"] = out["path"];
  }
  return found;
}

// Locates and explains the trace taken so far. JSON: births, cause, fix, path, absorbed; ops if asked for.
// swallowed: where nothing bad reached a sink, the overflows that arithmetic took in are the births.
// seconds: the most that experiments with the whole step may take; 0: none are made. last_update: says what the
// optimizer did last, where it is known; None: it is not. several_ranks: what exchanges values with the others is not
// tried again. refused: the program ended by an exception about a value that no name is left for; without another sink,
// the last that was seen is one. Of a sketch, the values are those of a replay of the tape: "tape" says how that came
// out, and nothing else is said where it did not come to the step. was_bad: the step failed in another run. given_away:
// the sinks are what this rank gave other ranks.
std::string analyse(const std::string& history_json, std::size_t want_ops, bool swallowed, double seconds,
                    const py::object& last_update, bool several_ranks, bool refused, bool was_bad, bool given_away) {
  observe::Tracer& tracer = observe::Tracer::get();
  TemplateInHand* const hand = template_in_hand();
  const bool sketch = hand != nullptr || tracer.sketches(), is_own = hand == nullptr;
  // While the trace knows storages by their addresses.
  capture::Tape* const tape = hand != nullptr ? hand->tape() : sketch ? recorded_tape() : nullptr;
  record::Trace trace = hand != nullptr ? std::move(hand->trace) : tracer.take_trace();
  const bool lacks_sink = hand != nullptr && hand->lacks_sink;
  put_template_down();
  // Where a step is recorded that may become a template, a good loss is reported of as well.
  std::erase_if(trace.sinks, [](const record::Sink& sink) { return sink.kind == "loss" && sink.value.health.ok(); });
  json out;
  if (lacks_sink) return json{{"tape", {{"why_not", "it does not compute the value that is bad in this step"}}}}.dump();
  {
    py::gil_scoped_release release;
    json of_tape;
    if (sketch && !fill_from(tape, is_own, tracer, &trace, &of_tape))
      return json{{"tape", of_tape}}.dump(-1, ' ', false, json::error_handler_t::replace);
    json start = take_start(&trace);
    settle_dropped(&trace);
    const bool clamped = settle_gradients(&trace);
    if (refused && std::ranges::all_of(trace.sinks, [](const record::Sink& sink) { return sink.value.health.ok(); }))
      locate::sink_last_seen(&trace);
    if (given_away) locate::sink_given_away(&trace);
    locate::split_script_nodes(&trace);
    const capture::Tape* const recorded = sketch ? tape : recorded_tape();  // takes it: there is none the second time
    if (!sketch) replay::report_unseen_bytes(recorded, tracer, &trace);
    replay::TorchLab lab(tracer, several_ranks);
    show::AnalysisOptions options{want_ops, swallowed};
    options.own_rules = &ask_own_rules;
    options.seconds = seconds;
    std::optional<replay::TorchStepLab> step;
    options.step = [&]() -> replay::StepLab* {
      if (clamped)
        return nullptr;  // what the step comes to is finite, whatever is changed in it: no experiment could fail
      if (recorded == nullptr) return nullptr;
      if (last_update.is_none()) return &step.emplace(*recorded, trace);
      return &step.emplace(*recorded, trace, [&] { return ask_last_update(last_update); });
    };
    out = show::analysis(trace, history_from(history_json), &lab, options);
    if (was_bad && out["births"].empty() && !sketch) {
      if (json chance = by_chance(trace, recorded, seconds); !chance.is_null()) {
        out.update(chance);
        out["by_chance"] = true;
      }
    }
    if (json damaged = by_guards(trace, out); !damaged.is_null())
      out.update(damaged);
    else if (json raced = by_streams(trace, out); !raced.is_null())
      out.update(raced);
    if (sketch) out["tape"] = std::move(of_tape);
    if (!start.is_null()) out["start"] = std::move(start);
    put_statistics_in_hand(trace);
  }
  return out.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace

void define_analyse(py::module_& m) {
  m.def("analyse", &analyse, py::arg("history"), py::arg("want_ops"), py::arg("swallowed"), py::arg("seconds") = 0.0,
        py::arg("last_update") = py::none(), py::arg("several_ranks") = false, py::arg("refused") = false,
        py::arg("was_bad") = false, py::arg("given_away") = false);
}

}  // namespace finitude::bindings
