// Names a part of a program, so that a report can say where a value was born even without debug information.
//
//   torch::Tensor forward(torch::Tensor x) {
//     FINITUDE_HERE("head");
//     return linear(x).log();
//   }
#pragma once

#include "finitude/export.h"

namespace finitude {

// While a Scope lives, the operations that its thread issues belong to its site. Scopes nest: the innermost one is the
// line in the report, all of them together are its "module" (Net.head).
//
// Costs two writes to thread-local memory; does not allocate, lock or throw. Works with and without a Recorder, in any
// thread. Scopes of one thread have to end in the reverse order of their construction, in that thread: keep them on the
// stack. Of more than 64 nested scopes the innermost ones are not recorded.
class FINITUDE_API Scope {
 public:
  // A place in the source. The strings are not copied.
  struct Site {
    // Name for the "module" of the report.
    const char* name;
    // __FILE__ and __LINE__.
    const char* file;
    int line;
    // Name of the function, or "".
    const char* function;
  };
  // Opens a scope. `site` is not owned, may not be null, and has to outlive the scope and its use by a report; static
  // storage, as in FINITUDE_HERE, is best.
  explicit Scope(const Site* site) noexcept;
  // Closes it.
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
};

}  // namespace finitude

// FINITUDE_HERE("head") opens a scope from this line to the end of the block. The name has to be a string literal. More
// than one may be used on a line: __COUNTER__ makes the names of the variables differ.
#define FINITUDE_JOIN2(a, b) a##b
#define FINITUDE_JOIN(a, b) FINITUDE_JOIN2(a, b)
#define FINITUDE_HERE(name) FINITUDE_HERE_AS(name, __COUNTER__)
#define FINITUDE_HERE_AS(name, id)                                                                          \
  static constexpr ::finitude::Scope::Site FINITUDE_JOIN(finitude_site_, id){name, __FILE__, __LINE__, ""}; \
  const ::finitude::Scope FINITUDE_JOIN(finitude_scope_, id)(&FINITUDE_JOIN(finitude_site_, id))
