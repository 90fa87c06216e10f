// The laboratory on torch: runs a captured call again, changed in one way, and looks at what comes out.
#pragma once

#include "observe/tracer_torch.h"
#include "replay/lab.h"

namespace finitude::replay {

// Runs below autograd with no observer and no autocast, on copies: nothing of the user's is touched. Any thread.
// several_ranks: this process is one of several that exchange values; then what may do so is not called.
class TorchLab : public Lab {
 public:
  TorchLab(const observe::Tracer& tracer, bool several_ranks) : tracer_(tracer), several_ranks_(several_ranks) {}
  Trial run(record::OpId op, const Variant& variant) override;
  std::vector<Spread> spreads(record::OpId op) override;
  std::optional<Wrapped> wrapped(record::OpId op) override;
  std::optional<Integers> whole_numbers(record::OpId op, const std::string& arg) override;

 private:
  const observe::Tracer& tracer_;
  bool several_ranks_;
};

}  // namespace finitude::replay
