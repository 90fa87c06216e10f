// Threads for work beside a training.
#pragma once

#include <functional>
#include <thread>

namespace finitude::base {

// A thread that takes no signal of the program's, runs on every processor of the process and is nicer than the
// caller's. Throws std::system_error where there can be none. `work` does not throw.
std::thread background_thread(std::function<void()> work);

}  // namespace finitude::base
