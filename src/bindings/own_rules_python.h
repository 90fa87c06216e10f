// Rules that a user wrote in Python (finitude.rule), judged beside those of src/explain/rules/.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "explain/finding.h"

namespace finitude::bindings {

// _native.set_rules([(name, function)]): the rules of the next _native.analyse. Each function is called with
//     (evidence, probe)
// evidence: JSON, {"birth": as in a report, "first": the first link of the chain, "history": ...}. probe:
// experiments on the first link, `probe.expect(name, variant, finite)`, usable until the function returns;
// variant: the fields of replay::Variant by name. Its answer is None, or a dict: "class", "text", "fix",
// "score", "confidence" (or None), "unambiguous". It must not raise: what does counts as None.
void define_own_rules(pybind11::module_& m);

// They compete with ours by score: where one is above `best`, what the built-in rules found, it takes its place.
// Between equal scores ours win, and among themselves the one that was entered first. Returns the name of the rule that
// won, or "". Takes the GIL, which the caller must not hold.
std::string ask_own_rules(const explain::Evidence& evidence, explain::Finding* best);

}  // namespace finitude::bindings
