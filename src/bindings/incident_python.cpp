#include "bindings/incident_python.h"

#include <cerrno>
#include <string>
#include <string_view>
#include <utility>

#include "base/file.h"
#include "bindings/windows_torch.h"
#include "incident/alarm.h"
#include "incident/answer.h"
#include "incident/environment.h"
#include "incident/report.h"
#include "incident/sentences.h"

namespace finitude::bindings {
namespace {

namespace py = pybind11;

// incident(question, folder of a run) -> answer, both JSON: incident/answer.h. Raises ValueError where it is refused.
std::string ask(const std::string& question, const py::bytes& run) {
  const std::string folder = run;
  Result<std::string> answer = [&] {
    const py::gil_scoped_release others;  // it may read the reports of many processes
    return incident::answer(question, folder);
  }();
  if (!answer.ok()) throw py::value_error(answer.why());
  return *answer;
}

// report_head(facts) -> all of a report that is no list, both JSON: incident/report.h. Raises ValueError where a fact
// has another type.
std::string report_head(const std::string& facts) {
  const auto given = nlohmann::json::parse(facts, nullptr, false);
  if (!given.is_object()) throw py::value_error("the facts of a run are not a JSON object");
  try {
    return incident::report_head(incident::facts_of(given))
        .dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  } catch (const nlohmann::json::exception& e) {
    throw py::value_error(e.what());
  }
}

// new_alarm(...) -> JSON of an alarm before anything is known of its reason. optimizer: name of its class; ordinal: its
// number; kind, name: of the sink; damaged: has a bad step been applied to its weights?
std::string new_alarm(std::string optimizer, std::uint32_t ordinal, std::uint64_t step, std::string kind,
                      std::string name, bool damaged, int rank, std::string level, std::string policy) {
  incident::Alarm alarm;
  alarm.step = step;
  alarm.rank = rank;
  alarm.optimizer = std::move(optimizer);
  alarm.ordinal = ordinal;
  alarm.sink = {std::move(kind), std::move(name)};
  alarm.weights_damaged = damaged;
  alarm.level = std::move(level);
  alarm.policy = std::move(policy);
  for (const record::StepRecord& before : applied_steps(ordinal)) {
    alarm.history.loss.push_back(before.loss);
    alarm.history.grad_absmax.push_back(before.grad_absmax);
  }
  return to_json(alarm).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

// write_whole(path, content): a file that gets that name at the end, all or nothing (base/file.h). OSError.
void write_whole(const py::object& path, const py::bytes& content) {
  PyObject* encoded = nullptr;
  if (PyUnicode_FSConverter(path.ptr(), &encoded) == 0) throw py::error_already_set();
  const std::string name = py::reinterpret_steal<py::bytes>(encoded);
  const std::string_view bytes = content;
  const auto process = py::module_::import("os").attr("getpid")().cast<long>();
  const Status status = [&] {
    const py::gil_scoped_release others;
    return base::write_whole(name, {bytes}, "." + std::to_string(process) + ".tmp");
  }();
  if (status.ok()) return;
  if (errno == 0) errno = EIO;
  PyErr_SetFromErrno(PyExc_OSError);
  throw py::error_already_set();
}

// action_text(action, applied, undone, at_start): incident/sentences.h. Raises ValueError of an unknown action.
std::string action_text(const std::string& action, bool applied, bool undone, bool at_start) {
  using decide::Action;
  for (const auto& [name, value] :
       {std::pair("warn", Action::kApply), std::pair("skip", Action::kSkip), std::pair("rollback", Action::kRollBack),
        std::pair("lower-rate", Action::kLowerRate), std::pair("stop", Action::kStop),
        std::pair("raise", Action::kRaise)}) {
    if (action == name) return incident::action_text(value, {applied, undone, at_start});
  }
  throw py::value_error("no action: " + action);
}

}  // namespace

void define_incident(py::module_& m) {
  m.attr("NOT_RUN") = incident::Cause::kNotRun;
  m.def("incident", &ask);
  m.def("report_head", &report_head);
  m.def("new_alarm", &new_alarm);
  m.def("write_whole", &write_whole);
  m.def("unlisted_advisory", [](std::uint64_t count) { return incident::unlisted_advisory(count).dump(); });
  m.def("action_text", &action_text, py::arg("action"), py::kw_only(), py::arg("applied") = false,
        py::arg("undone") = false, py::arg("at_start") = false);
  m.def("loss_text", &incident::loss_text);
  m.def("gradient_text", &incident::gradient_text);
  m.def("held_before_text", &incident::held_before_text);
  m.def("count_text", &incident::count_text);
  m.def("kept_environment", [] { return incident::environment().dump(-1, ' ', true); });
}

}  // namespace finitude::bindings
