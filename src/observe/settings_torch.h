// Settings of torch that kernels read and that change what they compute.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace finitude::observe {

using Settings = std::vector<std::pair<std::string, std::string>>;

// As they are now, with what cannot be set: torch's version and the instruction set of its kernels.
Settings torch_settings();

// Puts them in place, and the old ones back at its end. Unknown names are left alone.
class WithSettings {
 public:
  explicit WithSettings(const Settings& settings);
  ~WithSettings();
  WithSettings(const WithSettings&) = delete;
  WithSettings& operator=(const WithSettings&) = delete;

 private:
  Settings before_;
};

}  // namespace finitude::observe
