// libfinitude_cuda, loaded at run time: this module is built where there is no CUDA.
#pragma once

#include <string>

#include "finitude/cuda_scan.h"

namespace finitude::bindings {

struct DeviceApi {
  decltype(&finitude_cuda_abi) abi;
  decltype(&finitude_cuda_open) open;
  decltype(&finitude_cuda_close) close;
  decltype(&finitude_cuda_set) set;
  decltype(&finitude_cuda_scan) scan;
  decltype(&finitude_cuda_scan_value) scan_value;
  decltype(&finitude_cuda_found_inf) found_inf;
  decltype(&finitude_cuda_poll) poll;
  decltype(&finitude_cuda_wait) wait;
  decltype(&finitude_cuda_query) query;
  decltype(&finitude_cuda_fetch) fetch;
  decltype(&finitude_cuda_capturing) capturing;
  decltype(&finitude_cuda_reserve) reserve;
  decltype(&finitude_cuda_ahead) ahead;
  decltype(&finitude_cuda_join) join;
  decltype(&finitude_cuda_passed) passed;
  decltype(&finitude_cuda_why) why;
};

// Fills `api` from the library at `path`, which stays loaded. Why not, in one line, or "".
std::string load_device_api(const std::string& path, DeviceApi* api);

// A symbol of any library of this process, or null.
void* find_symbol(const char* name) noexcept;

}  // namespace finitude::bindings
