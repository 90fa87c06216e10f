#include "bindings/device_python.h"

#include <torch/csrc/autograd/python_variable.h>

#include <chrono>
#include <thread>

#include "bindings/windows_torch.h"
#include "gate/gate_cuda_torch.h"
#include "gate/gate_parts_torch.h"
#include "gate/state_torch.h"
#include "pyhost/is_tensor_torch.h"

namespace py = pybind11;

namespace finitude::bindings {
namespace {

void set_policy(const std::string& name) {
  const auto policy = decide::parse_policy(name);
  if (!policy) throw py::value_error("unknown policy: " + name);
  set_device_policy(*policy);
}

void set_streaming(const std::string& mode, bool several_ranks) {
  const bool on = mode == "on", automatic = mode == "auto";
  if (!on && !automatic && mode != "off") throw py::value_error("unknown mode: " + mode);
  device_settings().streaming = on          ? decide::Streaming::kOn
                                : automatic ? decide::Streaming::kAuto
                                            : decide::Streaming::kOff;
  device_settings().several_ranks = several_ranks;
}

}  // namespace

void define_device(py::module_& m) {
  m.def("open_device_library", &open_device_library);
  m.def("has_device_library", [] { return device_settings().loaded; });
  m.def("set_device_policy", &set_policy);
  m.def("register_device",
        [](py::handle o, bool takes_flag, bool sgd) { register_device(entry_of(o), takes_flag, sgd); });
  m.def("set_gradient_streaming", &set_streaming);
  m.def("set_stream_batch",
        [](std::uint64_t bytes) { device_settings().batch_bytes = bytes; });  // 0: by the size of the gradients
  m.def("leave_devices", [] { leave_devices(true); });
  m.def("device_trouble", &device_trouble);
  m.def("is_on_device", [](py::handle t) {
    return is_tensor_object(t.ptr()) && is_watched_device(*THPVariable_Unpack(t.ptr()).unsafeGetTensorImpl());
  });
  // finish_late(limit_s): the verdicts of all steps, as they come; what on_late raises is raised here. Returns how many
  // steps' did not: the program ends, and a device that hangs must not keep it.
  m.def("finish_late", [](double limit_s) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(limit_s);
    for (;;) {
      if (!report_all_late()) throw py::error_already_set();
      const std::size_t left = steps_under_way();
      if (left == 0 || std::chrono::steady_clock::now() >= end) return left;
      const py::gil_scoped_release others_run;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  m.def("late_steps", [](py::handle o) {
    const OptimizerEntry& entry = entry_of(o);
    return entry.device ? entry.device->late.size() : 0;
  });
}

}  // namespace finitude::bindings
