// The one place that says who hangs on the gate.
#pragma once

namespace finitude::bindings {

// Once, as the module is loaded.
void connect_listeners();

}  // namespace finitude::bindings
