#include "bindings/signal_python.h"

#include <pybind11/stl.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "incident/onset.h"
#include "incident/step_warning.h"
#include "signal/onset.h"
#include "signal/step_watch.h"
#include "standby/step_signals_torch.h"
#include "standby/step_store_torch.h"

namespace finitude::bindings {

namespace py = pybind11;

void define_signal(py::module_& m) {
  m.def("set_signals", &set_signals);
  m.def("open_store", &open_store);
  m.def("close_store", &close_store);
  m.def("name_in_store", &name_in_store);
  m.def("store_tensor", &store_tensor, py::arg("index"), py::arg("name"), py::arg("step"), py::arg("absmax"));
  // (2-norm of all gradients, headroom in bits, growth of the largest gradient) of the last step of that optimizer,
  // given its largest gradient; NaN: not known.
  m.def("step_figures", [](std::uint32_t ordinal, double grad_absmax) {
    const StepFigures figures = figures_of(ordinal, grad_absmax);
    return std::tuple(stored_gradient_norm(ordinal), figures.headroom_bits, figures.gradient_growth);
  });
  m.def("note_event_in_store", &note_event_in_store, py::arg("ordinal"), py::arg("step"), py::arg("event"));
  // (index of the last value before the growth, factor per value, may it have begun earlier, the value there) of what
  // grew to the end of the series, or None.
  m.def("growth_to_end", [](const std::vector<double>& values) -> py::object {
    const auto growth = signal::growth_to_end(values);
    if (!growth) return py::none();
    return py::make_tuple(growth->at, growth->factor, growth->is_older, growth->from);
  });
  // JSON of the onsets of a cause, and of the onset of an alarm, of these applied steps of one optimizer: (step, loss,
  // largest gradient, learning rate). warnings: of the report, as JSON. cause: its class.
  using Applied = std::tuple<std::uint64_t, double, double, double>;
  const auto applied = [](const std::vector<Applied>& steps) {
    std::vector<incident::AppliedStep> all;
    for (const auto& [step, loss, gradient, rate] : steps) all.push_back({step, loss, gradient, rate});
    return all;
  };
  m.def(
      "onsets",
      [applied](const std::vector<Applied>& steps, const std::string& cause) {
        const auto onsets = incident::onsets_of(applied(steps));
        return incident::is_of_scale(cause, onsets) ? "[]" : onsets.dump();
      },
      py::arg("steps"), py::arg("cause") = "");
  m.def(
      "onset",
      [applied](const std::vector<Applied>& steps, const std::string& warnings, const std::string& optimizer,
                const std::string& cause) {
        const auto all = applied(steps);
        return incident::is_of_scale(cause, incident::onsets_of(all))
                   ? "null"
                   : incident::onset_of(all, nlohmann::json::parse(warnings), optimizer).dump();
      },
      py::arg("steps"), py::arg("warnings"), py::arg("optimizer"), py::arg("cause") = "");
  // A JSON array of the entries of a report for these warnings of one optimizer, of which `option` (--warnings) names
  // the kind. names: of its parameters, in order.
  m.def("warning_entries", [](const std::string& warnings, const std::string& option,
                              const std::vector<std::string>& names, const std::string& optimizer) {
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (const signal::Warning& warning : signal::from_json(warnings)) {
      if (incident::is_wanted(warning.what, option)) all.push_back(incident::to_json(warning, names, optimizer));
    }
    return all.dump();
  });
  // The warnings that these applied steps of one optimizer bring: (step, loss, largest gradient, learning rate, loss
  // scale, largest magnitude of each gradient).
  using Step = std::tuple<std::uint64_t, double, double, double, float, std::vector<float>>;
  m.def("step_warnings", [](const std::vector<Step>& steps, double limit) {
    signal::StepWatch watch(limit);
    std::vector<signal::Warning> all;
    for (const auto& [step, loss, grad_absmax, lr, loss_scale, gradients] : steps) {
      if (!watch.note({step, loss, grad_absmax, lr, loss_scale}, gradients)) continue;
      for (const signal::Warning& warning : watch.take()) all.push_back(warning);
    }
    return signal::as_json(all);
  });
}

}  // namespace finitude::bindings
