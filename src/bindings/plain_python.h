// Values as JSON has them, as python/finitude/base/plain_json.py makes them where there is no engine.
#pragma once

#include <pybind11/pybind11.h>

namespace finitude::bindings {

void define_plain(pybind11::module_& m);

}  // namespace finitude::bindings
