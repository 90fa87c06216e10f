// What the files of the device gate share.
#pragma once

#include <c10/core/DeviceGuard.h>

#include <optional>
#include <string>

#include "decide/gradient_stream.h"
#include "decide/policy.h"
#include "gate/device_library_posix.h"
#include "gate/gate_cuda_torch.h"
#include "gate/state_torch.h"

namespace finitude::bindings {

struct DeviceSettings {
  DeviceApi api{};
  c10::DeviceType type = c10::DeviceType::CUDA;
  decide::Policy policy = decide::Policy::kStop;
  bool loaded = false;
  bool captures_reported = false;
  decide::Streaming streaming = decide::Streaming::kAuto;
  std::uint64_t batch_bytes = 0;  // 0: by the size of the gradients
  bool several_ranks = false;
  std::string trouble;  // why something on a device is not watched
};

DeviceSettings& device_settings();

// Torch's own guard around calls of the library: going back to a device that has no context yet, it makes none there,
// as cudaSetDevice would. Throws nothing: where CUDA has failed, the library's call says so.
class OnDevice {
 public:
  explicit OnDevice(c10::Device device) noexcept {
    try {
      guard_.emplace(device);
    } catch (const std::exception&) {
    }
  }

 private:
  std::optional<c10::DeviceGuard> guard_;
};

// As a cudaStream_t; throws where this version of torch does not expose it. Null on the make-believe device.
void* handle_of(const c10::Stream& stream);
void* current_stream(c10::Device device);
// What a scan reads of a gradient. False: no stretch of memory of which every element belongs to it.
bool stretch_of(const at::Tensor& gradient, finitude_cuda_tensor* tensor);
// Before a call that gives out a ticket on this list: a verdict that nobody has read yet must not lose its place in the
// ring.
void make_room(DeviceGate& gate, DeviceGate::Part& part);
// The library failed: this optimizer's device part is not looked at any more.
void device_failed(DeviceGate& gate, const finitude_cuda_list* list);
// Has one real on the device read into the ring, as a value noted on a list of its device. Null list: it cannot be.
struct ValueRead {
  finitude_cuda_list* list = nullptr;
  std::uint64_t ticket = 0;
};
ValueRead read_flag(DeviceGate& gate, const at::Tensor& flag);
// The bad ones of a scan that is done; only the first where later scans wrote over the rest.
std::vector<DeviceGate::BadTensor> bad_tensors(const DeviceGate::Late::Scan& scan,
                                               const finitude_cuda_summary& summary);
bool scan_part(DeviceGate& gate, DeviceGate::Part& part, const finitude_cuda_options& options);
// Is the current stream of one of the devices being captured into a graph? Notes that it was left alone.
bool is_device_capturing(DeviceGate& gate);
void take_flag_off(OptimizerEntry& entry) noexcept;
// Reports what is known of every optimizer's steps; on_late gets None for an optimizer that is gone. False: it raised.
bool report_all_late();
// Steps whose verdict is still under way on a device that works.
std::size_t steps_under_way();

}  // namespace finitude::bindings
