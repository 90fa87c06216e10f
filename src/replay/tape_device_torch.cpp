#include "replay/tape_device_torch.h"

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "base/library_posix.h"

namespace finitude::replay {
namespace {

std::size_t count_of(c10::DeviceType type) {
  if (type == c10::DeviceType::CPU) return 1;
  if (!c10::impl::hasDeviceGuardImpl(type)) return 0;
  return static_cast<std::size_t>(c10::impl::VirtualGuardImpl(type).deviceCount());
}

c10::DeviceType type_of(std::string_view name) { return c10::Device(std::string(capture::device_type(name))).type(); }

c10::Device one_of(c10::DeviceType type, int index) {
  if (type == c10::DeviceType::CPU) return c10::Device(type);
  const auto count = static_cast<int>(std::max<std::size_t>(count_of(type), 1));
  return {type, static_cast<c10::DeviceIndex>(std::max(index, 0) % count)};
}

std::string spoken(const std::string& device) { return device == "cpu" ? "the CPU" : device; }

}  // namespace

bool has_device(std::string_view type) {
  try {
    if (type == "cuda" && !at::hasCUDA())
      base::open_library("libtorch_cuda.so");  // finitude-replay is linked without it
    if (type == "cuda" && !at::hasCUDA()) return false;
    return count_of(type_of(type)) > 0;
  } catch (...) {
    return false;  // a name that torch does not know
  }
}

std::size_t device_count(std::string_view type) { return has_device(type) ? count_of(type_of(type)) : 0; }

c10::Device DeviceMap::named(const capture::Tape& tape, const std::string& name) const {
  for (std::size_t i = 0; i < tape.devices.size(); ++i) {
    if (tape.devices[i] == name) return to[i];
  }
  for (std::size_t i = 0; i < tape.devices.size(); ++i) {  // "cuda" for "cuda:0", or one that no memory lay on
    if (capture::device_type(tape.devices[i]) == capture::device_type(name)) return to[i];
  }
  const c10::Device device(name);
  return device.is_meta() || has_device(capture::device_type(name)) ? device : c10::Device(target);
}

DeviceMap map_devices(const capture::Tape& tape, const std::string& wanted) {
  DeviceMap map;
  map.recorded = capture::main_device(tape);
  const bool is_cpu = map.recorded == "cpu";
  if (wanted == "cuda" && !has_device("cuda")) {
    map.missing = at::hasCUDA() ? "torch finds no CUDA device here"
                                : "torch has no CUDA here: a build of torch for CUDA, and a device, are missing";
    return map;
  }
  const bool as_recorded = std::all_of(tape.devices.begin(), tape.devices.end(), [&](const std::string& name) {
    return wanted.empty() ? has_device(capture::device_type(name))
                          : name == "cpu" || capture::device_type(name) == wanted;
  });
  for (const std::string& name : tape.devices) {
    const bool stays = as_recorded && !(is_cpu && wanted == "cuda");
    if (wanted == "cuda") {
      map.to.push_back(name == "cpu" && !is_cpu ? c10::Device(at::kCPU)
                                                : one_of(at::kCUDA, name == "cpu" ? 0 : c10::Device(name).index()));
    } else if (stays && wanted != "cpu") {
      map.to.push_back(one_of(type_of(name), name == "cpu" ? -1 : c10::Device(name).index()));
    } else {
      map.to.emplace_back(at::kCPU);
    }
  }
  map.target = map.to[is_cpu ? 0 : 1].str();
  // By type, not by name: a backend may have been renamed.
  map.elsewhere = !(is_cpu || has_device(capture::device_type(map.recorded))) ||
                  map.to[is_cpu ? 0 : 1].type() != type_of(map.recorded);
  return map;
}

std::string report_devices(const capture::Tape& tape, const DeviceMap& map, bool asked_for) {
  std::string text;
  if (map.elsewhere) {
    text = "recorded on " + map.recorded + ", replayed on " + spoken(map.target);
    if (!asked_for) text += ", since this torch has no " + std::string(capture::device_type(map.recorded));
    text +=
        ": other kernels add in another order and round elsewhere, so the bits of sums, products and functions may "
        "differ\n";
    if (map.recorded != "cpu") text += "random numbers are those that were drawn then; they are on the tape\n";
  } else if (map.recorded != map.target) {
    text = "recorded on " + map.recorded + ", replayed on " + spoken(map.target) + "\n";
  }
  if (const std::string* count = tape.setting("draws_left_out"); count != nullptr && map.recorded != "cpu")
    text += "what " + *count + " calls drew was too large for the tape, and is drawn again: it differs\n";
  return text;
}

}  // namespace finitude::replay
