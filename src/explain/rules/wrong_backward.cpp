// The backward of a custom autograd Function makes a non-finite value of finite gradients and finite saved
// tensors.
#include <string>
#include <string_view>

#include "explain/edits.h"
#include "explain/probe.h"
#include "explain/rules/rules.h"
#include "explain/singular.h"

namespace finitude::explain {
namespace {

class WrongBackward : public Rule {
 public:
  const char* name() const override { return "wrong-backward"; }

  std::optional<Finding> judge(const Evidence& evidence) const override {
    const Scene s(evidence);
    if (!s.op || !s.backward || !s.node || is_builtin_node(*s.node)) return std::nullopt;
    // Its own lines made the value: an op with a Python frame, and nothing bad came in or was there in
    // forward.
    if (s.op->stack == record::kNone || !inputs_finite(*s.op) || s.forward_bad() || bad_input(*s.node))
      return std::nullopt;
    std::string name = s.node->name;  // torch names the node after the class
    if (name.ends_with("Backward")) name.resize(name.size() - std::string_view("Backward").size());
    std::string text = "the backward of the custom Function " + name + " makes a non-finite value in " + s.op->name;
    const auto point = find_point(*s.op);
    if (point) text += " (" + zeros_of(point->operand) + " in " + point->arg + ")";
    text += at_rows(s.birth) + ", while its forward is finite";
    Finding result = finding(s, "wrong-backward", kScoreSetting - 10, text,
                             "treat the special case in that backward, or use the built-in operation; "
                             "torch.autograd.gradcheck at such inputs shows it");
    mend_at(s.trace, *s.op, &result);
    Probe probe(s, s.birth.op);
    if (point && point->operand.tensor) probe.zeros_replaced(point->arg);
    probe.again();
    probe.conclude(result, true);
    if (point) Edits(s, s.birth.op).replaced(point->arg, point->edge, 1).into(result);
    return result;
  }
};

}  // namespace

std::unique_ptr<Rule> wrong_backward() { return std::make_unique<WrongBackward>(); }

}  // namespace finitude::explain
