// A global object that is made when the library is loaded and never destroyed: hooks and threads may use it while the
// process ends. Unlike with a local static, using it asks no question whether it is there, which healthy steps would
// ask a hundred times each.
#pragma once

#include <new>

namespace finitude::base {

// Not to be used by what runs when the library is loaded.
template <typename T>
class Immortal {
 public:
  Immortal() { ::new (static_cast<void*>(memory_)) T(); }
  Immortal(const Immortal&) = delete;
  Immortal& operator=(const Immortal&) = delete;
  T& operator*() noexcept { return *std::launder(reinterpret_cast<T*>(memory_)); }

 private:
  alignas(T) unsigned char memory_[sizeof(T)];
};

}  // namespace finitude::base
