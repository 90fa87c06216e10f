#include "incident/environment.h"

#include <cstdlib>

namespace finitude::incident {

nlohmann::json environment() {
  nlohmann::json found = nlohmann::json::object();
  for (const char* name :
       {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "MKL_CBWR", "ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA",
        "ONEDNN_MAX_CPU_ISA", "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE", "CUDA_VISIBLE_DEVICES",
        "PYTHONHASHSEED", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"}) {
    if (const char* value = std::getenv(name)) found[name] = value;
  }
  return found;
}

}  // namespace finitude::incident
