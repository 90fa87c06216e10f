// The lines of the program that the calls on a tape come from.
#pragma once

#include <ATen/record_function.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "capture/tape.h"
#include "observe/tracer_torch.h"

namespace finitude::observe {

// A call of a backward node is reported by the line of the forward call that made the node, unless the program's
// own code (a custom Function) made the call. Any thread; no lock is held while frames are read, for which the
// GIL may be needed.
class TapePlaces {
 public:
  struct Where {
    std::uint32_t place = capture::kNoPlace;
    bool of_backward = false;
  };

  // null: no lines are reported. The places outlive this.
  void start(const Places* places);
  Where now(const at::RecordFunction& fn);
  void begin_node(const at::RecordFunction& fn);
  void end_node();
  std::vector<capture::Place> take();

 private:
  std::uint32_t here(std::string* key);

  const Places* places_ = nullptr;
  std::mutex mutex_;  // guards what follows
  std::uint64_t generation_ = 0;
  std::map<std::tuple<std::string, std::uint32_t, std::string>, std::uint32_t> numbers_;  // file, line, module
  std::vector<capture::Place> lines_;
  std::unordered_map<std::uint64_t, std::uint32_t> made_by_;  // node -> the line of its forward call
};

}  // namespace finitude::observe
