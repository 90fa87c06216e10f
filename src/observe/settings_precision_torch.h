// How exactly float32 is multiplied, by backend and kind of operator: torch.backends.*.fp32_precision, of torch 2.9 on.
#pragma once

#include <string>

namespace finitude::observe {

// "mkldnn.matmul=bf16 cuda.conv=tf32": what was asked for, the caller that asked. "" where nothing was, or torch is
// older.
std::string fp32_precision();

// Makes it as such a text has it. What is so already is not touched; what this torch does not take stays as it is.
void set_fp32_precision(const std::string& wanted);

}  // namespace finitude::observe
