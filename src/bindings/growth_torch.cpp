#include "bindings/growth_torch.h"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bindings/values_python.h"
#include "incident/growth.h"
#include "observe/tensor_view_torch.h"

namespace py = pybind11;

namespace finitude::bindings {
namespace {

// id of a parameter -> its largest finite magnitude at the first step.
using Magnitudes = std::unordered_map<std::uintptr_t, double>;

// As they were at the first step.
std::vector<incident::Weight> weights_of(const py::list& parameters, const std::vector<std::string>& names,
                                         const Magnitudes& start) {
  std::vector<incident::Weight> weights;
  for (std::size_t i = 0; i < parameters.size() && i < names.size(); ++i) {
    incident::Weight weight;
    weight.name = names[i];
    weight.dtype = observe::dtype_of(parameters[i].cast<at::Tensor>().dtype());
    if (const auto it = start.find(reinterpret_cast<std::uintptr_t>(parameters[i].ptr())); it != start.end())
      weight.start = weight.now = it->second;
    weights.push_back(std::move(weight));
  }
  return weights;
}

void read(const py::list& parameters, std::vector<incident::Weight>* weights) {
  for (std::size_t i = 0; i < weights->size(); ++i) {
    const auto parameter = parameters[i].cast<at::Tensor>();
    (*weights)[i].now = absmax(parameter);
    (*weights)[i].is_all_bad = (*weights)[i].now == 0.0 && !is_finite(parameter);
  }
}

}  // namespace

void define_growth(py::module_& m) {
  // weights_growth(parameters, names, start, are the updates known to be too large) -> (largest growth of one or None,
  // what is unsound of that or "", the same or what is unsound of their size alone). weight_extremes: of what they were
  // at the first step.
  m.def(
      "weights_growth",
      [](const py::list& parameters, const std::vector<std::string>& names, const Magnitudes& start, bool by_rate) {
        std::vector<incident::Weight> weights = weights_of(parameters, names, start);
        read(parameters, &weights);
        double most = 0;
        for (const auto& [id, magnitude] : start) most = std::max(most, magnitude);
        const incident::Growth growth = incident::growth_of(weights, most, by_rate);
        std::string words = growth.text.empty() ? incident::extremes_of(weights) : growth.text;
        if (words.empty()) words = incident::beyond_use(weights);
        return std::tuple(growth.factor, growth.text, words);
      },
      py::arg("parameters"), py::arg("names"), py::arg("start"), py::arg("by_rate") = false);
  m.def(
      "weight_extremes",
      [](const py::list& parameters, const std::vector<std::string>& names, const Magnitudes& start) {
        return incident::extremes_of(weights_of(parameters, names, start));
      },
      py::arg("parameters"), py::arg("names"), py::arg("start"));
}

}  // namespace finitude::bindings
