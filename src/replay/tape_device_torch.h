// Where a tape is played: which device represents each of those that it was recorded on.
#pragma once

#include <c10/core/Device.h>

#include <string>
#include <string_view>
#include <vector>

#include "capture/tape.h"

namespace finitude::replay {

struct DeviceMap {
  std::vector<c10::Device> to;   // by Tape::devices
  std::string recorded, target;  // "cuda:0", "cpu": where the step ran, and where it is played
  bool elsewhere =
      false;  // on another type of device: kernels differ, and so may bits, layouts and what operators there are
  std::string missing;  // not empty: it cannot be played so, and this is why

  c10::Device at(std::uint8_t device) const { return to.at(device); }
  // Of a device by its name, as an argument has it.
  c10::Device named(const capture::Tape& tape, const std::string& name) const;
};

// wanted: "cpu", "cuda", or empty: as it was recorded where this torch has such a device, else the CPU. Of a step of a
// GPU, memory that was the CPU's stays there; a GPU of a number that there is not becomes one that there is. A step of
// the CPU played on a GPU has all its memory there.
DeviceMap map_devices(const capture::Tape& tape, const std::string& wanted);

// Whether this torch can compute on that type of device ("cpu", "cuda"); loads what torch has for CUDA where it lies
// beside the libraries that are loaded.
bool has_device(std::string_view type);

// How many of that type there are; as has_device().
std::size_t device_count(std::string_view type);

// "" where nothing is to be said. What a reader has to know of a replay on another device than the recording.
std::string report_devices(const capture::Tape& tape, const DeviceMap& map, bool asked_for);

}  // namespace finitude::replay
