// A rule to copy. It is compiled, but not in the list, so it never speaks. To add a cause:
//   1. copy this file to rules/<your_cause>.cpp and rename the class and the factory at the bottom;
//   2. declare the factory in rules/rules.h and put it into rule_list.cpp;
//   3. add a case and its innocent twin to rules_test.cpp.
// Go by ops, argument names, statistics and data flow. Never by a file, variable, module or case name.
#include "explain/origin.h"
#include "explain/probe.h"
#include "explain/rules/rules.h"

namespace finitude::explain {

class SkeletonRule : public Rule {
 public:
  const char* name() const override { return "skeleton"; }

  std::optional<Finding> judge(const Evidence& evidence) const override {
    const Scene s(evidence);  // s.op: the birth's op; s.first: the first link of the chain, often the same op
    if (!s.first) return std::nullopt;

    // 1. The op family. Names are compared in their plain form: "aten::_foreach_tan_" is "tan".
    if (plain_name(s.first->name) != "tan") return std::nullopt;

    // 2. The operand that matters and what makes it guilty. Say nothing unless the statistics show it.
    const Operand x = operand(*s.first, "self", 0);
    const auto* bad = bad_output(*s.first);
    if (!x || !bad || bad->health.inf() == 0) return std::nullopt;

    // 3. The finding: a class of docs/contract.md, "Cause classes", a score from the scale in evidence.h, one sentence,
    // a fix.
    Finding result =
        finding(s, "domain-edge", kScorePoint,
                "tan at a pole: " + counted(bad->health.inf(), "infinite value") + at_rows(s.birth) + hidden_by(s),
                "keep the argument away from pi / 2");

    // 4. Experiments, each with what the cause predicts; then the confidence follows.
    Probe probe(s, s.culprit);
    probe.in_float64(true);
    probe.without_rows();
    probe.conclude(result, /*unambiguous=*/false);
    return result;
  }
};

std::unique_ptr<Rule> skeleton() { return std::make_unique<SkeletonRule>(); }

}  // namespace finitude::explain
