// For tests: a step whose replays are answered from a list.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "explain/finding.h"
#include "replay/edit.h"

namespace finitude::explain {

// Answers in order; what is not in the list could not run.
class TableStep : public replay::StepLab {
 public:
  std::string why_not;
  double seconds = 0.001;
  int same = 3;
  replay::GuiltyRows rows;
  replay::FillTrial fill;
  replay::StepTrial earlier;
  double (*quotient)(double) = nullptr;
  std::vector<double> shares;
  std::vector<replay::StepTrial> answers;
  std::vector<replay::Edit> asked;
  std::string judges = "loss and gradients";
  replay::Repeats played;

  std::string judged() const override { return judges; }
  replay::Repeats repeats(int, int) override { return played; }
  std::string faithful() override { return why_not; }
  double step_seconds() const override { return seconds; }
  replay::StepTrial run(const replay::Edit& edit) override {
    asked.push_back(edit);
    if (asked.size() <= answers.size()) return answers[asked.size() - 1];
    replay::StepTrial none;
    none.why_not = "not in the table";
    return none;
  }
  replay::StepTrial deterministic() override { return {}; }
  replay::GuiltyRows guilty_rows(const std::vector<std::int64_t>&, const replay::JudgedOp&, double) override {
    return rows;
  }
  replay::FillTrial filled(double) override { return fill; }
  replay::StepTrial after_share_of_update(double share) override {
    shares.push_back(share);
    return earlier;
  }
  int again(int) override { return same; }
  std::vector<double> beside(const replay::Beside&, double value) override {
    return quotient ? std::vector<double>{quotient(value)} : std::vector<double>{};
  }
};

inline replay::StepTrial that_ran(std::vector<std::string> bad = {}, std::string difference = {}) {
  replay::StepTrial trial;
  trial.ran = true;
  trial.bad = std::move(bad);
  trial.difference = std::move(difference);
  trial.compared = 7;
  return trial;
}

inline Finding with_edits(std::size_t count) {
  Finding finding;
  for (std::size_t i = 0; i < count; ++i) {
    replay::Edit edit;
    edit.ops = {0};
    edit.text = "edit " + std::to_string(i);
    finding.edits.push_back(edit);
  }
  return finding;
}

}  // namespace finitude::explain
