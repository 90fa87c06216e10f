// Gradients on a GPU: scanned by one launch per step and device, and vetoed without a host sync where the optimizer's
// kernel can leave the step out itself (found_inf); else after one wait. The verdict of a step that nobody waited for
// is read from pinned memory when a later step of that optimizer begins. Built against a CPU torch: only its
// device-generic interface is used.
#pragma once

#include <ATen/core/Tensor.h>
#include <Python.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "decide/device_step.h"
#include "finitude/cuda_scan.h"
#include "pyhost/object_python.h"

namespace finitude::bindings {

class AheadReader;
struct LossNote;
struct OptimizerEntry;
struct WindowVerdict;

// What is kept for one optimizer with parameters on a device. GIL held.
struct DeviceGate {
  struct Part {  // of one device
    c10::Device device = c10::Device(c10::kCPU);
    finitude_cuda_list* list = nullptr;
    std::vector<finitude_cuda_tensor> tensors;
    std::vector<std::uint32_t> indices;  // of the parameters, one per tensor
    std::uint64_t ticket = 0;            // of the last scan
    std::uint64_t newest = 0;            // of the last scan or value
  };
  struct BadTensor {  // what a gradient held that was found bad
    std::uint32_t index;
    finitude_cuda_health health;
  };
  struct Seen {  // a gradient as it was when clipping was about to rewrite it, or had done so
    const c10::TensorImpl* grad = nullptr;
    std::uint32_t version = 0;
  };
  struct Late {  // a step whose verdict nobody waited for
    struct Scan {
      c10::Device device;
      finitude_cuda_list* list;
      std::uint64_t ticket;
      std::vector<std::uint32_t> indices;
      bool by_norm;        // read only where the norm was not finite
      bool known = false;  // read early, as its place in the ring was needed:
      finitude_cuda_summary summary = {};
      std::vector<BadTensor> bad = {};
    };
    struct Loss {
      std::uint64_t ticket;
      std::uint32_t micro_batch;
    };
    std::uint64_t step = 0;
    double lr = 0;
    decide::Way way = decide::Way::kWatch;
    bool loss_counted = false, foreign_flag = false;
    std::uint64_t flag_ticket =
        0;  // on the list of flag_list: what another's flag held, where ours was not joined to it
    finitude_cuda_list* flag_list = nullptr;
    bool foreign_is_set = false;  // that, read early
    std::vector<Scan> scans;
    std::vector<Loss> losses;  // on the list of scans[0]
  };

  std::vector<Part> parts;
  std::vector<Seen> seen;                // by parameter index; empty: nothing was clipped in this window
  std::optional<c10::Device> norm_on;    // those of `seen` on this device were read only if their norm is not finite
  bool takes_flag = false;               // a class whose kernels leave the step out where found_inf is 1
  bool sgd = false;                      // needs state only where it has momentum
  bool unfit = false;                    // some gradient has no memory that can be scanned as one stretch
  bool cpu_gradients = false;            // beside those on the device
  bool in_order = true;                  // the library has not failed
  std::uint32_t taken = 0;               // gradients of this walk
  std::uint64_t bytes = 0, largest = 0;  // of them, together and of one
  std::shared_ptr<AheadReader> reader;   // where gradients are read while backward runs
  at::Tensor flag;                       // found_inf: 0-dim float32 on the device of parts[0]
  c10::StreamId flag_stream = 0;         // that used it last
  Object flag_object;
  bool flag_is_set = false;     // the optimizer has it as its attribute
  std::vector<char> has_state;  // by parameter index: seen to have state, while `state` and its size are these
  const void* state = nullptr;
  Py_ssize_t state_size = -1;
  std::deque<Late> late;
  double absmax = 0;  // of the last verdict

  // The walk over the parameters: `begin`, then `take` for each gradient. False: it is not on a watched device.
  void begin();
  bool take(std::uint32_t index, const at::Tensor& gradient);
  ~DeviceGate();
};

// Loads the library for devices of this type ("cuda"; "cpu" with the library that tests use). Why not, or "".
std::string open_device_library(const std::string& path, const std::string& device_type);
void set_device_policy(decide::Policy policy) noexcept;

// Is this tensor's memory on the device that is watched? False while no library is loaded.
bool is_watched_device(const c10::TensorImpl& impl) noexcept;
// Gives the optimizer a DeviceGate if a parameter lies on such a device.
void register_device(OptimizerEntry& entry, bool takes_flag, bool sgd);
// Takes our flags off the optimizers; `forget`: and everything else that is kept of devices.
void leave_devices(bool forget) noexcept;

// A root on a device, handed to backward or to GradScaler.scale.
void note_device_root(const at::Tensor& root, LossNote* note);
// The losses of this window on the device: those whose value has arrived, or all after a wait.
void resolve_losses(OptimizerEntry& entry, bool wait);
// Before and after something rewrites the gradients of `parameters`. `norm` (may be null): where it is finite, so are
// they.
void before_device_write(PyObject* parameters, PyObject* norm);
void after_device_write(PyObject* parameters);

// After the walk of judge_window. True: the verdict comes later (found_inf is set where the way is kFlag). False:
// marks, losses and `verdict` hold what the device found.
bool settle_device(OptimizerEntry& entry, WindowVerdict* verdict, bool may_be_late);

// What has become known of earlier steps: passed to finitude.session.native_callbacks.on_late. False: it raised. wait:
// all of them.
bool report_late(OptimizerEntry& entry, bool wait);

// Why devices are not watched, "" if they are; and how often a captured graph was left alone.
std::string device_trouble();

}  // namespace finitude::bindings
