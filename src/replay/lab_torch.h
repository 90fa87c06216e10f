// The laboratory on torch: runs a captured call again, changed in one way, and looks at what comes out.
#pragma once

#include "observe/tracer_torch.h"
#include "replay/lab.h"

namespace finitude::replay {

// Runs below autograd with no observer and no autocast, on copies: nothing of the user's is touched. Any thread.
class TorchLab : public Lab {
 public:
  explicit TorchLab(const observe::Tracer& tracer) : tracer_(tracer) {}
  Trial run(record::OpId op, const Variant& variant) override;

 private:
  const observe::Tracer& tracer_;
};

}  // namespace finitude::replay
