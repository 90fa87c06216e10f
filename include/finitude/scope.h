// Names a part of a program, so that a report can say where a value was born even without debug information.
#pragma once

#include "finitude/export.h"

namespace finitude {

// While one lives, what its thread computes belongs to this place. Scopes nest: the innermost is the line of the
// report, all of them together are its "module" (Net.head). Two writes to thread-local memory, at any time, in any
// thread; beyond 64 nested ones the inner are not told.
class FINITUDE_API Scope {
 public:
  struct Site {
    const char* name;
    const char* file;
    int line;
    const char* function;
  };
  // `site` has to outlive the scope; it is best static, as in FINITUDE_HERE.
  explicit Scope(const Site* site) noexcept;
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
};

}  // namespace finitude

#define FINITUDE_JOIN2(a, b) a##b
#define FINITUDE_JOIN(a, b) FINITUDE_JOIN2(a, b)
// FINITUDE_HERE("head"): from this line to the end of the block. The name is a string literal.
// Any number of them may stand on a line.
#define FINITUDE_HERE(name) FINITUDE_HERE_AS(name, __COUNTER__)
#define FINITUDE_HERE_AS(name, id)                                                                          \
  static constexpr ::finitude::Scope::Site FINITUDE_JOIN(finitude_site_, id){name, __FILE__, __LINE__, ""}; \
  const ::finitude::Scope FINITUDE_JOIN(finitude_scope_, id)(&FINITUDE_JOIN(finitude_site_, id))
