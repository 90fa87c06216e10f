// What the files of the device gate share.
#pragma once

#include <string>

#include "bindings/device_library_posix.h"
#include "bindings/gate_cuda_torch.h"
#include "bindings/live_torch.h"
#include "decide/policy.h"

namespace finitude::bindings {

struct DeviceSettings {
  DeviceApi api{};
  c10::DeviceType type = c10::DeviceType::CUDA;
  decide::Policy policy = decide::Policy::kStop;
  bool loaded = false;
  bool captures_told = false;
  std::string trouble;  // why something on a device is not watched
};

DeviceSettings& device_settings();
void* current_stream(c10::Device device);
// The library failed: this optimizer's device part is not looked at any more.
void device_failed(DeviceGate& gate, const finitude_cuda_list* list);
bool scan_part(DeviceGate& gate, DeviceGate::Part& part, const finitude_cuda_options& options);
// Is the current stream of one of the devices being captured into a graph? Notes that it was left alone.
bool is_device_capturing(DeviceGate& gate);
void take_flag_off(OptimizerEntry& entry) noexcept;
// Waits for the verdicts of every optimizer and tells them; on_late gets None for an optimizer that is gone. False: it raised.
bool tell_all_late();

}  // namespace finitude::bindings
