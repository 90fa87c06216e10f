#include "show/analysis.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "explain/evidence.h"
#include "explain/fix.h"
#include "explain/last_update.h"
#include "explain/left_scale.h"
#include "explain/without_half.h"
#include "locate/batch_rows.h"
#include "locate/op_kinds.h"
#include "locate/slice.h"
#include "show/expressions.h"
#include "show/findings.h"

namespace finitude::show {
namespace {

std::int64_t first_size(const record::TensorUse& use) { return use.shape.empty() ? 0 : use.shape[0]; }

const record::TensorUse* bad_output(const record::Trace& trace, const locate::Birth& birth) {
  if (birth.op >= trace.ops.size() || trace.ops[birth.op].allocates) return nullptr;
  for (const record::TensorUse& use : trace.ops[birth.op].outputs)
    if (!use.health.ok()) return &use;
  return nullptr;
}

// Whether the rows of the birth are samples of the batch. The first dimension of what it made is not always that of the
// batch: attention folds its heads into it, a linear layer the steps of a sequence, a mean has none. And memory as it
// was handed out is bad as a whole: which of it is still bad when it is read, only the search says. Where a sample
// that fails by itself is none of its rows, they are rows of something else that has as many, such as features.
bool rows_are_samples(const record::Trace& trace, const locate::Birth& birth, std::int64_t samples,
                      const std::vector<std::int64_t>& guilty) {
  if (birth.rows.empty()) return false;
  const auto is_row = [&](std::int64_t sample) { return std::ranges::find(birth.rows, sample) != birth.rows.end(); };
  if (!std::ranges::all_of(guilty, is_row)) return false;
  const record::TensorUse* use = bad_output(trace, birth);
  return use != nullptr && first_size(*use) == samples;
}

// Whether what was born is of one sample, which a loader puts together with others to a batch later: its rows are none
// of the batch's.
bool is_of_one_sample(const record::Trace& trace, const locate::Birth& birth) {
  const record::TensorUse* use = bad_output(trace, birth);
  if (use == nullptr || trace.ops[birth.op].phase != record::Phase::kData) return false;
  for (record::OpId id = birth.op + 1; id < trace.ops.size() && trace.ops[id].phase == record::Phase::kData; ++id) {
    const record::Op& op = trace.ops[id];
    const bool joins = locate::base_name(op.name) == "stack" || locate::base_name(op.name) == "cat";
    if (joins &&
        std::ranges::any_of(op.inputs, [&](const record::TensorUse& in) { return in.storage == use->storage; }))
      return true;
  }
  return false;
}

bool takes_rows(const record::Op& op) {
  constexpr std::array kTakes = {"index", "index_select", "slice", "narrow", "split", "split_with_sizes", "chunk"};
  return std::ranges::find(kTakes, locate::base_name(op.name)) != kTakes.end();
}

// Whether a tensor of `all` samples is a whole data set, of which the step does no more than take batches of `rows`
// rows (x = data[index]): then it is those that rows are counted in. A batch from a loader is one whatever is taken of
// it.
bool takes_batches(const record::Trace& trace, std::int64_t all, std::int64_t rows) {
  struct Taken {
    std::int64_t rows = 0;
    bool fits = false, otherwise = false;
  };
  std::map<record::StorageId, Taken> found;
  for (const record::Op& op : trace.ops) {
    if (op.parent != record::kNone) continue;
    for (const record::TensorUse& use : op.inputs) {
      if (first_size(use) != all || use.storage >= trace.storages.size()) continue;
      Taken& taken = found[use.storage];
      taken.otherwise |= !takes_rows(op) || trace.storages[use.storage].origin != record::Origin::kUnknown;
      for (const record::TensorUse& out : op.outputs) {
        taken.rows += first_size(out);
        taken.fits |= first_size(out) == rows;
      }
    }
  }
  return std::ranges::any_of(found, [&](const auto& entry) {
    const Taken& taken = entry.second;
    return taken.fits && !taken.otherwise && taken.rows < all;
  });
}

// Whether something before the birth exchanges the dimension of the batch for another of the same size (x.t() of 8
// samples with 8 features): then it is not certain of which of them the birth's rows are.
bool may_move_rows(const record::Trace& trace, record::OpId birth, std::int64_t rows) {
  constexpr std::array kMoves = {"t",        "transpose", "permute", "movedim", "numpy_T", "swapaxes",
                                 "swapdims", "flip",      "roll",    "sort",    "argsort", "rot90"};
  const auto is_data = [&](const record::TensorUse& use) {
    return first_size(use) == rows && use.storage < trace.storages.size() &&
           trace.storages[use.storage].origin != record::Origin::kParameter;
  };
  for (record::OpId id = 0; id < std::min<std::size_t>(birth, trace.ops.size()); ++id) {
    const record::Op& op = trace.ops[id];
    if (op.parent != record::kNone || op.is_node ||
        std::ranges::find(kMoves, locate::base_name(op.name)) == kMoves.end())
      continue;
    const bool apart = std::ranges::none_of(op.scalars, [](const record::ScalarUse& s) {  // of others than the first
      return s.arg == "dims" ? s.text.rfind("[0", 0) != 0
                             : (s.arg == "dim0" || s.arg == "dim1") && (!s.number || *s.number <= 0);
    });
    const bool reported =
        std::ranges::any_of(op.scalars, [](const record::ScalarUse& s) { return s.arg == "dims" || s.arg == "dim0"; });
    if ((!reported || !apart) && std::ranges::any_of(op.outputs, is_data)) return true;
  }
  return false;
}

// Rows of the birth become samples of the batch; those of the tensor itself stay with the tensor.
void name_samples(const explain::Finding& finding, nlohmann::json* birth) {
  for (nlohmann::json& output : (*birth)["outputs"]) {
    if (output["nan"] == 0 && output["inf"] == 0) continue;
    output["rows"] = (*birth)["rows"];
    break;
  }
  (*birth)["rows"] = finding.guilty;
  (*birth)["rows_of"] = finding.batch_rows;
}

// The cause was worded before it was known that the rows are samples.
void call_samples(const locate::Birth& birth, const explain::Finding& finding, nlohmann::json* text) {
  if (!finding.is_row_a_sample(finding.batch_rows) || finding.across) return;
  const std::string rows = explain::at_rows(birth);
  std::string words = *text;
  const std::size_t at = rows.empty() ? std::string::npos : words.find(rows);
  if (at == std::string::npos || birth.rows_of != 0) return;
  const std::string row = " at row";
  *text = words.replace(at, rows.size(), " at sample" + rows.substr(row.size()) + " of the batch");
}

// Says what the rows of the birth are rows of: those of the batch, where the search for the guilty samples says.
void report_rows(const record::Trace& trace, const locate::Birth& located, const explain::Finding& finding, bool can_be,
                 nlohmann::json* birth) {
  if (located.rows_of != 0 || finding.guilty.empty() || finding.across) return;
  if (located.kind == "optimizer") return;  // its rows are those of a parameter
  const record::TensorUse* use = bad_output(trace, located);
  const std::int64_t rows = use != nullptr ? first_size(*use) : 0;
  if (!can_be || is_of_one_sample(trace, located) ||
      !rows_are_samples(trace, located, finding.batch_rows, finding.guilty)) {
    const bool from_data_set = rows != finding.batch_rows && !located.rows.empty() && rows < finding.batch_rows &&
                               finding.guilty.size() == located.rows.size() &&
                               takes_batches(trace, finding.batch_rows, rows);
    if (from_data_set && may_move_rows(trace, located.op, rows))
      return;  // the experiment names the sample all the same
    if (!from_data_set) {
      if (!finding.of_batch) return;  // rows of some input: the experiment reports it, the birth's rows stay its own
      name_samples(finding, birth);
    } else {
      (*birth)["rows_of"] = rows;
      if (finding.guilty.size() == 1)
        (*birth)["samples"] = finding.guilty;  // of several it is not known which is which
    }
  }
  (*birth)["rows_in"] = "batch";
}

// A divisor that no operation made: in the words of the line that divides by it.
void name_divisor(const record::Trace& trace, record::OpId id, explain::Finding* finding) {
  if (finding->cause_class != "division-by-zero" || id >= trace.ops.size()) return;
  if (!explain::is_constant(trace, explain::operand(trace.ops[id], "other", 1))) return;
  const std::string divisor = divisor_of(trace, id);
  if (divisor.empty()) return;
  const bool literal = divisor == kConstantZero;
  finding->text += "; the divisor is " + divisor + (literal ? " of that line" : "");
  if (literal) finding->fix_text = "take the constant 0 out of this division, or the division out of this line";
}

// The operands of the culprit get the spread of their magnitudes: what the trace has of them in the order of the call.
void add_exponents(const locate::Birth& culprit, explain::Lab* lab, nlohmann::json* birth) {
  if (lab == nullptr || culprit.op == record::kNone) return;
  const std::vector<replay::Spread> spreads = lab->spreads(culprit.op);
  auto next = spreads.begin();
  for (nlohmann::json& input : (*birth)["inputs"]) {
    const auto is_it = [&](const replay::Spread& one) {
      return input["arg"] == one.arg && input["shape"] == one.shape;
    };
    const auto found = std::find_if(next, spreads.end(), is_it);
    if (found == spreads.end()) continue;
    input["exponents"] = {{"first", found->exponents.first}, {"counts", found->exponents.counts}};
    next = found + 1;
  }
}

// Where memory that nobody had written decided, the call that handed it out comes before the operation that its content
// was too much for.
void begin_with_allocation(const record::Trace& trace, const explain::Finding& finding, nlohmann::json* out) {
  nlohmann::json& births = (*out)["births"];
  if (finding.handed_out_by >= trace.ops.size() || births.empty()) return;
  const std::string phase = births[0].value("phase", "");
  if (phase == "memory" || phase == "optimizer") return;
  locate::Birth made;
  made.op = finding.handed_out_by;
  made.kind = "memory";
  nlohmann::json first = birth(trace, made);
  first["inputs"] = first["outputs"] = first["rows"] = nlohmann::json::array();  // what it held by chance
  if (const nlohmann::json& fix = (*out)["fix"]; fix.is_object() && fix.value("line", 0) != 0) {
    for (const char* key : {"file", "line"}) first[key] = fix[key];
    first["source"] = source_line(fix["file"], fix["line"]);
  }
  if (first.value("line", 0) != 0) births.insert(births.begin(), std::move(first));
}

// The indices of births after which no operation of backward runs, though some ran before: they are in what the program
// makes of the gradients. first: the index of the first of these births in the document.
nlohmann::json after_backward(const record::Trace& trace, const std::vector<locate::Birth>& births, std::size_t first) {
  nlohmann::json found = nlohmann::json::array();
  const auto last = std::ranges::find_if(trace.ops.rbegin(), trace.ops.rend(),
                                         [](const record::Op& op) { return op.phase == record::Phase::kBackward; });
  if (last == trace.ops.rend()) return found;
  const auto ran = static_cast<record::OpId>(trace.ops.rend() - last);
  for (std::size_t i = 0; i < births.size(); ++i)
    if (births[i].op != record::kNone && births[i].op >= ran && births[i].kind != "optimizer")
      found.push_back(first + i);
  return found;
}

}  // namespace

nlohmann::json analysis(const record::Trace& trace, const explain::StepHistory& history, explain::Lab* lab,
                        const AnalysisOptions& options) {
  locate::Located located = locate::locate(trace);
  if (options.swallowed && located.births.empty()) located.births = locate::swallowed_overflows(trace, located);
  explain::Finding finding;
  finding.cause_class = "unknown";
  finding.confidence = "possible";
  std::string own_rule;
  if (!located.births.empty()) {
    const explain::Evidence evidence{trace, located, 0, history, lab};
    finding = explain::explain(evidence);
    explain::judge_grown_weights(finding, history, trace, located.births[0].op);
    if (options.own_rules) own_rule = options.own_rules(evidence, &finding);
    if (replay::StepLab* step = options.step && options.seconds > 0 ? options.step() : nullptr) {
      explain::TimeBudget budget;
      budget.most = options.seconds;
      const auto is_refuted = [&](explain::Finding& tried) {
        tried.rows = located.births[0].rows;
        tried.loaded = history.samples;
        tried.born_in =
            located.births[0].first_reader != record::kNone ? located.births[0].first_reader : located.births[0].op;
        return explain::try_on_step(tried, *step, budget, &trace, &history);
      };
      if (is_refuted(finding)) {
        std::optional<explain::Finding> other =
            own_rule.empty() ? explain::explain_without_half(evidence) : std::nullopt;
        budget.most = std::max(0.0, options.seconds - finding.tried_seconds);
        if (other) {
          finding = *std::move(other);
          explain::judge_grown_weights(finding, history, trace, located.births[0].op);
          is_refuted(finding);
        } else {
          explain::doubt_half(finding);
        }
      }
    }
  }
  if (!located.births.empty()) {
    explain::judge_left_scale(finding, history, trace);
    if (const std::string expression = expression_of(trace, located.births[0].op); !expression.empty())
      finding.text += "; of that line it is " + expression;
    name_divisor(trace, located.births[0].op, &finding);
  }
  nlohmann::json out = findings(trace, located, finding);
  const std::vector<bool> can_be = locate::rows_can_be_samples(trace, located.births, out["births"].size());
  for (std::size_t i = 0; i < can_be.size(); ++i)
    if (!can_be[i] && (i > 0 || located.births[0].rows_of == 0)) out["births"][i]["rows_are_samples"] = false;
  if (!located.births.empty()) {
    report_rows(trace, located.births[0], finding, can_be[0], &out["births"][0]);
    add_exponents(located.births[0], lab, &out["births"][0]);
  }
  if (!located.births.empty() && out["births"][0].value("rows_in", "") == "batch" &&
      out["births"][0]["rows"] == nlohmann::json(located.births[0].rows))
    call_samples(located.births[0], finding, &out["cause"]["text"]);
  if (!own_rule.empty()) out["cause"]["rule"] = own_rule;
  out["num_ops"] = trace.ops.size();
  out["truncated"] = trace.truncated;
  out["absorbed"] = nlohmann::json::array();
  for (std::size_t i = 0; i < located.absorbed.size() && i < 16; ++i) {
    out["absorbed"].push_back(birth(trace, located.absorbed[i]));
  }
  if (options.ops != 0) out["ops"] = op_table(trace, options.ops);
  const std::size_t count = out["births"].size();
  begin_with_allocation(trace, finding, &out);
  if (nlohmann::json late = after_backward(trace, located.births, out["births"].size() - count); !late.empty())
    out["after_backward"] = std::move(late);
  return out;
}

}  // namespace finitude::show
