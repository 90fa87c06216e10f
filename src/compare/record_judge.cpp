#include "compare/record_judge.h"

#include <algorithm>
#include <map>
#include <set>

namespace finitude::compare {
namespace {

using Kind = RecordRoot::Kind;

constexpr std::size_t kMostFurther = 64, kMostOthers = 16;

std::string parent_of(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string::npos ? std::string() : name.substr(0, dot);
}

bool draws(const Record& record) {
  const std::string& op = record.op;
  for (const char* part : {"Dropout", "dropout", "rand", "bernoulli", "normal_", "uniform_", "multinomial", "RReLU"}) {
    if (op.find(part) != std::string::npos) return true;
  }
  return false;
}

// Of two modules inside of a model. FSDP2 derives the class of a module: FSDPLinear is a Linear.
bool has_other_class(const Record& a, const Record& b) {
  const auto is_module = [](const Record& r) { return r.module.find('.') != std::string::npos && r.module != r.op; };
  return is_module(a) && is_module(b) && !a.op.ends_with(b.op) && !b.op.ends_with(a.op);
}

// "blocks.1.weight", as gradients of parameters are named.
std::set<std::string> parameters_of(const Dump& dump) {
  std::set<std::string> names;
  for (const Record& record : dump.records) {
    const std::size_t root = record.module.find('.');
    const std::string path = root == std::string::npos ? "" : record.module.substr(root + 1) + ".";
    for (const RecordValue& value : record.parameters) names.insert(path + value.arg + ".grad");
  }
  return names;
}

class RecordJudge {
 public:
  RecordJudge(const Dump& a, const Dump& b, const std::vector<RecordRow>& rows, const std::vector<RecordPair>& pairs)
      : a_(a), b_(b), rows_(rows), pairs_(pairs) {}

  RecordJudgement run() {
    out_.noise_row = rows_.size();
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      if (rows_[r].a != kGap) row_of_[of_a(r).phase + "\n" + of_a(r).module].push_back(r);
    }
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      if (!is_pair(r)) {
        ++(rows_[r].a != kGap ? out_.only_a : out_.only_b);
        continue;
      }
      count(r);
      look(r);
      if (rows_[r].a != kGap) {
        for (const RecordValue& value : of_a(r).outputs) made_.insert(value.identity());
      }
    }
    if (!out_.has_root) look_for_gradients();
    return std::move(out_);
  }

 private:
  // A parameter of both sides, of which one has no gradient. Behind the last gradient of both a dump may have ended.
  void look_for_gradients() {
    std::size_t end = rows_.size();
    while (end > 0 && !(is_pair(end - 1) && of_a(end - 1).is_parameter())) --end;
    for (std::size_t r = 0; r < end; ++r) {
      if (is_pair(r)) continue;
      const bool in_a = rows_[r].a != kGap;
      const Record& one = in_a ? of_a(r) : of_b(r);
      if (!one.is_parameter() || one.phase != "backward" || !parameters_of(in_a ? b_ : a_).contains(one.name()))
        continue;
      out_.has_root = true;
      out_.first.row = r;
      out_.first.kind = Kind::kGradient;
      out_.first.others = {r};
      return;
    }
  }

  bool is_pair(std::size_t r) const { return rows_[r].a != kGap && rows_[r].b != kGap; }
  const Record& of_a(std::size_t r) const { return a_.records[rows_[r].a]; }
  const Record& of_b(std::size_t r) const { return b_.records[rows_[r].b]; }

  void count(std::size_t r) {
    const Level level = pairs_[r].out;
    ++out_.pairs;
    ++(level == Level::kSame      ? out_.same
       : level == Level::kNoise   ? out_.noise
       : level == Level::kDiffers ? out_.differ
                                  : out_.unknown);
    if (level == Level::kNoise && out_.noise_row == rows_.size()) out_.noise_row = r;
    out_.by_structure += rows_[r].by == MatchedBy::kStructure;
    out_.other_dtype += pairs_[r].has_other_dtype;
    if (pairs_[r].has_other_settings) out_.other_settings.push_back(r);
  }

  void look(std::size_t r) {
    const RecordPair& pair = pairs_[r];
    const bool differs = pair.out == Level::kDiffers;
    // A setting that changes the bits is a cause however small the difference is.
    const bool is_set = pair.has_other_settings && pair.out == Level::kNoise && pair.in != Level::kDiffers &&
                        pair.in != Level::kNoise && pair.own != Level::kDiffers;
    if (!differs && !is_set) return;
    if (out_.has_root) {
      const bool is_own = pair.in != Level::kDiffers && !pair.inputs.empty();
      if (is_own && out_.further.size() < kMostFurther && !explained(r)) out_.further.push_back(r);
      differing_.push_back(r);
      return;
    }
    differing_.push_back(r);
    out_.has_root = true;
    out_.first.row = r;
    judge_first(r, pair);
  }

  // A module that holds one whose outcome differs as well.
  bool explained(std::size_t r) const {
    const std::string prefix = of_a(r).module + ".";
    return std::any_of(differing_.begin(), differing_.end(), [&](std::size_t other) {
      return of_a(other).phase == of_a(r).phase && of_a(other).module.starts_with(prefix);
    });
  }

  void judge_first(std::size_t r, const RecordPair& pair) {
    RecordRoot& root = out_.first;
    const Record &ra = of_a(r), &rb = of_b(r);
    if (pair.in == Level::kDiffers) return judge_inputs(r, pair);
    if (pair.own == Level::kDiffers || (pair.own == Level::kNoise && !pair.has_other_settings)) {
      root.kind = Kind::kParameter;
      for (const Measured& m : pair.parameters) {
        if (m.level == pair.own) root.explainers.push_back(ra.parameters[m.a].arg);
      }
      return;
    }
    if (pair.has_other_settings || has_other_class(ra, rb)) {
      root.kind = Kind::kSettings;
      root.explainers = {ra.op + "(" + ra.settings + ")", rb.op + "(" + rb.settings + ")"};
      return;
    }
    if (ra.phase == "optimizer") {
      root.kind = Kind::kOptimizer;
      return;
    }
    if (ra.phase == "backward" && pair.inputs.empty()) {
      root.kind = Kind::kGradient;
      add_calls(r);
      return;
    }
    if (pair.inputs.empty() && !draws(ra)) {  // reads nothing that was recorded
      root.kind = Kind::kBetween;
      root.within = parent_of(ra.module);
      return add_calls(r);
    }
    root.kind = draws(ra) ? Kind::kRandom : Kind::kModule;
    // A module whose children are recorded, and agree: its own code.
    const bool has_children = std::any_of(row_of_.begin(), row_of_.end(), [&](const auto& one) {
      return one.first.starts_with(ra.phase + "\n" + ra.module + ".");
    });
    if (has_children && root.kind == Kind::kModule) {
      root.kind = Kind::kBetween;
      root.within = ra.module;
      add_calls(r);
    }
  }

  // What a record reads differs, and no record before it differs: it was made by code that has no record, or was given.
  void judge_inputs(std::size_t r, const RecordPair& pair) {
    RecordRoot& root = out_.first;
    const Record& ra = of_a(r);
    bool is_made = false;
    std::set<std::string> read;
    for (const Measured& m : pair.inputs) {
      if (m.level != Level::kDiffers) continue;
      root.explainers.push_back(ra.inputs[m.a].arg);
      read.insert(ra.inputs[m.a].identity());
      is_made |= made_.contains(ra.inputs[m.a].identity());
    }
    root.kind = Kind::kBetween;
    root.within = parent_of(ra.module);
    if (!is_made) {
      bool is_known = false;  // a module around it has a record
      std::string around = root.within;
      for (; !around.empty(); around = parent_of(around)) {
        const auto found = row_of_.find(ra.phase + "\n" + around);
        if (found == row_of_.end()) continue;
        is_known = true;
        const std::size_t outer = found->second.front();
        if (!is_pair(outer) || pairs_[outer].in != Level::kDiffers) break;
        root.within = parent_of(around);
        if (root.within.empty()) root.kind = Kind::kData;
      }
      const bool is_first = out_.same + out_.noise == 0;
      if (!is_known && (is_first || root.within.empty()) && ra.phase == "forward" && made_.empty())
        root.kind = Kind::kData;
    }
    if (root.kind == Kind::kData) return;
    add_calls(r);
  }

  // Records of one side since the last pair before `r` with the same outcome.
  void add_calls(std::size_t r) {
    RecordRoot& root = out_.first;
    for (std::size_t at = r; at-- > 0 && root.others.size() < kMostOthers;) {
      if (is_pair(at)) {
        if (of_a(at).module.starts_with(of_a(r).module + ".")) continue;
        break;
      }
      const Record& one = rows_[at].a != kGap ? a_.records[rows_[at].a] : b_.records[rows_[at].b];
      if (one.phase == of_a(r).phase) root.others.push_back(at);
    }
    std::reverse(root.others.begin(), root.others.end());
    if (!root.others.empty() && root.kind == Kind::kBetween) root.kind = Kind::kCalls;
  }

  const Dump &a_, &b_;
  const std::vector<RecordRow>& rows_;
  const std::vector<RecordPair>& pairs_;
  std::map<std::string, std::vector<std::size_t>> row_of_;  // by phase and module
  std::set<std::string> made_;                              // identities of what records before returned in A
  std::vector<std::size_t> differing_;
  RecordJudgement out_;
};

}  // namespace

RecordJudgement judge_records(const Dump& a, const Dump& b, const std::vector<RecordRow>& rows,
                              const std::vector<RecordPair>& pairs) {
  return RecordJudge(a, b, rows, pairs).run();
}

std::string_view word(Kind kind) noexcept {
  switch (kind) {
    case Kind::kModule:
      return "module";
    case Kind::kSettings:
      return "settings";
    case Kind::kParameter:
      return "parameter";
    case Kind::kRandom:
      return "random";
    case Kind::kData:
      return "data";
    case Kind::kBetween:
      return "between";
    case Kind::kCalls:
      return "calls";
    case Kind::kGradient:
      return "gradient";
    case Kind::kOptimizer:
      return "optimizer";
  }
  return "module";
}

}  // namespace finitude::compare
