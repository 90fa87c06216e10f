// Experiments on one captured op, and what they make of a finding's confidence.
#pragma once

#include <string>
#include <vector>

#include "explain/evidence.h"

namespace finitude::explain {

// Runs variants of one op in the laboratory, where there is one and the op was captured; otherwise does
// nothing. Each call says what the cause predicts; an outcome other than that contradicts it.
class Probe {
 public:
  Probe(const Scene& scene, record::OpId op);

  bool finite_if(std::string name, const Variant& variant);  // predicted: the output becomes finite
  bool still_bad(std::string name, const Variant& variant);  // predicted: it does not

  // The usual ones.
  void clamped(std::string_view arg, double min);
  void zeros_replaced(std::string_view arg);
  void in_float64(bool helps);
  void without_rows();  // the birth's rows skipped; only where they are rows of this very op
  void again();

  // Confidence by what ran: proven by two or more that all confirm; possible where one contradicts, which
  // also costs score; likely where one ran, or none did and the statistics alone leave no other reading.
  void conclude(Finding& finding, bool unambiguous) const;

 private:
  // infinities_meant: those that it reads continue through it, and only NaN counts.
  bool record(std::string name, const Variant& variant, bool expect_finite, bool infinities_meant = false);

  const Scene& scene_;
  record::OpId op_;
  std::vector<Experiment> experiments_;
};

// Confidence where no experiment applies.
void conclude(Finding& finding, bool unambiguous);

}  // namespace finitude::explain
