#include "bindings/core_python.h"

#include <cmath>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "decide/policy.h"
#include "decide/scaler.h"
#include "record/event_file_posix.h"
#include "record/ring_posix.h"

namespace py = pybind11;

namespace finitude::bindings {
namespace {

using CountedValues =
    std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t, std::vector<std::uint32_t>>;

decide::Policy policy_of(const std::string& name) {
  const auto policy = decide::parse_policy(name);
  if (!policy) throw py::value_error("unknown policy: " + name);
  return *policy;
}

const char* word(decide::Action action) {
  switch (action) {
    case decide::Action::kApply:
      return "warn";
    case decide::Action::kSkip:
      return "skip";
    case decide::Action::kRollBack:
      return "rollback";
    case decide::Action::kLowerRate:
      return "lower-rate";
    case decide::Action::kStop:
      return "stop";
    case decide::Action::kRaise:
      return "raise";
  }
  return "stop";
}

decide::SinkKind sink_of(const std::string& kind) {
  for (const auto sink : {decide::SinkKind::kLoss, decide::SinkKind::kGradient, decide::SinkKind::kParameter,
                          decide::SinkKind::kState, decide::SinkKind::kBuffer}) {
    if (decide::report_word(sink) == kind) return sink;
  }
  throw py::value_error("unknown sink: " + kind);
}

py::dict read_ring(const std::string& path) {
  record::RingContents contents;
  std::string error;
  if (!record::read_ring_file(path, &contents, &error)) throw py::value_error(error);
  py::list steps;
  for (const record::StepRecord& r : contents.records) {
    py::dict d;
    d["step"] = r.step;
    d["optimizer"] = r.optimizer;
    const auto has = [&](record::StepFlags flag) { return (r.flags & flag) != 0; };
    d["applied"] = has(record::kStepApplied);
    d["vetoed"] = has(record::kStepVetoed);
    d["scaler_skip"] = has(record::kStepScalerSkip);
    d["alarm"] = has(record::kStepAlarm);
    d["handled_by_script"] = has(record::kStepHandledByScript);
    const float scale = record::loss_scale(r.flags);  // a ring from elsewhere may say anything
    d["scale"] = scale > 0 && std::isfinite(scale) ? py::object(py::float_(scale)) : py::none();
    d["loss"] = r.loss;
    d["grad_absmax"] = record::unscaled_gradient(r);
    d["lr"] = r.lr;
    d["seconds"] = static_cast<double>(r.time_ns - contents.started_ns) * 1e-9;
    steps.append(d);
  }
  py::dict out;
  out["pid"] = contents.pid;
  out["started"] = static_cast<double>(contents.started_unix_ns) * 1e-9;
  out["steps"] = steps;
  out["overwritten"] = contents.overwritten;
  return out;
}

}  // namespace

void define_core(py::module_& m) {
  py::class_<decide::PolicyMachine>(m, "PolicyMachine")
      .def(py::init([](const std::string& policy, std::uint32_t max_skips, std::uint32_t max_bad,
                       const std::string& share, const std::string& then, std::uint32_t cool_down) {
        decide::Limits limits{.in_a_row = max_skips, .total = max_bad, .cool_down = cool_down};
        if (!share.empty() && !decide::parse_share(share, &limits)) throw py::value_error("no share: " + share);
        auto following = decide::parse_policies(then);
        if (!following) throw py::value_error("no policies: " + then);
        return decide::PolicyMachine(policy_of(policy), limits, *std::move(following));
      }))
      .def("on_alarm", [](decide::PolicyMachine& self, std::uint32_t optimizer, std::uint64_t step,
                          bool harmless) { return word(self.on_alarm(optimizer, step, harmless)); })
      .def("beyond", &decide::PolicyMachine::beyond)
      .def("counted",
           [](const decide::PolicyMachine& self, std::size_t most_steps) {
             std::vector<CountedValues> all;
             for (decide::Counted& one : self.counted(most_steps))
               all.emplace_back(one.optimizer, one.in_a_row, one.total, one.stage, std::move(one.steps_ago));
             return all;
           })
      .def("continue_from",
           [](decide::PolicyMachine& self, const std::vector<CountedValues>& counted, std::uint32_t good_steps) {
             std::vector<decide::Counted> all;
             for (const auto& [optimizer, in_a_row, total, stage, ago] : counted)
               all.push_back({optimizer, in_a_row, total, stage, ago});
             self.continue_from(all, good_steps);
           })
      .def("in_a_row", &decide::PolicyMachine::in_a_row);
  py::class_<decide::SecondRuns>(m, "SecondRuns")
      .def(py::init([](const std::string& policy) { return decide::SecondRuns(policy_of(policy)); }))
      .def("take", [](decide::SecondRuns& self, const std::string& sink, bool harmless, bool has_allowances,
                      bool is_traced) { return self.take(sink_of(sink), harmless, has_allowances, is_traced); })
      .def("take_in_place", &decide::SecondRuns::take_in_place)
      .def("in_place_only", &decide::SecondRuns::in_place_only)
      .def("end_in_place", &decide::SecondRuns::end_in_place);
  py::class_<decide::ScalerSkips>(m, "ScalerSkips")
      .def(py::init<>())
      .def("on_skip",
           [](decide::ScalerSkips& self, std::uint32_t optimizer, std::uint64_t step, const py::object& scale) {
             const auto verdict =
                 self.on_skip(optimizer, step, scale.is_none() ? std::nullopt : std::optional(scale.cast<double>()));
             return py::make_tuple(verdict.alarm, verdict.in_a_row);
           })
      .def("in_a_row", &decide::ScalerSkips::in_a_row);
  m.def("read_ring", &read_ring);
  // append(line, folder): folder() makes the folder of the run and returns it, or None. Why the line could not be
  // written, once, or "". The GIL is held: any thread of the program may add an event.
  py::class_<record::EventFile>(m, "EventFile")
      .def(py::init<>())
      .def("append",
           [](record::EventFile& self, const py::bytes& line, const py::object& folder) {
             return self.append(std::string_view(line), [&] {
               const py::object path = folder();
               if (path.is_none()) return std::string();
               return py::module_::import("os").attr("fsencode")(path).cast<std::string>();
             });
           })
      .def("close", &record::EventFile::close);
}

}  // namespace finitude::bindings
