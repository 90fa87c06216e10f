#include "show/findings.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "explain/evidence.h"
#include "locate/flows_on.h"
#include "record/exchange.h"
#include "record/packages.h"
#include "record/reported_range.h"
#include "show/exchanges.h"
#include "show/expressions.h"

namespace finitude::show {
namespace {

using nlohmann::json;

const record::Frame* user_frame(const record::Trace& trace, std::uint32_t stack) {
  if (stack == record::kNone || stack >= trace.stacks.size() || trace.stacks[stack].frames.empty()) return nullptr;
  return &trace.stacks[stack].frames.front();
}

void add_place(const record::Trace& trace, std::uint32_t stack, json* out) {
  const record::Frame* frame = user_frame(trace, stack);
  (*out)["file"] = frame ? frame->file : "";
  (*out)["line"] = frame ? frame->line : 0;
  (*out)["source"] = frame ? source_line(frame->file, frame->line) : "";
  (*out)["module"] = frame ? trace.stacks[stack].module : "";
}

// The call of the program's whose derivative the node at hand is. A derivative of a derivative belongs to an operator
// that a node called: it is led on to the call that made that node, and from there to the outermost operator that
// represents it.
record::OpId written_call(const record::Trace& trace, record::OpId forward) {
  record::OpId call = forward;
  for (int depth = 0; depth < 8 && trace.ops[call].stack == record::kNone; ++depth) {
    const record::OpId node = trace.ops[call].node;
    if (node >= trace.ops.size() || !explain::is_builtin_node(trace.ops[node]) ||
        trace.ops[node].forward >= trace.ops.size())
      break;
    call = trace.ops[node].forward;
  }
  for (int depth = 0; call != forward && depth < 8 && trace.ops[call].parent < trace.ops.size(); ++depth) {
    const record::Op& around = trace.ops[trace.ops[call].parent];
    if (around.is_node || !around.name.starts_with("aten::") || around.stack != trace.ops[call].stack) break;
    call = trace.ops[call].parent;
  }
  return call;
}

// Where the line of that place is a package's: the innermost frame of the user's own script. Else null.
json frame_of_script(const record::Trace& trace, std::uint32_t stack) {
  const record::Frame* line = user_frame(trace, stack);
  if (line == nullptr || !record::is_of_package(line->file)) return nullptr;
  for (const record::Frame& frame : trace.stacks[stack].frames) {
    if (record::is_of_package(frame.file)) continue;
    return {{"file", frame.file},
            {"line", frame.line},
            {"source", source_line(frame.file, frame.line)},
            {"function", frame.function}};
  }
  return nullptr;
}

std::string short_text(const record::Op& op) {
  const auto bad = [](const std::vector<record::TensorUse>& uses) {
    sense::Health total;
    for (const auto& use : uses) total = sense::merge(total, use.health);
    return total;
  };
  const sense::Health in = bad(op.inputs), out = bad(op.outputs);
  std::string text;
  if (out.nan) text += std::to_string(out.nan) + " NaN";
  if (out.inf()) text += (text.empty() ? "" : ", ") + std::to_string(out.inf()) + " Inf";
  if (text.empty()) text = "finite";
  if (in.ok() && !out.ok()) text += " from finite inputs";
  return text;
}

}  // namespace

const char* dtype_name(sense::DType dtype) {
  return dtype == sense::DType::kOther ? "other" : sense::info(dtype).name.data();
}

json number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

json statistics(const record::TensorUse& use) {
  const sense::Health& h = use.health;
  json out = {{"arg", use.arg},       {"shape", use.shape},   {"dtype", dtype_name(use.dtype)},
              {"min", number(h.min)}, {"max", number(h.max)}, {"absmax", number(h.absmax)},
              {"nan", h.nan},         {"inf", h.inf()},       {"pos_inf", h.pos_inf},
              {"neg_inf", h.neg_inf}, {"zero", h.zero},       {"numel", h.numel}};
  if (h.subnormal != 0) out["subnormal"] = h.subnormal;
  if (!record::has_range(h)) out["min"] = out["max"] = out["absmax"] = nullptr;
  return out;
}

// The line that took bad memory in: the last view of it that was made for its first reader (x = data[i:j]), else the
// reader itself.
std::uint32_t taken_in_at(const record::Trace& trace, record::StorageId storage, record::OpId reader) {
  for (record::OpId id = reader; id-- > 0;) {
    const record::Op& op = trace.ops[id];
    const auto of_storage = [&](const record::TensorUse& use) { return use.storage == storage; };
    if (op.is_view && op.parent == record::kNone && std::ranges::any_of(op.inputs, of_storage)) return op.stack;
  }
  return trace.ops[reader].stack;
}

json birth(const record::Trace& trace, const locate::Birth& b) {
  // A collective operation is over before its call returns, or after it: the phase in which its values are seen is
  // chance.
  const bool exchanged = b.op < trace.ops.size() && record::exchanges_values(trace.ops[b.op].name);
  json out = {{"phase", exchanged ? "communication" : b.kind},
              {"op", ""},
              {"node", ""},
              {"inputs", json::array()},
              {"outputs", json::array()},
              {"rows", b.rows}};
  const auto op_at = [&](record::OpId id) {
    return id != record::kNone && id < trace.ops.size() ? &trace.ops[id] : nullptr;
  };
  const record::Op* op = op_at(b.op);
  const record::Op* node = op_at(b.node);
  const record::Op* nearest = op_at(b.forward);
  const record::Op* forward = nearest != nullptr ? op_at(written_call(trace, b.forward)) : nullptr;
  std::uint32_t stack = record::kNone;
  if (op != nullptr) {
    out["op"] = op->name;
    stack = op->stack;
    for (const auto& use : op->inputs) out["inputs"].push_back(statistics(use));
    const record::Op* reader = op->is_view ? op_at(b.first_reader) : nullptr;  // a view is looked at where it is read
    for (std::size_t i = 0; i < op->outputs.size(); ++i) {
      if (!locate::flows_on(trace, b.op, i)) continue;
      const auto& use = op->outputs[i];
      const auto read = [&](const record::TensorUse& in) { return in.storage == use.storage && !in.health.ok(); };
      const auto* seen = &use;
      if (reader != nullptr)
        for (const auto& in : reader->inputs)
          if (read(in)) seen = &in;
      out["outputs"].push_back(statistics(*seen));
    }
    json scalars = json::array();
    for (const auto& s : op->scalars) {
      if (!s.text.empty() && s.text != "None") scalars.push_back({{"arg", s.arg}, {"text", s.text}});
    }
    if (!scalars.empty()) out["scalars"] = scalars;
  }
  if (const std::string expression = expression_of(trace, forward != nullptr ? b.forward : b.op); !expression.empty())
    out["expression"] = expression;
  if (op != nullptr && b.storage < trace.storages.size()) out["name"] = trace.storages[b.storage].name;
  if (b.kind == "optimizer" && b.sink < trace.sinks.size() &&
      (!out.contains("name") || out["name"].get<std::string>().empty()))
    out["name"] = trace.sinks[b.sink].name;  // what came of it: its own result is seldom more than an intermediate one
  if (node != nullptr) out["node"] = node->name;
  if (forward != nullptr) {
    json f = {{"op", forward->name}};
    add_place(trace, forward->stack, &f);
    f["inputs"] = json::array();
    for (const auto& use : forward->inputs) f["inputs"].push_back(statistics(use));
    if (forward != nearest) f["text"] = "second derivative, through " + nearest->name;
    out["forward"] = f;
    if (user_frame(trace, stack) == nullptr) stack = forward->stack;  // the engine has no line of its own
  }
  if (op == nullptr && b.storage != record::kNone && b.storage < trace.storages.size()) {
    const record::Storage& storage = trace.storages[b.storage];
    out["name"] = storage.name;
    stack = storage.stack;
    if (const record::Op* reader = op_at(b.first_reader)) {
      for (const auto& use : reader->inputs) {
        if (use.storage != b.storage) continue;
        out["outputs"].push_back(statistics(use));
        out["outputs"].back()["arg"] = "";  // what it holds, whatever the reader calls it
        if (b.rows.empty() && out["rows"].empty() && use.shape.size() > 1) out["rows"] = use.bad_rows;
      }
      if (user_frame(trace, stack) == nullptr) stack = taken_in_at(trace, b.storage, b.first_reader);
      if (user_frame(trace, stack) == nullptr && forward != nullptr) stack = forward->stack;
    }
  }
  if (op != nullptr && user_frame(trace, stack) == nullptr) {
    if (const record::Op* reader = op_at(b.first_reader)) stack = reader->stack;
  }
  if (!out["rows"].empty()) out["rows_in"] = "output";
  if (b.rows_of != 0) {  // of the stack that it went into, not of the sample itself
    out["rows_of"] = b.rows_of;
    out["rows_in"] = "batch";
    for (json& output : out["outputs"]) output["rows"] = json::array();
  }
  add_place(trace, stack, &out);
  out["user_frame"] = frame_of_script(trace, stack);
  if (const record::Op* select = op_at(b.absorbed_by)) {
    json a = {{"op", select->name}};
    add_place(trace, select->stack, &a);
    out["absorbed_by"] = a;
  }
  return out;
}

// The change as code, for the caller that rewrites the source line: which operator at which line, which argument, by
// what.
json edit_of(const record::Trace& trace, const replay::Edit& edit) {
  json out = {{"arg", edit.arg}, {"code", edit.code}};
  if (!edit.ops.empty() && edit.ops.front() < trace.ops.size()) {
    const record::Op& op = trace.ops[edit.ops.front()];
    out["op"] = op.name;
    // Numbers of the program have no methods.
    out["is_number"] = std::none_of(op.inputs.begin(), op.inputs.end(), [&](const record::TensorUse& use) {
      const bool constant =
          use.storage < trace.storages.size() && trace.storages[use.storage].origin == record::Origin::kConstant;
      return use.arg == edit.arg && !(constant && use.shape.empty());
    });
    // A part of an op comes from where it comes from.
    record::OpId id = edit.ops.front();
    for (int depth = 0; depth < 16 && trace.ops[id].stack == record::kNone && trace.ops[id].parent < trace.ops.size();
         ++depth)
      id = trace.ops[id].parent;
    add_place(trace, trace.ops[id].stack, &out);
    // The expression, for the caller that rewrites the line.
    if (const record::Frame* frame = user_frame(trace, trace.ops[id].stack); frame != nullptr && frame->end_column >= 0)
      out["span"] = {frame->line, frame->column, frame->end_line, frame->end_column};
  }
  return out;
}

namespace {

// What runs after the last backward belongs to the last micro-batch, and begins none.
std::uint32_t micro_batch_of(const record::Trace& trace, const record::Op& op) {
  std::uint32_t last = 0;
  bool any = false;
  for (const record::Op& other : trace.ops) {
    if (other.phase != record::Phase::kBackward) continue;
    last = std::max(last, other.micro_batch);
    any = true;
  }
  return any ? std::min(op.micro_batch, last) : op.micro_batch;
}

}  // namespace

namespace {

// Nothing can be asked to change a line of a package: the fix names the line of the user's script that leads there, or
// whose it is.
void lead_out_of_package(const record::Trace& trace, json* fix) {
  const std::string file = (*fix)["file"];
  const int line = (*fix)["line"];
  if (!record::is_of_package(file)) return;
  const std::string path(record::path_in_package(file));
  const std::string name = path.substr(0, path.find('/')), where = path + ":" + std::to_string(line);
  for (std::uint32_t id = 0; id < trace.stacks.size(); ++id) {
    const record::Frame* top = user_frame(trace, id);
    if (top == nullptr || top->line != line || top->file != file) continue;
    const json own = frame_of_script(trace, id);
    if (own.is_null()) continue;
    (*fix)["text"] = (*fix)["text"].get<std::string>() + "; the line that computes it is one of the package " + name +
                     " (" + where + "), which this line of yours leads to: change what it is given, or report it to " +
                     name;
    (*fix)["file"] = own["file"];
    (*fix)["line"] = own["line"];
    return;
  }
  (*fix)["text"] =
      (*fix)["text"].get<std::string>() + "; the line is one of the package " + name + ", to which it can be reported";
}

}  // namespace

namespace {

// Whose words the fix has where it clamps what divides: "rule", "edit", else null.
const char* clamps_divisor(const explain::Finding& finding) {
  // What was found out later may have made it another cause, with other advice.
  const std::optional<replay::Edit>& edit = finding.fix_edit;
  if (finding.cause_class != "division-by-zero" || (edit && !edit->advice.empty())) return nullptr;
  if (edit && !edit->how.empty()) {
    if (edit->kind != replay::Edit::Kind::kClamp) return nullptr;
    if (edit->arg == "other") return "edit";  // else of the root that the divisor is
  }
  return finding.clamps_divisor ? "rule" : nullptr;
}

}  // namespace

json findings(const record::Trace& trace, const locate::Located& located, const explain::Finding& finding) {
  json out = {{"births", json::array()}, {"path", json::array()}};
  constexpr std::size_t kMaxBirths = 16;
  for (std::size_t i = 0; i < located.births.size() && i < kMaxBirths; ++i) {
    out["births"].push_back(birth(trace, located.births[i]));
  }
  if (!located.births.empty()) {
    const locate::Birth& culprit = located.births[0];
    if (json through = exchanges(trace, culprit.op); !through.empty())
      out["births"][0]["exchanges"] = std::move(through);
    static constexpr std::array<std::string_view, 5> kSinks = {"loss", "gradient", "parameter", "state", "buffer"};
    if (!culprit.path.empty() && culprit.sink < trace.sinks.size()) {
      const record::Sink& sink = trace.sinks[culprit.sink];
      if (std::ranges::find(kSinks, sink.kind) != kSinks.end())
        out["births"][0]["sink"] = {{"kind", sink.kind}, {"name", sink.name}};
    }
    const record::OpId at = culprit.op != record::kNone ? culprit.op : culprit.first_reader;
    if (at < trace.ops.size()) out["micro_batch"] = micro_batch_of(trace, trace.ops[at]);
    for (record::OpId id : culprit.path) {
      if (id >= trace.ops.size()) continue;
      const record::Op& op = trace.ops[id];
      json step = {{"op", op.name}, {"text", short_text(op)}};
      add_place(trace, op.stack, &step);
      out["path"].push_back(step);
    }
  }
  json experiments = json::array();
  for (const auto& e : finding.experiments) {
    experiments.push_back({{"name", e.name}, {"outcome", e.outcome}});
    if (e.predicted) experiments.back()["confirms"] = e.confirms;
    if (!e.rows.empty()) experiments.back().update({{"rows", e.rows}, {"rows_of", e.of_rows}});
  }
  out["cause"] = {{"class", finding.cause_class},
                  {"confidence", finding.confidence},
                  {"text", finding.text},
                  {"experiments", experiments}};
  // For what follows; no part of a report.
  if (finding.is_overflow) out["is_overflow"] = true;
  if (finding.came_from != explain::CameFrom::kOther && finding.cause_class == "bad-data")
    out["came_from"] = finding.came_from == explain::CameFrom::kPython ? "Python"
                       : finding.came_from == explain::CameFrom::kNan  ? "NaN"
                                                                       : "Inf";
  if (const char* whose = clamps_divisor(finding)) out["clamps_divisor"] = whose;
  if (finding.budget_seconds > 0) {
    out["cause"]["tried_seconds"] = finding.tried_seconds;
    out["cause"]["budget_seconds"] = finding.budget_seconds;
    out["cause"]["out_of_time"] = finding.out_of_time;
  }
  if (!finding.fix_text.empty()) {
    out["fix"] = {{"text", finding.fix_text},
                  {"verified", finding.fix_verified},
                  {"file", finding.fix_file},
                  {"line", finding.fix_line}};
    lead_out_of_package(trace, &out["fix"]);
    if (!finding.fix_tried.empty()) out["fix"]["tried"] = finding.fix_tried;
    if (!finding.fix_outcome.empty()) out["fix"]["outcome"] = finding.fix_outcome;
    if (finding.fix_edit && !finding.fix_edit->code.empty()) out["fix"]["edit"] = edit_of(trace, *finding.fix_edit);
  } else {
    out["fix"] = nullptr;
  }
  return out;
}

// What the comparison of two traces needs beside: which memory, and how large the values are together.
json traced(const record::TensorUse& use) {
  json out = statistics(use);
  if (use.health.numel != 0 && record::has_range(use.health)) out["sum_sq"] = number(use.health.sum_sq);
  if (use.storage == record::kNone) return out;
  out["storage"] = use.storage;
  out["begin"] = use.begin;
  out["end"] = use.end;
  return out;
}

std::size_t depth_of(const record::Trace& trace, const record::Op& op) {
  std::size_t depth = 0;
  record::OpId id = op.parent;
  for (std::size_t steps = 0; id < trace.ops.size() && steps < 1000; ++steps, id = trace.ops[id].parent)
    depth += !trace.ops[id].is_node;
  return depth;
}

std::optional<double> growth_of(const record::Op& op) {
  double in = 0, out = 0;
  bool bad = false, ranged = true;
  for (const auto& use : op.inputs) {
    in = std::max(in, use.health.absmax);
    ranged &= record::has_range(use.health);
  }
  for (const auto& use : op.outputs) {
    out = std::max(out, use.health.absmax);
    ranged &= record::has_range(use.health);
    bad |= !use.health.ok();
  }
  if (bad) return HUGE_VAL;
  return in > 0 && ranged ? std::optional(out / in) : std::nullopt;
}

json op_table(const record::Trace& trace, std::size_t max_ops) {
  static constexpr const char* kPhases[] = {"forward", "backward", "optimizer", "data"};
  json ops = json::array();
  for (const record::Op& op : trace.ops) {
    if (ops.size() >= max_ops) break;
    if (op.is_node) continue;
    json row = {{"op", op.name},
                {"phase", kPhases[static_cast<int>(op.phase)]},
                {"micro_batch", op.micro_batch},
                {"inputs", json::array()},
                {"outputs", json::array()}};
    const record::Frame* frame = user_frame(trace, op.stack);
    row["file"] = frame ? frame->file : "";
    row["line"] = frame ? frame->line : 0;
    row["module"] = frame ? trace.stacks[op.stack].module : "";
    for (const auto& use : op.inputs) {
      row["inputs"].push_back(traced(use));
      if (use.storage < trace.storages.size() && !trace.storages[use.storage].name.empty())
        row["inputs"].back()["text"] = trace.storages[use.storage].name;
      if (use.storage < trace.storages.size() && use.health.numel == 1 &&
          trace.storages[use.storage].origin == record::Origin::kConstant)
        row["inputs"].back()["constant"] = true;
    }
    for (const auto& use : op.outputs) row["outputs"].push_back(traced(use));
    row["depth"] = depth_of(trace, op);
    if (op.is_view) row["view"] = true;
    if (op.allocates) row["allocates"] = true;
    if (op.random) row["random"] = true;
    for (const auto& s : op.scalars) {
      if (!s.text.empty() && s.text != "None") row["scalars"].push_back({{"arg", s.arg}, {"text", s.text}});
    }
    const auto growth = growth_of(op);
    row["growth"] = growth ? number(*growth) : json(nullptr);
    ops.push_back(std::move(row));
  }
  return ops;
}

}  // namespace finitude::show
