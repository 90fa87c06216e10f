#include "observe/settings_torch.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/ScalarType.h>
#include <torch/version.h>

#include <cstdlib>

#include "observe/settings_precision_torch.h"

namespace finitude::observe {
namespace {

// torch.get_float32_matmul_precision(); "" where fp32_precision was set since, for torch refuses to answer then.
std::string matmul_precision() try {
  switch (at::globalContext().float32MatmulPrecision()) {
    case at::Float32MatmulPrecision::HIGH:
      return "high";
    case at::Float32MatmulPrecision::MEDIUM:
      return "medium";
    default:
      return "highest";
  }
} catch (const std::exception&) {
  return "";
}

// A denormal result is zero where the processor flushes it.
bool flushes_denormals() {
  volatile double small = 2.2250738585072014e-308;
  return small / 2 == 0;
}

void apply(const Settings& settings) {
  at::Context& context = at::globalContext();
  for (const auto& [name, value] : settings) {
    const bool on = value == "1";
    if (name == "threads") {
      if (const int threads = std::atoi(value.c_str()); threads > 0 && threads <= 1024) at::set_num_threads(threads);
    } else if (name == "default_dtype") {
      const int number = std::atoi(value.c_str());
      if (number == static_cast<int>(c10::ScalarType::Float) || number == static_cast<int>(c10::ScalarType::Double) ||
          number == static_cast<int>(c10::ScalarType::Half) || number == static_cast<int>(c10::ScalarType::BFloat16)) {
        c10::set_default_dtype(c10::scalarTypeToTypeMeta(static_cast<c10::ScalarType>(number)));
      }
    } else if (name == "deterministic") {
      context.setDeterministicAlgorithms(on, context.deterministicAlgorithmsWarnOnly());
    } else if (name == "deterministic_warn_only") {
      context.setDeterministicAlgorithms(context.deterministicAlgorithms(), on);
    } else if (name == "fill_uninitialized") {
      context.setDeterministicFillUninitializedMemory(on);
    } else if (name == "mkldnn") {
      context.setUserEnabledMkldnn(on);
    } else if (name == "matmul_precision" && (value == "highest" || value == "high" || value == "medium")) {
      // It is another name for the precisions of several backends, which a program may have set one by one.
      if (matmul_precision() != value) context.setFloat32MatmulPrecision(value);
    } else if (name == "fp32_precision") {
      set_fp32_precision(value);
    } else if (name == "flush_denormal") {
      context.setFlushDenormal(on);
    } else if (!at::hasCUDA()) {
      continue;  // what follows is reported, and put back, where there is CUDA
    } else if (name == "cudnn") {
      context.setUserEnabledCuDNN(on);
    } else if (name == "cudnn_benchmark") {
      context.setBenchmarkCuDNN(on);
    } else if (name == "cudnn_deterministic") {
      context.setDeterministicCuDNN(on);
    }
  }
}

}  // namespace

Settings torch_settings() {
  at::Context& context = at::globalContext();
  Settings settings{{"threads", std::to_string(at::get_num_threads())},
                    {"default_dtype", std::to_string(static_cast<int>(c10::get_default_dtype_as_scalartype()))},
                    {"deterministic", context.deterministicAlgorithms() ? "1" : "0"},
                    {"deterministic_warn_only", context.deterministicAlgorithmsWarnOnly() ? "1" : "0"},
                    {"fill_uninitialized", context.deterministicFillUninitializedMemory() ? "1" : "0"},
                    {"mkldnn", context.userEnabledMkldnn() ? "1" : "0"},
                    {"flush_denormal", flushes_denormals() ? "1" : "0"},
                    {"cpu_capability", at::get_cpu_capability()},
                    {"torch", TORCH_VERSION}};
  if (const std::string precision = matmul_precision(); !precision.empty())
    settings.emplace_back("matmul_precision", precision);
  settings.emplace_back("fp32_precision", fp32_precision());  // behind the other name for a part of it
  if (at::hasCUDA()) {
    settings.emplace_back("cudnn", context.userEnabledCuDNN() ? "1" : "0");
    settings.emplace_back("cudnn_benchmark", context.benchmarkCuDNN() ? "1" : "0");
    settings.emplace_back("cudnn_deterministic", context.deterministicCuDNN() ? "1" : "0");
  }
  return settings;
}

WithSettings::WithSettings(const Settings& settings) : before_(torch_settings()) { apply(settings); }

WithSettings::~WithSettings() {
  try {
    apply(before_);
  } catch (...) {
  }
}

}  // namespace finitude::observe
