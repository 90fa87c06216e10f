#include "gate/device_library_posix.h"

#include <dlfcn.h>
#include <unistd.h>

namespace finitude::bindings {

// The library is never unloaded: kernels, events and threads of it may be in use until the process ends. RTLD_LOCAL
// keeps its CUDA runtime, which is linked statically, from being found by torch. `api` is written only if every
// function is there and the version fits, so that a half-filled table is never called.
std::string load_device_api(const std::string& path, DeviceApi* api) {
  if (access(path.c_str(), R_OK) != 0) return path + " is not there: finitude was built without nvcc";
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    return "cannot load " + path + (why != nullptr ? std::string(": ") + why : std::string());
  }
  const char* missing = nullptr;
  const auto get = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr && missing == nullptr) missing = name;
  };
  DeviceApi found{};
  get(found.abi, "finitude_cuda_abi");
  get(found.open, "finitude_cuda_open");
  get(found.close, "finitude_cuda_close");
  get(found.set, "finitude_cuda_set");
  get(found.scan, "finitude_cuda_scan");
  get(found.scan_value, "finitude_cuda_scan_value");
  get(found.found_inf, "finitude_cuda_found_inf");
  get(found.poll, "finitude_cuda_poll");
  get(found.wait, "finitude_cuda_wait");
  get(found.query, "finitude_cuda_query");
  get(found.fetch, "finitude_cuda_fetch");
  get(found.capturing, "finitude_cuda_capturing");
  get(found.reserve, "finitude_cuda_reserve");
  get(found.ahead, "finitude_cuda_ahead");
  get(found.join, "finitude_cuda_join");
  get(found.passed, "finitude_cuda_passed");
  get(found.why, "finitude_cuda_why");
  if (missing != nullptr) return path + " has no " + missing;
  if (found.abi() != FINITUDE_CUDA_ABI) return path + " is of another version of finitude";
  *api = found;
  return "";
}

void* find_symbol(const char* name) noexcept { return dlsym(RTLD_DEFAULT, name); }

}  // namespace finitude::bindings
