#include "compare/arguments.h"

#include <algorithm>
#include <string>

namespace finitude::compare {
namespace {

// An argument may say the dtype of another one (`input_dtype`): where the sides compute in different ones, that is no
// difference beside it.
bool says_dtype(const std::string& arg) { return arg == "dtype" || arg.ends_with("_dtype"); }
bool read_other_dtypes(const Call& a, const Call& b) {
  for (std::size_t k = 0; k < std::min(a.inputs.size(), b.inputs.size()); ++k) {
    if (a.inputs[k].element.dtype != b.inputs[k].element.dtype) return true;
  }
  return false;
}

}  // namespace

bool one_form(const Call& a, const Call& b) { return a.op == b.op && a.overload == b.overload; }

std::vector<std::pair<Scalar, Scalar>> other_arguments(const Call& a, const Call& b) {
  std::vector<std::pair<Scalar, Scalar>> other;
  const bool other_dtypes = read_other_dtypes(a, b);
  const auto find = [](const Call& call, const std::string& arg) {
    const auto found =
        std::find_if(call.scalars.begin(), call.scalars.end(), [&](const Scalar& s) { return s.arg == arg; });
    return found == call.scalars.end() ? Scalar{arg, ""} : *found;
  };
  // Of two forms of one operator each has arguments that the other knows nothing of.
  const bool one = one_form(a, b);
  for (const Scalar& s : a.scalars) {
    const Scalar t = find(b, s.arg);
    if (other_dtypes && says_dtype(s.arg)) continue;
    if (t.text != s.text && (one || !t.text.empty())) other.emplace_back(s, t);
  }
  for (const Scalar& t : b.scalars) {
    if (one && find(a, t.arg).text.empty() && !t.text.empty()) other.emplace_back(Scalar{t.arg, ""}, t);
  }
  return other;
}

}  // namespace finitude::compare
