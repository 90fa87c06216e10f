// Where the bad value was born and why, told of the trace that was taken; and, where the step is on a tape as well,
// what came of trying the fix on it.
#include "bindings/analyse_python.h"

#include <torch/csrc/autograd/python_variable.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "bindings/own_rules_python.h"
#include "bindings/tape_python.h"
#include "explain/explain.h"
#include "observe/tracer_torch.h"
#include "replay/lab_torch.h"
#include "replay/step_lab_torch.h"
#include "show/analysis.h"

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
  h.half_parameters = j.value("half_parameters", false);
  h.scaler_active = j.value("scaler_active", false);
  h.scale = as_double(j, "scale", 0);
  h.scaler_skips_in_row = j.value("scaler_skips_in_row", 0u);
  h.optimizer = j.value("optimizer", "");
  h.optimizer_eps = as_double(j, "optimizer_eps", 0);
  return h;
}

// Asks Python: a list of (name, parameter, values before), or a text that says why that is not known.
replay::LastUpdate ask_last_update(const py::object& last) {
  const py::gil_scoped_acquire gil;
  replay::LastUpdate update;
  try {
    const py::object told = last();
    if (py::isinstance<py::str>(told)) {
      update.why_not = told.cast<std::string>();
      return update;
    }
    const auto tensor = [](const py::handle& item) {
      if (!THPVariable_Check(item.ptr())) throw py::type_error("no tensor");
      return THPVariable_Unpack(item.ptr());
    };
    for (const py::handle& item : py::list(told)) {
      const auto change = py::reinterpret_borrow<py::tuple>(item);
      update.changes.push_back({change[0].cast<std::string>(), tensor(change[1]), tensor(change[2])});
    }
  } catch (const std::exception& e) {  // of a state that is not what it should be
    update.changes.clear();
    update.why_not = e.what();
  }
  return update;
}

// Locates and explains the trace taken so far. JSON: births, cause, fix, path, absorbed; ops if asked for.
// swallowed: where nothing bad reached a sink, the overflows that arithmetic took in are the births.
// seconds: the most that experiments with the whole step may take; 0: none are made. last_update: tells what the optimizer
// did last, where it is known; None: it is not.
std::string analyse(const std::string& history_json, std::size_t want_ops, bool swallowed, double seconds,
                    const py::object& last_update) {
  observe::Tracer& tracer = observe::Tracer::get();
  const record::Trace trace = tracer.take_trace();
  json out;
  {
    py::gil_scoped_release release;
    replay::TorchLab lab(tracer);
    show::AnalysisOptions options{want_ops, swallowed};
    options.own_rules = &ask_own_rules;
    options.seconds = seconds;
    std::optional<replay::TorchStepLab> step;
    options.step = [&]() -> replay::StepLab* {
      const capture::Tape* tape = recorded_tape();
      if (tape == nullptr) return nullptr;
      if (last_update.is_none()) return &step.emplace(*tape, trace);
      return &step.emplace(*tape, trace, [&] { return ask_last_update(last_update); });
    };
    out = show::analysis(trace, history_from(history_json), &lab, options);
  }
  return out.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace

void define_analyse(py::module_& m) {
  m.def("analyse", &analyse, py::arg("history"), py::arg("want_ops"), py::arg("swallowed"), py::arg("seconds") = 0.0,
        py::arg("last_update") = py::none());
}

}  // namespace finitude::bindings
