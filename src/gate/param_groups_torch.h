// The parameters of an optimizer: read again at every step, as programs add groups and replace parameters. With the GIL
// held.
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>

#include "pyhost/object_python.h"

namespace finitude::bindings {

// An optimizer's param_groups, as they are now.
class ParamGroups {
 public:
  explicit ParamGroups(PyObject* optimizer);
  ParamGroups(const ParamGroups&) = delete;
  ParamGroups& operator=(const ParamGroups&) = delete;
  // The learning rate of the first group.
  double lr(double fallback) const;
  // Of the second group and those after it, at most so many as fit; NaN where one has none.
  std::size_t more_lrs(double* rates, std::size_t most) const;
  // Visits the first `most` parameters, groups in order. False where param_groups is not a list of dicts of lists.
  template <typename Visit>
  bool for_first(std::uint32_t most, Visit&& visit) const {
    std::uint32_t index = 0;
    for (Py_ssize_t g = 0; groups_ && index < most && g < PyList_GET_SIZE(groups_.get()); ++g) {
      PyObject* params = params_of(PyList_GET_ITEM(groups_.get(), g));
      if (params == nullptr) return false;
      for (Py_ssize_t i = 0; index < most && i < PyList_GET_SIZE(params); ++i)
        visit(index++, PyList_GET_ITEM(params, i));
    }
    return static_cast<bool>(groups_);
  }

 private:
  double lr_of(Py_ssize_t group, double fallback) const;
  static PyObject* params_of(PyObject* group);  // borrowed; null: not a dict with a list of them
  Object groups_;                               // a list, or empty
};

template <typename Visit>
bool for_first_parameters(PyObject* optimizer, std::uint32_t most, Visit&& visit) {
  return ParamGroups(optimizer).for_first(most, visit);
}

template <typename Visit>
bool for_each_parameter(PyObject* optimizer, Visit&& visit) {
  return for_first_parameters(optimizer, UINT32_MAX, visit);
}

}  // namespace finitude::bindings
