#include "bindings/values_python.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>

#include "observe/device_memory_torch.h"
#include "observe/tensor_view_torch.h"
#include "pyhost/tensor_subclass_torch.h"

namespace py = pybind11;

namespace finitude::bindings {
namespace {

// Of a sparse tensor its values, duplicates summed as optimizers do; else the tensor. Those of a device would be waited
// for.
at::Tensor values_of(const at::Tensor& t) {
  if (!t.defined() || !t.is_sparse() || !t.is_cpu()) return t;
  const at::NoGradGuard no_grad;
  return t.coalesce()._values();
}

bool view(const at::Tensor& t, observe::TensorView* v, observe::HostBytes* host) {
  return t.defined() && observe::place_of(*local_of(t).unsafeGetTensorImpl(), v) && host->read(v);
}

py::object statistics(const at::Tensor& t) {
  observe::HostBytes host;
  observe::TensorView v;
  const at::Tensor values = values_of(t);
  if (!view(values, &v, &host)) return py::none();
  const sense::Health h = observe::full(v);
  py::dict d;
  d["nan"] = h.nan;
  d["inf"] = h.inf();
  d["pos_inf"] = h.pos_inf;
  d["neg_inf"] = h.neg_inf;
  d["zero"] = h.zero;
  d["numel"] = h.numel;
  d["min"] = h.min;
  d["max"] = h.max;
  d["absmax"] = h.absmax;
  d["sum_sq"] = h.sum_sq;
  return d;
}

std::uint64_t checksum(const at::Tensor& t) {
  observe::HostBytes host;
  observe::TensorView v;
  return view(t, &v, &host) ? observe::checksum(v) : 0;
}

}  // namespace

std::optional<double> absmax(const at::Tensor& t) {
  observe::HostBytes host;
  observe::TensorView v;
  const at::Tensor values = values_of(t);
  if (!view(values, &v, &host)) return std::nullopt;
  return observe::full(v).absmax;
}

bool is_finite(const at::Tensor& t) { return !t.defined() || observe::all_finite(local_of(values_of(t))); }

void define_values(py::module_& m) {
  m.def("statistics", &statistics);
  m.def("checksum", &checksum);
  m.def("is_finite", &is_finite);
  m.def("copied_off", &observe::copied_off);
  m.def("wait_for_device", &observe::wait_for_device, py::call_guard<py::gil_scoped_release>());
}

}  // namespace finitude::bindings
