// The objects that calls of torch.distributed are given, by name.
#pragma once

#include <ATen/core/ivalue.h>

#include <optional>
#include <string>

namespace finitude::observe {

// Of a process group its name ("0"), of a reduction what it is called in torch.distributed ("sum"); empty where that
// cannot be said, as of a reduction with a factor. Nothing: the value is no such object. Any thread; throws as torch
// does.
std::optional<std::string> name_of_distributed(const c10::IValue& value);

}  // namespace finitude::observe
