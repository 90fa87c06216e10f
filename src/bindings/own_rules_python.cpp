#include "bindings/own_rules_python.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "explain/probe.h"
#include "show/findings.h"

namespace py = pybind11;

namespace finitude::bindings {
namespace {

using nlohmann::json;

// What a rule's function holds of its experiments. They end with the call: the operands are gone after it.
struct OwnProbe {
  explain::Probe* probe = nullptr;
  bool available = false;
};

std::optional<sense::DType> dtype_named(const std::string& name) {
  if (name == "float64") return sense::DType::kFloat64;
  if (name == "float32") return sense::DType::kFloat32;
  return std::nullopt;
}

template <typename T>
void take(const py::dict& from, const char* key, T* to) {
  if (from.contains(key) && !from[key].is_none()) *to = from[key].cast<T>();
}

replay::Variant variant_of(const py::dict& reported) {
  replay::Variant v;
  std::string dtype;
  take(reported, "compute_dtype", &dtype);
  v.compute_dtype = dtype_named(dtype);
  double number = 0;
  take(reported, "clamp_arg", &v.clamp_arg);
  if (reported.contains("clamp_min")) take(reported, "clamp_min", &number), v.clamp_min = number;
  if (reported.contains("clamp_max")) take(reported, "clamp_max", &number), v.clamp_max = number;
  take(reported, "add_arg", &v.add_arg);
  take(reported, "add", &v.add);
  take(reported, "replace_arg", &v.replace_arg);
  take(reported, "replace_from", &v.replace_from);
  take(reported, "replace_to", &v.replace_to);
  take(reported, "scale_arg", &v.scale_arg);
  take(reported, "scale", &v.scale);
  if (reported.contains("drop_rows")) {
    for (const py::handle& row : reported["drop_rows"]) v.drop_rows.push_back(row.cast<std::int64_t>());
  }
  take(reported, "again", &v.again);
  return v;
}

bool expect(OwnProbe& own, const std::string& name, const py::dict& reported, bool finite) {
  if (own.probe == nullptr) throw py::value_error("the experiments of a rule end with its call");
  const replay::Variant variant = variant_of(reported);
  py::gil_scoped_release release;
  return finite ? own.probe->finite_if(name, variant) : own.probe->still_bad(name, variant);
}

json link(const record::Op& op) {
  json out = {{"op", op.name}, {"inputs", json::array()}, {"outputs", json::array()}, {"scalars", json::array()}};
  for (const auto& use : op.inputs) out["inputs"].push_back(show::statistics(use));
  for (const auto& use : op.outputs) out["outputs"].push_back(show::statistics(use));
  for (const auto& s : op.scalars) {
    if (!s.text.empty() && s.text != "None") out["scalars"].push_back({{"arg", s.arg}, {"text", s.text}});
  }
  return out;
}

json numbers(const std::vector<double>& values) {
  json out = json::array();
  for (double value : values) out.push_back(show::number(value));
  return out;
}

std::string evidence_of(const explain::Scene& scene) {
  const explain::StepHistory& h = scene.evidence.history;
  json out = {{"birth", show::birth(scene.trace, scene.birth)}};
  out["first"] = scene.first != nullptr ? link(*scene.first) : json(nullptr);
  out["history"] = {{"loss", numbers(h.loss)},
                    {"grad_absmax", numbers(h.grad_absmax)},
                    {"param_absmax", numbers(h.param_absmax)},
                    {"learning_rate", numbers(h.learning_rate)},
                    {"lr_now", show::number(h.lr_now)},
                    {"half_parameters", h.half_parameters},
                    {"scaler_active", h.scaler_active},
                    {"scale", show::number(h.scale)},
                    {"optimizer", h.optimizer},
                    {"optimizer_eps", show::number(h.optimizer_eps)}};
  return out.dump(-1, ' ', false, json::error_handler_t::replace);
}

// A rule may claim less than its experiments say, never more.
std::string weaker(const std::string& a, const std::string& b) {
  const auto rank = [](const std::string& word) { return word == "proven" ? 2 : word == "likely" ? 1 : 0; };
  return rank(a) < rank(b) ? a : b;
}

class OwnRule : public explain::Rule {
 public:
  OwnRule(std::string name, py::function function) : name_(std::move(name)), function_(std::move(function)) {}

  const char* name() const override { return name_.c_str(); }

  std::optional<explain::Finding> judge(const explain::Evidence& evidence) const override {
    const explain::Scene scene(evidence);
    explain::Probe probe(scene, scene.culprit);
    py::gil_scoped_acquire gil;
    const auto own = std::make_shared<OwnProbe>();
    own->probe = &probe;
    own->available = evidence.lab != nullptr && scene.first != nullptr && scene.first->captured;
    std::optional<explain::Finding> found;
    try {
      const py::object answer = function_(evidence_of(scene), own);
      if (!answer.is_none()) found = finding_of(scene, probe, answer.cast<py::dict>());
    } catch (const py::error_already_set&) {
    } catch (const py::cast_error&) {
    }
    own->probe = nullptr;
    return found;
  }

 private:
  explain::Finding finding_of(const explain::Scene& scene, const explain::Probe& probe, const py::dict& answer) const {
    int score = explain::kScorePoint;
    std::string cause, text, fix, confidence;
    bool unambiguous = false;
    take(answer, "class", &cause);
    take(answer, "text", &text);
    take(answer, "fix", &fix);
    take(answer, "score", &score);
    take(answer, "confidence", &confidence);
    take(answer, "unambiguous", &unambiguous);
    explain::Finding result = explain::finding(scene, cause, std::clamp(score, 0, explain::kScoreOrigin), text, fix);
    probe.conclude(result, unambiguous);
    if (!confidence.empty()) result.confidence = weaker(confidence, result.confidence);
    return result;
  }

  std::string name_;
  py::function function_;
};

std::vector<std::unique_ptr<OwnRule>>& rules() {
  static auto* instance = new std::vector<std::unique_ptr<OwnRule>>();  // leaked: the interpreter may be gone before us
  return *instance;
}

}  // namespace

void define_own_rules(py::module_& m) {
  py::class_<OwnProbe, std::shared_ptr<OwnProbe>>(m, "OwnProbe", py::module_local())
      .def_readonly("available", &OwnProbe::available)
      .def("expect", &expect);
  m.def("set_rules", [](const py::list& reported) {
    rules().clear();
    for (const py::handle& item : reported) {
      const auto pair = item.cast<py::tuple>();
      rules().push_back(std::make_unique<OwnRule>(pair[0].cast<std::string>(), pair[1].cast<py::function>()));
    }
  });
}

std::string ask_own_rules(const explain::Evidence& evidence, explain::Finding* best) {
  std::string name;
  for (const auto& rule : rules()) {
    if (auto found = rule->judge(evidence); found && found->score > best->score) {
      *best = *std::move(found);
      name = rule->name();
    }
  }
  return name;
}

}  // namespace finitude::bindings
