// The changes to the program by which a rule's fix can be tried on the whole step.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "explain/evidence.h"

namespace finitude::explain {

// The next larger number that takes two digits to write: what is reported is what was tried.
double in_two_digits(double value);

// Names edits of one call, best first. They are of all calls of that operator that come from the same expression:
// what is changed there is changed for each of them. Each is named only where it can make sense: an argument
// that the call does not have is skipped.
class Edits {
 public:
  // The call that the program would change: of a birth in backward the forward call that its node belongs to,
  // unless a custom Function's own lines made the value.
  explicit Edits(const Scene& scene);
  Edits(const Scene& scene, record::OpId call);

  Edits& at_least(std::string_view arg, double min);
  Edits& at_most(std::string_view arg, double max);
  Edits& between(std::string_view arg, double min, double max);
  // Inside the open interval, by a margin that the format can distinguish from nothing.
  Edits& inside(std::string_view arg, double low, double high);
  Edits& replaced(std::string_view arg, double from, double to);
  // What is not finite in that operand of the call.
  Edits& filled(const record::TensorUse& operand, double to);
  // Above zero: at a floor that the format divides by well, then at its smallest normal number.
  Edits& above(std::string_view arg, double edge);
  // Less its largest element along these dimensions, or of all where there are none.
  // Where `added_to` is a call, it is added to what that gives.
  Edits& less_maximum(std::string_view arg, const std::vector<std::int64_t>& dims,
                      record::OpId added_to = record::kNone);
  // Infinities become the largest finite number of the format.
  Edits& bounded(std::string_view arg);
  Edits& left_out(double fill = 0, std::string switch_on = {});
  // The edits so far, or the first so many, are what the rule's fix text names. Where another one is verified, the
  // report names that one.
  Edits& named_by_rule(std::size_t count = SIZE_MAX);
  // What to write in the program where the edit before this one is the fix, and how it is called, where that is not
  // empty.
  Edits& advised(std::string advice, std::string text = {});
  Edits& computed_in(sense::DType dtype);

  void into(Finding& finding) const;

  // The call that is changed; null where there is none.
  const record::Op* call() const;

 private:
  Edits& clamp(std::string_view arg, double min, double max);  // an infinite bound is none
  void add(replay::Edit edit, const std::string& how);
  std::string operand_words(std::string_view arg) const;
  bool writes(std::string_view arg) const;  // the call does: log_, rsqrt_
  sense::DType dtype_of(std::string_view arg) const;

  const Scene& scene_;
  record::OpId call_ = record::kNone;
  std::vector<record::OpId> calls_;
  std::vector<replay::Edit> edits_;
};

// Where the sink was reached from other births in calls of the same operator: the same edits of all of them, after
// the others.
void also_at_other_births(Finding& finding, const Evidence& evidence);

// Where the same operator reads the same operand again (y = x / n; g / n), and the first result hides that the second
// fails too: the same edits of all those calls, after the others.
void also_where_it_is_read_again(Finding& finding, const Evidence& evidence);

// Where other calls read the same values that are not finite (the batch of which a sum and a product are taken): an
// edit that puts a number in their place, at all of them, after the others. Where they are finite, and another operator
// has no value there either (var.log() + d / var): the first edit of an argument, at all such births.
void also_at_other_readers(Finding& finding, const Evidence& evidence);

// Of `wide`, edits of all calls from one expression (the stages of a solver, the layers of a loop), where not all of
// them went wrong: the same edits of those that did, after the others.
void also_at_guilty_calls(Finding& finding, const std::vector<replay::Edit>& wide, const Evidence& evidence);

}  // namespace finitude::explain
