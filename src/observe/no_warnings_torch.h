// While one lives, the warnings of torch on this thread are dropped: what we compute or set up for
// ourselves is not the program's doing.
#pragma once

#include <c10/util/Exception.h>

namespace finitude::observe {

class NoWarnings {
 public:
  NoWarnings() : guard_(&silent_) {}
  NoWarnings(const NoWarnings&) = delete;
  NoWarnings& operator=(const NoWarnings&) = delete;

 private:
  class Silent : public c10::WarningHandler {
   public:
    void process(const c10::Warning&) override {}
  };
  Silent silent_;
  c10::WarningUtils::WarningHandlerGuard guard_;  // after what it refers to
};

}  // namespace finitude::observe
